// The same as a C++ compiler sees them.
#include "layout.c"

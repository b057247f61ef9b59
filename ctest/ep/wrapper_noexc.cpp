// nanomc/ep.hpp without exceptions (and without RTTI): the same calls, and the throwing forms are not there.
#include "nanomc.hpp"
#if NMC_HPP_EXCEPTIONS
#error "build this file with -fno-exceptions"
#endif
#include "wrapper.cpp"

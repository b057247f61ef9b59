// nanomc/client.hpp without exceptions (and without RTTI): the same calls in the form with results.
#include "nanomc/core.hpp"
#if NMC_HPP_EXCEPTIONS
#error "build this file with -fno-exceptions"
#endif
#include "wrapper.cpp"

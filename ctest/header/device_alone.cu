// The device header needs nothing before it, and may be included twice.
#include "nanomc/device.cuh"
#include "nanomc/device.cuh"

// The one translation unit of the fatbin. A new kernel file is included here.

#include "world.cu"
#include "store.cu"
#include "kv.cu"
#include "ep.cu"
#include "ep_gemm.cu"

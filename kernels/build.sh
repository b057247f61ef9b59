#!/bin/sh
# Compiles the kernels into OUTDIR/nanomc.fatbin: machine code for sm_80, sm_90 and sm_100, and PTX for anything newer.
# The build script calls this when NMC_NVCC is set; with NMC_BLESS_KERNELS=1 as well it also replaces kernels/prebuilt.
# usage: kernels/build.sh NVCC OUTDIR
set -eu
if [ $# -ne 2 ]; then
  echo "usage: kernels/build.sh NVCC OUTDIR" >&2
  exit 2
fi
nvcc=$1
out=$(cd "$2" && pwd)
cd "$(dirname "$0")"
# Relative paths and no line information: the same sources and compiler give the same bytes anywhere.
exec "$nvcc" -std=c++17 -O3 -fatbin -Werror all-warnings --compress-mode=size \
  -gencode arch=compute_80,code=sm_80 \
  -gencode arch=compute_90,code=sm_90 \
  -gencode arch=compute_100,code=sm_100 \
  -gencode arch=compute_80,code=compute_80 \
  -o "$out/nanomc.fatbin" all.cu

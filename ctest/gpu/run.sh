#!/usr/bin/env bash
# Builds the GPU tests against a ready libnanomc.so and runs them, the multi-process ones under MPS and without.
# Needs nvcc, cmake, a GPU and LIBRARY (default target/release/libnanomc.so); needs no Rust.
set -u
cd "$(dirname "$0")/../.."
library=$(realpath "${1:-target/release/libnanomc.so}")
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
cmake -S ctest/gpu -B "$out/build" -G Ninja -DNMC_LIBRARY="$library" \
  -DNMC_LITMUS_ROUNDS="${NMC_LITMUS_ROUNDS:-200000}" >"$out/configure.log" 2>&1 || { cat "$out/configure.log"; exit 1; }
cmake --build "$out/build" >"$out/build.log" 2>&1 || { cat "$out/build.log"; exit 1; }
export LD_LIBRARY_PATH="$out/lib:${LD_LIBRARY_PATH:-}"
mkdir "$out/lib" && ln -s "$library" "$out/lib/libnanomc.so.0"
failed=0
echo "== without MPS"
ctest --test-dir "$out/build" --output-on-failure || failed=1
# gpu_ep_kill is not run under MPS: there, killing a client with a kernel in flight breaks the contexts of the others; the test
# kill_mps has the server let go of it first.
echo "== under MPS"
export CUDA_MPS_PIPE_DIRECTORY="$out/mps" CUDA_MPS_LOG_DIRECTORY="$out/mps-log"
mkdir -p "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
nvidia-cuda-mps-control -d
ctest --test-dir "$out/build" --output-on-failure -R 'procs|ranks|import|rejoin|kill_mps' || failed=1
echo quit | nvidia-cuda-mps-control
exit $failed

#!/usr/bin/env bash
# Long runs of what `make test` runs short: random calls under AddressSanitizer (the library instrumented too), kills of random ranks
# during join and leave, the store under attack, its SSD tier (as root also on file systems that stop and fill), the cluster, the
# expert-parallel transport, and the KV cache.
#   scripts/soak.sh build    everything that runs, into target/soak: that folder works on another machine too
#   scripts/soak.sh run      all of it, JOBS at a time (as many as there are cores), a log each in target/soak/logs
#   scripts/soak.sh          both
# ONLY (an extended regular expression) chooses among the runs; SEQUENCES, KILLS, CLUSTER_SEEDS, CLUSTER_ROUNDS, NIXL_ROUNDS, FUZZ_TIMES and the
# STORE_*, TIER_*, EP_* and KV_* variables set their size.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$PWD/target/soak

build() {
  local host
  host=$(rustc -vV | sed -n 's/^host: //p')
  rm -rf "$out"
  mkdir -p "$out"/lib_{asan,plain,crash}
  echo "building the library with AddressSanitizer"
  # -Zsanitizer is not stable yet; the variable lets the stable compiler accept it.
  RUSTC_BOOTSTRAP=1 RUSTFLAGS="-Zsanitizer=address" \
    cargo build --profile checks --locked --quiet --lib --target "$host" --target-dir target/asan
  strip -g -o "$out/lib_asan/libnanomc.so.0" "target/asan/$host/checks/libnanomc.so"
  if [ "$(nm -D "$out/lib_asan/libnanomc.so.0" | grep -c __asan_report)" = 0 ]; then
    echo "the instrumented library is not instrumented" >&2
    exit 1
  fi
  echo "building the library with crash points"
  cargo build --profile checks --locked --quiet --lib --features crash-points --target-dir target/crash
  strip -g -o "$out/lib_crash/libnanomc.so.0" target/crash/checks/libnanomc.so
  echo "building the library and its programs"
  cargo build --release --locked --quiet --workspace
  strip -g -o "$out/lib_plain/libnanomc.so.0" target/release/libnanomc.so
  strip -g -o "$out/nanomc-master" target/release/nanomc-master

  echo "building the tests"
  compile asan world/soak_calls world/soak_kills store/model
  compile plain store/model store/tearing store/late tier/power_loss tier/filesystem ep/exchange ep/processes ep/steps ep/kills cluster/history cluster/partition
  compile crash store/crash store/changes tier/history
  local tests
  tests=$({
    cargo test --profile checks --locked --lib --test kv_model --test cluster_fuzz --test cluster_nixl --no-run --message-format=json
    cargo test --profile checks --locked -p nanomc-master --test grpc_fuzz --no-run --message-format=json
  } | sed -n 's/.*"executable":"\([^"]*\/deps\/[^"]*\)".*/\1/p')
  for test in $tests; do
    strip -g -o "$out/$(basename "${test%-*}")_tests" "$test"
  done
}

# compile LIBRARY FOLDER/NAME...: programs FOLDER_NAME against that library, FOLDER_NAME_asan with the instrumented one.
compile() {
  local library=$1 flags=(-O2) suffix=
  shift
  if [ "$library" = asan ]; then
    flags=(-O1 -fsanitize=address,undefined -fno-sanitize-recover=all) suffix=_asan
  fi
  for program in "$@"; do
    clang++ -std=c++17 -g -Wall -Wextra -Iinclude -pthread "${flags[@]}" -DNMC_MASTER_PROGRAM='"nanomc-master"' "ctest/$program.cpp" \
      -o "$out/${program/\//_}$suffix" "$out/lib_$library/libnanomc.so.0" -Wl,-rpath,"\$ORIGIN/lib_$library"
  done
}

# one NAME COMMAND...: runs it when there is room, and remembers how it ended.
one() {
  local name=$1
  shift
  [[ $name =~ ${ONLY:-.} ]] || return 0
  while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n || true; done
  {
    local start=$SECONDS status=0
    "$@" > "$out/logs/$name.log" 2>&1 || status=$?
    # 77: something is missing on this machine, and it has said what.
    local word=failed
    [ "$status" != 77 ] || word=skipped
    [ "$status" != 0 ] || word=passed
    echo "$word $name $((SECONDS - start)) s: $(tail -n 1 "$out/logs/$name.log")" | tee -a "$out/results"
  } &
}

# unless_skipped COMMAND...: tests that say "skipped" where something is missing, and pass, end with 77 then.
unless_skipped() {
  "$@" --nocapture 2>&1 | awk '{ print } /skipped: / { why = substr($0, index($0, "skipped: ")) } END { if (why != "") { print why; exit 77 } }'
}

run() {
  local seed=${SEED:-1} kills=${KILLS:-200} operations=${STORE_OPERATIONS:-10000000} changes=${STORE_CHANGES:-2000}
  local tier_kills=${TIER_KILLS:-500} rounds=${CLUSTER_ROUNDS:-300} cases=${EP_CASES:-1000}
  local jobs=${JOBS:-$(nproc)}
  export NMC_TEST_MASTER=$out/nanomc-master
  # Where `make cluster-deps` puts it, if nothing else is said.
  NMC_NIXL=${NMC_NIXL:-$(find "$PWD/target/nixl-venv" -name libnixl_capi.so 2> /dev/null | head -n 1)}
  [ -z "$NMC_NIXL" ] || export NMC_NIXL
  rm -rf "$out/logs" "$out/results"
  mkdir -p "$out/logs"
  # The longest first, so that the last ones to end are short.
  one cluster_partition "$out/cluster_partition" "$rounds" "$seed"
  one cluster_history "$out/cluster_history" "$rounds" "$seed"
  one cluster_partition_alone "$out/cluster_partition" $((rounds / 3)) "$seed" alone
  one cluster_sim env NMC_CLUSTER_SEEDS="${CLUSTER_SEEDS:-10000}" "$out/nanomc_tests" cluster::sim
  # Beside each other these would be late for reasons of their own.
  one cluster_nixl unless_skipped env NMC_NIXL_ROUNDS="${NIXL_ROUNDS:-200}" "$out/cluster_nixl_tests" --test-threads=1
  one cluster_fuzz env NMC_FUZZ_TIMES="${FUZZ_TIMES:-1000}" "$out/cluster_fuzz_tests" outlives refused
  one grpc_fuzz env NMC_FUZZ_TIMES="${FUZZ_TIMES:-1000}" "$out/grpc_fuzz_tests" outlives answered
  one tier_images env NMC_TIER_IMAGES="${TIER_IMAGES:-50000}" "$out/nanomc_tests" tier::crash_tests
  # The seed says how the tier is made: each backend, with puts that wait for the disk and without.
  for kind in 0 1 2 6 7 8; do
    one tier_history_$kind "$out/tier_history" $((tier_kills / 6 + 1)) $((seed / 9 * 9 + kind)) "" 100000
    one tier_history_all_$kind "$out/tier_history" $((tier_kills / 12 + 1)) $((seed / 9 * 9 + kind)) all 100000
  done
  one tier_power_loss "$out/tier_power_loss" "${TIER_STOPS:-200}" "$seed"
  one tier_filesystem "$out/tier_filesystem" "${TIER_FULL_SECONDS:-60}"
  one store_changes "$out/store_changes" $((changes / 2)) "$seed" points
  one store_changes_external "$out/store_changes" $((changes / 2)) "$seed" external points
  one store_crash "$out/store_crash" "${STORE_CRASHES:-2000}" "$seed" 20
  one store_tearing "$out/store_tearing" "${STORE_READS:-50000000}" "$seed"
  one store_late "$out/store_late" "${STORE_LATE:-500}" "$seed"
  one store_model "$out/store_model" "$operations" 1000 "$seed"
  one store_model_asan "$out/store_model_asan" $((operations / 20)) 50 "$seed"
  one world_calls "$out/world_soak_calls_asan" "${SEQUENCES:-1000000}" "$seed"
  one world_kills "$out/world_soak_kills_asan" "$kills" "$seed"
  one ep_exchange "$out/ep_exchange" "$cases" "$seed" 20
  one ep_processes "$out/ep_processes" $((cases / 10)) "$seed"
  one ep_steps "$out/ep_steps" "${EP_STEPS:-100000}" "$seed"
  one ep_kills "$out/ep_kills" "$kills" "$seed"
  # More than 1,000 walks: 21 seeds in each of 48 configurations.
  one kv_model env NMC_KV_SEEDS=21 NMC_KV_STEPS="${KV_STEPS:-10000}" "$out/kv_model_tests" --nocapture
  wait
  echo "$(grep -c ^passed "$out/results") passed, $(grep -c ^skipped "$out/results" || true) skipped"
  ! grep ^failed "$out/results"
}

case ${1:-} in
  build) build ;;
  run) run ;;
  "") build && run ;;
  *) echo "usage: scripts/soak.sh [build|run]" >&2; exit 2 ;;
esac

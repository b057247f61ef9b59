#!/usr/bin/env bash
# Long runs of what CI runs short: random calls under AddressSanitizer (the library instrumented too), kills of random
# ranks during join and leave, the store under attack, its SSD tier, the core of the cluster, the expert-parallel transport, and the KV cache. SEQUENCES,
# KILLS, CLUSTER_SEEDS, CLUSTER_ROUNDS and the STORE_*, TIER_*, EP_* and KV_* variables set the size.
set -euo pipefail
cd "$(dirname "$0")/.."
sequences=${SEQUENCES:-1000000}
kills=${KILLS:-200}
operations=${STORE_OPERATIONS:-10000000}
reads=${STORE_READS:-50000000}
crashes=${STORE_CRASHES:-2000}
changes=${STORE_CHANGES:-2000}
late=${STORE_LATE:-500}
tier_kills=${TIER_KILLS:-500}
tier_images=${TIER_IMAGES:-50000}
cluster_seeds=${CLUSTER_SEEDS:-10000}
cluster_rounds=${CLUSTER_ROUNDS:-300}
ep_cases=${EP_CASES:-1000}
ep_steps=${EP_STEPS:-100000}
kv_steps=${KV_STEPS:-10000}
seed=${SEED:-1}
out=target/soak
host=$(rustc -vV | sed -n 's/^host: //p')
mkdir -p "$out/lib_asan"

echo "building the library with AddressSanitizer"
# -Zsanitizer is not stable yet; the variable lets the stable compiler accept it.
RUSTC_BOOTSTRAP=1 RUSTFLAGS="-Zsanitizer=address" \
  cargo build --release --locked --quiet --lib --target "$host" --target-dir target/asan
ln -sf "$PWD/target/asan/$host/release/libnanomc.so" "$out/lib_asan/libnanomc.so.0"
if [ "$(nm -D "$out/lib_asan/libnanomc.so.0" | grep -c __asan_report)" = 0 ]; then
  echo "the instrumented library is not instrumented" >&2
  exit 1
fi
flags=(-std=c++17 -O1 -g -Wall -Wextra -Iinclude -pthread -fsanitize=address,undefined -fno-sanitize-recover=all)
for program in calls kills; do
  clang++ "${flags[@]}" "ctest/world/soak_$program.cpp" -o "$out/$program" "$out/lib_asan/libnanomc.so.0" -Wl,-rpath,"$PWD/$out/lib_asan"
done

clang++ "${flags[@]}" ctest/store/model.cpp -o "$out/model_asan" "$out/lib_asan/libnanomc.so.0" -Wl,-rpath,"$PWD/$out/lib_asan"

echo "building the library with crash points"
cargo build --profile checks --locked --quiet --lib --features crash-points --target-dir target/crash
mkdir -p "$out/lib_plain" "$out/lib_crash"
ln -sf "$PWD/target/release/libnanomc.so" "$out/lib_plain/libnanomc.so.0"
ln -sf "$PWD/target/crash/checks/libnanomc.so" "$out/lib_crash/libnanomc.so.0"
for program in model tearing late crash changes; do
  lib=$(case "$program" in crash | changes) echo crash ;; *) echo plain ;; esac)
  clang++ -std=c++17 -O2 -g -Wall -Wextra -Iinclude -pthread "ctest/store/$program.cpp" -o "$out/$program" \
    "$out/lib_$lib/libnanomc.so.0" -Wl,-rpath,"$PWD/$out/lib_$lib"
done
clang++ -std=c++17 -O2 -g -Wall -Wextra -Iinclude -pthread ctest/tier/history.cpp -o "$out/tier_history" \
  "$out/lib_crash/libnanomc.so.0" -Wl,-rpath,"$PWD/$out/lib_crash"
for program in exchange processes steps kills; do
  clang++ -std=c++17 -O2 -g -Wall -Wextra -Iinclude -pthread "ctest/ep/$program.cpp" -o "$out/ep_$program" \
    "$out/lib_plain/libnanomc.so.0" -Wl,-rpath,"$PWD/$out/lib_plain"
done

"$out/calls" "$sequences" "$seed"
"$out/kills" "$kills" "$seed"
"$out/model_asan" $((operations / 20)) 50 "$seed"
"$out/model" "$operations" 1000 "$seed"
"$out/tearing" "$reads" "$seed"
"$out/late" "$late" "$seed"
"$out/crash" "$crashes" "$seed" 20
"$out/changes" $((changes / 2)) "$seed" points
"$out/changes" $((changes / 2)) "$seed" external points
"$out/tier_history" "$tier_kills" "$seed" "" 100000
"$out/tier_history" $((tier_kills / 2)) "$seed" all 100000
NMC_TIER_IMAGES="$tier_images" cargo test --release --locked --quiet --lib tier::crash_tests
NMC_CLUSTER_SEEDS="$cluster_seeds" cargo test --release --locked --quiet --lib cluster::sim
for program in history partition; do
  clang++ -std=c++17 -O2 -g -Wall -Wextra -Iinclude -pthread -DNMC_MASTER_PROGRAM="\"$PWD/target/release/nanomc-master\"" "ctest/cluster/$program.cpp" \
    -o "$out/cluster_$program" "$out/lib_plain/libnanomc.so.0" -Wl,-rpath,"$PWD/$out/lib_plain"
done
"$out/cluster_history" "$cluster_rounds" "$seed"
# 77: there are no network namespaces here, and it has said so.
"$out/cluster_partition" "$cluster_rounds" "$seed" || test $? = 77
"$out/cluster_partition" $((cluster_rounds / 3)) "$seed" alone || test $? = 77
"$out/ep_exchange" "$ep_cases" "$seed" 20
"$out/ep_processes" $((ep_cases / 10)) "$seed"
"$out/ep_steps" "$ep_steps" "$seed"
"$out/ep_kills" "$kills" "$seed"
# More than 1,000 walks: 21 seeds in each of 48 configurations.
NMC_KV_SEEDS=21 NMC_KV_STEPS="$kv_steps" cargo test --release --locked --quiet --test kv_model -- --nocapture

#!/usr/bin/env bash
# Long runs of what CI runs short: random calls under AddressSanitizer (the library instrumented too), and kills of
# random ranks during join and leave. SEQUENCES and KILLS set the size.
set -euo pipefail
cd "$(dirname "$0")/.."
sequences=${SEQUENCES:-1000000}
kills=${KILLS:-200}
seed=${SEED:-1}
out=target/soak
host=$(rustc -vV | sed -n 's/^host: //p')
mkdir -p "$out/asan"

echo "building the library with AddressSanitizer"
# -Zsanitizer is not stable yet; the variable lets the stable compiler accept it.
RUSTC_BOOTSTRAP=1 RUSTFLAGS="-Zsanitizer=address" \
  cargo build --release --locked --quiet --lib --target "$host" --target-dir target/asan
ln -sf "$PWD/target/asan/$host/release/libnanomc.so" "$out/asan/libnanomc.so.0"
if [ "$(nm -D "$out/asan/libnanomc.so.0" | grep -c __asan_report)" = 0 ]; then
  echo "the instrumented library is not instrumented" >&2
  exit 1
fi
flags=(-std=c++17 -O1 -g -Wall -Wextra -Iinclude -pthread -fsanitize=address,undefined -fno-sanitize-recover=all)
for program in calls kills; do
  clang++ "${flags[@]}" "ctest/soak/$program.cpp" -o "$out/$program" "$out/asan/libnanomc.so.0" -Wl,-rpath,"$PWD/$out/asan"
done

"$out/calls" "$sequences" "$seed"
"$out/kills" "$kills" "$seed"

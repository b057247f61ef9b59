#!/bin/sh
# A program linked with -L target/release starts with LD_LIBRARY_PATH=target/release: the library lies there under its soname too.
#   not_installed.sh TARGET_RELEASE SOURCE_DIR CXX
set -eu
out=$1 source=$2 cxx=$3
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
fail() { echo "FAIL: $*"; exit 1; }

"$cxx" -std=c++17 "$source/ctest/consumer/main.cpp" -I"$source/include" -L"$out" -lnanomc -o "$tmp/program"
LD_LIBRARY_PATH=$out "$tmp/program" || fail "it does not start with LD_LIBRARY_PATH=$out"

# Control: where the library has only its own name, it is not found.
ln -s "$out/libnanomc.so" "$tmp/libnanomc.so"
if LD_LIBRARY_PATH=$tmp "$tmp/program" 2> "$tmp/log"; then fail "control: it starts without the soname"; fi
grep -q 'libnanomc.so.[0-9]*: cannot open' "$tmp/log" || { cat "$tmp/log"; fail "control: another reason than the soname"; }
echo "ok"

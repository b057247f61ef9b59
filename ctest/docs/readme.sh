#!/bin/sh
# Runs the README's example as it says: twice, in any order. usage: readme.sh PROGRAM
set -eu
XDG_RUNTIME_DIR=$(mktemp -d)
export XDG_RUNTIME_DIR
trap 'rm -rf "$XDG_RUNTIME_DIR"' EXIT
"$1" 1 > "$XDG_RUNTIME_DIR/out1" &
decode=$!
"$1" 0 > "$XDG_RUNTIME_DIR/out0" &
prefill=$!
wait "$decode"
wait "$prefill"
grep -q "decode reads 4194304 bytes in place, the last float is 17.0" "$XDG_RUNTIME_DIR/out1"
test ! -e "$XDG_RUNTIME_DIR/nanomc"
echo "the README's example works and leaves nothing"

#!/bin/sh
# Runs the README's example as it says: four times, in any order. usage: readme.sh PROGRAM
set -eu
XDG_RUNTIME_DIR=$(mktemp -d)
export XDG_RUNTIME_DIR
trap 'rm -rf "$XDG_RUNTIME_DIR"' EXIT
pids=
for rank in 3 1 0 2; do
  "$1" "$rank" > "$XDG_RUNTIME_DIR/out$rank" &
  pids="$pids $!"
done
for pid in $pids; do wait "$pid"; done
for rank in 0 1 2 3; do
  grep -q "rank $rank reads: greetings from rank $(((rank + 3) % 4))" "$XDG_RUNTIME_DIR/out$rank"
done
test ! -e "$XDG_RUNTIME_DIR/nanomc"
echo "the README's example works and leaves nothing"

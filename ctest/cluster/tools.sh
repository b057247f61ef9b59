#!/bin/sh
# The programs that users of Mooncake Store know, against a master of their own: with small values they succeed, without a master
# they say so.
#   tools.sh MASTER STRESS INTEGRATION
set -eu
master=$1 stress=$2 integration=$3
test -x "$master" || { echo "skipped: $master is not there"; exit 77; }
tmp=$(mktemp -d)
pids=
trap 'kill $pids 2> /dev/null || true; wait; rm -rf "$tmp"' EXIT
fail() { echo "FAIL: $*"; cat "$tmp"/*.log; exit 1; }
within() { # until a file has such a line
  for _ in $(seq 600); do
    if grep -q "$2" "$1" 2> /dev/null; then return 0; fi
    sleep 0.1
  done
  fail "$1 does not say \"$2\""
}

"$master" --port 0 --metrics_port off --state "$tmp/state" > "$tmp/master.log" 2>&1 &
pids="$pids $!"
within "$tmp/master.log" "listening on"
MASTER_SERVER=$(sed -n 's/^Master service listening on //p' "$tmp/master.log")
export MASTER_SERVER
small="--segment-mib 64 --buffer-mib 1 --value-bytes 100000 --requests 100"

# shellcheck disable=SC2086 # they are words
ROLE=prefill "$stress" $small --wait-s 600 > "$tmp/prefill.log" 2>&1 &
pids="$pids $!"
within "$tmp/prefill.log" "100 done, 0 failed"
# shellcheck disable=SC2086
ROLE=decode "$stress" $small > "$tmp/decode.log" 2>&1 || fail "decode"
grep "100 done, 0 failed" "$tmp/decode.log" || fail "decode"
"$integration" --segment-mib 32 --buffer-mib 1 --value-bytes 50000 > "$tmp/integration.log" 2>&1 || fail "integration"
grep "All steps succeeded" "$tmp/integration.log" || fail "integration"

# Control: a key that is not there, and no master at all.
if ROLE=decode "$stress" --value-bytes 100000 --buffer-mib 1 --requests 101 > "$tmp/more.log" 2>&1; then fail "a missing key is not noticed"; fi
grep -q "100 done, 1 failed" "$tmp/more.log" || fail "a missing key is not counted"
if MASTER_SERVER=127.0.0.1:1 "$integration" --buffer-mib 1 --value-bytes 10 > "$tmp/none.log" 2>&1; then fail "no master is not noticed"; fi
grep -q "Is a master running" "$tmp/none.log" || fail "no master is not named"
echo "ok"

#!/bin/sh
# Runs the first example of docs/cluster.md beside a master without options, as the page says. The example names the master's port, so both
# have a network of their own; without root, user namespaces or `ip` the test is skipped. usage: cluster.sh MASTER PROGRAM
set -eu
if [ "${3:-}" != inside ]; then
  if [ ! -x "$1" ]; then
    echo "skipped: $1 is not there"
    exit 77
  fi
  for alone in "unshare --net" "unshare --map-root-user --net"; do
    if $alone ip link set lo up 2> /dev/null; then
      exec $alone sh "$0" "$1" "$2" inside
    fi
  done
  echo "skipped: a network of its own can not be made"
  exit 77
fi
ip link set lo up
home=$(mktemp -d)
env -u XDG_STATE_HOME HOME="$home" "$1" > "$home/master" 2>&1 &
master=$!
trap 'kill "$master" || true; wait "$master" || true; rm -rf "$home"' EXIT
until grep -q "Master service listening on" "$home/master"; do
  kill -0 "$master"
  sleep 0.1
done
"$2" > "$home/out"
test "$(cat "$home/out")" = KV
echo "the first example of the page on clusters works"

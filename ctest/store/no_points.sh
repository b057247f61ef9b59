#!/bin/sh
# no_points.sh LIBRARY: fails if the library has crash points (src/base/point.rs).
set -eu
if grep -aqE 'NMC_CRASH_POINT|takeover\.indexed|writer\.before_publish' "$1"; then
  echo "$1 has crash points"
  exit 1
fi
echo "no crash points"

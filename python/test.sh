#!/bin/sh
# Runs the tests of the Python package; exits with 77 and says why where what they need cannot be had.
#   test.sh [LIBRARY [pytest arguments]]     NMC_PYTHON: which Python; its environment is python/.venv
set -eu
here=$(cd "$(dirname "$0")" && pwd)
if test $# -gt 0; then
  NMC_LIBRARY=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
  export NMC_LIBRARY
  shift
fi
python=${NMC_PYTHON:-python3}
venv=$here/.venv
skip() { echo "skipped: $*"; exit 77; }

command -v "$python" > /dev/null || skip "there is no $python"
if ! "$venv/bin/python" -c 'import cffi, numpy, pytest, mypy' 2> /dev/null; then
  "$python" -m venv "$venv" > /dev/null 2>&1 || skip "$python -m venv does not work here (on Debian: apt-get install python3-venv)"
  timeout 300 "$venv/bin/pip" install --quiet --disable-pip-version-check cffi numpy pytest mypy 2> /dev/null ||
    skip "pip cannot install cffi, numpy, pytest and mypy"
fi
"$venv/bin/python" -c 'import grpc_tools' 2> /dev/null ||
  timeout 120 "$venv/bin/pip" install --quiet --disable-pip-version-check grpcio grpcio-tools 2> /dev/null ||
  echo "pip cannot install grpcio and grpcio-tools: test_grpc.py is skipped"
cd "$here"
exec "$venv/bin/python" -m pytest -q -p no:cacheprovider "$@"

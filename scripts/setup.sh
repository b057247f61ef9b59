#!/bin/sh
# Installs the tools that are missing, and says nothing when none is.
#   scripts/setup.sh demo    compilers and CMake
#   scripts/setup.sh test    those, and what the tests need (default)
#   scripts/setup.sh soak    what `make soak` needs
#   scripts/setup.sh docs    doxygen
set -eu
cd "$(dirname "$0")/.."
what=${1:-test}

# command:package, and the same thing from apt on Debian and Ubuntu.
case $what in
  demo) tools="cmake:cmake ninja:ninja-build g++:g++" ;;
  test) tools="cmake:cmake ninja:ninja-build g++:g++ pkg-config:pkg-config clang:clang valgrind:valgrind readelf:binutils python3:python3" ;;
  soak) tools="cmake:cmake ninja:ninja-build g++:g++ clang:clang" ;;
  docs) tools="doxygen:doxygen" ;;
  *) echo "usage: scripts/setup.sh [demo|test|soak|docs]" >&2; exit 2 ;;
esac

missing=
# clang's sanitizers are a package of their own, named after its version.
if { test "$what" = test || test "$what" = soak; } && ! test -e "$(clang -print-file-name=libclang_rt.asan-x86_64.a 2> /dev/null)"; then
  missing=" libclang-rt-$(clang -dumpversion 2> /dev/null | cut -d. -f1 || true)-dev"
  command -v clang > /dev/null || missing=" libclang-rt-dev"
fi
# Debian keeps what `python3 -m venv` needs in a package of its own.
if test "$what" = test && ! python3 -c 'import ensurepip' 2> /dev/null; then
  missing="$missing python3-venv"
fi
for tool in $tools; do
  command -v "${tool%%:*}" > /dev/null || missing="$missing ${tool#*:}"
done
if test -n "$missing"; then
  sudo=
  if ! command -v apt-get > /dev/null; then
    echo "Missing:$missing (names of Debian packages). There is no apt-get here: please install them." >&2
    exit 1
  fi
  if test "$(id -u)" != 0; then
    if ! command -v sudo > /dev/null; then
      echo "Missing:$missing. Neither root nor sudo here: please have them installed." >&2
      exit 1
    fi
    sudo=sudo
  fi
  echo "Installing:$missing"
  # shellcheck disable=SC2086 # a list of words
  { $sudo apt-get update -qq && $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    $missing > /dev/null; } || { echo "apt-get could not install:$missing" >&2; exit 1; }
fi
test "$what" != docs || exit 0

if ! command -v cargo > /dev/null; then
  echo "Rust is missing: install it from https://rustup.rs (1.89 or newer)." >&2
  exit 1
fi
test "$what" = test || exit 0

for component in fmt:rustfmt clippy:clippy; do
  cargo "${component%%:*}" --version > /dev/null 2>&1 && continue
  rustup component add "${component#*:}" || { echo "cargo ${component%%:*} is missing: install ${component#*:}" >&2; exit 1; }
done

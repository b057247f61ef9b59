#!/bin/sh
# Makes the .tar.gz and the .deb, and checks what is in them.
#   package.sh CPACK BUILD_DIR VERSION
set -eu
cpack=$1 build=$2 version=$3
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
fail() { echo "FAIL: $*"; exit 1; }
major=${version%%.*}
test -f "$build/CPackConfig.cmake" || fail "no CPackConfig.cmake in $build"

"$cpack" --config "$build/CPackConfig.cmake" -B "$tmp" > "$tmp/log" 2>&1 || { cat "$tmp/log"; fail cpack; }

files="lib/libnanomc.so lib/libnanomc.so.$major lib/libnanomc.so.$version include/nanomc.h include/nanomc/layout.h
  include/nanomc/device.cuh include/nanomc/impl/device_impl.cuh include/nanomc.hpp lib/pkgconfig/nanomc.pc
  lib/cmake/nanomc/nanomcConfig.cmake lib/cmake/nanomc/nanomcConfigVersion.cmake share/doc/nanomc/LICENSE
  share/doc/nanomc/docs/index.md share/doc/nanomc/cpp_examples/01_hello_world/CMakeLists.txt"
optional="lib/libnanomc.a bin/nmc bin/nanomc-master" # a ready library may come without
"$(dirname "$cpack")/cmake" --install "$build" --prefix "$tmp/installed" > /dev/null
for file in $optional; do if test -e "$tmp/installed/$file"; then files="$files $file"; fi; done

check() { # name, folder
  for file in $files; do test -e "$2/$file" || fail "$1 lacks $file"; done
  test "$(readlink "$2/lib/libnanomc.so")" = "libnanomc.so.$major" || fail "$1: libnanomc.so is no symlink"
  (cd "$tmp/installed" && find . ! -type d | sort) > "$tmp/want"
  (cd "$2" && find . ! -type d | sort) > "$tmp/have"
  diff -u "$tmp/want" "$tmp/have" || fail "$1 holds other files than an installation"
  for file in $optional; do
    if test -e "$2/$file"; then # stripped in the same way
      test "$(wc -c < "$2/$file")" = "$(wc -c < "$tmp/installed/$file")" || fail "$1: size of $file"
    fi
  done
  echo "ok $1: $(wc -l < "$tmp/have") files"
}

mkdir "$tmp/tgz" "$tmp/deb"
tgz=$(find "$tmp" -maxdepth 1 -name '*.tar.gz')
tar -tzf "$tgz"
tar -xzf "$tgz" -C "$tmp/tgz" --strip-components=1
check "$(basename "$tgz")" "$tmp/tgz/usr"

if ! command -v dpkg-deb > /dev/null; then echo "dpkg-deb is not installed: the .deb is not checked"; exit 0; fi
deb=$(find "$tmp" -maxdepth 1 -name '*.deb')
dpkg-deb --info "$deb"
dpkg-deb --contents "$deb"
dpkg-deb -x "$deb" "$tmp/deb"
check "$(basename "$deb")" "$tmp/deb/usr"
test "$(dpkg-deb -f "$deb" Package Version)" = "$(printf 'Package: nanomc\nVersion: %s' "$version")" || fail "name or version"

# Control: a missing file is noticed.
rm "$tmp/deb/usr/include/nanomc.h"
if (check control "$tmp/deb/usr") > "$tmp/log"; then fail "a missing file is not noticed"; fi
grep -q 'lacks include/nanomc.h' "$tmp/log" || fail "a missing file is not named"
echo "ok a missing file is noticed"

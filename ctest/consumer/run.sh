#!/bin/sh
# Installs, moves the installed folder, and builds and runs an outside program against it in four ways: shared and static,
# each with find_package and with pkg-config. None of them may see the source tree. What is installed is stripped.
#   run.sh CMAKE BUILD_DIR SOURCE_DIR CXX
set -eu
cmake=$1 build=$2 source=$3 cxx=$4
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
fail() { echo "FAIL: $*"; exit 1; }
run() { "$@" > "$tmp/log" 2>&1 || { cat "$tmp/log"; fail "$*"; }; }

run "$cmake" --install "$build" --prefix "$tmp/first"
mv "$tmp/first" "$tmp/moved"
prefix=$tmp/moved
test -f "$prefix/lib/libnanomc.a" || { echo "no static library in this build"; exit 77; }
version=$(sed -n 's/^#define NMC_VERSION_STRING "\(.*\)"/\1/p' "$prefix/include/nanomc.h")
soname=libnanomc.so.${version%%.*}
for file in libnanomc.so "$soname"; do test -L "$prefix/lib/$file" || fail "$file is no symlink"; done
! grep -rlF "$source" "$prefix/lib/cmake" "$prefix/lib/pkgconfig" "$prefix/include" || fail "path of the source tree"

# Neither debug information nor bitcode, which would be four fifths of the archive.
bulk() { readelf -SW "$1" 2> /dev/null | grep -E '\.(debug_info|debug_line|llvmbc)\b'; }
for file in lib/libnanomc.a "lib/libnanomc.so.$version" bin/nmc bin/nanomc-master; do
  if test -f "$prefix/$file" && bulk "$prefix/$file" > "$tmp/log"; then head -3 "$tmp/log"; fail "$file is not stripped"; fi
done
run "$cxx" -g -c -std=c++17 -I"$prefix/include" "$source/ctest/consumer/main.cpp" -o "$tmp/bulky.o"
run ar rc "$tmp/bulky.a" "$tmp/bulky.o"
bulk "$tmp/bulky.a" > /dev/null || fail "control: debug information in an archive is not noticed"
echo "ok stripped; libnanomc.a: $(wc -c < "$prefix/lib/libnanomc.a") bytes"

mkdir "$tmp/project"
cp "$source/ctest/consumer/main.cpp" "$source/ctest/consumer/CMakeLists.txt" "$tmp/project"

# Runs a program and checks what it is linked with.
finish() {
  run env LD_LIBRARY_PATH="$3" "$2"
  cat "$tmp/log"
  readelf -d "$2" > "$tmp/needed"
  case $1 in
    *shared*) grep -q "NEEDED.*\[$soname\]" "$tmp/needed" || fail "$1 does not use the shared library" ;;
    *) ! grep 'NEEDED.*libnanomc' "$tmp/needed" || fail "$1 uses the shared library" ;;
  esac
  echo "ok $1"
}

configure() { # name, and further arguments
  name=$1; shift
  "$cmake" -S "$tmp/project" -B "$tmp/$name" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_CXX_COMPILER="$cxx" \
    -DCMAKE_EXPORT_COMPILE_COMMANDS=ON -DCMAKE_FIND_USE_PACKAGE_REGISTRY=OFF "$@"
}
for kind in shared static; do
  target=nanomc::nanomc
  test $kind = shared || target=nanomc::static
  run configure "cmake-$kind" -DLINK=$target -DWANT="$version"
  run "$cmake" --build "$tmp/cmake-$kind"
  grep -qF "$prefix/include" "$tmp/cmake-$kind/compile_commands.json" || fail "the installed header is not used"
  ! grep -rlF "$source/" "$tmp/cmake-$kind" || fail "path of the source tree"
  finish "cmake-$kind" "$tmp/cmake-$kind/consumer" ""
done

unset PKG_CONFIG_SYSROOT_DIR || true
export PKG_CONFIG_LIBDIR="$prefix/lib/pkgconfig"
flags() { pkg-config "$@" nanomc; }
for kind in shared static; do
  option=
  test $kind = shared || option=--static
  all="$(flags --cflags) $(flags --libs $option)"
  test $kind = shared || all=$(echo "$all" | sed 's/-lnanomc/-l:libnanomc.a/')
  case $all in *"$source/"*) fail "path of the source tree in: $all" ;; esac
  # shellcheck disable=SC2086 # flags are words
  run "$cxx" -std=c++17 "$tmp/project/main.cpp" -o "$tmp/pkgconfig-$kind" $all
  finish "pkgconfig-$kind" "$tmp/pkgconfig-$kind" "$prefix/lib"
done
test "$(flags --modversion)" = "$version" || fail "pkg-config gives another version than the header"

# Control: a version that is not there is refused.
if configure version-99 -DWANT=99 > "$tmp/log" 2>&1; then fail "find_package(nanomc 99) succeeded"; fi
grep -q 'requested version "99"' "$tmp/log" || { cat "$tmp/log"; fail "another reason than the version"; }
! pkg-config --exists 'nanomc >= 99' || fail "pkg-config accepts version 99"
echo "ok version 99 is refused"

#!/bin/sh
# Runs the line with which the README installs, with a build folder that is not there yet, and compares what it installs with
# what this build does. What cargo has built is not built again.
#   install_line.sh CMAKE BUILD_DIR SOURCE_DIR
set -eu
cmake=$1 build=$2 source=$3
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
fail() { echo "FAIL: $*"; exit 1; }
list() { (cd "$1" && find . ! -type d | sort); }

line=$(sed -n 's/^\(make install PREFIX=[^ ]*\).*/\1/p' "$source/README.md")
test "$(echo "$line" | wc -w)" = 3 || fail "README.md has no line that begins with 'make install PREFIX='"
echo "$line"
command=$(echo "$line" | sed "s|PREFIX=.*|PREFIX=$tmp/first|")
# Of an outer make nothing is to be heard here.
(cd "$source" && env -u MAKEFLAGS -u MAKELEVEL sh -c "$command BUILD=$tmp/build") > "$tmp/log" 2>&1 ||
  { cat "$tmp/log"; fail "$line"; }

"$cmake" --install "$build" --prefix "$tmp/second" > /dev/null
list "$tmp/first" > "$tmp/have"
list "$tmp/second" > "$tmp/want"
diff -u "$tmp/want" "$tmp/have" || fail "it installs other files than this build"
"$tmp/first/bin/nmc" --version || fail "the installed nmc does not start"
for name in nanomc-master mooncake_master; do "$tmp/first/bin/$name" --version || fail "the installed $name does not start"; done

# Control: without a build there is nothing to install.
mkdir "$tmp/empty"
"$cmake" -S "$source" -B "$tmp/empty" -DNANOMC_ASAN=OFF -DNANOMC_VALGRIND=OFF > "$tmp/log" 2>&1 || { cat "$tmp/log"; fail "cmake"; }
if "$cmake" --install "$tmp/empty" --prefix "$tmp/third" > "$tmp/log" 2>&1; then fail "control: installed what was not built"; fi
echo "ok $(wc -l < "$tmp/have") files"

#!/bin/sh
# The documentation and the examples as they are installed: every link leads somewhere, and every example is built on its own
# against the installed library. None of it may see the source tree.
#   examples.sh CMAKE BUILD_DIR SOURCE_DIR CXX
set -eu
cmake=$1 build=$2 source=$3 cxx=$4
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
fail() { echo "FAIL: $*"; exit 1; }
run() { "$@" > "$tmp/log" 2>&1 || { cat "$tmp/log"; fail "$*"; }; }

run "$cmake" --install "$build" --prefix "$tmp/prefix"
doc=$tmp/prefix/share/doc/nanomc

# Prints the relative links in the Markdown files of a folder that lead nowhere.
dead_links() {
  find "$1" -name '*.md' | while read -r page; do
    grep -oE '\]\([^)#: ]+[)#]' "$page" | sed 's/^](//; s/.$//' | while read -r link; do
      test -e "$(dirname "$page")/$link" || echo "$page: $link"
    done
  done
}
dead_links "$doc" > "$tmp/dead"
test ! -s "$tmp/dead" || { cat "$tmp/dead"; fail "links that lead nowhere"; }
mkdir "$tmp/control"
echo '[a](control.md), [b](gone.md)' > "$tmp/control/control.md"
test "$(dead_links "$tmp/control")" = "$tmp/control/control.md: gone.md" || fail "control: a dead link is not noticed"
echo "ok links of $(find "$doc" -name '*.md' | wc -l) pages"

built=0
for folder in "$doc"/cpp_examples/*/; do
  test -f "$folder/CMakeLists.txt" || continue
  name=$(basename "$folder")
  run "$cmake" -S "$folder" -B "$tmp/$name" -DCMAKE_PREFIX_PATH="$tmp/prefix" -DCMAKE_CXX_COMPILER="$cxx" \
    -DCMAKE_FIND_USE_PACKAGE_REGISTRY=OFF
  run "$cmake" --build "$tmp/$name"
  ! grep -rlF "$source/" "$tmp/$name" || fail "path of the source tree"
  echo "ok $name"
  built=$((built + 1))
done
test "$built" = "$(find "$source/cpp_examples" -mindepth 2 -maxdepth 2 -name CMakeLists.txt | wc -l)" || fail "$built examples are installed"
run "$tmp/01_hello_world/hello_world"
echo "ok hello_world runs"

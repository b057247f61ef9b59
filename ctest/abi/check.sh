#!/bin/sh
# The checks of the binary interface. Prints what differs and returns 1.
#   check.sh list LIBRARY                    the exported symbols, one per line
#   check.sh symbols LIBRARY LIST            they are those in LIST, and all begin with nmc_
#   check.sh layout PROGRAM NMC HEADER       C and Rust agree about the structs and their _INIT macros, and no struct of HEADER
#                                            is left out
#   check.sh dynamic LIBRARY SONAME          soname, and that dlclose never unmaps the library
#   check.sh control-... (same arguments)    the same check on something with one deliberate mistake: must fail
#   check.sh control-translated NMC HEADER LAYOUT.C CC ...   layout, with a HEADER in which one default is wrong; CC compiles C
set -eu
LC_ALL=C
export LC_ALL
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

exported() { nm -D --defined-only "$1" | awk '{ print $NF }' | sort; }

symbols() {
  exported "$1" > "$tmp/exported"
  test -s "$tmp/exported" || { echo "$1 exports nothing"; return 1; }
  if grep -v '^nmc_' "$tmp/exported"; then echo "exported without the prefix nmc_"; return 1; fi
  diff -u "$2" "$tmp/exported" || { echo "exported symbols differ from $2; if intended: make bless"; return 1; }
}

compare() {
  diff -u "$1" "$2" || { echo "C (-) and Rust (+) disagree about the structs"; return 1; }
  sed -n 's/^typedef struct \(nmc_[a-z_]*\) {$/\1/p' "$3" | sort > "$tmp/in_header"
  test -s "$tmp/in_header" || { echo "no struct found in $3"; return 1; }
  sed -n 's/^\(nmc_[a-z_]*\) size .*/\1/p' "$1" | sort > "$tmp/in_table"
  # The table has those of nanomc/layout.h too.
  if comm -23 "$tmp/in_header" "$tmp/in_table" | grep .; then echo "structs in the header are not in the table"; return 1; fi
}

dynamic() {
  readelf -d "$1" > "$tmp/dynamic"
  grep -q "(SONAME).*\[$2\]" "$tmp/dynamic" || { grep SONAME "$tmp/dynamic"; echo "soname is not $2"; return 1; }
  grep -q "(FLAGS_1).*NODELETE" "$tmp/dynamic" || { echo "the flag NODELETE is missing"; return 1; }
}

case $1 in
  list) exported "$2" ;;
  symbols) symbols "$2" "$3" ;;
  control-missing) sed 1d "$3" > "$tmp/list" && symbols "$2" "$tmp/list" ;;
  control-extra) { cat "$3"; echo nmc_zzz; } > "$tmp/list" && symbols "$2" "$tmp/list" ;;
  layout) "$2" > "$tmp/c" && "$3" abi > "$tmp/rust" && compare "$tmp/c" "$tmp/rust" "$4" ;;
  control-offset) "$2" > "$tmp/c" && sed '/\.heap_bytes at /s/$/0/' "$tmp/c" > "$tmp/rust" && compare "$tmp/c" "$tmp/rust" "$4" ;;
  control-init)
    "$2" > "$tmp/c" && sed '/_INIT/s/ ff/ fe/' "$tmp/c" > "$tmp/rust" && compare "$tmp/c" "$tmp/rust" "$4" ;;
  control-struct)
    "$2" > "$tmp/c" && { cat "$4"; echo 'typedef struct nmc_new_t {'; } > "$tmp/h" && compare "$tmp/c" "$tmp/c" "$tmp/h" ;;
  control-translated)
    nmc=$2 header=$3 layout=$4
    shift 4
    cp -r "$(dirname "$header")" "$tmp/include"
    sed 's|/\* drain_ms \*/ -1|/* drain_ms */ 0|' "$header" > "$tmp/include/nanomc.h"
    ! cmp -s "$header" "$tmp/include/nanomc.h" || { echo "the header has no such default"; exit 2; }
    "$@" -I"$tmp/include" -o "$tmp/program" "$layout" && "$tmp/program" > "$tmp/c" && "$nmc" abi > "$tmp/rust" &&
      compare "$tmp/c" "$tmp/rust" "$header" ;;
  dynamic) dynamic "$2" "$3" ;;
  *) echo "unknown check $1"; exit 2 ;;
esac

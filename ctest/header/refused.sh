#!/bin/sh
# The compiler refuses every line of FILE that has ENDS() or TEXT(), no other line, and for the reasons below.
#   refused.sh check FILE COMPILER ARGUMENTS...
#   refused.sh control-... (same arguments)    with one deliberate mistake: must fail
set -eu
LC_ALL=C
export LC_ALL
mode=$1 file=$2
shift 2
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

case $mode in
  check) cp "$file" "$tmp/file" ;;
  control-compiles) sed 's/calls\.put("key", ENDS(text))/calls.put("key", text)/' "$file" >"$tmp/file" ;;
  control-reason) sed 's/TEXT(page)/not_there/' "$file" >"$tmp/file" ;;
  *) echo "usage: $0 check|control-... FILE COMPILER ARGUMENTS..." >&2 && exit 2 ;;
esac
case $1 in *clang*) set -- "$@" -ferror-limit=0 ;; esac
status=0
"$@" -DREFUSED -w -fsyntax-only -x c++ - <"$tmp/file" >"$tmp/all" 2>&1 || status=$?
[ $status -ne 0 ] || echo "all of it compiles"

# Where it stands, or where what it stands in was called.
grep -oE '^<stdin>:[0-9]+' "$tmp/all" | cut -d: -f2 | sort -u >"$tmp/said" || :
grep -n '^#define' "$file" | cut -d: -f1 | sort | comm -13 - "$tmp/said" >"$tmp/refused" # compilers show these, too
grep -nE '^[^#/]*(ENDS|TEXT)\(' "$file" | cut -d: -f1 | sort >"$tmp/wanted"
{
  comm -13 "$tmp/refused" "$tmp/wanted" | while read -r line; do echo "line $line compiles: $(sed -n "${line}p" "$file")"; done
  comm -23 "$tmp/refused" "$tmp/wanted" | while read -r line; do echo "line $line does not compile: $(sed -n "${line}p" "$file")"; done
  grep -E 'error: ' "$tmp/all" | grep -vE 'before its memory is used|deleted|no matching|no viable|(could not|cannot) convert' |
    sed 's/^/not for the right reason: /' || :
  # Who gave text is told what to write instead.
  if [ "$(grep -c 'nmc::bytes(array)' "$tmp/all")" -lt "$(grep -cE '^[^#/]*TEXT\(' "$file")" ]; then
    echo "nmc::bytes is not mentioned for every text"
  fi
} >"$tmp/wrong"
if [ -s "$tmp/wrong" ]; then
  cat "$tmp/all" "$tmp/wrong"
  exit 1
fi
echo "$(wc -l <"$tmp/wanted") lines are refused"

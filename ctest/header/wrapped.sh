#!/bin/sh
# The C++ headers offer what the library exports: every symbol is called in one of them, or LEFT_OUT says why not; and every
# class of theirs that has two forms is in FORMS. Prints what is missing and returns 1.
#   wrapped.sh check SYMBOLS INCLUDE LEFT_OUT FORMS
#   wrapped.sh control-... (same arguments)    with one deliberate mistake: must fail
set -eu
LC_ALL=C
export LC_ALL
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

# Without comments: to be mentioned is not to be called.
code() { cat "$1"/nanomc.hpp "$1"/nanomc/*.hpp | awk '/^\/\*/ { skip = 1 } !skip { sub("//.*", ""); print } /\*\// { skip = 0 }'; }

check() {
  code "$2" > "$tmp/code"
  grep -o 'nmc_[a-z0-9_]*' "$tmp/code" | sort -u > "$tmp/called"
  sort "$1" > "$tmp/exported"
  sed -n 's/^\(nmc_[a-z0-9_]*\) .*/\1/p' "$3" | sort > "$tmp/left_out"
  if grep -v '^#' "$3" | grep -v '^nmc_[a-z0-9_]* [a-z]'; then echo "lines of $3 without a symbol and a reason"; return 1; fi
  comm -23 "$tmp/exported" "$tmp/called" > "$tmp/not_called"
  if comm -23 "$tmp/not_called" "$tmp/left_out" | grep .; then echo "exported, but not in a C++ header and not in $3"; return 1; fi
  if comm -13 "$tmp/not_called" "$tmp/left_out" | grep .; then echo "in $3 for nothing: in a C++ header, or not exported"; return 1; fi
  sed -n 's/^class \(Basic[A-Za-z]*\).*/\1/p' "$tmp/code" | sort -u > "$tmp/classes"
  test -s "$tmp/classes" || { echo "no class with two forms in $2"; return 1; }
  for form in Returning Throwing; do
    sed -n "s/^template class nmc::\(Basic[A-Za-z]*\)<nmc::$form>;/\1/p" "$4" | sort -u > "$tmp/forms"
    if comm -23 "$tmp/classes" "$tmp/forms" | grep .; then echo "not in $4 as $form"; return 1; fi
  done
}

what=$1
shift
case $what in
  check) check "$@" ;;
  control-missing) { cat "$1"; echo nmc_world_new; } > "$tmp/list" && check "$tmp/list" "$2" "$3" "$4" ;;
  control-commented)
    mkdir "$tmp/include" && cp -r "$2/nanomc" "$2/nanomc.hpp" "$tmp/include" &&
      sed -i 's|^.*nmc_world_abort(.*$|// &|' "$tmp/include/nanomc/world.hpp" && check "$1" "$tmp/include" "$3" "$4" ;;
  control-stale) { cat "$3"; echo nmc_world_join for no reason; } > "$tmp/left" && check "$1" "$2" "$tmp/left" "$4" ;;
  control-reason) { cat "$3"; echo nmc_world_join; } > "$tmp/left" && check "$1" "$2" "$tmp/left" "$4" ;;
  control-form) grep -v 'BasicWorld<nmc::Throwing>' "$4" > "$tmp/f" && check "$1" "$2" "$3" "$tmp/f" ;;
  *) echo "unknown check $what"; exit 2 ;;
esac

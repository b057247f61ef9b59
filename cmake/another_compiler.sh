#!/bin/sh
# another_compiler.sh COMPILER OTHER ARGUMENTS...: COMPILER with the arguments that were meant for OTHER. CMake has one compiler a
# language in a build; with this as a launcher, some targets are built by another one.
compiler=$1
shift 2
# A precompiled header that is made anew must not be made of the old one, which clang would read first.
for argument; do
  case $argument in *.gch) rm -f "$argument" ;; esac
done
exec "$compiler" "$@"

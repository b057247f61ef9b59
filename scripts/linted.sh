#!/bin/bash
# Given to cargo as RUSTC_WORKSPACE_WRAPPER, so that clippy looks at what is compiled for the tests while it is compiled. `cargo clippy`
# would read every crate once more, and leave nothing that can be run.
# (bash: sh would drop CARGO_BIN_EXE_nanomc-master, whose name has a hyphen.)
exec clippy-driver "$@" -D warnings

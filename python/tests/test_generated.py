"""The declarations are those of the header, and the layout that cffi computes is that of the compiler."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nanomc import _abi, errors
from nanomc._ffi import ffi

ROOT = Path(__file__).resolve().parents[2]


def test_what_is_generated_is_what_the_header_says():
    done = subprocess.run([sys.executable, str(ROOT / "python" / "generate.py"), "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_function_of_the_header_is_used_by_the_package():
    header = (ROOT / "include" / "nanomc.h").read_text()
    nouns = "world|master|store|client|tier|kv|blocks|ep|log|last|version|abi|status|layout"
    functions = set(re.findall(rf"^(?:nmc_status_t|const char \*|uint32_t) ?(nmc_(?:{nouns})\w*)\(", header, flags=re.M))
    assert len(functions) > 150
    text = "\n".join(path.read_text() for path in (ROOT / "python" / "nanomc").glob("*.py") if path.name != "_ffi.py")
    unused = {name for name in functions if name not in text}
    # Views are unpinned one by one, as what was made of them goes; names of statuses are generated.
    assert unused <= {"nmc_store_unpin_batch", "nmc_status_name", "nmc_layout_version"}


def test_every_status_has_a_class():
    for number, name in _abi.STATUS_NAMES.items():
        if number:
            assert type(errors.error_of(number, "x")) is not errors.NanomcError, name


def test_sizes_and_offsets_are_those_of_the_compiler(tmp_path):
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler")
    # Not ffi.list_types(): asking for the fields of an opaque type aborts inside of cffi.
    text = "".join((ROOT / "include" / name).read_text() for name in ("nanomc/layout.h", "nanomc.h"))
    structs = re.findall(r"^typedef struct (\w+) \{", text, flags=re.M)
    lines, ours = [], []
    for name in structs:
        lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
        ours.append(f"{name} {ffi.sizeof(name)}")
        for field, _ in ffi.typeof(name).fields:
            lines.append(f'printf("{name}.{field} %zu\\n", offsetof({name}, {field}));')
            ours.append(f"{name}.{field} {ffi.offsetof(name, field)}")
    source = tmp_path / "layout.c"
    head = "#include <nanomc.h>\n#include <stdio.h>\n#include <stddef.h>\n"
    source.write_text(head + "int main(void) {\n" + "\n".join(lines) + "\nreturn 0; }\n")
    subprocess.run([compiler, f"-I{ROOT / 'include'}", str(source), "-o", str(tmp_path / "layout")], check=True)
    theirs = subprocess.run([str(tmp_path / "layout")], check=True, capture_output=True, text=True).stdout.split("\n")
    assert ours == [text for text in theirs if text]
    assert len(structs) > 40


def test_defaults_are_those_of_the_macros(tmp_path):
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler")
    header = (ROOT / "include" / "nanomc.h").read_text()
    macros = dict(re.findall(r"#define (NMC_\w+_INIT) \\\n.*?sizeof\((\w+)\)", header, flags=re.S))
    lines = [f"{{ {struct} x = {macro}; fwrite(&x, 1, sizeof x, stdout); }}" for macro, struct in macros.items()]
    source = tmp_path / "defaults.c"
    source.write_text("#include <nanomc.h>\n#include <stdio.h>\nint main(void) {\n" + "\n".join(lines) + "\nreturn 0; }\n")
    subprocess.run([compiler, f"-I{ROOT / 'include'}", str(source), "-o", str(tmp_path / "defaults")], check=True)
    theirs = subprocess.run([str(tmp_path / "defaults")], check=True, capture_output=True).stdout
    from nanomc._library import struct as make

    ours = b"".join(bytes(ffi.buffer(make(struct))) for struct in macros.values())
    assert ours == theirs

#!/usr/bin/env python3
"""Writes what Python knows of the C API: nanomc/_ffi.py (cffi's tables) and nanomc/_abi.py (constants, defaults, records).

Everything comes from include/nanomc.h and include/nanomc/layout.h; nothing is compiled. Run it after the header has changed:

    python3 python/generate.py            # writes both files
    python3 python/generate.py --check    # exits with 1 if they are not what the header says; a test does the same
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
HEADERS = HERE.parent / "include"
PACKAGE = HERE / "nanomc"

# What calls store, as Python sees it: struct -> name of a dataclass. Its size and reserved fields are left out.
RECORDS = {
    "nmc_world_info_t": "WorldInfo",
    "nmc_rank_info_t": "RankInfo",
    "nmc_write_plan_t": "PlanInfo",
    "nmc_object_meta_t": "ObjectInfo",
    "nmc_view_t": "ViewInfo",
    "nmc_completion_t": "Completion",
    "nmc_retry_hint_t": "RetryHint",
    "nmc_store_rank_stats_t": "StoreRankStats",
    "nmc_store_stats_t": "StoreStats",
    "nmc_device_pin_t": "DevicePin",
    "nmc_tier_stats_t": "TierStats",
    "nmc_tier_verified_t": "TierVerified",
    "nmc_kv_opened_t": "KvOpened",
    "nmc_kv_room_t": "KvRoom",
    "nmc_kv_copy_t": "KvCopy",
    "nmc_kv_seq_info_t": "KvSeqInfo",
    "nmc_kv_stats_t": "KvStats",
    "nmc_kv_group_stats_t": "KvGroupStats",
    "nmc_kv_progress_t": "KvProgress",
    "nmc_block_run_t": "BlockRun",
    "nmc_blocks_stats_t": "BlocksStats",
    "nmc_ep_bytes_t": "EpBytes",
}

LIMITS = {"UINT32_MAX": 2**32 - 1, "UINT64_MAX": 2**64 - 1}


def comment_text(comment: str) -> str:
    """The words of a /** comment */."""
    lines = [line.strip().lstrip("*").strip() for line in comment.strip()[2:-2].strip("*").split("\n")]
    return " ".join(line for line in lines if line)


class Header:
    """What the two headers declare, in their order."""

    def __init__(self, folder: Path) -> None:
        layout = (folder / "nanomc" / "layout.h").read_text()
        main = (folder / "nanomc.h").read_text()
        self.constants: dict[str, int | str] = {}
        self.docs: dict[str, str] = {}
        self.inits: dict[str, dict[str, int | float]] = {}
        for text in (layout, main):
            self.read_constants(text)
        self.read_inits(main)
        self.declarations = self.declare(layout) + self.declare(main)

    def read_constants(self, text: str) -> None:
        pattern = r"(?:(/\*(?:[^*]|\*(?!/))*\*/)\s*\n)?#define (NMC_\w+) +([^\s\\(][^\n\\]*)\n"
        for comment, name, value in re.findall(pattern, text):
            value = value.strip()
            if value.startswith('"'):
                self.constants[name] = value.strip('"')
            elif value in LIMITS:
                self.constants[name] = LIMITS[value]
            elif re.fullmatch(r"-?\d+", value):
                self.constants[name] = int(value)
            else:
                continue
            if comment:
                self.docs[name] = comment_text(comment)

    def read_inits(self, text: str) -> None:
        """Defaults that are not zero; struct_size and abi_version are set by whoever makes the struct."""
        for body in re.findall(r"#define NMC_\w+_INIT \\\n((?:.*\\\n)*.*)\n", text):
            found = re.search(r"sizeof\((\w+)\)", body)
            if found is None:
                continue
            fields: dict[str, int | float] = {}
            for name, value in re.findall(r"/\* (\w+) \*/ (\{[^}]*\}|\(uint32_t\)sizeof\(\w+\)|[^,\s]+)", body):
                if name in ("struct_size", "abi_version"):
                    continue
                for at, item in enumerate(value.strip("{}").split(",")):
                    item = item.strip()
                    number = self.constants.get(item, item)
                    if number in ("NULL", "0", "0.0", 0):
                        continue
                    # Of structs in structs only nmc_memory_t has a default that is not zero: its descriptor.
                    key = name if not value.startswith("{") else f"{name}.{at}"
                    fields[key] = float(item) if "." in str(number) else int(str(number))
            self.inits[found.group(1)] = fields

    def declare(self, text: str) -> str:
        text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
        text = re.sub(r"//[^\n]*", "", text)
        text = re.sub(r"#define(?:[^\n]*\\\n)*[^\n]*", "", text)
        text = re.sub(r"^\s*#[^\n]*", "", text, flags=re.M)
        text = re.sub(r"NMC_LAYOUT_FN.*?\n?\}\n", "", text, flags=re.S)
        text = re.sub(r"NMC_LAYOUT_ASSERT\([^;]*;", "", text)
        text = re.sub(r'extern "C" \{', "", text)
        text = re.sub(r"^\}\s*$", "", text, flags=re.M)
        for name, value in self.constants.items():
            text = re.sub(rf"\[{name}\]", f"[{value}]", text)
        return re.sub(r"\n\s*\n+", "\n", text).strip() + "\n"

    def fields(self, struct: str) -> list[tuple[str, str]]:
        """(type, name) of each field."""
        found = re.search(rf"typedef struct {struct} \{{(.*?)\}} {struct};", self.declarations, flags=re.S)
        if found is None:
            raise SystemExit(f"the header has no {struct}")
        fields = []
        for line in found.group(1).split(";"):
            line = line.strip()
            if line:
                kind, name = re.fullmatch(r"(.*?[\s*])(\w+(?:\[\w+\])?)", line, flags=re.S).groups()  # type: ignore[union-attr]
                fields.append((kind.strip(), name))
        return fields

    def doc_of(self, text: str, struct: str) -> str:
        found = re.search(rf"(/\*\*?(?:[^*]|\*(?!/))*\*/)\s*\ntypedef struct {struct} \{{", text)
        return comment_text(found.group(1)) if found else struct


def ffi_module(header: Header) -> str:
    import cffi

    ffi = cffi.FFI()
    ffi.cdef(header.declarations)
    ffi.set_source("nanomc._ffi", None)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "_ffi.py")
        with contextlib.redirect_stdout(io.StringIO()):  # it says where it writes
            ffi.emit_python_code(path)
        text = Path(path).read_text()
    # cffi's own version is in a comment of the file; it says nothing about the header.
    body = "\n".join(line for line in text.split("\n") if not line.startswith("#"))
    return "# Generated from include/nanomc.h by python/generate.py; do not edit.\n" + body.strip() + "\n"


def abi_module(header: Header) -> str:
    lines = [
        "# Generated from include/nanomc.h by python/generate.py; do not edit.",
        '"""The constants of nanomc.h without their NMC_ prefix, the defaults of its structs, and what calls store as dataclasses."""',
        "",
        "from __future__ import annotations",
        "",
        "from dataclasses import dataclass",
        "from typing import Dict, Tuple, Union",
        "",
    ]
    for name, value in header.constants.items():
        doc = header.docs.get(name, "").replace("`", "")
        if doc:
            lines.append(f"#: {doc}")
        lines.append(f"{name[4:]} = {value!r}")
    lines += ["", "#: Names of statuses by number.", "STATUS_NAMES: Dict[int, str] = {"]
    for name, value in header.constants.items():
        if name.startswith("NMC_ERR_") or name in ("NMC_OK", "NMC_NOT_READY", "NMC_IN_PROGRESS"):
            lines.append(f"    {value}: {name!r},")
    lines += ["}", "", "#: What the _INIT macros store, where it is not zero.", "DEFAULTS: Dict[str, Dict[str, Union[int, float]]] = {"]
    for struct, fields in header.inits.items():
        lines.append(f"    {struct!r}: {fields!r},")
    lines += ["}", "", "#: Structs that begin with struct_size, and whether abi_version follows.", "SIZED: Dict[str, bool] = {"]
    for struct in re.findall(r"typedef struct (\w+) \{", header.declarations):
        names = [name for _, name in header.fields(struct)]
        if names[0] == "struct_size":
            lines.append(f"    {struct!r}: {names[1] == 'abi_version'},")
    lines += ["}", ""]
    main = (HEADERS / "nanomc.h").read_text() + (HEADERS / "nanomc" / "layout.h").read_text()
    records, pointers = [], []
    for struct, name in RECORDS.items():
        doc = header.doc_of(main, struct).split(". Start from")[0].rstrip(".")
        lines += ["", "@dataclass(frozen=True)", f"class {name}:", f'    """{doc}."""', ""]
        mine = []
        for kind, field in header.fields(struct):
            if field.startswith(("struct_size", "reserved")):
                continue
            mine.append(field)
            if field == "from":  # a keyword here
                field = "from_"
            lines.append(f"    {field}: {'float' if kind == 'float' else 'int'}")
            if "*" in kind:
                pointers.append((name, field))
        records.append((struct, name, mine))
        lines.append("")
    lines += ["", "#: Fields of the dataclasses that are addresses.", "POINTERS: Dict[str, Tuple[str, ...]] = {"]
    for _, name, mine in records:
        found = tuple(field for record, field in pointers if record == name)
        if found:
            lines.append(f"    {name!r}: {found!r},")
    lines += ["}", ""]
    return "\n".join(lines)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--check", action="store_true", help="compare instead of writing")
    check = arguments.parse_args().check
    header = Header(HEADERS)
    wrong = []
    for path, text in ((PACKAGE / "_ffi.py", ffi_module(header)), (PACKAGE / "_abi.py", abi_module(header))):
        if check:
            if not path.exists() or path.read_text() != text:
                wrong.append(path.name)
        else:
            path.write_text(text)
    if wrong:
        sys.exit(f"{', '.join(wrong)}: not what include/nanomc.h says; run python3 python/generate.py")


if __name__ == "__main__":
    main()

"""Builds the wheel: the package and libnanomc.so, for every Python 3 of one platform. Nothing is compiled and nothing is downloaded.

    python3 python/nanomc_wheel.py [FOLDER]     # into target/wheel
    pip install ./python                        # pip calls build_wheel below

The library is $NMC_LIBRARY, or target/release/libnanomc.so. The platform tag says what it needs of the system: the newest symbol
version of glibc that it asks for, and no other libraries than manylinux allows.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any, Dict, List, Optional

HERE = Path(__file__).resolve().parent
PACKAGE = HERE / "nanomc"
ALLOWED = {"libc.so.6", "libm.so.6", "libdl.so.2", "librt.so.1", "libpthread.so.0", "libgcc_s.so.1", "ld-linux-x86-64.so.2",
           "ld-linux-aarch64.so.1"}
METADATA = """Metadata-Version: 2.1
Name: nanomc
Version: {version}
Summary: Memory that LLM serving processes share: object store, KV cache, expert-parallel transport
License: Apache-2.0
Requires-Python: >=3.9
Requires-Dist: cffi>=1.15
Provides-Extra: test
Requires-Dist: numpy; extra == "test"
Requires-Dist: pytest; extra == "test"
Requires-Dist: mypy; extra == "test"
Description-Content-Type: text/markdown

"""


def version() -> str:
    found = re.search(r"^VERSION_STRING = '([^']+)'$", (PACKAGE / "_abi.py").read_text(), flags=re.M)
    if found is None:
        raise SystemExit("python/nanomc/_abi.py has no VERSION_STRING: run python/generate.py")
    return found.group(1)


def library() -> Path:
    path = Path(os.environ.get("NMC_LIBRARY") or HERE.parent / "target" / "release" / "libnanomc.so")
    if not path.exists():
        raise SystemExit(f"{path} is not there: run `make lib`, or set NMC_LIBRARY")
    return path


def needed(elf: bytes) -> List[str]:
    """The libraries that a 64-bit little-endian ELF file asks for (DT_NEEDED)."""
    if elf[:6] != b"\x7fELF\x02\x01":
        raise SystemExit("the library is no 64-bit little-endian ELF file")
    offset, size, count = struct.unpack_from("<Q", elf, 40)[0], *struct.unpack_from("<HH", elf, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", elf, offset + at * size) for at in range(count)]
    names = []
    for section in sections:
        if section[1] != 6:  # SHT_DYNAMIC
            continue
        strings = sections[section[6]][4]
        for at in range(section[4], section[4] + section[5], 16):
            tag, value = struct.unpack_from("<QQ", elf, at)
            if tag == 1:
                names.append(elf[strings + value : elf.index(b"\0", strings + value)].decode())
    return names


def platform_tag(elf: bytes) -> str:
    machine = {62: "x86_64", 183: "aarch64"}[struct.unpack_from("<H", elf, 18)[0]]
    others = set(needed(elf)) - ALLOWED
    if others:
        print(f"the library needs {', '.join(sorted(others))}, which manylinux does not have: tagged linux_{machine}", file=sys.stderr)
        return f"linux_{machine}"
    versions = [tuple(map(int, found.split(b"."))) for found in re.findall(rb"GLIBC_(\d+\.\d+)\b", elf)]
    major, minor = max(versions)
    return f"manylinux_{major}_{minor}_{machine}"


def contents() -> Dict[str, bytes]:
    """Name in the wheel and bytes of every file of the package."""
    files = {f"nanomc/{path.name}": path.read_bytes() for path in sorted(PACKAGE.iterdir())
             if path.suffix in (".py", ".pyi", ".c") or path.name == "py.typed"}
    for name in ("mooncake_vllm_adaptor.py", "distributed_object_store.py"):  # names that programs for Mooncake Store import
        files[name] = (HERE / name).read_bytes()
    with tempfile.TemporaryDirectory(prefix="nmc-wheel-") as folder:
        copy = Path(folder) / "libnanomc.so"
        shutil.copy(library(), copy)
        if shutil.which("strip"):  # what debuggers want is most of it
            subprocess.run(["strip", "--strip-debug", str(copy)], check=True)
        files["nanomc/libnanomc.so"] = copy.read_bytes()
    return files


def build(folder: Path) -> Path:
    files = contents()
    tag = f"py3-none-{platform_tag(files['nanomc/libnanomc.so'])}"
    info = f"nanomc-{version()}.dist-info"
    text = METADATA.format(version=version())
    page = HERE.parent / "docs" / "python.md"
    files[f"{info}/METADATA"] = (text + (page.read_text() if page.exists() else "")).encode()
    files[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: nanomc\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    files[f"{info}/entry_points.txt"] = b"[console_scripts]\nnanomc-doctor = nanomc.doctor:main\n"
    licence = HERE.parent / "LICENSE"
    if licence.exists():
        files[f"{info}/LICENSE"] = licence.read_bytes()
    rows = []
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows.append(f"{name},sha256={digest},{len(data)}")
    rows.append(f"{info}/RECORD,,")
    files[f"{info}/RECORD"] = ("\n".join(rows) + "\n").encode()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"nanomc-{version()}-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))  # the same files make the same wheel
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o755 if name.endswith(".so") else 0o644) << 16
            archive.writestr(entry, data)
    return path


# ---- what pip calls (PEP 517) -------------------------------------------------------------------------------------------------


def build_wheel(wheel_directory: str, config_settings: Optional[Dict[str, Any]] = None, metadata_directory: Optional[str] = None) -> str:
    return build(Path(wheel_directory)).name


def build_sdist(sdist_directory: str, config_settings: Optional[Dict[str, Any]] = None) -> str:
    raise NotImplementedError("the sources of the library are not part of the package: use a wheel")


if __name__ == "__main__":
    print(build(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE.parent / "target" / "wheel"))

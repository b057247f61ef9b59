"""The page, the types, the doctor, the benchmark, the wheel, and the Triton functions as far as they go without a GPU."""

from __future__ import annotations

import asyncio
import doctest
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import finish

import nanomc
from nanomc import errors

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / "python"


def run(*arguments, **environment):
    given = dict(os.environ, PYTHONPATH=str(PYTHON), **environment)
    return subprocess.run([sys.executable, *arguments], env=given, capture_output=True, text=True, timeout=300)


def test_the_page_says_what_happens(monkeypatch):
    pytest.importorskip("numpy")
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    page = ROOT / "docs" / "python.md"
    text = "\n".join("" if line.startswith("```") else line for line in page.read_text().split("\n"))
    test = doctest.DocTestParser().get_doctest(text, {}, "python.md", str(page), 0)
    assert len(test.examples) > 20
    told = []
    doctest.DocTestRunner(optionflags=doctest.IGNORE_EXCEPTION_DETAIL).run(test, out=told.append)
    assert not told, "".join(told)


def test_types_are_complete():
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("mypy is not installed")
    mypy = [sys.executable, "-m", "mypy", "--no-error-summary", "--cache-dir", os.devnull]
    done = subprocess.run(mypy, cwd=PYTHON, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_doctor_finds_the_library_or_says_that_it_is_missing():
    done = run("-m", "nanomc", "doctor")
    assert done.returncode == 0 and "store        ok" in done.stdout and "world        ok" in done.stdout, done.stdout + done.stderr
    done = run("-m", "nanomc", "doctor", NMC_LIBRARY="/nowhere.so")
    assert done.returncode == 1 and "MISSING" in done.stdout and "/nowhere.so" in done.stdout
    assert run("-m", "nanomc", "version").stdout.strip() == nanomc.__version__
    assert run("-m", "nanomc").returncode == 2


def test_the_benchmark_prints_lines_of_json():
    done = run("-m", "nanomc.bench", "--json", "--quick")
    assert done.returncode == 0, done.stderr
    lines = [json.loads(text) for text in done.stdout.split("\n") if text]
    found = {line["name"]: line for line in lines}
    assert {"python.get.1KiB", "python.get_into.1MiB", "python.put_batch128"} <= set(found)
    assert all(line["value"] > 0 for line in lines if "value" in line)


def test_a_wheel_is_installed_and_works_elsewhere(tmp_path):
    """Without a network: cffi is borrowed from here."""
    done = run(str(PYTHON / "nanomc_wheel.py"), str(tmp_path), NMC_LIBRARY=str(nanomc.library_path()))
    assert done.returncode == 0, done.stderr
    wheel = Path(done.stdout.strip())
    assert wheel.name.startswith(f"nanomc-{nanomc.__version__}-py3-none-") and wheel.exists()
    if importlib.util.find_spec("pip") is None:
        pytest.skip("pip is not installed")
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "NMC_LIBRARY")}
    place = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--target", place, wheel], check=True, env=clean)
    import _cffi_backend

    borrowed = tmp_path / "borrowed"
    borrowed.mkdir()
    (borrowed / Path(_cffi_backend.__file__).name).symlink_to(_cffi_backend.__file__)
    for entry in Path(_cffi_backend.__file__).parent.glob("cffi.libs"):
        (borrowed / entry.name).symlink_to(entry)
    program = "import nanomc; s = nanomc.Store(heap_bytes=1 << 20); s.put('k', b'v'); print(s.get('k'), nanomc.library_path())"
    given = dict(clean, PYTHONPATH=f"{place}:{borrowed}")
    done = subprocess.run([sys.executable, "-S", "-c", program], env=given, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0 and done.stdout.startswith(f"b'v' {place}"), done.stdout + done.stderr


# ---- Triton ------------------------------------------------------------------------------------------------------------------


def needs_triton():
    for name in ("torch", "triton"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")


COMPILE = """
import warnings; warnings.simplefilter("ignore")
sys.path.insert(0, sys.argv[1])
import run
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
nt = run.nt
def build(function, types, **fixed):
    signature = {name: ("constexpr" if name in fixed else kind) for name, kind in zip(function.arg_names, types)}
    made = compile(ASTSource(fn=function, signature=signature, constexprs=fixed), target=GPUTarget("cuda", 90, 32))
    return made.asm["ptx"]
at = "*i64"
push = build(run.push_by_page, ["*fp32", "i32", "i32", "i64", "i32", at, "*i32", "i64", "", "", "", ""],
             rank=0, owner=1, use_cg=True, in_heap=True)
assert "ld.global.cg.v4" in push and "st.global.v4" in push
assert push.index("atom.global.gpu.acq_rel") < push.index("fence.acq_rel.sys") < push.index("st.relaxed.sys.u64")
build(run.push_one, ["*bf16", "i32", "i64", "i32", at, "i64", "", ""], rank=0, owner=1)
wait = build(run.wait_and_read, [at, "*u8", "i64", "i32", "i64", "*i32", "i64", "", "", ""], rank=0, owner=1, in_heap=False)
assert "ld.acquire.sys.u64" in wait
pin = build(run.pin_and_read, [at, "*u8", "i32", "*i32"])
assert pin.index("st.release.sys.u64") < pin.index("fence.sc.sys") < pin.index("ld.acquire.sys.u64")
build(run.push_from_table, ["*u8", at, "i32", "*i32", ""], PARTS=8)
build(nt.push_pages, ["*u8", "i32", "i64", "i32", at, "*i32", at] + [""] * 5, src_rank=0, dst_rank=0, use_cg=True, in_heap=False, PARTS=8)
build(nt.read_remote, ["*u8", "i64", "i32", "i64"] + [""] * 4, my_rank=0, src_rank=1, in_heap=False, TILE=16384)
say("ok")
"""

INTERPRET = """
import warnings; warnings.simplefilter("ignore")
os.environ["TRITON_INTERPRET"] = "1"
import torch, triton, triton.language as tl
import nanomc.triton as nt
@triton.jit
def store_page(dst, src, n, bases, page_bytes, in_heap: tl.constexpr):
    nt.kv_store_page_from_src(src, n, dst, tl.program_id(0), page_bytes, 0, 0, bases, 1, in_heap)
"""


def test_triton_functions_compile_for_a_gpu_that_is_not_here(launch, tmp_path, monkeypatch):
    needs_triton()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    assert finish(launch(COMPILE, PYTHON / "tests" / "gpu"), timeout=300).strip() == "ok"


def test_a_page_is_clamped_to_the_page_and_to_the_value(launch, tmp_path, monkeypatch):
    """In Triton's interpreter. It reads the source of kernels, so the program is a file."""
    needs_triton()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    program = tmp_path / "clamp.py"
    program.write_text("import os, sys\n" + INTERPRET + """
for size in (4, 20, 4096, 4100, 10000):
    for shift in (0, 4, 1):
        source = torch.randint(0, 256, (size + 16,), dtype=torch.uint8)
        value = source[shift : shift + size]
        if shift != 1:
            value = value.view(torch.int32)
        heap = torch.zeros(16384, dtype=torch.uint8)
        bases = torch.tensor([heap.data_ptr()], dtype=torch.int64)
        at = 0 if shift == 4 else 16
        store_page[(1,)](heap.data_ptr() if shift == 4 else 16, value, value.numel(), bases, 4096, in_heap=shift != 4)
        n = min(size, 4096)
        assert torch.equal(heap[at : at + n], source[shift : shift + n]) and heap[at + n :].sum() == 0, (size, shift)
        out = torch.zeros(20000, dtype=torch.uint8)
        nt.read_remote[(triton.cdiv(size, 1024),)](out, source.data_ptr(), size, bases, my_rank=0, src_rank=0, TILE=1024)
        assert torch.equal(out[:size], source[:size]) and out[size:].sum() == 0
print("ok")
""")
    done = run(str(program))
    assert done.returncode == 0 and done.stdout.strip() == "ok", done.stderr


def test_arguments_of_another_type_are_type_errors(store):
    cache, replicate = nanomc.NanoKVCache.over(store), nanomc.Replicate(media_copies=(0, 0, 0, 1))
    cache.store.put("k", b"x")
    with nanomc.Blocks(4) as blocks, nanomc.KvCache(total_blocks=4) as kv:
        for call in (lambda: cache.put("b", b"bytes"), lambda: cache.put("l", [1]), lambda: cache.get_into("k", bytearray(1)),
                     lambda: nanomc.Store(world=5), lambda: store.commit_batch([None]), lambda: store.publish_desc(None, 0),
                     lambda: nanomc.KvCache(groups=[None]), lambda: blocks.free(None), lambda: kv.copy_blocks([5])):
            with pytest.raises(TypeError):
                call()
    with pytest.raises(ValueError):
        replicate._struct()
    with pytest.raises(ValueError):
        nanomc.Store(heap_bytes=1 << 20, world_size=5)
    with pytest.raises(ValueError):
        asyncio.run(store.aput_batch(["a"], []))
    with pytest.raises(ValueError):
        asyncio.run(store.aput_batch([], [b""]))
    with pytest.raises(errors.InvalidArgument):
        store.pin_batch([""])


def test_a_closed_cache_says_so():
    cache = nanomc.NanoKVCache(heap_bytes=1 << 20)
    cache.close()
    for call in (lambda: cache.abort("k"), lambda: cache.payload("k"), cache.heap_bases, lambda: cache.store.unpin_batch([])):
        with pytest.raises(errors.ClosedError):
            call()

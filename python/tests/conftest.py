"""What the tests share: a store, a folder of their own for worlds, and processes that are killed when their test is over."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import nanomc  # noqa: E402
from nanomc import _library  # noqa: E402

if _library.missing:
    pytest.exit(f"no library to test: {_library.missing}", returncode=4)


@pytest.fixture
def store():
    with nanomc.Store(heap_bytes=32 << 20, page_bytes=64 << 10) as made:
        yield made


@pytest.fixture
def folder():
    """Short, since sockets lie in it."""
    with tempfile.TemporaryDirectory(prefix="nmc-py-") as made:
        yield made


@pytest.fixture
def launch(folder):
    """launch(program, *arguments): starts a Python program that finds `nanomc`, `folder` and `say(text)`."""
    running = []

    def start(program: str, *arguments: object) -> subprocess.Popen:
        head = f"""
            import sys, os, time, signal, nanomc
            from nanomc import constants as c, errors
            folder = {folder!r}
            def say(text):
                print(text, flush=True)
            def hear():
                return sys.stdin.readline().strip()
        """
        text = textwrap.dedent(head) + textwrap.dedent(program)
        environment = dict(os.environ, PYTHONPATH=str(HERE.parent))
        process = subprocess.Popen(
            [sys.executable, "-c", text, *map(str, arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, env=environment)
        running.append(process)
        return process

    yield start
    for process in running:
        if process.poll() is None:
            process.kill()
        process.communicate()


def finish(process: subprocess.Popen, timeout: float = 60) -> str:
    """What a program printed; it must have ended well."""
    out, err = process.communicate(timeout=timeout)
    assert process.returncode == 0, f"exit {process.returncode}\n{out}\n{err}"
    return out


def line(process: subprocess.Popen) -> str:
    """The next line that a program prints; what it said on stderr if it ended."""
    text = process.stdout.readline()
    if not text:
        pytest.fail(f"the program ended: {process.communicate(timeout=60)[1]}")
    return text.strip()


def tell(process: subprocess.Popen, text: str = "go") -> None:
    process.stdin.write(text + "\n")
    process.stdin.flush()


@pytest.fixture
def master(folder):
    """The address of a master of the test's own; `master.process` is it."""
    program = os.environ.get("NMC_TEST_MASTER") or str(HERE.parents[1] / "target" / "release" / "nanomc-master")
    if not os.access(program, os.X_OK):
        pytest.skip(f"{program} is not there")

    class Address(str):
        process: subprocess.Popen

        def start(self) -> None:
            words = [program, "--port", self.rpartition(":")[2] or "0", "--metrics_port", "off", "--state", f"{folder}/state"]
            self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    first = Address()
    first.start()
    for text in first.process.stdout:
        if text.startswith("Master service listening on "):
            break
    else:
        pytest.fail("the master ended")
    made = Address(text.split()[-1])
    made.process = first.process
    yield made
    made.process.kill()
    made.process.communicate()

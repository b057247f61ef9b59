"""`python -m nanomc doctor | bench | version`."""

from __future__ import annotations

import sys


def main() -> int:
    command = sys.argv[1] if len(sys.argv) > 1 else ""
    if command == "doctor":
        from .doctor import main as doctor

        return doctor()
    if command == "bench":
        from .bench import main as bench

        del sys.argv[1]
        return bench()
    if command == "version":
        from . import __version__

        print(__version__)
        return 0
    print("usage: python -m nanomc doctor | bench [--json] [--quick] | version", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())

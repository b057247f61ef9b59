#!/usr/bin/env bash
# Figures of Mooncake Store on this machine, for `nmc bench store`, `nmc bench ssd` and `nmc bench cluster`.
#   --install   PyPI mooncake-transfer-engine-non-cuda into target/mooncake-venv
#   --run       starts its master on loopback, measures, prints JSON lines; ends everything it started
#   --ssd DIR   the same with its SSD backend in DIR; reads as many values as each line of its input says
#   --cluster   puts and gets values as each line of its input says: `put BYTES COUNT` or `get BYTES COUNT`
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
venv=$here/../target/mooncake-venv
libs=$venv/sys

install() {
    python3 -m venv "$venv"
    timeout 600 "$venv/bin/pip" install --quiet mooncake-transfer-engine-non-cuda
    # Its libraries want libibverbs even for TCP; where the system has none, Debian's is unpacked beside them.
    if ! importable && command -v apt-get dpkg >/dev/null; then
        local folder
        folder=$(mktemp -d)
        (cd "$folder" && timeout 120 apt-get download libibverbs1 libnl-3-200 libnl-route-3-200 libnuma1 2>/dev/null)
        for package in "$folder"/*.deb; do dpkg -x "$package" "$libs"; done
        rm -r "$folder"
    fi
    importable || { echo "mooncake.store cannot be imported; is libibverbs1 installed?" >&2; rm -rf "$venv"; exit 1; }
    echo "installed in $venv"
}

importable() {
    LD_LIBRARY_PATH=$(library_path) "$venv/bin/python" -c 'import mooncake.store' 2>/dev/null
}

library_path() {
    local folder
    for folder in "$libs"/usr/lib/*-linux-gnu "$libs"/lib/*-linux-gnu; do
        if [ -d "$folder" ]; then printf '%s:' "$folder"; fi
    done
    printf '%s' "${LD_LIBRARY_PATH:-}"
}

measure() {
    [ -x "$venv/bin/python" ] || { echo "not installed: run scripts/bench_mooncake.sh --install" >&2; exit 1; }
    LD_LIBRARY_PATH=$(library_path)
    export LD_LIBRARY_PATH
    exec "$venv/bin/python" "$here/bench_mooncake.py" "$@"
}

case ${1:-} in
--install) install ;;
--run) measure "${2:-$PPID}" ;;
--ssd) measure ssd "${2:?which folder?}" "${3:-$PPID}" ;;
--cluster) measure cluster "${2:-$PPID}" ;;
*) sed -n '2,6p' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
esac

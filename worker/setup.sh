#!/usr/bin/env bash
# Installs the Debian packages that a worker machine needs. Run as root: worker/setup.sh [emulator ...]
set -euo pipefail
cd "$(dirname "$0")"
packages=(python3 python3-venv openssh-server)
for emulator in "$@"; do
    list="emulators/$emulator.packages"
    if [ ! -f "$list" ]; then
        echo "no emulator $emulator; there are: $(cd emulators && ls | sed 's/\.packages$//' | xargs)" >&2
        exit 2
    fi
    mapfile -t more < <(grep -v '^#' "$list")
    packages+=("${more[@]}")
done
echo "== installing ${packages[*]}"
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null
echo "== done"

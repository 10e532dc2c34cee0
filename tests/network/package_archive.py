"""Where a bare machine's ``apt-get`` gets packages without a network: stand-ins, with the files that they are given."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Mapping
from pathlib import Path

from network.bare_machine import BareMachine

_OF_ITS_OWN = "/usr/local /var/lib/dpkg /var/lib/apt /var/cache/apt"
_OPEN = """
set -e
for folder in {places}; do mount -t tmpfs -o mode=755 digirl-dist-test $folder; done
mkdir -p /usr/local/bin /var/lib/dpkg/{{info,updates}} /var/lib/apt/lists/partial /var/cache/apt/archives/partial
touch /var/lib/dpkg/status
rm -rf /etc/apt/sources.list.d /etc/apt/apt.conf.d /etc/dpkg/dpkg.cfg.d
cp -r {folder} /home/market
echo "deb [trusted=yes] file:/home/market ./" > /etc/apt/sources.list
apt-get update -qq
"""


def open_market(bare: BareMachine, folder: Path, packages: Mapping[str, Mapping[str, str]]) -> None:
    """From now on ``apt-get`` of ``bare`` knows these packages and no others; each has programs by their path.

    What is installed of them is gone with ``close_market``.
    """
    folder.mkdir()
    (folder / "Packages").write_text("\n".join(_made(folder, name, files) for name, files in packages.items()))
    bare.as_root(_OPEN.format(folder=folder, places=_OF_ITS_OWN))


def close_market(bare: BareMachine) -> None:
    bare.as_root(f"umount {_OF_ITS_OWN}; rm -rf /home/market")


def _made(folder: Path, name: str, files: Mapping[str, str]) -> str:
    """Its paragraph in the list of packages."""
    content = folder / name
    (content / "DEBIAN").mkdir(parents=True)
    who = "Maintainer: tests <tests@invalid>\nDescription: stand-in"
    about = f"Package: {name}\nVersion: 1\nArchitecture: all\n{who}\n"
    (content / "DEBIAN" / "control").write_text(about)
    for path, text in files.items():
        (content / path).parent.mkdir(parents=True, exist_ok=True)
        (content / path).write_text(text)
        (content / path).chmod(0o755)
    made = folder / f"{name}.deb"
    subprocess.run(["dpkg-deb", "--build", "--root-owner-group", content, made], check=True, capture_output=True)
    data = made.read_bytes()
    return f"{about}Filename: ./{made.name}\nSize: {len(data)}\nSHA256: {hashlib.sha256(data).hexdigest()}\n"

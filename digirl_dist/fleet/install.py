"""Installs this very package on a worker, so that nobody copies source code to machines by hand."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import time
import zipfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import digirl_dist
from digirl_dist.digest import digest
from digirl_dist.errors import InstallError, SettingsError, WorkerError
from digirl_dist.ssh.channel import Channel
from digirl_dist.ssh.connection import Connection
from digirl_dist.worker import bootstrap

_NAME = "digirl_dist"
_EPOCH = (1980, 1, 1, 0, 0, 0)
_OLD_PYTHON = "needs Python 3.10 or newer"
_LOADER = f"""\
import sys
if sys.version_info < (3, 10):
    sys.exit("{_OLD_PYTHON}, not %d.%d" % sys.version_info[:2])
source = sys.stdin.buffer
exec(compile(source.read(int(source.readline())), "bootstrap.py", "exec"))
"""
_GET_PYTHON = "apt-get install python3 python3-venv there, or set worker_python to another Python"


@dataclass(frozen=True)
class Package:
    """The package as it is to be installed, and how."""

    wheel: Path
    requirements: tuple[str, ...] = ()
    constraints: tuple[str, ...] = ()
    pip_args: tuple[str, ...] = ()
    """More arguments for pip: an index of CPU builds, say."""
    reuse_packages: bool = False
    """Use what the worker's Python already has, in whatever version."""
    limit_s: float = 1800.0


def ensure_installed(connection: Connection, package: Package, folder: str, python: str = "python3") -> str:
    """Install or update ``package`` in ``folder`` on the worker unless it is there; returns its Python's path there.

    ``folder`` and ``python`` may start with ``~/``. Raises InstallError, or LinkLostError.
    """
    deadline = time.monotonic() + package.limit_s
    wheel = package.wheel.read_bytes()
    channel = connection.open([python, "-c", _LOADER])
    try:
        _send_order(channel, package, wheel, folder)
        answer = _next_answer(channel, python, deadline)
        if answer.get("want") == "wheel":
            channel.write(wheel)
            answer = _next_answer(channel, python, deadline)
        if "error" in answer:
            raise InstallError(connection.worker, answer["error"], answer["remedy"])
        return str(answer["python"])
    finally:
        channel.close()


def build_wheel(folder: Path) -> Path:
    """Make a wheel in ``folder`` from the running package; the same source gives the same bytes.

    Raises SettingsError if the package is not installed, because then nothing says what it depends on.
    """
    distribution = _distribution()
    info = f"{_NAME}-{distribution.version}.dist-info"
    files = {**dict(_package_files()), **{f"{info}/{name}": data for name, data in _metadata_files(distribution)}}
    files[f"{info}/RECORD"] = _record(files, f"{info}/RECORD")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{_NAME}-{distribution.version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.external_attr = 0o100644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    return path


def requirements(extras: Collection[str] = ()) -> tuple[str, ...]:
    """What the package and these optional parts of it (``miniwob``, say) depend on, as pip reads it."""
    found = []
    for requirement in _distribution().requires or []:
        needed, _, marker = requirement.partition(";")
        extra = re.search(r"extra == ['\"]([\w-]+)", marker)
        if extra is None or extra[1] in extras:
            found.append(requirement if extra is None else needed.strip())
    return tuple(found)


def host_versions() -> tuple[str, ...]:
    """This machine's versions of the direct dependencies as pip constraints, without local labels like ``+cpu``."""
    names = {re.split(r"[^\w.-]", requirement, maxsplit=1)[0] for requirement in _distribution().requires or []}
    found = ((name, _version(name)) for name in sorted(names))
    return tuple(f"{name}=={version.split('+')[0]}" for name, version in found if version)


def _send_order(channel: Channel, package: Package, wheel: bytes, folder: str) -> None:
    order = {
        "folder": folder,
        "wheel": package.wheel.name,
        "size": len(wheel),
        "digest": digest(wheel),
        "requirements": list(package.requirements),
        "constraints": list(package.constraints),
        "pip_args": list(package.pip_args),
        "reuse_packages": package.reuse_packages,
        "limit_s": package.limit_s,
    }
    program = Path(bootstrap.__file__).read_bytes()
    try:
        channel.write(b"%d\n%s%s\n" % (len(program), program, json.dumps(order).encode()))
    except WorkerError:
        pass  # no Python there: that there is no answer tells so


def _next_answer(channel: Channel, python: str, deadline: float) -> dict[str, Any]:
    """What the bootstrap says next, or why it says nothing."""
    line = channel.readline(timeout_s=max(1.0, deadline - time.monotonic()))
    if not line:
        raise _why_no_answer(channel, python)
    try:
        answer: dict[str, Any] = json.loads(line)
    except ValueError as error:
        reason = f"something else than the installation answers: {line[:200]!r}"
        remedy = "let the shell's start-up files print nothing when it is not interactive"
        raise InstallError(channel.worker, reason, remedy) from error
    return answer


def _why_no_answer(channel: Channel, python: str) -> WorkerError:
    ended = channel.ended()
    if channel.exit_status in (None, -1):
        return ended
    said = channel.stderr_tail()
    if channel.exit_status in (126, 127):
        return InstallError(channel.worker, f"there is no `{python}` that can be run: {said}", _GET_PYTHON)
    if _OLD_PYTHON in said:
        return InstallError(channel.worker, f"`{python}` is too old: the package {said}", _GET_PYTHON)
    return InstallError(channel.worker, f"`{python}` could not run the installation: {said}")


def _distribution() -> metadata.Distribution:
    try:
        return metadata.distribution(_NAME)
    except metadata.PackageNotFoundError as error:
        raise SettingsError(
            "this copy of digirl_dist is not installed, so workers cannot get it from here -> pip install -e ."
        ) from error


def _package_files() -> Iterator[tuple[str, bytes]]:
    """Path in the wheel and content, of the package and of the configuration that travels inside it."""
    package = Path(digirl_dist.__file__).resolve().parent
    yield from _files_of(package, _NAME)
    if not (package / "config").is_dir():
        yield from _files_of(package.parent / "config", f"{_NAME}/config")


def _files_of(root: Path, prefix: str) -> Iterator[tuple[str, bytes]]:
    for path in sorted(root.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts and path.suffix not in (".pyc", ".part"):
            yield f"{prefix}/{path.relative_to(root).as_posix()}", path.read_bytes()


def _metadata_files(distribution: metadata.Distribution) -> Iterator[tuple[str, bytes]]:
    about = distribution.read_text("METADATA") or distribution.read_text("PKG-INFO") or ""
    yield "METADATA", about.encode()
    yield "WHEEL", b"Wheel-Version: 1.0\nGenerator: digirl_dist\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    if commands := distribution.read_text("entry_points.txt"):
        yield "entry_points.txt", commands.encode()


def _record(files: dict[str, bytes], own_name: str) -> bytes:
    """The wheel's list of contents (binary distribution format, "The .dist-info directory")."""
    lines = []
    for name, data in files.items():
        checksum = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={checksum},{len(data)}\n")
    return "".join([*lines, f"{own_name},,\n"]).encode()


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None

"""Installs this very package on a worker, so that nobody copies source code to machines by hand."""

from __future__ import annotations

import base64
import hashlib
import io
import re
import time
import zipfile
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import digirl_dist
from digirl_dist.errors import InstallError, SettingsError
from digirl_dist.fleet.remote_python import RemotePython
from digirl_dist.plain_text import hide, without_secrets_in
from digirl_dist.settings import EmulatorSettings, InstallSettings
from digirl_dist.settings.regular_file import defect
from digirl_dist.ssh.connection import Connection
from digirl_dist.storage.digest import digest
from digirl_dist.storage.provenance import dependency_versions, version_of
from digirl_dist.worker_program import bootstrap

_LOGIN = re.compile(r"(?<![\w+])(https?://)([^/\s@]+(?:@[^/\s@]+)*)@(\[[^]\s]+\]|[^/\s:]+)")
_PROXY = "--proxy"
_OF_AN_INDEX = re.compile(r"-[if]|--(extra-)?index-url|--no-index|--find-links")


@dataclass(frozen=True)
class PipArgs:
    """Arguments that everybody may read, and what goes to a file or a variable that only the user can read."""

    words: tuple[str, ...] = ()
    netrc: str = ""
    """Lines of a .netrc file, which pip and uv read."""
    proxy: str = ""
    """The URL of a proxy with a login."""

    def __repr__(self) -> str:
        return f"PipArgs({self.words})"


def split_logins(args: Sequence[str], key: str = "install.pip_args") -> PipArgs:
    """Returns arguments of pip with their logins apart. Raises SettingsError, naming ``key``, for another secret."""
    words, proxy = _without_proxy(args)
    netrc = "".join(_netrc_line(key, *found) for word in words for found in _LOGIN.findall(word))
    plain = tuple(_LOGIN.sub(r"\1\3", word) for word in words)
    for word, shown in zip(plain, without_secrets_in(list(plain)), strict=True):
        if word != shown:
            raise SettingsError(
                f"{key}: {shown} would show its secret to everybody on the workers (ps); "
                "put it into pip.conf or .netrc there, or into the URL of an index (https://user:password@…)"
            )
    return PipArgs(plain, netrc, proxy)


def _without_proxy(args: Sequence[str]) -> tuple[list[str], str]:
    words, proxy, rest = [], "", iter(args)
    for word in rest:
        value = word.partition("=")[2] if word.startswith(f"{_PROXY}=") else next(rest, "") if word == _PROXY else None
        if value is None:
            words.append(word)
        elif "@" in value:
            proxy = value
        else:
            words += [_PROXY, value]
    return words, proxy


def _netrc_line(key: str, _scheme: str, login: str, host: str) -> str:
    user, _, password = login.partition(":")
    values = [unquote(user), unquote(password)]
    hide(value for value in (login, *values) if value)
    if any(re.search(r"[\s\"'\\#]", value) for value in values):
        raise SettingsError(
            f"{key}: the login for {host} has spaces, quotes, # or \\, which no .netrc file takes; "
            "put it into pip.conf on the workers"
        )
    return f"machine {host.strip('[]')} login {values[0]} password {values[1] or chr(34) * 2}\n"


_NAME = "digirl_dist"
_EPOCH = (1980, 1, 1, 0, 0, 0)
_LOOK_LIMIT_S = 60.0
_DATA = ("config", "worker")
"""Folders of the checkout whose files travel inside the package."""


@dataclass(frozen=True)
class Wheel:
    """The package as a wheel. In memory: what cleans up temporary files would take one from a run of weeks."""

    name: str
    content: bytes = field(repr=False)


@dataclass(frozen=True)
class Package:
    """The package as it is to be installed, and how."""

    wheel: Wheel
    requirements: tuple[str, ...] = ()
    constraints: tuple[str, ...] = ()
    pip_args: PipArgs = field(default_factory=PipArgs)
    """Further arguments of pip, such as an index of CPU builds."""
    cpu_index: str = ""
    """Where torch comes from, as a CPU build and no other; empty: from wherever the rest does."""
    reuse_packages: bool = False
    """Whether to use what the worker's Python already has, in whatever version."""
    uv: bool = True
    """Whether to use uv where there is one."""
    limit_s: float = 1800.0
    setup: str = ""
    """A Bash script that runs once in the installed environment."""

    @property
    def digest(self) -> str:
        """The digest of the wheel."""
        return digest(self.wheel.content)

    def with_emulator(self, emulator: EmulatorSettings) -> Package:
        """Returns this package with what the emulator's settings install besides. Raises SettingsError."""
        if wrong := [each for each in emulator.packages if not re.match(r"[\w./~]", each) or not each.isprintable()]:
            raise SettingsError(f"emulator.packages: {wrong[0]!r} is no package; install.pip_args takes pip's options")
        asked = split_logins(emulator.packages, "emulator.packages")
        bare = [name for name in asked.words if re.fullmatch(r"[\w.-]+", name)]
        versions = tuple(_pinned(name, found) for name in bare if (found := version_of(name)))
        return replace(
            self,
            requirements=(*self.requirements, *asked.words),
            constraints=(*self.constraints, *versions),
            pip_args=replace(self.pip_args, netrc=self.pip_args.netrc + asked.netrc),
            setup="" if emulator.setup is None else _script(emulator.setup),
        )


def this_package(settings: InstallSettings, extras: Collection[str]) -> Package:
    """Returns this very package with the host's versions of what it depends on."""
    return Package(
        wheel=build_wheel(),
        requirements=requirements(extras),
        constraints=host_versions(),
        pip_args=split_logins(settings.pip_args),
        cpu_index="" if any(map(_OF_AN_INDEX.match, settings.pip_args)) else settings.cpu_index or "",
        reuse_packages=settings.reuse_packages,
        uv=settings.uv,
        limit_s=settings.limit_s,
    )


def ensure_installed(connection: Connection, package: Package, folder: str, python: str = "python3") -> str:
    """Installs or updates ``package`` in ``folder`` on the worker unless it is there; returns its Python's path there.

    ``folder`` and ``python`` may start with ``~/``. Raises InstallError, or LinkLostError.
    """
    deadline = time.monotonic() + package.limit_s + _LOOK_LIMIT_S  # the worker's own limit comes first, and says more
    with _bootstrap(connection, package, folder, python) as remote:
        answer = remote.answer(deadline)
        if answer.get("want") == "wheel":
            remote.write(package.wheel.content)
            answer = remote.answer(deadline)
        _refuse_failure(connection, answer)
        if "python" not in answer:
            raise InstallError(connection.worker, "its installer names no Python", "look at what its shell prints")
        return str(answer["python"])


def what_is_missing(connection: Connection, package: Package, folder: str, python: str = "python3") -> str:
    """Returns what ``ensure_installed`` would have to mend, empty if nothing; changes nothing.

    Raises InstallError if it could not mend it, or LinkLostError.
    """
    with _bootstrap(connection, package, folder, python, look_only=True) as remote:
        answer = remote.answer(time.monotonic() + _LOOK_LIMIT_S)
    _refuse_failure(connection, answer)
    return str(answer.get("missing", ""))


def installed_python(folder: str) -> str:
    """Returns the path of the Python that ``ensure_installed`` provides below ``folder``."""
    return f"{folder}/{bootstrap.OWN_FOLDER}/venv/bin/python"


def build_wheel() -> Wheel:
    """Makes a wheel of the running package; the same source gives the same bytes.

    Raises SettingsError if the package is not installed, because then nothing says what it depends on.
    """
    distribution = _distribution()
    info = f"{_NAME}-{distribution.version}.dist-info"
    files = {**dict(_package_files()), **{f"{info}/{name}": data for name, data in _metadata_files(distribution)}}
    files[f"{info}/RECORD"] = _record(files, f"{info}/RECORD")
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.external_attr = 0o100644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    return Wheel(f"{_NAME}-{distribution.version}-py3-none-any.whl", made.getvalue())


def requirements(extras: Collection[str] = ()) -> tuple[str, ...]:
    """Returns what a worker needs for the package and these extras, as pip reads it."""
    wanted, found = {"train", *extras}, []
    for requirement in _distribution().requires or []:
        needed, _, marker = requirement.partition(";")
        extra = re.search(r"extra == ['\"]([\w-]+)", marker)
        if extra is None or extra[1] in wanted:
            found.append(requirement if extra is None else needed.strip())
    return tuple(found)


def host_versions() -> tuple[str, ...]:
    """Returns this machine's versions of the direct dependencies as pip constraints, without labels like ``+cpu``."""
    return tuple(_pinned(name, version) for name, version in dependency_versions().items())


def _pinned(name: str, version: str) -> str:
    return f"{name}=={version.split('+')[0]}"


def _refuse_failure(connection: Connection, answer: dict[str, Any]) -> None:
    if "error" in answer:
        raise InstallError(connection.worker, str(answer["error"]), str(answer.get("remedy", "")))


def _bootstrap(
    connection: Connection, package: Package, folder: str, python: str, look_only: bool = False
) -> RemotePython:
    order = {
        "folder": folder,
        "wheel": package.wheel.name,
        "size": len(package.wheel.content),
        "digest": package.digest,
        "requirements": list(package.requirements),
        "constraints": list(package.constraints),
        "setup": package.setup,
        "pip_args": list(package.pip_args.words),
        "cpu_index": package.cpu_index,
        "netrc": package.pip_args.netrc,
        "proxy": package.pip_args.proxy,
        "reuse_packages": package.reuse_packages,
        "uv": package.uv,
        "limit_s": package.limit_s,
        "look_only": look_only,
    }
    return RemotePython(connection, python, bootstrap, order)


def _distribution() -> metadata.Distribution:
    try:
        return metadata.distribution(_NAME)
    except metadata.PackageNotFoundError as error:
        raise SettingsError(
            "this copy of digirl_dist is not installed, so workers cannot get it from here -> pip install -e ."
        ) from error


def _package_files() -> Iterator[tuple[str, bytes]]:
    """Yields path in the wheel and content, of the package and of the configuration that travels inside it."""
    package = Path(digirl_dist.__file__).resolve().parent
    yield from _files_of(package, _NAME)
    for name in _DATA:
        if not (package / name).is_dir():
            yield from _files_of(package.parent / name, f"{_NAME}/{name}")


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
    """Returns the wheel's list of contents (binary distribution format, "The .dist-info directory")."""
    lines = []
    for name, data in files.items():
        checksum = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={checksum},{len(data)}\n")
    return "".join([*lines, f"{own_name},,\n"]).encode()


def _script(path: str) -> str:
    try:
        text = Path(path).expanduser().read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"emulator.setup={path} cannot be read: {defect(error)}") from error
    if re.match(r"#!(?!.*sh\b)", text):
        raise SettingsError(f"emulator.setup={path} is run by Bash, and its first line wants another program")
    return text

"""Installs the package on a worker. The host streams this file to the worker's own Python (see ``RemotePython``).

It reads a line of JSON (see ``InstallRequest``) from stdin, and the wheel after asking for it. It writes JSON lines to
stdout: ``{"want": "wheel"}`` if it needs the wheel, then ``{"python": PATH}`` or ``{"error": REASON, "remedy":
ADVICE}``. A request with ``look_only`` gets ``{"python": PATH}`` or ``{"missing": WHAT}``, and changes nothing.

``installed.json`` is written last and removed before anything changes: what it says is true after a crash as well.
"""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from digirl_dist.storage.file_system import FULL, NO_LOCKS, in_words, lock, refuse_squatted, refuses_programs
from digirl_dist.worker_program.pip_configuration import environment, indexes_for_uv, path_of_uv


@dataclass
class InstallRequest:
    """The host's request. ``wheel`` is the file's name, ``size`` its bytes, ``digest`` identifies the content.

    ``setup`` is the text of a Bash script that runs last, in the environment; empty: none.
    """

    folder: str
    wheel: str
    size: int
    digest: str
    requirements: list[str]
    constraints: list[str]
    setup: str
    pip_args: list[str]
    netrc: str
    """Logins of package indexes, as lines of a .netrc file; in no argument, which others could read."""
    proxy: str
    """A proxy with a login."""
    cpu_index: str
    """Index of the CPU builds of torch; empty: torch comes from where everything else does."""
    reuse_packages: bool
    uv: bool
    limit_s: float
    look_only: bool


class Failed(Exception):
    """The installation is not possible; carries the reason and the remedy."""

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(reason)
        self.remedy = remedy


OWN_FOLDER = "digirl_dist_env"
"""The folder below the worker's ``run_path`` that holds all that is installed; nothing beside it is touched."""
_PARTS_OF_PYTHON = ("_ctypes", "zlib")
"""Modules of the standard library that the package needs and that a Python may be built without."""
_MARK = "made_by_digirl_dist"
"""The file in it which says that this program made the folder and may remove what it holds."""


class Installation:
    """The virtual environment in one folder."""

    def __init__(self, request: InstallRequest, source: BinaryIO) -> None:
        self._request = request
        self._source = source
        self._folder = Path(request.folder).expanduser() / OWN_FOLDER
        self._venv = self._folder / "venv"
        self._python = self._venv / "bin" / "python"
        self._record = self._folder / "installed.json"
        self._wanted = self._folder / "wanted.json"
        self._deadline = time.monotonic() + request.limit_s
        self._environment = environment(os.environ)

    def ensure(self) -> str:
        """Returns the Python that has the package; installs it unless that was done before."""
        self._refuse_unusable()
        if not self._is_done():
            self._claim()
            with self._lock():
                if not self._is_done():
                    self._install()
        return str(self._python)

    def look(self) -> dict[str, str]:
        """Returns what there is, or what is missing."""
        self._refuse_unusable()
        if self._is_done():
            return {"python": str(self._python)}
        self._refuse_foreign()
        if not self._record.exists():
            return {"missing": f"not installed in {self._folder}"}
        return {"missing": f"another version, or with other settings, is installed in {self._folder}"}

    def _refuse_unusable(self) -> None:
        """Raises Failed or PermissionError where nothing that is installed here could run."""
        refuse_squatted(self._folder)
        if not os.path.exists("/proc/self/cmdline"):
            raise Failed("/proc is not mounted, by which programs find each other", "mount -t proc proc /proc")
        if lacking := [name for name in _PARTS_OF_PYTHON if importlib.util.find_spec(name) is None]:
            reason = f"{sys.executable} was built without {', '.join(lacking)}"
            raise Failed(reason, "set worker_python to another Python, such as the distribution's own")
        if refuses_programs(self._folder) and not self._request.reuse_packages:
            reason = f"{self._folder} is on a file system that is mounted noexec: no library can be loaded from it"
            raise Failed(reason, "set worker_run_path to a folder on another one")

    def _claim(self) -> None:
        """Makes and marks the folder. Raises Failed if there is one that this program did not make."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._refuse_foreign()
        (self._folder / _MARK).touch()

    def _refuse_foreign(self) -> None:
        """Raises Failed if the folder is there, and something else is in it."""
        content = os.listdir(self._folder) if self._folder.exists() else []
        if content and _MARK not in content:
            remedy = "move it elsewhere, or set the worker's run_path to another folder"
            raise Failed(f"{self._folder} was not made by digirl_dist, so nothing in it was touched", remedy)

    def _is_done(self) -> bool:
        was = self._recorded()
        return was == {**self._state(), "files": was.get("files")} and self._is_whole(was)

    def _recorded(self) -> dict[str, Any]:
        """What the last installation left here; empty if there was none, or its record cannot be read."""
        with suppress(OSError, ValueError):
            if isinstance(was := json.loads(self._record.read_text()), dict):
                return was
        return {}

    def _is_whole(self, was: dict[str, Any]) -> bool:
        """Whether all that was installed is still there; further files do not matter."""
        with suppress(OSError):
            return self._python.exists() and self._files() >= was.get("files", 0)
        return False

    def _files(self) -> int:
        return sum(len(names) for folder, _, names in os.walk(self._venv) if not folder.endswith("__pycache__"))

    def _state(self) -> dict[str, Any]:
        """Whatever changes the environment when it changes."""
        request = self._request
        return {
            "digest": request.digest,
            "requirements": request.requirements,
            "constraints": request.constraints,
            "setup": hashlib.sha256(request.setup.encode()).hexdigest(),
            "pip_args": request.pip_args,
            "cpu_index": request.cpu_index,
            "reuse_packages": request.reuse_packages,
            "python": [sys.executable, *sys.version_info[:2]],
        }

    def _install(self) -> None:
        _answer({"want": "wheel"})
        intact = self._same_environment()
        self._record.unlink(missing_ok=True)
        wheel = self._receive_wheel()
        if not intact:
            self._make_environment()
        if self._request.reuse_packages and sys.prefix != sys.base_prefix:
            self._reuse_outer_environment()
        # The first run replaces the package even if its version number is the old one, the second adds what it needs.
        self._pip("--no-index", "--force-reinstall", "--no-deps", str(wheel))
        if not any(self._venv.glob("lib*/python*/site-packages/digirl_dist/__init__.py")):
            raise Failed(f"the package was installed elsewhere than in {self._venv}", "see which configuration says so")
        if requirements := self._missing(self._request.requirements):
            self._install_torch()
            self._pip("-c", str(self._constraints()), *self._request.pip_args, *requirements)
        if self._request.setup:
            self._set_up()
        if self._request.requirements and (self._request.setup or self._request.reuse_packages):
            works = [str(self._python), "-I", "-c", "import digirl_dist.worker_program.program"]
            self._run(works, "import the package")
        part = self._record.with_suffix(".part")
        part.write_text(json.dumps({**self._state(), "files": self._files()}))
        os.replace(part, self._record)

    def _install_torch(self) -> None:
        """Installs the CPU build, which the requirements then find; the plain one brings gigabytes of CUDA."""
        wanted = [each for each in self._missing(self._request.constraints) if each.startswith("torch==")]
        if self._request.cpu_index and wanted:
            self._pip("--no-deps", *self._request.pip_args, "--index-url", self._request.cpu_index, f"{wanted[0]}+cpu")

    def _set_up(self) -> None:
        """Runs the user's script, which finds ``python`` and ``pip`` of the environment first."""
        if not self._has_pip():
            self._add_pip()
        path = os.pathsep.join([str(self._python.parent), os.environ.get("PATH", os.defpath)])
        own = {"PATH": path, "VIRTUAL_ENV": str(self._venv)}
        with self._private("setup.sh", self._request.setup) as script:
            self._run(["bash", "-e", str(script)], _SETUP, own, needs_host=True)

    def _same_environment(self) -> bool:
        was, wanted = self._recorded(), self._state()
        same = all(was.get(key) == wanted[key] for key in ("python", "reuse_packages"))
        return same and self._is_whole(was) and bool(self._installer())

    def _receive_wheel(self) -> Path:
        wheels = self._folder / "wheel"
        shutil.rmtree(wheels, ignore_errors=True)
        wheels.mkdir()
        data = self._source.read(self._request.size)
        if len(data) != self._request.size:
            raise Failed("the host went away while it sent the package")
        path = wheels / os.path.basename(self._request.wheel)
        path.write_bytes(data)
        return path

    def _make_environment(self) -> None:
        shutil.rmtree(self._venv, ignore_errors=True)
        if uv := self._uv():
            self._run([uv, "venv", "--quiet", "--python", sys.executable, str(self._venv)], "make an environment")
        else:
            self._make_environment_with_venv()

    def _make_environment_with_venv(self) -> None:
        if importlib.util.find_spec("venv") is None or importlib.util.find_spec("ensurepip") is None:
            name = f"python{sys.version_info[0]}.{sys.version_info[1]}-venv"
            raise Failed(f"{sys.executable} lacks the module venv", f"apt-get install {name}, or set worker_python")
        options = ["--system-site-packages"] if self._request.reuse_packages else []
        self._run([sys.executable, "-m", "venv", "--without-pip", *options, str(self._venv)], "make an environment")
        if not self._installer():
            self._add_pip()

    def _reuse_outer_environment(self) -> None:
        """A virtual environment made from another one sees the base Python's packages, not those of the other.

        Its editable packages are found by the ``.pth`` files there.
        """
        paths = sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
        places = list(self._venv.glob("lib/python*/site-packages"))
        lines = [f"import site; site.addsitedir({path!r})\n" for path in paths]
        (places[0] / "reused_packages.pth").write_text("".join(lines))

    def _constraints(self) -> Path:
        """The host's versions."""
        path = self._folder / "constraints.txt"
        path.write_text("".join(f"{line}\n" for line in self._missing(self._request.constraints)))
        return path

    def _missing(self, requirements: list[str]) -> list[str]:
        """All requirements, or those on packages that are not here, if what is here shall be used as it is."""
        if not self._request.reuse_packages:
            return requirements
        return [each for each in requirements if not _version_here(re.split(r"[^\w.-]", each, maxsplit=1)[0])]

    def _pip(self, *args: str) -> None:
        installer = self._installer()
        words = indexes_for_uv(args) if installer[1:2] == ["pip"] else args
        with self._logins() as variables:
            self._run([*installer, *words], "install the package", variables)

    def _installer(self) -> list[str]:
        """What installs into the environment: its own pip, or else uv, or this Python's pip; empty if there is none.

        Python compiles what it imports, so nothing is compiled beforehand.
        """
        options = ["--no-input", "--disable-pip-version-check", "--progress-bar=off", "--no-compile"]
        if self._has_pip():
            return [str(self._python), "-m", "pip", "install", *options]
        if uv := self._uv():  # the next index is asked where one has no fitting version: one of torch has others, too
            choice = ["--quiet", "--index-strategy", "unsafe-first-match"]
            return [uv, "pip", "install", "--python", str(self._python), *choice]
        if [int(each) for each in re.findall(r"\d+", _version_here("pip"))] >= _PIP_FOR_OTHERS:
            return [sys.executable, "-m", "pip", "--python", str(self._python), "install", *options]
        return []

    def _has_pip(self) -> bool:
        return (self._venv / "bin" / "pip").exists()

    def _add_pip(self) -> None:
        if self._uv():  # this Python may lack ensurepip
            self._pip("pip")
        else:
            ensure = [str(self._python), "-m", "ensurepip", "--upgrade", "--default-pip"]
            self._run(ensure, "put pip into the environment")

    def _uv(self) -> str | None:
        """uv, if it may be used. It does not know how to see another environment's packages."""
        return path_of_uv() if self._request.uv and not self._request.reuse_packages else None

    @contextmanager
    def _logins(self) -> Iterator[dict[str, str]]:
        """Yields variables by which pip and uv find the logins, in a file of this user's while they run."""
        proxy = self._request.proxy
        variables = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy"), proxy)
        if not self._request.netrc:
            yield variables if proxy else {}
            return
        own = Path(os.environ.get("NETRC", "~/.netrc")).expanduser()
        others = own.read_text() if own.is_file() else ""
        with self._private("netrc", self._request.netrc + others) as path:
            yield {**(variables if proxy else {}), "NETRC": str(path)}

    @contextmanager
    def _private(self, name: str, text: str) -> Iterator[Path]:
        """Yields a file that no other user can read, and deletes it."""
        path = self._folder / name
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)

    def _run(
        self, command: list[str], purpose: str, own: dict[str, str] | None = None, needs_host: bool = False
    ) -> None:
        """Raises Failed for a command that fails, lasts too long or whose host goes away.

        Without ``needs_host``, a command goes on without its host, unless another host wants something else.
        """
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=self._environment | (own or {}),
            start_new_session=True,
            preexec_fn=_end_with_parent,  # else it would go on beside that of the next installation
        )
        output = _Output(process)
        if (why := self._waited(process, needs_host)) is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with its children
            process.wait()
        if why is not None or process.returncode != 0:
            told = f"cannot {purpose}: {' '.join(command)} {why or f'ended with status {process.returncode}'}"
            said = output.essence()
            remedy = _SLOW if why else _why(said)
            if remedy == _DISK_FULL:
                said += f"\n{self._folder}: {in_words(OSError(errno.ENOSPC, 'no space'), self._folder)}"
            raise Failed(f"{told}: {said}" if said else told, remedy or (_MEND_SETUP if purpose == _SETUP else ""))

    def _waited(self, process: subprocess.Popen[bytes], needs_host: bool) -> str | None:
        """Waits for the end of a process; returns why it is to be ended, None if it has ended."""
        until = max(self._deadline, time.monotonic() + 1.0)
        while time.monotonic() < until:
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.2)
                return None
            if select.select([self._source], [], [], 0)[0]:  # no more was to come: the end of it
                if needs_host:
                    return "was ended, as the host went away"
                if self._is_in_the_way():
                    return "was ended, as its host went away and another one wants something else"
        return f"was not done within {self._request.limit_s:g} s"

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Only one host at a time installs into this folder; who waits says what for, and holds that file locked."""
        with open(self._folder / "install.lock", "w") as file, open(self._wanted, "a") as wanted:
            while not lock(file):
                if lock(wanted):
                    wanted.truncate(0)
                    wanted.write(json.dumps(self._state()))
                    wanted.flush()
                if time.monotonic() > self._deadline:
                    raise Failed(f"another installation in {self._folder} did not end in time", _SLOW)
                time.sleep(0.1)
            wanted.close()
            yield

    def _is_in_the_way(self) -> bool:
        """Whether somebody waits for the end of this installation, to make another."""
        with suppress(OSError, ValueError), open(self._wanted) as wanted:
            return not lock(wanted) and json.load(wanted) != self._state()
        return False


_KEPT_OUTPUT = 1 << 16
_SETUP = "run emulator.setup"
_MEND_SETUP = "mend the script, which is to end with status 0 and is run again as a whole"
_SLOW = "look at what it waits for, or raise install.limit_s"
_DISK_FULL = "delete files there, or set the worker's folder to a larger disk"
_ELSEWHERE = "set worker_run_path to a folder on a local disk"
_LACKING = {
    **dict.fromkeys(FULL, _DISK_FULL),
    **dict.fromkeys(NO_LOCKS, _ELSEWHERE),
    errno.EFBIG: "raise its user's limit of the size of files (`ulimit -f`)",
    errno.EMFILE: "raise its user's limit of open files (`ulimit -n`)",
    errno.EAGAIN: "raise its user's limit of processes (`ulimit -u`), or end others",
    errno.ENOMEM: "raise its user's limits of memory and stack (`ulimit -v -s`), or add memory",
    errno.ENAMETOOLONG: "set the worker's folder to one with a shorter path",
}
"""What to do about an error of the operating system; others are those of a folder that cannot be written."""
_PIP_FOR_OTHERS = [22, 3]
"""The first version of pip that installs into another Python's environment."""


def _end_with_parent() -> None:
    """Has Linux kill this process when the one that started it is gone, however that ended."""
    with suppress(ImportError, OSError, AttributeError):
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG of sys/prctl.h


def _version_here(name: str) -> str:
    """The version that this Python has; empty if none."""
    from importlib import metadata  # here, as the way to a program imports this file too

    with suppress(metadata.PackageNotFoundError, ValueError):  # ValueError: a path or an address has no name
        return metadata.version(name)
    return ""


class _Output:
    """Keeps the end of what a process prints; programs that it leaves running may hold the pipe open."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._pipe = process.stdout
        self._end = b""
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        while self._pipe is not None and (part := os.read(self._pipe.fileno(), 1 << 16)):
            self._end = (self._end + part)[-_KEPT_OUTPUT:]

    def essence(self) -> str:
        """Returns the lines that pip marks as errors, with the conflict that it tells between them; else the last.

        Ahead of them is the first place of packages that it left out, for one that it cannot read causes what follows.
        """
        self._reading.join(1.0)
        lines, told, is_told = self._end.decode(errors="replace").strip().splitlines(), [], False
        for line in lines:
            is_told = line.startswith("The conflict is caused by") or (is_told and line.startswith(" "))
            if is_told or line.startswith("ERROR:"):
                told.append(line)
        left_out = [line for line in lines if " is ignored: " in line][:1]
        return "\n".join([*left_out, *(told or lines[-15:])])


def _why(said: str) -> str:
    if re.search("No space left|Disk quota exceeded", said):
        return _DISK_FULL
    if re.search(r"torch==\S+\+cpu", said):
        return (
            "workers get CPU builds of torch alone: name an index that has it as install.cpu_index; with "
            "install.cpu_index=null they take what their own index has, which may be gigabytes of CUDA"
        )
    if re.search("No matching distribution|Could not find a version|Connection|Temporary failure", said):
        return (
            "check the package's name and version, and that the worker reaches an index that has it "
            "(install.pip_args); or let it use what its Python has (install.reuse_packages)"
        )
    if re.search("No solution found|not found in the package registry|Failed to fetch|error sending request", said):
        return "uv does not read pip.conf: name the index in install.pip_args, or use pip with install.uv=false"
    return ""


def _shortage(error: Exception, folder: str) -> Failed:
    """Returns what the machine lacks or refuses. Raises ``error`` if that is not its cause."""
    if isinstance(error, OSError):
        at = f": {error.filename}" if error.filename else ""
        remedy = _LACKING.get(error.errno or 0, "set the worker's folder to one that its user can write")
        return Failed(f"cannot use the folder {folder}: {in_words(error, Path(folder).expanduser())}{at}", remedy)
    if isinstance(error, MemoryError) or "can't start new thread" in str(error):
        return Failed(f"cannot install in {folder}: {error or 'out of memory'}", _LACKING[errno.ENOMEM])
    raise error


def _answer(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


def main(source: BinaryIO) -> None:
    request = InstallRequest(**json.loads(source.readline()))
    try:
        installation = Installation(request, source)
        _answer(installation.look() if request.look_only else {"python": installation.ensure()})
    except Failed as failed:
        _answer({"error": str(failed), "remedy": failed.remedy})
    except ValueError as error:
        _answer({"error": f"pip's configuration cannot be used: {error}", "remedy": "correct the file"})
    except BrokenPipeError:
        pass  # the host has gone; what is installed it will find next time
    except (OSError, RuntimeError, MemoryError) as error:
        failure = _shortage(error, request.folder)
        _answer({"error": str(failure), "remedy": failure.remedy})


if __name__ == "__main__":
    main(sys.stdin.buffer)

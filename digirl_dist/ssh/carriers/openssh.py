"""Connections that the user's own ``ssh`` carries: what works with it (jump hosts, agents, certificates) works.

One ``ssh`` per worker logs in and then serves sessions through a socket in a folder of its own, which nobody else can
enter. Host keys are always demanded and nothing is ever asked at a terminal, on jump hosts too: a configuration file of
ours says so and then includes the user's.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import pwd
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path

from digirl_dist.child_process import opened_log
from digirl_dist.errors import LoginError, UnreachableError, on_error
from digirl_dist.settings import SshSettings
from digirl_dist.ssh import processes
from digirl_dist.ssh.connection import (
    FAST_CIPHERS,
    Address,
    Connection,
    broken_at_start,
    for_login_shell,
    quote,
    too_many_channels,
)
from digirl_dist.ssh.host_keys import known_hosts_files
from digirl_dist.ssh.login import check_key_file
from digirl_dist.ssh.mux import MuxSession, SessionRefused
from digirl_dist.ssh.openssh_log import Target, explain, fingerprint, last_words, unfinished
from digirl_dist.ssh.piped import PipedChannel, PipedSessions
from digirl_dist.storage.disk_full import require_space

_NAME = "digirl-ssh-"
_LONGEST = 45
"""``ssh`` adds to the name of its socket, and a Unix socket's path has at most 107 bytes."""


class SocketFolders:
    """Makes folders in one of this process's own, which is locked while the process lives."""

    def __init__(self) -> None:
        self._home: Path | None = None
        self._making = threading.Lock()

    def make(self) -> Path:
        """Returns a new folder. The first time, deletes those of this user's processes that are no more."""
        with self._making:
            if self._home is None or not self._home.exists():
                self._home = _locked_home()
        return Path(tempfile.mkdtemp(dir=self._home))


def _locked_home() -> Path:
    temporary = tempfile.gettempdir()
    is_plain = len(os.fsencode(temporary)) < _LONGEST and not set("%$") & set(temporary)  # which `ssh` would expand
    place = Path(temporary if is_plain else "/tmp")
    for other in place.glob(f"{_NAME}*"):
        _sweep(other)
    made = Path(tempfile.mkdtemp(prefix="digirl-new-", dir=place))  # nobody sweeps it before it is locked
    fcntl.flock(os.open(made / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC), fcntl.LOCK_EX)
    home = made.rename(place / made.name.replace("digirl-new-", _NAME))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    return home


def _sweep(home: Path) -> None:
    """Deletes the folder of a process that has ended; a lock tells that across containers, too."""
    try:
        if home.is_symlink() or home.stat().st_uid != os.geteuid():
            return
        lock = os.open(home / "lock", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(home, ignore_errors=True)
    except BlockingIOError:
        pass
    finally:
        os.close(lock)


_ANSWER_S = 3.0
_LONGEST_LOG = 1 << 26
"""A server may send messages for the log without end; beyond this, ``ssh`` cannot write. Such as come now and then,
for weeks, are left out before (see ``opened_log``)."""
_LOOK_S = 0.02
_CONFIGURED_S = 8.0
"""Commands of the user's configuration may take so long to decide what it says: less than ``reachable`` waits."""
_ODD = re.compile(r"[]%$[*\\\"]")
"""In a name that is included, each would have a meaning."""
_FOLDERS = SocketFolders()


class OpenSshConnection(Connection):
    """A ``Connection`` that is encrypted by an ``ssh`` outside this process."""

    def __init__(self, address: Address, settings: SshSettings, master: Master) -> None:
        self.address = address
        self.host, self.port, self.user = master.target.host, master.target.port, master.target.user
        self.fingerprint = fingerprint(master.log())
        self._settings = settings
        self._master = master
        self._sessions = PipedSessions()

    @property
    def alive(self) -> bool:
        return self._master.ended(0.0) is None

    def answers(self) -> bool:
        try:
            self._session("true", self._settings.ping_s + _ANSWER_S).close()
        except SessionRefused:
            return True
        except OSError:
            return False
        return True

    def open(self, command: str | Sequence[str]) -> PipedChannel:
        line = quote(command)
        try:
            session = self._session(for_login_shell(command), self._settings.connect_s + self._settings.silence_s)
            self._sessions.add(session)
        except SessionRefused as error:
            raise too_many_channels(self.worker, line, str(error)) from error
        except OSError as error:
            raise broken_at_start(self.worker, line, self._master.ended(_ANSWER_S) or str(error)) from error
        return PipedChannel(
            session,
            self.worker,
            line,
            self._settings.stall_s,
            1024 * self._settings.slowest_kb_s,
            self._master.ended,
        )

    def close(self) -> None:
        self._master.close()
        self._sessions.close()

    def _session(self, line: str, timeout_s: float) -> MuxSession:
        return MuxSession(self._master.socket, line, timeout_s)


def lacking() -> str:
    """See ``Carrier``."""
    if shutil.which("ssh") is None:
        return "this machine has no `ssh`; install it (Debian: openssh-client)"
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        return f"`ssh` runs for no user without a name, as user {os.getuid()} is here; add one to /etc/passwd"
    return ""


def connect(address: Address, settings: SshSettings) -> Connection:
    """See ``Carrier``."""
    notes = check_key_file(address.name, address.key)
    master = Master(address, settings)
    with on_error(master.close):
        if not master.wait_for_login(settings.connect_s * 2 + settings.login_s):
            require_space(0, master.socket.parent)  # a log that could not be written explains nothing
            raise explain(master.log(), address, master.target, settings, notes)
        return OpenSshConnection(address, settings, master)


class Master:
    """The ``ssh`` that logs in and serves sessions, its folder, and what it printed."""

    def __init__(self, address: Address, settings: SshSettings) -> None:
        """Raises LoginError if the configuration of ``ssh`` cannot be used, UnreachableError if it takes too long."""
        self._folder = _FOLDERS.make()
        self._address = address
        self.socket = self._folder / "socket"
        with on_error(partial(shutil.rmtree, self._folder, ignore_errors=True)):
            self._base = _base(self._folder, address, settings)
            self.target, ciphers, self._agent = _resolve(self._base, address)
            self._process = self._start(ciphers)

    def wait_for_login(self, timeout_s: float) -> bool:
        """Returns True once sessions are served, False if ``ssh`` has ended. Raises UnreachableError."""
        deadline = time.monotonic() + timeout_s
        while not self.socket.exists():
            if self._process.poll() is not None:
                return False
            if time.monotonic() > deadline:
                raise unfinished(self.log(), self._address, self.target, timeout_s, self._agent)
            time.sleep(_LOOK_S)
        return True

    def ended(self, wait_s: float) -> str | None:
        """Waits so long for the end of the link; returns what ended it, None while it lives."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(wait_s) if wait_s else self._process.poll()
        return None if self._process.returncode is None else last_words(self.log())

    def log(self) -> str:
        try:
            return (self._folder / "log").read_text(errors="replace")
        except OSError:
            return ""

    def close(self) -> None:
        if self._process.poll() is None:  # once it has been reaped, its number may be another's
            os.killpg(self._process.pid, signal.SIGKILL)  # the `ssh` of each jump host, too
            self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self, ciphers: Sequence[str]) -> subprocess.Popen[bytes]:
        fast = [cipher for cipher in FAST_CIPHERS if cipher in ciphers]
        options = ["-v", "-N", "-T", "-M", "-S", str(self.socket)]
        if fast:
            options += ["-o", "Ciphers=" + ",".join([*fast, *(each for each in ciphers if each not in fast)])]
        command = [*self._base[:1], *options, *self._base[1:]]
        with opened_log(self._folder / "log") as log:
            environment = {**os.environ, "SSH_ASKPASS_REQUIRE": "never", "LC_ALL": "C"}
            null = subprocess.DEVNULL
            process = processes.start_tied(command, null, null, log.fileno(), environment)
        if sys.platform == "linux":
            with suppress(OSError, AttributeError):  # it has ended, or this Python has no such call
                resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (_LONGEST_LOG, _LONGEST_LOG))
        return process


def _where(address: Address) -> Iterator[str]:
    if address.port is not None:
        yield from ("-p", str(address.port))
    if address.user is not None:
        yield from ("-l", address.user)
    if address.key is not None:
        yield from ("-o", f"IdentityFile={_quoted(os.path.expanduser(address.key))}", "-o", "IdentitiesOnly=yes")
    yield from ("--", address.host)


def _configuration(address: Address, settings: SshSettings, can_fork: bool = True) -> Iterator[str]:
    """Yields a configuration whose first part prevails over the user's, and its last part yields to it.

    ``can_fork`` tells whether this ``ssh`` knows the options to go into the background. ``IgnoreUnknown`` would spare
    the question, but only the first one counts, and the user's may name other options.
    """
    ping_s = max(1, round(settings.ping_s))
    yield from ("Host *", "BatchMode yes", "StrictHostKeyChecking yes", "UpdateHostKeys no", "VerifyHostKeyDNS no")
    yield from ("ForwardAgent no", "ForwardX11 no", "ClearAllForwardings yes", "PermitLocalCommand no")
    yield from ("ControlMaster no", "ControlPath none", "ControlPersist no", "RequestTTY no", "RemoteCommand none")
    yield "Tunnel no"
    if can_fork:
        yield from ("ForkAfterAuthentication no", "StdinNull no", "SessionType default")
    yield from (f"ConnectTimeout {max(1, round(settings.connect_s))}", f"ServerAliveInterval {ping_s}")
    # it ends at the ping after so many unanswered ones, up to a second late
    yield f"ServerAliveCountMax {max(1, round(settings.silence_s / ping_s) - 1)}"
    if address.known_hosts is not None:
        yield f"UserKnownHostsFile {_quoted(os.path.expanduser(address.known_hosts))}"
        yield "GlobalKnownHostsFile /dev/null"
    yield f'Include "{_ODD.sub("?", os.path.expanduser("~/.ssh/config"))}"'
    yield "Include /etc/ssh/ssh_config"
    yield "Match all"
    yield f"UserKnownHostsFile {_quoted(os.path.expanduser('~/.ssh/known_hosts'))}"


def _quoted(path: str) -> str:
    return '"' + path.replace("%", "%%").replace('"', '\\"') + '"'


def whereabouts(address: Address, settings: SshSettings) -> tuple[str, int, bool]:
    """See ``Carrier``; raises LoginError for a configuration that ``ssh`` cannot use."""
    with tempfile.TemporaryDirectory(prefix="digirl-route-") as folder:
        known = _asked(_base(Path(folder), address, settings), address)
    host, port = known.get("hostname", address.host), address.port or int(known.get("port", 22))
    return host, port, {known.get("proxyjump", "none"), known.get("proxycommand", "none")} != {"none"}


def _base(folder: Path, address: Address, settings: SshSettings) -> list[str]:
    """Writes the configuration to ``folder``; returns the command that connects with it."""
    config = folder / "config"
    with _told(address.name):
        can_fork = _can_fork(shutil.which("ssh") or "ssh")
    config.write_bytes(os.fsencode("\n".join(_configuration(address, settings, can_fork)) + "\n"))
    return ["ssh", "-F", str(config), *_where(address)]


@cache
def _can_fork(ssh: str) -> bool:
    asked = [ssh, "-F", os.devnull, "-G", "-o", "ForkAfterAuthentication=no", "--", "localhost"]
    return processes.run_to_end(asked, _CONFIGURED_S)[0] == 0


def _asked(base: Sequence[str], address: Address) -> dict[str, str]:
    """Returns what ``ssh`` makes of an address: its options by their names in lower case, as ``ssh -G`` prints them."""
    with _told(address.name):
        status, options, complaint = processes.run_to_end([base[0], "-G", *base[1:]], _CONFIGURED_S)
    if status != 0:
        said = (complaint.strip() or "it says nothing").splitlines()[0]
        raise LoginError(address.name, f"`ssh` cannot use its configuration: {said}", "correct ~/.ssh/config")
    return dict(line.partition(" ")[::2] for line in options.splitlines())


@contextmanager
def _told(worker: str) -> Iterator[None]:
    """Raises UnreachableError for an ``ssh -G`` that does not start or end."""
    try:
        yield
    except (FileNotFoundError, PermissionError) as error:  # a lack of this host's is told elsewhere
        raise UnreachableError(worker, f"`ssh` does not start: {error.strerror}", "install it again") from error
    except subprocess.TimeoutExpired as error:
        reason = f"`ssh -G` did not end within {_CONFIGURED_S:g} s"
        raise UnreachableError(worker, reason, "look at `Match exec` in ~/.ssh/config") from error


def _resolve(base: Sequence[str], address: Address) -> tuple[Target, list[str], str]:
    """Returns the machine that ``ssh`` would connect to, the ciphers that it would offer, and its agent's socket."""
    found = _asked(base, address)
    files = known_hosts_files(address.known_hosts, found.get("userknownhostsfile"))
    target = Target(found["hostname"], int(found["port"]), found["user"], address.host, files)
    named = found.get("identityagent", "SSH_AUTH_SOCK")
    path = os.environ.get("SSH_AUTH_SOCK", "") if named == "SSH_AUTH_SOCK" else named
    path = "" if path == "none" else os.path.expanduser(os.path.expandvars(path))
    return target, found.get("ciphers", "").split(","), path

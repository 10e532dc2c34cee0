"""A machine as one gets it: a fresh user, and /etc, /home and /dev of its own, in a mount namespace of its own.

What the tests' user has (its Python, its home) is out of that user's reach. Programs in /usr are those of this machine;
``hide`` takes one away.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from network.machines import Machine
from process_watch import eventually

from benchmarks.sshd import PROGRAM, SBIN

USER = "robot"
_PRELUDE = """
set -e
mount --make-rprivate /
cp -a /etc {folder}/etc && mount --bind {folder}/etc /etc
mount -t tmpfs -o mode=755 digirl-dist-test /home
groupadd -f kvm
useradd --create-home --shell /bin/bash --password '*' {user}
install -d -o {user} /home/{user}/.ssh
install -o {user} {folder}/user_key.pub /home/{user}/.ssh/authorized_keys
mkdir -p {folder}/dev && mount -t tmpfs -o mode=755 digirl-dist-test {folder}/dev
cp -a /dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/tty /dev/ptmx /dev/fd {folder}/dev
mkdir {folder}/dev/pts && mkdir -m 1777 {folder}/dev/shm
mknod -m 660 {folder}/dev/kvm c 10 232 && chgrp kvm {folder}/dev/kvm
mount --bind {folder}/dev /dev
exec {sshd} -D -e -f {folder}/sshd_config
"""


class BareMachine(Machine):
    """Its user is ``USER``, who is nobody special."""

    def __init__(self, number: int, folder: Path) -> None:
        super().__init__(number, folder)
        self.address = replace(self.address, user=USER)
        self.outside = self._outside
        """The host's end of the link."""
        self.configuration = self.sshd.configuration
        lines = self.configuration.read_text().splitlines()
        kept = [line for line in lines if not line.startswith(("SetEnv HOME", "AuthorizedKeysFile"))]
        self.configuration.write_text("\n".join(["AuthorizedKeysFile .ssh/authorized_keys", *kept]) + "\n")
        script = _PRELUDE.format(folder=folder, user=USER, sshd=PROGRAM)
        self.sshd.command = [*self.enter, "env", "-i", f"PATH={SBIN}", "unshare", "--mount", "bash", "-c", script]

    def reread_configuration(self) -> None:
        """As ``systemctl reload ssh`` does."""
        assert self.sshd.process is not None
        before = self.sshd.log.stat().st_size
        self.sshd.process.send_signal(signal.SIGHUP)
        eventually(lambda: b"Server listening" in self.sshd.log.read_bytes()[before:], 10, "the new configuration")

    def as_root(self, command: str | Sequence[str]) -> str:
        """What an administrator does there."""
        assert self.sshd.process is not None
        words = ["bash", "-c", command] if isinstance(command, str) else list(command)
        inside = ["nsenter", f"--target={self.sshd.process.pid}", "--mount", "--net", *words]
        return subprocess.run(inside, check=True, capture_output=True, text=True, env={"PATH": SBIN}).stdout

    def as_user(self, command: str) -> str:
        return self.as_root(["runuser", "-u", USER, "--", "bash", "-c", f"cd; {command}"])

    def as_a_person(self, command: str, folder: Path) -> None:
        """Run a command on the host as somebody who knows the user's password here, and whose home is empty."""
        self.as_root(f"echo {USER}:secret | chpasswd")
        usual = self.configuration.read_text()
        self.configuration.write_text(usual.replace("PasswordAuthentication no", "PasswordAuthentication yes"))
        self.reread_configuration()
        person = folder / "person"
        person.write_text('#!/bin/sh\ncase "$1" in *yes/no*) echo yes ;; *) echo secret ;; esac\n')
        person.chmod(0o755)
        script = f"mount -t tmpfs digirl-dist-test ~ && mkdir -m 700 ~/.ssh && {command}"
        asked = {"SSH_ASKPASS": str(person), "SSH_ASKPASS_REQUIRE": "force", "HOME": str(Path.home()), "PATH": SBIN}
        subprocess.run(["unshare", "--mount", "bash", "-c", script], env=asked, capture_output=True, check=True)
        self.configuration.write_text(usual)
        self.reread_configuration()

    def write(self, path: str, content: str, mode: str = "755") -> str:
        """A file of the user's; ``path`` is below its home."""
        self.as_user(f"mkdir -p $(dirname {path}); cat > {path} <<'END'\n{content}\nEND\nchmod {mode} {path}")
        return f"/home/{USER}/{path}"

    def has(self, program: str) -> bool:
        return bool(self.as_user(f"command -v {program} || true"))

    def hide(self, program: str) -> None:
        """It is there no longer, as far as PATH is concerned."""
        self.as_root(f"touch /home/nothing; mount --bind /home/nothing $(realpath $(command -v {program}))")

    def replace(self, program: str, script: str) -> None:
        self.as_root(f"mount --bind {self.write(f'instead-of-{program}', script)} $(realpath $(command -v {program}))")

    def bring_back(self, program: str) -> None:
        self.as_root(f"umount $(realpath /usr/bin/{program})")

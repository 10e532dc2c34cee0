"""Start-up files that do something else than a shell's: an error within the limits, and nothing of ours runs there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import sshd
from digirl_dist.doctor import link
from digirl_dist.errors import LoginError, ShellError, SlowShellError, WorkerError
from digirl_dist.settings import SshSettings
from digirl_dist.ssh.connect import connect

pytestmark = pytest.mark.component


@pytest.fixture
def machine(sshd_is_installed: None, tmp_path: Path) -> Iterator[sshd.Sshd]:
    server = sshd.Sshd(tmp_path / "machine")
    server.start()
    yield server
    server.close()


def refused(machine: sshd.Sshd, limits: SshSettings, lines: str) -> WorkerError:
    """Returns the error for a machine with these lines in its start-up file."""
    start_up = machine.log.parent / ".bashrc"
    start_up.write_text(lines + "\n")
    with pytest.raises(WorkerError) as caught:
        connect(machine.address("w1"), limits).close()
    start_up.unlink()
    assert "start-up files" in f"{caught.value.reason}{caught.value.remedy}" and "~/.bashrc" in caught.value.remedy
    assert link.unreachable("w1", caught.value)[-1].check == "shell"
    return caught.value


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ("exec cat", "run something else than a command; it says '# digirl-dist"),
        ("exec fish", "run something else than a command"),
        ("exec tcsh", "run something else than a command"),
        ("exec tmux", "run something else than a command"),
        ("exec python3", "run something else than a command"),
        ("exec >/dev/null", "run something else than a command"),
        ("set -e; false", "run something else than a command"),
        ("set -n", "run something else than a command"),
        ("echo Welcome", "print 'Welcome' to the output"),
        ("printf no-newline", "print 'no-newline' to the output"),
        ("read -r answer", "read what is sent to commands"),
        ("cat >/dev/null", "read what is sent to commands"),
        ("echo This account is currently not available.; exit 1", "it says 'This account is currently not available.'"),
    ],
)
def test_a_start_up_file_that_replaces_prints_or_reads_is_named(
    lines: str, told: str, machine: sshd.Sshd, limits: SshSettings
) -> None:
    if lines.startswith("exec ") and lines[5:6].isalpha() and shutil.which(lines[5:]) is None:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(f"{lines[5:]} is missing")
    error = refused(machine, limits, lines)
    assert isinstance(error, ShellError) and error.fatal and told in error.reason


def test_one_that_waits_is_named_within_the_limit_of_a_login_and_may_pass(
    machine: sshd.Sshd, limits: SshSettings
) -> None:
    for lines in ("sleep 600", "read -r answer <>/dev/ptmx"):
        error = refused(machine, limits, lines)
        assert isinstance(error, SlowShellError) and not error.fatal and "within 3 s (ssh.login_s)" in error.reason


def test_nothing_that_is_sent_is_run_by_the_shell_that_took_the_place(machine: sshd.Sshd, limits: SshSettings) -> None:
    heard = machine.log.parent / "heard"
    refused(machine, limits, f"exec tee {heard}")
    assert all(line.startswith("#") for line in heard.read_text().splitlines())


@pytest.mark.parametrize("lines", ["stty sane", "echo noise >&2", "PS1='> '; set -x", "set -eu", "alias printf=false"])
def test_one_that_leaves_commands_alone_is_no_matter(lines: str, machine: sshd.Sshd, limits: SshSettings) -> None:
    (machine.log.parent / ".bashrc").write_text(lines + "\n")
    with connect(machine.address("w1"), limits) as connection:
        assert connection.run(["cat"], b"as it is").stdout == b"as it is"


def test_an_expired_password_is_named_with_its_remedy(machine: sshd.Sshd, limits: SshSettings) -> None:
    """As PAM has sshd say it to a login by key; the script of the case does it with PAM."""
    words = "WARNING: Your password has expired.\nPassword change required but no TTY available."
    (machine.log.parent / ".bashrc").write_text(f"echo '{words}' >&2; exit 1\n")
    with pytest.raises(LoginError, match=r"(?s)or its password, has expired; .*no TTY available.*chage"):
        connect(machine.address("w1"), limits)

"""Connecting and running commands, over the embedded server and over OpenSSH's."""

from __future__ import annotations

import dataclasses
import os
import pickle
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from process_watch import eventually

from digirl_dist.errors import HostKeyError, LinkLostError, LoginError, UnreachableError, WorkerError
from digirl_dist.fleet.ssh_connection import SshWorkerConnection
from digirl_dist.settings import SshSettings
from digirl_dist.ssh.connect import connect
from digirl_dist.ssh.connection import Address, Connection, for_login_shell, quote
from digirl_dist.ssh.courier import CourierClient

pytestmark = [pytest.mark.component, pytest.mark.long_file(30)]

if TYPE_CHECKING:
    from conftest import Server


def test_a_command_returns_its_status_and_both_outputs(link: Connection) -> None:
    done = link.run("echo out; echo err >&2; exit 3")
    assert (done.status, done.stdout, done.stderr) == (3, b"out\n", b"err\n")
    assert done.last_words == "err"


def test_the_longest_limits_are_as_good_as_none(server: Server, limits: SshSettings) -> None:
    longest = SshSettings(limits.transport, connect_s=1e8, login_s=1e8, ping_s=5e7, silence_s=1e8, stall_s=1e8)
    with connect(server.address, longest) as connection:
        assert connection.run(["echo", "arrived"]).stdout == b"arrived\n"


def test_arguments_arrive_as_they_are_and_a_leading_tilde_is_the_remote_home(link: Connection) -> None:
    done = link.run(["printf", "%s\n", "a b", "it's", "$HOME", "*", "~/x y", "a~"])
    home = link.run("echo $HOME").stdout.decode().strip()
    assert done.stdout.decode().splitlines() == ["a b", "it's", "$HOME", "*", f"{home}/x y", "a~"]
    assert quote(["ls", "~"]) == "ls ~"


@pytest.mark.parametrize("shell", ["sh", "bash", "tcsh", "fish", "zsh"])
def test_every_login_shell_runs_what_was_meant(shell: str) -> None:
    """sshd hands the line to the user's login shell as here."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")

    def said(command: str | list[str]) -> str:
        line = [shell, "-c", for_login_shell(command)]
        return subprocess.run(line, capture_output=True, text=True, check=True, env={**os.environ, "HOME": "/h"}).stdout

    odd = ["a b", "it's", '"', "$HOME", "*", "{a,b}", "wow!", "two\nlines\n", "back\\slash\\\\ \\'", "%self", "=ls"]
    odd += ["ä", "#", "", "~x"]
    assert said(["printf", "<%s>", *odd, "~/x y", "~/z"]) == "".join(f"<{each}>" for each in [*odd, "/h/x y", "/h/z"])
    assert said(["echo", "~/a/b"]) == "/h/a/b\n", "plain words stay as they are"
    assert said("for x in 1 2; do echo $x; done; (exit 0)") == "1\n2\n", "a text is a line for sh"


def test_much_input_and_much_output_flow_at_the_same_time(link: Connection) -> None:
    data = bytes(range(256)) * 40_000
    assert link.run(["cat"], input=data).stdout == data
    assert link.run(["cat"], input=(data[:1000] for _ in range(50))).stdout == data[:1000] * 50


def test_a_command_that_reads_nothing_does_not_block_on_its_input(link: Connection) -> None:
    assert link.run("exit 4", input=b"x" * 10_000_000).status == 4


def test_much_stderr_does_not_block_stdout(link: Connection) -> None:
    done = link.run("head -c 5000000 /dev/zero | tr '\\0' e >&2; echo done")
    assert done.stdout == b"done\n"
    assert done.stderr == b"e" * (1 << 20)


def test_an_error_of_the_source_of_input_is_raised(link: Connection) -> None:
    def broken() -> Iterator[bytes]:
        yield b"x"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        link.run(["cat"], input=broken())


def test_a_command_that_takes_too_long_is_named(link: Connection) -> None:
    started = time.monotonic()
    with pytest.raises(WorkerError, match=r"worker w1: `sleep 30` did not end within 0.5 s"):
        link.run(["sleep", "30"], timeout_s=0.5)
    assert time.monotonic() - started < 15.0


def test_a_command_ended_by_a_signal_has_status_minus_one_and_the_link_lives(link: Connection) -> None:
    assert link.run("kill -9 $$").status == -1
    assert link.run("true").status == 0


def test_lines_go_there_and_back_on_an_open_channel(link: Connection) -> None:
    channel = link.open(["cat"])
    channel.write(b"one\ntwo\nrest")
    assert [channel.readline(), channel.readline()] == [b"one\n", b"two\n"]
    assert channel.exit_status is None
    channel.close_input()
    assert [channel.readline(), channel.readline()] == [b"rest", b""]
    assert channel.wait(60.0) == 0
    channel.close()


def test_the_end_of_a_command_is_seen_though_its_input_is_open(link: Connection) -> None:
    channel = link.open("echo last words >&2; exit 7")
    assert channel.read() == b""
    assert str(channel.ended()) == "worker w1: `echo last words >&2; exit 7` ended with status 7: last words"
    with pytest.raises(WorkerError, match="last words"):
        channel.write(b"x" * 10_000_000)
    killed = link.open("kill -9 $$")
    assert killed.read() == b""
    assert "`kill -9 $$` was ended by a signal, as when memory runs out: no output" in str(killed.ended())


def test_a_silent_command_is_told_from_a_silent_link(link: Connection) -> None:
    channel = link.open(["sleep", "20"])
    with pytest.raises(LinkLostError, match=r"`sleep 20` was silent for 0.6 s"):
        channel.readline(0.6)
    assert link.answers()
    channel.close()


def test_a_command_that_takes_no_input_is_given_up(server: Server, limits: SshSettings) -> None:
    with connect(server.address, dataclasses.replace(limits, stall_s=1.0)) as link:
        channel = link.open(["sleep", "20"])
        with pytest.raises(LinkLostError, match=r"moved no data for 1 s .ssh.stall_s.*though the link answers"):
            channel.write(b"x" * 10_000_000)
        channel.close()


def test_twenty_channels_in_turn_and_five_at_once_share_a_connection(link: Connection) -> None:
    assert [link.run(["echo", str(n)]).stdout for n in range(20)] == [b"%d\n" % n for n in range(20)]
    channels = [link.open(["cat"]) for _ in range(5)]
    for n, channel in enumerate(channels):
        channel.write(b"%d\n" % n)
    assert [channel.readline() for channel in channels] == [b"%d\n" % n for n in range(5)]


def test_a_closed_connection_leaves_no_descriptors_of_its_channels(server: Server, limits: SshSettings) -> None:
    def descriptors_after_a_connection() -> int:
        with connect(server.address, limits) as link:
            channels = [link.open(["cat"]) for _ in range(3)]
            channels[0].write(b"x\n")
            assert channels[0].readline() == b"x\n"
            for _ in range(4):
                assert link.open(["true"]).wait(10.0) == 0  # and nobody closes the channel
        with pytest.raises(LinkLostError):
            channels[1].read()
        return psutil.Process().num_fds()

    before = descriptors_after_a_connection()
    eventually(lambda: descriptors_after_a_connection() <= before)


def test_an_eleventh_channel_is_refused_with_the_remedy(openssh: Server, limits: SshSettings) -> None:
    with connect(openssh.address, limits) as link:
        channels = [link.open(["cat"]) for _ in range(10)]
        with pytest.raises(WorkerError, match=r"sshd refuses to run `echo one …` .*raise MaxSessions"):
            link.open("echo one\necho two")
        assert len(channels) == 10


def test_an_unknown_host_key_is_refused_with_the_command_that_adds_it(
    server: Server, limits: SshSettings, tmp_path: Path
) -> None:
    known = tmp_path / "empty_known_hosts"
    with pytest.raises(HostKeyError) as caught:
        connect(dataclasses.replace(server.address, known_hosts=str(known)), limits)
    error = caught.value
    assert error.fatal and "SHA256:" in error.reason
    assert f"ssh-keyscan -t ed25519 -p {server.address.port} 127.0.0.1 >> {known}" in error.remedy
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_the_advised_command_makes_the_host_known(openssh: Server, limits: SshSettings, tmp_path: Path) -> None:
    address = dataclasses.replace(openssh.address, known_hosts=str(tmp_path / "known"))
    with pytest.raises(HostKeyError) as caught:
        connect(address, limits)
    subprocess.run(caught.value.remedy.split("`")[1], shell=True, check=True, capture_output=True)
    with connect(address, limits) as link:
        assert link.run("true").status == 0


def test_a_changed_host_key_is_refused_with_both_fingerprints(
    server: Server, limits: SshSettings, tmp_path: Path, make_key: Callable[..., Path]
) -> None:
    other = make_key("other").with_suffix(".pub").read_text()
    (tmp_path / "wrong").write_text(f"[127.0.0.1]:{server.address.port} {other}")
    with pytest.raises(HostKeyError) as caught:
        connect(dataclasses.replace(server.address, known_hosts=str(tmp_path / "wrong")), limits)
    assert caught.value.reason.count("SHA256:") == 2 and "has changed" in caught.value.reason
    assert f"ssh-keygen -f {tmp_path}/wrong -R '[127.0.0.1]:{server.address.port}'" in caught.value.remedy


LINES_ABOUT_OTHERS = """
# a comment
@cert-authority *.example.com ssh-ed25519 {other}
@revoked elsewhere.example.com ssh-ed25519 {own}
@revoked
@cert-authority
broken.example.com ssh-ed25519 AAAA
broken.example.com ssh-ed25519 !!!!
broken.example.com no-such-kind {other}
two words
|1|AAAA|AAAA ssh-ed25519 {other}
"""


def own_key(server: Server) -> str:
    assert server.address.known_hosts is not None
    return Path(server.address.known_hosts).read_text().split()[2]


def test_lines_about_other_machines_and_broken_lines_break_nothing(
    server: Server, limits: SshSettings, tmp_path: Path, make_key: Callable[..., Path]
) -> None:
    other = make_key("other").with_suffix(".pub").read_text().split()[1]
    lines = LINES_ABOUT_OTHERS.format(other=other, own=own_key(server)).encode() + b"\xff\xfe not text\n"
    good = f"[127.0.0.1]:{server.address.port} ssh-ed25519 {own_key(server)}\n".encode()
    (tmp_path / "known").write_bytes(lines + good)
    with connect(dataclasses.replace(server.address, known_hosts=str(tmp_path / "known")), limits) as link:
        assert link.run("true").status == 0


@pytest.mark.parametrize("names", ["[127.0.0.1]:{port}", "*", "other,[127.0.0.*]:{port}"])
@pytest.mark.parametrize("also", ["", "ssh-ed25519 {own}", "ssh-ed25519 {other}"])
def test_a_revoked_host_key_is_refused_whatever_else_is_known(
    server: Server, limits: SshSettings, tmp_path: Path, make_key: Callable[..., Path], names: str, also: str
) -> None:
    keys = {"own": own_key(server), "other": make_key("other").with_suffix(".pub").read_text().split()[1]}
    place = names.format(port=server.address.port)
    known = f"[127.0.0.1]:{server.address.port} {also.format(**keys)}\n" if also else ""
    (tmp_path / "known").write_text(f"{known}@revoked {place} ssh-ed25519 {keys['own']}\n")
    with pytest.raises(HostKeyError, match="marked as revoked"):
        connect(dataclasses.replace(server.address, known_hosts=str(tmp_path / "known")), limits)


def test_a_refused_key_is_named_with_the_user(
    server: Server, limits: SshSettings, make_key: Callable[..., Path]
) -> None:
    stranger = make_key("stranger")
    with pytest.raises(LoginError) as caught:
        connect(dataclasses.replace(server.address, key=str(stranger)), limits)
    assert f"does not let user {server.address.user} in; keys offered: {stranger}" in caught.value.reason
    assert f"ssh-copy-id -i {stranger} -p {server.address.port}" in caught.value.remedy
    assert "chmod go-w ~ ~/.ssh ~/.ssh/authorized_keys" in caught.value.remedy, "a key that is there may be ignored"


def test_a_missing_key_file_is_named(server: Server, limits: SshSettings, tmp_path: Path) -> None:
    with pytest.raises(LoginError, match=f"the key file {tmp_path}/nowhere cannot be used: No such file"):
        connect(dataclasses.replace(server.address, key=str(tmp_path / "nowhere")), limits)


def test_a_file_that_is_no_key_is_named(server: Server, limits: SshSettings, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello\n")
    with pytest.raises(LoginError, match="text cannot be used: this is not a private key"):
        connect(dataclasses.replace(server.address, key=str(tmp_path / "text")), limits)


def test_a_locked_key_says_how_to_unlock_it(
    server: Server, limits: SshSettings, make_key: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    locked = make_key("locked", passphrase="secret")
    with pytest.raises(LoginError, match=f"unlock it with `ssh-add {locked}`"):
        connect(dataclasses.replace(server.address, key=str(locked)), limits)


def test_nothing_listening_is_unreachable(limits: SshSettings, free_port: int) -> None:
    with pytest.raises(UnreachableError, match=f"nothing listens at 127.0.0.1:{free_port}"):
        connect(Address("w1", "127.0.0.1", free_port), limits)


def test_an_unknown_name_is_unreachable(limits: SshSettings) -> None:
    with pytest.raises(UnreachableError, match="the host name no-such-machine.invalid is unknown"):
        connect(Address("w1", "no-such-machine.invalid"), limits)


def test_a_listener_that_never_answers_is_given_up_in_time(limits: SshSettings) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        started = time.monotonic()
        with pytest.raises(UnreachableError, match="accepts connections but did not greet within 1 s"):
            connect(Address("w1", "127.0.0.1", mute.getsockname()[1]), dataclasses.replace(limits, connect_s=1.0))
        assert time.monotonic() - started < limits.connect_s + 20.0


def test_a_server_that_hangs_up_at_once_may_be_limiting_logins(limits: SshSettings) -> None:
    with socket.create_server(("127.0.0.1", 0)) as rude:
        threading.Thread(target=lambda: rude.accept()[0].close(), daemon=True).start()
        with pytest.raises(UnreachableError, match="closed the connection before the login .*MaxStartups"):
            connect(Address("w1", "127.0.0.1", rude.getsockname()[1]), limits)


def test_a_server_frozen_before_the_login_is_given_up_in_time(server: Server, limits: SshSettings) -> None:
    server.freeze()
    started = time.monotonic()
    with pytest.raises(UnreachableError):
        connect(server.address, dataclasses.replace(limits, connect_s=1.0, login_s=1.0))
    assert time.monotonic() - started < limits.connect_s + 20.0


def test_a_frozen_server_is_a_lost_link_whatever_is_waited_for(openssh: Server, limits: SshSettings) -> None:
    link = connect(openssh.address, limits)
    reading, writing = link.open(["cat"]), link.open(["cat"])
    openssh.freeze()
    started = time.monotonic()
    with ThreadPoolExecutor() as pool:
        waits = {
            "read": pool.submit(reading.read),
            "write": pool.submit(writing.write, bytes(50_000_000)),
            "run": pool.submit(link.run, "true"),
            "open": pool.submit(link.open, "true"),
        }
    assert {use: type(wait.exception()) for use, wait in waits.items()} == dict.fromkeys(waits, LinkLostError)
    assert time.monotonic() - started < limits.silence_s + 20.0
    assert not link.alive and not link.answers()
    link.close()


def test_a_program_behind_a_dead_link_is_not_taken_for_silent_before_the_link_is_given_up(
    openssh: Server, limits: SshSettings
) -> None:
    patient = dataclasses.replace(limits, silence_s=60.0)
    with connect(openssh.address, patient) as link:
        worker = SshWorkerConnection(link, link.open(["cat"]), CourierClient(link.open(["cat"]), patient))
        assert worker.answers()
        openssh.freeze()
        assert not worker.answers() and link.alive


def test_closing_a_connection_to_a_frozen_server_does_not_wait_and_ends_the_wait_of_another_thread(
    server: Server, limits: SshSettings
) -> None:
    link = connect(server.address, dataclasses.replace(limits, silence_s=60.0, stall_s=60.0))
    channel = link.open(["cat"])
    with ThreadPoolExecutor() as pool:
        heard = pool.submit(channel.readline)
        server.freeze()
        started = time.monotonic()
        link.close()
        assert isinstance(heard.exception(), LinkLostError) and time.monotonic() - started < 20.0


def test_a_killed_server_is_a_lost_link_not_an_empty_output(server: Server, limits: SshSettings) -> None:
    with connect(server.address, limits) as link:
        channel = link.open(["sleep", "20"])
        threading.Timer(0.3, server.kill).start()
        with pytest.raises(LinkLostError, match="the connection broke during `sleep 20`"):
            channel.read()
        with pytest.raises(LinkLostError):
            link.run("true")


def test_a_pause_shorter_than_the_limit_is_survived(openssh: Server) -> None:
    patient = SshSettings(connect_s=3.0, login_s=3.0, ping_s=0.3, silence_s=8.0)
    with connect(openssh.address, patient) as link:
        channel = link.open(["cat"])
        openssh.freeze()
        members = [psutil.Process(openssh.pid), *psutil.Process(openssh.pid).children(recursive=True)]
        threading.Timer(2.0, lambda: [member.resume() for member in members]).start()
        channel.write(b"still there\n")
        assert channel.readline() == b"still there\n"


def test_a_host_of_the_ssh_config_brings_its_port_user_and_key(
    server: Server, limits: SshSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write_ssh_config(tmp_path, server.address)
    monkeypatch.setenv("HOME", str(tmp_path))
    with connect(Address("w1", "shortcut"), limits) as link:
        assert link.run("true").status == 0


def test_a_jump_host_is_used_and_its_host_key_is_verified_too(
    openssh: Server, limits: SshSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write_ssh_config(tmp_path, openssh.address)
    with open(tmp_path / ".ssh/config", "a") as config:
        config.write(f"Host behind\n HostName 127.0.0.1\n Port {openssh.address.port}\n ProxyJump shortcut\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    address = dataclasses.replace(openssh.address, host="behind", port=None)
    with connect(address, limits) as link:
        assert link.run("echo $SSH_CONNECTION").stdout.startswith(b"127.0.0.1")
    with pytest.raises(HostKeyError):
        connect(dataclasses.replace(address, known_hosts=str(tmp_path / "empty")), limits)


def _write_ssh_config(home: Path, address: Address) -> None:
    assert address.known_hosts is not None
    (home / ".ssh").mkdir()
    (home / ".ssh/known_hosts").write_text(Path(address.known_hosts).read_text())
    (home / ".ssh/config").write_text(
        f"Host shortcut\n HostName 127.0.0.1\n Port {address.port}\n User {address.user}\n IdentityFile {address.key}\n"
    )


def test_the_jump_host_is_named_when_it_is_the_one_that_refuses(
    openssh: Server, limits: SshSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_key: Callable[..., Path]
) -> None:
    _write_ssh_config(tmp_path, dataclasses.replace(openssh.address, user="somebody", key=str(make_key("stranger"))))
    with open(tmp_path / ".ssh/config", "a") as config:
        config.write("Host behind\n HostName 192.0.2.1\n ProxyJump shortcut\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(LoginError, match=f"127.0.0.1:{openssh.address.port} does not let user somebody in"):
        connect(Address("w1", "behind", key=openssh.address.key), limits)

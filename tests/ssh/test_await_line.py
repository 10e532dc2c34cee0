"""Lines that are awaited without a thread: each comes, and whatever ends the wait is told as to a thread that reads."""

from __future__ import annotations

import threading
import time

import pytest
from process_watch import eventually
from ssh.conftest import Server

from digirl_dist.errors import LinkLostError, WorkerError
from digirl_dist.settings import SshSettings
from digirl_dist.ssh.channel import Channel
from digirl_dist.ssh.connect import connect
from digirl_dist.ssh.connection import Connection
from digirl_dist.strands.course import Course, Waits

pytestmark = pytest.mark.component

LONG_S = 300.0


class Listener:
    """What is heard on a channel, line by line, until its end or an error."""

    def __init__(self, channel: Channel, timeout_s: float = LONG_S, longest: int = 1 << 20) -> None:
        self.lines: list[bytes] = []
        self.error: WorkerError | None = None
        self.course = Course("listener", self._listen(channel, timeout_s, longest))
        self.course.start()

    def _listen(self, channel: Channel, timeout_s: float, longest: int) -> Waits[None]:
        try:
            while not self.lines or self.lines[-1]:
                self.lines.append((yield from channel.await_line(timeout_s, longest)))
        except WorkerError as error:
            self.error = error

    def ended(self) -> Listener:
        assert self.course.ended.wait(LONG_S)
        return self


def at_work() -> bool:
    return any(thread.name == "listener" for thread in threading.enumerate())


def test_lines_are_heard_as_they_come_until_the_end_and_silence_holds_no_thread(link: Connection) -> None:
    channel = link.open(["cat"])
    listener = Listener(channel)
    for count, text in ((2, b"one\ntwo\nthr"), (3, b"ee\n"), (3, b"rest")):
        eventually(lambda: not at_work())
        channel.write(text)
        eventually(lambda count=count: len(listener.lines) >= count)  # type: ignore[misc]
    channel.close_input()
    assert listener.ended().lines == [b"one\n", b"two\n", b"three\n", b"rest", b""] and listener.error is None


def test_a_line_that_has_not_come_whole_in_time_is_told_as_silence(link: Connection) -> None:
    listener = Listener(link.open("printf begun; sleep 60"), timeout_s=0.6).ended()
    assert isinstance(listener.error, LinkLostError) and not listener.lines
    assert "`printf begun; sleep 60` was silent for 0.6 s" in str(listener.error)


def test_bytes_that_come_without_end_put_the_end_of_the_wait_off_no_further(link: Connection) -> None:
    listener = Listener(link.open("while :; do printf x; sleep 0.05; done"), timeout_s=1.0).ended()
    assert isinstance(listener.error, LinkLostError) and "was silent for 1 s" in str(listener.error)
    flood = Listener(link.open("yes x | tr -d '\\n'"), longest=1 << 16)
    eventually(lambda: flood.lines)
    assert len(flood.lines[0]) == (1 << 16) + 1


def test_much_stderr_does_not_hold_up_the_lines(link: Connection) -> None:
    listener = Listener(link.open("head -c 8000000 /dev/zero | tr '\\0' e >&2; echo done")).ended()
    assert listener.lines == [b"done\n", b""]


def test_the_end_of_the_link_ends_the_wait_at_once(server: Server, limits: SshSettings) -> None:
    began = time.monotonic()
    for end in ("close", "kill"):
        with connect(server.address, limits) as link:
            listener = Listener(link.open(["cat"]))
            eventually(lambda: not at_work())
            link.close() if end == "close" else server.kill()
            assert isinstance(listener.ended().error, LinkLostError), end
    assert time.monotonic() - began < LONG_S / 2


def test_a_frozen_server_is_a_lost_link(openssh: Server, limits: SshSettings) -> None:
    with connect(openssh.address, limits) as link:
        listener = Listener(link.open(["cat"]))
        openssh.freeze()
        assert isinstance(listener.ended().error, LinkLostError)
        assert not link.alive

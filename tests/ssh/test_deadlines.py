"""Every wait for a worker ends at its limit, whether it sends a byte now and then or without end."""

from __future__ import annotations

import dataclasses
import importlib.util
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from ssh.conftest import Server

from digirl_dist.errors import InstallError, LinkLostError, MisconductError, TooSlowError, WorkerError
from digirl_dist.fleet.remote_python import RemotePython
from digirl_dist.settings import SshSettings
from digirl_dist.ssh.channel import Deadline
from digirl_dist.ssh.connect import connect
from digirl_dist.ssh.connection import Completed, Connection
from digirl_dist.ssh.courier import CourierClient, Put
from digirl_dist.storage.digest import digest

from .test_files import get

pytestmark = pytest.mark.component

DRIPS = "while :; do printf x; sleep 0.2; done"
FLOODS = "yes x | tr -d '\\n'"
FLOODS_STDERR = f"{{ {FLOODS}; }} >&2"
SINK = "for _ in $(seq 300); do head -c 1 >/dev/null; sleep 0.2; done"
WELL_OVER = 40.0
"""Seconds that only a wait without end would take."""


@pytest.fixture
def server(openssh: Server) -> Server:
    """One will do: what is waited for, and until when, is a matter of this side."""
    return openssh


@pytest.fixture
def short(limits: SshSettings) -> SshSettings:
    return dataclasses.replace(limits, stall_s=1.0, slowest_kb_s=64.0)


def within(action: Callable[[], object], error: type[Exception], match: str) -> None:
    started = time.monotonic()
    with pytest.raises(error, match=match):
        action()
    assert time.monotonic() - started < WELL_OVER


def test_time_in_which_this_process_was_held_up_itself_does_not_count() -> None:
    deadline = Deadline(10.0)
    at = deadline.at
    deadline.waited(time.monotonic() - 1.0)
    assert deadline.at == at
    deadline.waited(time.monotonic() - 60.0)
    assert 60.0 <= deadline.at - at < 70.0


@pytest.mark.parametrize("peer", [DRIPS, FLOODS_STDERR])
def test_a_line_that_never_ends_is_waited_for_no_longer_than_its_limit(link: Connection, peer: str) -> None:
    channel = link.open(peer)
    within(lambda: channel.readline(1.0), LinkLostError, "was silent for 1 s")
    channel.close()


def test_of_a_line_without_end_no_more_is_read_than_a_line_may_have(link: Connection) -> None:
    channel = link.open(FLOODS)
    assert len(channel.readline(WELL_OVER, longest=1 << 20)) == (1 << 20) + 1
    assert len(channel.stderr()) == 0
    channel.close()


def test_bytes_that_belong_to_a_line_must_all_come_in_time(link: Connection) -> None:
    channel = link.open(DRIPS)
    within(lambda: channel.read_exactly(1000, 1.0), LinkLostError, "was silent for 1 s")
    channel.close()


def test_what_is_attached_to_a_line_may_take_long_but_not_by_drops(server: Server, short: SshSettings) -> None:
    with connect(server.address, short) as link:
        channel = link.open("for _ in 1 2 3 4 5; do head -c 200000 /dev/zero; sleep 0.5; done")
        assert len(channel.read_exactly(1_000_000)) == 1_000_000
        channel.close()
        channel = link.open(DRIPS)
        within(lambda: channel.read_exactly(1000), TooSlowError, "slowest_kb_s")
        channel.close()


def test_a_command_that_drips_ends_at_its_limit(link: Connection) -> None:
    within(lambda: link.run(DRIPS, timeout_s=1.0), WorkerError, "did not end within 1 s")


def test_a_command_that_prints_without_end_is_cut_off(link: Connection) -> None:
    within(lambda: link.run(FLOODS, timeout_s=WELL_OVER, most_bytes=1 << 20), WorkerError, "printed more than 1024 KiB")


def test_a_flood_on_stderr_is_kept_in_part_and_holds_nobody_up(link: Connection) -> None:
    channel = link.open(FLOODS_STDERR)
    within(lambda: channel.readline(1.0), LinkLostError, "was silent")
    assert 0 < len(channel.stderr()) <= 1 << 20
    assert 0 < len(channel.stderr_tail()) <= 4000 == len(Completed(0, b"", bytes(1 << 20)).last_words)
    channel.close()


def test_a_peer_that_takes_a_byte_now_and_then_is_given_up(link: Connection, short: SshSettings) -> None:
    courier = CourierClient(link.open(["sh", "-c", SINK]), short)
    data = bytes(8 << 20)
    within(lambda: courier.put_many([Put("file", data, digest(data))]), TooSlowError, "slowest_kb_s")


@pytest.mark.parametrize("file", ['{"size": 4000}', '{"size": 4000000}'])
def test_a_file_that_comes_by_drops_is_given_up(
    link: Connection, short: SshSettings, tmp_path: Path, file: str
) -> None:
    courier = CourierClient(link.open(["sh", "-c", f"read asked; echo '{file}'; {DRIPS}"]), short)
    within(lambda: get(courier, "e", tmp_path / "e", "0" * 32, 4_000_000), TooSlowError, "moved no data for 1 s")


def test_an_answer_that_comes_by_drops_is_given_up(link: Connection, short: SshSettings) -> None:
    courier = CourierClient(link.open(["sh", "-c", DRIPS]), short)
    within(lambda: courier.put_many([Put("e", b"x", digest(b"x"))]), TooSlowError, "moved no data for 1 s")


def test_more_than_was_announced_is_not_written(link: Connection, short: SshSettings, tmp_path: Path) -> None:
    courier = CourierClient(link.open(["sh", "-c", f"read asked; echo '{{\"size\": 10000000000}}'; {FLOODS}"]), short)
    within(lambda: get(courier, "e", tmp_path / "e", "0" * 32, 6000), MisconductError, "announced with 6000 bytes")
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 12_000


@pytest.mark.parametrize(
    "answer",
    [
        FLOODS,
        "echo []",
        "echo '{\"size\": -1}'",
        "echo '{\"size\": 1'$(printf '0%.0s' $(seq 400))'}'",
        'echo \'{"size": "x"}\'',
    ],
)
def test_an_answer_of_another_shape_is_the_workers_fault(
    link: Connection, short: SshSettings, tmp_path: Path, answer: str
) -> None:
    patient = dataclasses.replace(short, stall_s=WELL_OVER / 2)
    courier = CourierClient(link.open(["sh", "-c", f"read asked; {answer}; sleep 20"]), patient)
    within(lambda: get(courier, "e", tmp_path / "e", "0" * 32, 6), MisconductError, "its courier answers with")


@pytest.mark.parametrize(
    ("prints", "error"), [(DRIPS, LinkLostError), (FLOODS, InstallError), ("echo []", InstallError)]
)
def test_an_installation_that_never_answers_ends_at_its_limit(
    link: Connection, tmp_path: Path, prints: str, error: type[Exception]
) -> None:
    program = tmp_path / "program.py"
    program.write_text(f"import subprocess\nsubprocess.run({prints!r}, shell=True)\n")
    spec = importlib.util.spec_from_file_location("program", program)
    assert spec is not None
    limit_s = 1.5 if error is LinkLostError else WELL_OVER / 2
    with RemotePython(link, "python3", importlib.util.module_from_spec(spec), {}) as remote:
        within(lambda: remote.answer(time.monotonic() + limit_s), error, "silent|something else than the installation")

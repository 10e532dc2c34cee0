"""Ranks that meet without a port: what listens, who may connect, and what a lost launcher leaves."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from listening import NOBODY, another_user, as_another_user, listeners
from process_watch import eventually
from rank_launch import descendants, launch, ranks, started, torchrun

from digirl_dist.errors import PeerError
from digirl_dist.parallel.loopback import refusing_strangers

pytestmark = pytest.mark.component

PROGRAM = str(Path(__file__).parent / "meeting.py")

SHOUT = """
import socket, sys
for port in sys.argv[1:]:
    for said in (b"\\0" * 8, b"\\1" + b"\\0" * 7, b"\\x80\\x04cposix\\nsystem\\n" * 4000):
        with socket.create_connection(("127.0.0.1", int(port)), 5) as link:
            try:
                link.sendall(said)
            except OSError:
                pass
print("said")
"""


def both(folder: Path, name: str) -> Callable[[], bool]:
    return lambda: all((folder / f"{name}{rank}").exists() for rank in (0, 1))


def test_ranks_meet_and_nothing_listens_but_on_loopback(tmp_path: Path) -> None:
    with started(ranks(2, PROGRAM, str(tmp_path))) as process:
        eventually(both(tmp_path, "sum"), 90, "the first sum")
        found = listeners(process.pid)
        assert found and {one.address for one in found} == {"127.0.0.1"}
        assert all(PROGRAM in one.program for one in found)
        if os.geteuid() == 0:  # what strangers say to what listens changes nothing
            assert as_another_user(SHOUT, *(str(one.port) for one in found)).stdout == "said\n"
        (tmp_path / "end").touch()
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 0, out
    assert [(tmp_path / f"{name}{rank}").read_text() for name in ("sum", "again") for rank in (0, 1)] == ["3.0"] * 4


def test_ranks_whose_launcher_was_killed_end(tmp_path: Path) -> None:
    with started(ranks(2, PROGRAM, str(tmp_path))) as process:
        eventually(both(tmp_path, "sum"), 90, "the first sum")
        family = descendants(process.pid)
        process.kill()
        process.wait()
        (tmp_path / "end").touch()
        eventually(lambda: not any(rank.is_running() for rank in family), 30, "the end of the ranks")
    assert not both(tmp_path, "again")()


@pytest.mark.parametrize(("words", "said"), [(ranks(0, PROGRAM), "at least 1"), (ranks(2), "nothing to run")])
def test_a_launch_that_cannot_be_is_refused_in_one_line(words: list[str], said: str) -> None:
    ended = launch(words)
    assert ended.status == 2 and said in ended.out and ended.out.count("\n") == 1


def test_the_status_is_that_of_the_rank_that_failed(tmp_path: Path) -> None:
    program = tmp_path / "fails.py"
    program.write_text("import os, sys, time\nsys.exit(3) if os.environ['RANK'] == '1' else time.sleep(60)\n")
    began = time.monotonic()
    assert launch(ranks(2, str(program))).status == 3
    assert time.monotonic() - began < 40


def test_a_rank_that_a_signal_ends_is_named(tmp_path: Path) -> None:
    program = tmp_path / "dies.py"
    kill = "os.kill(os.getpid(), signal.SIGKILL)"
    program.write_text(f"import os, signal, time\n{kill} if os.environ['RANK'] == '1' else time.sleep(60)\n")
    ended = launch(ranks(2, str(program)))
    assert ended.status == 128 + 9 and ended.out == "rank 1 of 2 was ended by SIGKILL\n"


CONNECT = "import socket, sys; link = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); link.recv(1)"


def test_another_users_connection_is_refused() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        another_user(CONNECT, str(server.getsockname()[1])),
        pytest.raises(PeerError, match=f"user {NOBODY} of this machine connected"),
        refusing_strangers(),
    ):
        link, _ = server.accept()
    link.close()


def test_ones_own_connections_are_not_refused() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        refusing_strangers(),
        socket.create_connection(server.getsockname()),
    ):
        server.accept()[0].close()


@pytest.mark.nightly
@pytest.mark.system
def test_launchers_that_start_ranks_again_find_them_together() -> None:
    """torchrun keeps one store for all attempts, and with it the addresses of ranks that have died."""
    flags = ("--standalone", "--max-restarts=1")
    ended = launch(torchrun(2, str(Path(__file__).parent / "crash_once.py"), flags=flags))
    assert ended.status == 0, ended.out
    assert {f"attempt 1: rank {rank} adds up 2.0" for rank in (0, 1)} <= set(ended.out.splitlines())

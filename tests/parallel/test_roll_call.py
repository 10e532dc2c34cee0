"""JAX ranks report before JAX starts, which would abort: who is missing and which address is taken is one line."""

from __future__ import annotations

import signal
import socket
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from parallel.test_jax_launcher import LAUNCHER, PROGRAM, told_by
from process_watch import eventually
from rank_launch import launch, started

from chaos.processes import runs
from digirl_dist.errors import PeerError
from digirl_dist.parallel.free_port import free_port
from digirl_dist.parallel.rank import Coordinator, Rank
from digirl_dist.parallel.roll_call import roll_call

pytestmark = pytest.mark.component


def called(ranks: list[Rank], coordinator: Coordinator, limit_s: float) -> dict[int, str]:
    """What the roll call comes to for each of these ranks, which are threads here."""
    found: dict[int, str] = {}

    def call(rank: Rank) -> None:
        try:
            roll_call(rank, coordinator, limit_s)
            found[rank.rank] = "go"
        except PeerError as error:
            found[rank.rank] = str(error)

    threads = [threading.Thread(target=call, args=(rank,)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    return found


def hang_up(server: socket.socket) -> None:
    """Reads a line from whoever comes, as closing before that would reset the connection."""
    with suppress(OSError):  # the test is over
        while True:
            link, _ = server.accept()
            with link:
                link.recv(100)


def test_all_come_whatever_strangers_say() -> None:
    coordinator = Coordinator("127.0.0.1", free_port())

    def disturb() -> None:
        for word in (b"", b"GET / HTTP/1.1\n", b"rank 9 of 3\n", b"rank 0 of 3\n"):
            with socket.create_connection(("127.0.0.1", coordinator.port)) as link:
                link.sendall(word)

    stranger = threading.Timer(0.5, disturb)
    late = threading.Timer(2.0, lambda: found.update(called([Rank(2, 3)], coordinator, 60)))
    found: dict[int, str] = {}
    stranger.start()
    late.start()
    found |= called([Rank(0, 3), Rank(1, 3)], coordinator, 60)
    late.join()
    assert found == {0: "go", 1: "go", 2: "go"}
    with socket.create_server(("127.0.0.1", coordinator.port)):
        pass  # JAX may have the port now


def test_the_missing_are_named_to_all_that_came() -> None:
    coordinator = Coordinator("127.0.0.1", free_port())
    told = "ranks 1, 3 did not start within 2 s"
    assert called([Rank(0, 4), Rank(2, 4)], coordinator, 2) == {0: told, 2: told}
    assert "rank 0 cannot be reached at 127.0.0.1" in called([Rank(1, 2)], coordinator, 1)[1]


def test_who_waits_says_for_whom(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("digirl_dist.parallel.failure._PATIENCE_S", 0.5)
    coordinator, nowhere = Coordinator("127.0.0.1", free_port()), Coordinator("127.0.0.1", free_port())
    called([Rank(0, 4), Rank(2, 4)], coordinator, 3)
    called([Rank(1, 2)], nowhere, 3)
    assert set(capsys.readouterr().err.splitlines()) == {
        "rank 0 of 4 waits for ranks 1, 3 to start, for up to 3 s",
        f"rank 2 of 4 waits for rank 0 at {coordinator.address} (it has answered), for up to 3 s",
        f"rank 1 of 2 waits for rank 0 at {nowhere.address} (Connection refused), for up to 3 s",
    }


def test_ranks_of_another_launch_and_other_servers_are_named() -> None:
    coordinator = Coordinator("127.0.0.1", free_port())
    found = called([Rank(0, 2), Rank(1, 3)], coordinator, 3)
    assert found[1] == "rank 0 was started for a launch of 2 ranks, rank 1 for one of 3"
    assert found[0] == "rank 1 did not start within 3 s"
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = Coordinator("127.0.0.1", other.getsockname()[1])
        threading.Thread(target=hang_up, args=(other,), daemon=True).start()
        found = called([Rank(0, 2), Rank(1, 2)], taken, 5)
    assert found[0].startswith(f"rank 0 cannot listen at {taken.address}: Address already in use; choose another")
    assert found[1].startswith(f"what listens at {taken.address} is not rank 0 (it hangs up)")


@pytest.mark.system
@pytest.mark.timeout(300)
def test_a_missing_node_of_a_jax_launch_is_one_line(tmp_path: Path) -> None:
    module = ["-m", "digirl_dist.train", "--config-name", "ranks", "--distributed", "trainer=jax", "trainer.start_s=2"]
    node = ["--nnodes=2", "--node_rank=0", f"--coordinator_address=127.0.0.1:{free_port()}"]
    ended = launch([*LAUNCHER, *node, *module, f"save_path={tmp_path / 'run'}"], limit_s=280)
    assert ended.status == 1
    assert "rank 0 of 2 failed: rank 1 did not start within 2 s\n" in ended.out and "Traceback" not in ended.out


def test_ranks_of_a_launcher_that_is_killed_end() -> None:
    with started([*LAUNCHER, "--nproc_per_node=2", PROGRAM, "--deaf"]) as process:
        ranks = told_by(process, 2)
        process.send_signal(signal.SIGKILL)
        eventually(lambda: not any(runs(rank["pid"]) for rank in ranks), 30, "the end of the ranks")

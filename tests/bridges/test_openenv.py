"""OpenEnv's side of a fleet over real SSH, as OpenEnv's client uses it; see ``openenv_site`` for how real that is."""

from __future__ import annotations

import json
import signal
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import psutil
import pytest
from process_watch import command_line, descendants_with, eventually
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from digirl_dist.bridges.openenv import SshProvider, _digest, _Session, openenv_fleet
from digirl_dist.errors import SettingsError, WorkerError

pytestmark = pytest.mark.system

TESTS = Path(__file__).resolve().parent.parent
FLEET = ["dry_run=true", "emulator=openenv", "emulator.app=openenv_site:app", f"emulator.project={TESTS}"]


@contextmanager
def client(provider: SshProvider) -> Iterator[ClientConnection]:
    """Begins as OpenEnv's client does that has a provider."""
    address = provider.start()
    provider.wait_for_ready()
    with connect(address.replace("http", "ws", 1) + "/ws") as socket:
        yield socket


def ask(socket: ClientConnection, kind: str, **data: Any) -> dict[str, Any]:
    socket.send(json.dumps({"type": kind, "data": data}))
    answer: dict[str, Any] = json.loads(socket.recv())
    return answer


def right(socket: ClientConnection) -> Any:
    return ask(socket, "step", direction="right", length=1)["data"]["observation"]["latest"]


def ssh_server(name: str) -> psutil.Process:
    [found] = [one for one in descendants_with("digirl_dist.ssh.localhost_server") if command_line(one).endswith(name)]
    return found


def test_an_episode_goes_on_elsewhere_when_its_worker_dies_and_nobody_else_gets_in() -> None:
    with openenv_fleet(FLEET) as fleet:
        first, second = fleet.provider(), fleet.provider()
        with client(first) as one, client(second) as other:
            assert sorted(fleet.workers.values()) == [1, 1]
            seen = [ask(each, "reset", seed=7)["data"]["observation"] for each in (one, other)]
            assert seen[0]["latest"] == seen[1]["latest"]
            assert right(one) == right(other)
            victim = ssh_server("localhost-0")
            victim.send_signal(signal.SIGKILL)
            assert [right(one) for _ in range(2)] == [right(other) for _ in range(2)]
            assert len(fleet.moved) == 1 and "localhost-0" in fleet.moved[0] and fleet.workers == {"localhost-1": 2}
            assert ask(one, "state")["data"]["step_count"] == 3, "no step is lost, and none is done twice"
            refused = ask(other, "step", direction="up", length=1)
            assert refused == {"type": "error", "data": {"message": "Invalid message", "code": "VALIDATION_ERROR"}}
            assert other.request is not None
            address = f"127.0.0.1:{other.remote_address[1]}{other.request.path}".removesuffix("/ws")
            other.send('{"type": "close"}')
            with pytest.raises(ConnectionClosed):
                other.recv()
            with connect(f"ws://{address}/ws") as another:
                assert ask(another, "reset")["type"] == "observation", "the next session has a server of its own"
            assert urllib.request.urlopen(f"http://{address}/health").status == 200
            left = descendants_with("openenv_site")
            for wrong in (f"{address[:-1]}/ws", f"{address}/schema"):
                with pytest.raises(HTTPError, match="404"):
                    urllib.request.urlopen(f"http://{wrong}")
    assert left
    eventually(lambda: not any(one.is_running() for one in left), 30, "the end of the servers")


def test_a_message_that_kills_every_server_ends_in_an_error_and_a_reset_begins_anew() -> None:
    overrides = [*FLEET, "dry_run_workers=1", "limits.episode_attempts=2"]
    with openenv_fleet(overrides) as fleet, client(fleet.provider()) as socket:
        begun = ask(socket, "reset")["data"]["observation"]["latest"]
        told = ask(socket, "step", direction="left", length=1, note="die")["data"]
        assert told["code"] == "SESSION_ERROR" and "given up after 2 servers were lost" in told["message"]
        assert "broke off a session" in told["message"]
        assert right(socket) == [begun[0] + 1, 1], "what was answered before counts"
        again = [ask(socket, "reset")["data"]["observation"]["place"] for _ in range(8)]
        assert len(set(again)) > 1, "each reset has a seed of its own"
        socket.send("[" * 9999)
        assert json.loads(socket.recv(60))["type"] == "error", "an absurd message costs no more than its episode"


def test_what_an_episode_was_told_takes_little_memory_however_long_its_answers_are() -> None:
    with openenv_fleet([*FLEET, "dry_run_workers=1"]) as fleet:
        session = _Session(fleet, provider := fleet.provider())
        provider.start()
        answers = [session.answer('{"type": "reset"}'), *(session.answer('{"type": "state"}') for _ in range(2))]
        assert all(answers) and sum(len(text) for told in session._told for text in told) < 100
        session.lose(None)


@pytest.mark.unit
def test_an_answer_is_the_same_whatever_its_metadata_and_order() -> None:
    told = '{"data": {"a": 1, "b": [NaN, "\\ud83d"], "metadata": {"pid": 1}}, "type": "observation"}'
    same = '{"type": "observation", "data": {"b": [NaN, "\\ud83d"], "metadata": 5, "a": 1}}'
    assert _digest(told) == _digest(same) != _digest(told.replace('"a": 1', '"a": 2'))
    assert _digest("[" * 99_999) != _digest("no JSON")


def test_a_fleet_whose_last_worker_is_lost_before_its_first_server_says_why() -> None:
    with openenv_fleet([*FLEET, "dry_run_workers=1"]) as fleet:
        ssh_server("localhost-0").send_signal(signal.SIGKILL)
        eventually(lambda: not next(iter(fleet._machines.values())).connection.answers(), 60, "the loss of the link")
        with pytest.raises(WorkerError, match="no worker is left: .*localhost-0"):
            client(fleet.provider()).__enter__()


def test_other_emulators_are_refused() -> None:
    with pytest.raises(SettingsError, match="has emulator=openenv, not phone"), openenv_fleet(["dry_run=true"]):
        pass

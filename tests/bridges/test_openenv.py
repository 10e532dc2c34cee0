"""OpenEnv's side of a fleet over real SSH, as OpenEnv's client uses it; see ``openenv_site`` for how real that is."""

from __future__ import annotations

import json
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
from package_environment import python_with
from process_watch import descendants_with, eventually, ssh_server
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from digirl_dist.bridges.conversation import _digest
from digirl_dist.bridges.openenv import OpenEnvFleet, SshProvider, openenv_fleet
from digirl_dist.bridges.task_api import TaskApi
from digirl_dist.errors import SettingsError
from digirl_dist.tasks import Task

pytestmark = pytest.mark.system

TESTS = Path(__file__).resolve().parent.parent
FLEET = ["dry_run=true", "emulator=openenv", "emulator.app=openenv_site:app", f"emulator.project={TESTS}"]
PHONE = ["dry_run=true", "emulator=phone", "max_steps=3"]
TAP = {"type": "tap", "x": 0.5, "y": 0.5}


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


def busy(fleet: OpenEnvFleet) -> dict[str, int]:
    """The workers with sessions: one whose server was killed may not have been missed yet."""
    return {name: count for name, count in fleet.workers.items() if count}


def right(socket: ClientConnection) -> Any:
    return ask(socket, "step", direction="right", length=1)["data"]["observation"]["latest"]


def test_an_episode_goes_on_elsewhere_when_its_worker_dies_and_nobody_else_gets_in() -> None:
    with openenv_fleet(FLEET) as fleet:
        first, second = fleet.provider(), fleet.provider()
        with client(first) as one, client(second) as other:
            seen = [ask(each, "reset", seed=7)["data"]["observation"] for each in (one, other)]
            assert seen[0]["latest"] == seen[1]["latest"] and sorted(fleet.workers.values()) == [1, 1]
            assert right(one) == right(other)
            victim = ssh_server("localhost-0")
            victim.send_signal(signal.SIGKILL)
            assert [right(one) for _ in range(2)] == [right(other) for _ in range(2)]
            assert fleet.moved and "localhost-0" in fleet.moved[0] and busy(fleet) == {"localhost-1": 2}
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
        assert told["code"] == "SESSION_ERROR" and "given up after 2 environments were lost" in told["message"]
        assert "broke off a session" in told["message"]
        assert right(socket) == [begun[0] + 1, 1], "what was answered before counts"
        again = [ask(socket, "reset")["data"]["observation"]["place"] for _ in range(8)]
        assert len(set(again)) > 1, "each reset has a seed of its own"
        socket.send("[" * 9999)
        assert json.loads(socket.recv(60))["type"] == "error", "an absurd message costs no more than its episode"


def test_what_an_episode_was_told_takes_little_memory_however_long_its_answers_are() -> None:
    with openenv_fleet([*FLEET, "dry_run_workers=1"]) as fleet:
        talk = fleet.converse()
        answers = [talk.answer('{"type": "reset"}'), *(talk.answer('{"type": "state"}') for _ in range(2))]
        assert all(answers) and sum(len(text) for told in talk._told for text in told) < 100
        talk.close()


@pytest.mark.unit
def test_an_answer_is_the_same_whatever_its_metadata_and_order() -> None:
    told = '{"data": {"a": 1, "b": [NaN, "\\ud83d"], "metadata": {"pid": 1}}, "type": "observation"}'
    same = '{"type": "observation", "data": {"b": [NaN, "\\ud83d"], "metadata": 5, "a": 1}}'
    assert _digest(told) == _digest(same) != _digest(told.replace('"a": 1', '"a": 2'))
    assert _digest("[" * 99_999) != _digest("no JSON")


def test_a_fleet_whose_last_worker_is_lost_says_why_and_a_provider_refuses_what_it_cannot_do() -> None:
    with openenv_fleet([*PHONE, "dry_run_workers=1"]) as fleet:
        with pytest.raises(SettingsError, match="leave out port"):
            fleet.provider().start(port=8000)
        with pytest.raises(SettingsError, match="env_vars are for emulator=openenv"):
            fleet.provider().start(env_vars={"A": "b"})
        ssh_server("localhost-0").send_signal(signal.SIGKILL)
        eventually(lambda: not next(iter(fleet._sessions._machines.values())).connection.answers(), 60, "the loss")
        with client(fleet.provider()) as socket:
            told = ask(socket, "reset")["data"]
        assert told["code"] == "SESSION_ERROR" and "no worker is left" in told["message"]
        assert "localhost-0" in told["message"]


def query(address: str, path: str, **arguments: Any) -> Any:
    body = None if path == "splits" else json.dumps(arguments).encode()
    request = urllib.request.Request(f"{address}/phone/{path}", body, {"Content-Type": "application/json"})
    return json.loads(urllib.request.urlopen(request).read())


def test_an_emulator_of_ours_is_an_openenv_environment_with_its_tasks_and_outlives_its_worker() -> None:
    with openenv_fleet(PHONE) as fleet, client(provider := fleet.provider()) as one, client(fleet.provider()) as other:
        address = provider.start()
        assert query(address, "splits") == [{"name": split, "type": split} for split in ("train", "test")]
        count = query(address, "num_tasks", split="test")["num_tasks"]
        tasks = query(address, "tasks", split="test")["tasks"]
        assert count == len(tasks) > 1 and tasks[1] == query(address, "task", split="test", index=1)["task"]
        assert tasks[1:2] == query(address, "task_range", split="test", start=1, stop=2)["tasks"]
        for wrong in ({"split": "night"}, {"split": "test", "index": count}, {"split": "test", "index": True}, {}):
            with pytest.raises(HTTPError, match="400"):
                query(address, "task", **wrong)
        seen = [ask(each, "reset", split="test", index=1, seed=3)["data"]["observation"] for each in (one, other)]
        assert seen[0] == seen[1] and seen[0]["text"] == tasks[1]["instruction"] and seen[0]["image"]
        assert sorted(fleet.workers.values()) == [1, 1]
        taps = [ask(each, "step", **TAP) for each in (one, other)]
        ssh_server("localhost-0").send_signal(signal.SIGKILL)
        taps += [ask(each, "step", **TAP) for each in (one, other)]
        assert taps[2] == taps[3] and not taps[2]["data"]["done"]
        assert fleet.moved and busy(fleet) == {"localhost-1": 2}
        wrong_action = ask(one, "step", type="tap", x=2.0, y=0.5)
        assert wrong_action["data"]["code"] == "VALIDATION_ERROR" and "must lie in [0, 1]" in str(wrong_action)
        last = ask(one, "step", **TAP, metadata={})["data"]
        assert last["done"] and last["observation"]["truncated"] and not last["observation"]["success"]
        assert ask(one, "step", **TAP)["data"]["code"] == "EXECUTION_ERROR"
        assert ask(one, "state")["data"]["step_count"] == 3


@pytest.mark.nightly
def test_an_environment_that_hangs_costs_its_session_the_limit_and_ends_in_an_error() -> None:
    hangs = ["emulator=rehearsal", "emulator.step_s=600", "limits.step_s=1", "limits.episode_attempts=2"]
    with openenv_fleet(["dry_run=true", "dry_run_workers=1", *hangs]) as fleet, client(fleet.provider()) as one:
        assert ask(one, "reset")["type"] == "observation"
        told = ask(one, "step", action=0)["data"]
        assert told["code"] == "SESSION_ERROR" and "given up after 2 environments were lost" in told["message"]
        assert ask(one, "reset")["type"] == "observation", "and the session goes on"


OTHERS: dict[str, tuple[list[str], dict[str, Any], set[str]]] = {
    "CartPole": (["emulator=gymnasium", "emulator.id=CartPole-v1"], {"action": 1}, {"vector"}),
    "Pendulum": (["emulator=gymnasium", "emulator.id=Pendulum-v1"], {"action": [0.5]}, {"vector"}),
    "a dict with a text": (
        ["emulator=gymnasium", "emulator.id=minigrid:MiniGrid-Fetch-5x5-N2-v0"],
        {"action": 1},
        {"text", "image", "vector"},
    ),
    "MiniWoB++": (["emulator=miniwob", "emulator.task=click-test-2", "max_steps=3"], TAP, {"text", "image"}),
}
"""Settings, an action, and what an observation shows."""


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", OTHERS)
def test_gymnasiums_and_miniwobs_environments_are_openenvs_too_and_outlive_their_worker(name: str) -> None:
    words, action, shown = OTHERS[name]
    with (
        openenv_fleet(["dry_run=true", *words]) as fleet,
        client(provider := fleet.provider()) as one,
        client(fleet.provider()) as other,
    ):
        splits = json.loads(urllib.request.urlopen(f"{provider.start()}/{fleet.name}/splits").read())
        assert [each["name"] for each in splits] == ["train", "test"]
        seen = [ask(each, "reset", seed=3)["data"]["observation"] for each in (one, other)]
        assert seen[0] == seen[1] and {part for part in ("text", "image", "vector") if seen[0][part]} == shown
        told = [ask(each, "step", **action) for each in (one, other)]
        ssh_server("localhost-0").send_signal(signal.SIGKILL)
        told += [ask(each, "step", **action) for each in (one, other)]
        assert told[0] == told[1] and told[2] == told[3] and {each["type"] for each in told} == {"observation"}
        assert fleet.moved and busy(fleet) == {"localhost-1": 2}


BROWSERGYM = f"""
import json, signal, sys
sys.path[:0] = [{str(TESTS)!r}, {str(TESTS.parent)!r}]
from bridges.test_openenv import TAP, ask, busy, client
from digirl_dist.bridges.openenv import openenv_fleet
from process_watch import ssh_server

words = [
    "emulator=gymnasium", "emulator.entry_point=digirl_dist.emulator.browsergym:BrowserGym", "max_steps=6",
    "emulator.kwargs.task=miniwob.click-test-2", "emulator.touch=digirl_dist.emulator.browsergym:touch",
]
fleet_of = openenv_fleet(["dry_run=true", *words])
with fleet_of as fleet, client(fleet.provider()) as one, client(fleet.provider()) as other:
    told = [ask(each, "reset", seed=3) for each in (one, other)]
    told += [ask(each, "step", **TAP) for each in (one, other)]
    ssh_server("localhost-0").send_signal(signal.SIGKILL)
    told += [ask(each, "step", **TAP) for each in (one, other)]
    print(json.dumps([[each["type"], each["data"].get("observation", each["data"])] for each in told]))
    print(json.dumps([fleet.moved, busy(fleet)]))
"""


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_browsergyms_tasks_are_openenv_environments_too_and_outlive_their_worker() -> None:
    python = python_with("browsergym", "browsergym-miniwob>=0.14,<0.15", and_ours=True)
    played = subprocess.run([python, "-c", BROWSERGYM], capture_output=True, text=True, cwd=TESTS)
    assert played.returncode == 0, played.stderr[-4000:]
    told, (moved, workers) = map(json.loads, played.stdout.splitlines()[-2:])
    assert [kind for kind, _ in told] == ["observation"] * 6, told
    assert told[0][1]["text"] and told[0][1]["image"] and told[0] == told[1]
    assert moved and workers == {"localhost-1": 2}


@pytest.mark.parametrize(
    ("reset", "told"),
    [
        ({"index": 10**6}, "has tasks 0 to"),
        ({"split": "night"}, "there is no split 'night'; there are train, test"),
        ({"task_id": "nothing"}, "has no task 'nothing'"),
        ({"task_id": "c", "split": "train"}, "split train has no task 'c'"),
        ({"split": "empty"}, "has tasks 0 to"),
        ({"seed": "x"}, "is no whole number"),
        ({"seed": -1}, "is no whole number"),
        ({"seed": 2**40}, "is no whole number"),
    ],
)
@pytest.mark.unit
def test_a_reset_that_names_no_task_is_refused_in_one_line(reset: dict[str, Any], told: str) -> None:
    tasks = TaskApi({"train": [Task("a"), Task("b")], "test": [Task("c")], "empty": []})
    with pytest.raises(ValueError, match=told) as refused:
        tasks.begin({"seed": 1, **reset})
    assert "\n" not in str(refused.value)
    assert [
        tasks.begin(each)["task"]["id"]
        for each in ({"seed": 3}, {"seed": 0, "task_id": "b"}, {"seed": 0, "task_id": "c"})
    ] == ["b", "b", "c"]


OPENENVS_CLIENT = """
import json, sys
from openenv.core import GenericEnvClient
told = []
with GenericEnvClient(base_url=sys.argv[1], message_timeout_s=600).sync() as env:
    for index in range(10):
        first = env.reset(split="test", index=index % 3, seed=index)
        done, steps = first.done, 0
        while not done:
            answer = env.step({"type": "tap", "x": 0.5, "y": 0.5})
            done, steps = answer.done, steps + 1
        told.append([first.observation["text"], steps, env.state()["step_count"]])
        print(json.dumps(told[-1]), flush=True)
        sys.stdin.readline()
"""


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_openenvs_own_client_plays_ten_episodes_over_two_workers_of_which_one_is_killed() -> None:
    python = python_with("openenv", "openenv>=0.10,<0.11", and_ours=False)
    with openenv_fleet(PHONE) as fleet:
        address = fleet.provider().start()
        tasks = [each["instruction"] for each in query(address, "task_range", split="test", stop=3)["tasks"]]
        command = [python, "-c", OPENENVS_CLIENT, address]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as played:
            assert played.stdout is not None and played.stdin is not None
            for index in range(10):
                text, *steps = json.loads(played.stdout.readline())
                assert text == tasks[index % 3] and steps == [3, 3]
                if index == 4:
                    [busy] = [name for name, count in fleet.workers.items() if count]
                    ssh_server(busy).send_signal(signal.SIGKILL)
                played.stdin.write("\n")
                played.stdin.flush()
        assert played.returncode == 0 and fleet.moved


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_sixty_four_sessions_of_one_worker_act_at_once() -> None:
    with openenv_fleet([*PHONE, "dry_run_workers=1", "limits.boot_s=900"]) as fleet, ExitStack() as stack:
        address = fleet.provider().start().replace("http", "ws", 1)
        sockets = [stack.enter_context(connect(f"{address}/ws", open_timeout=60)) for _ in range(64)]
        for place, socket in enumerate(sockets):
            socket.send(json.dumps({"type": "reset", "data": {"seed": place % 2}}))
        first = [json.loads(socket.recv(900))["data"]["observation"]["text"] for socket in sockets]
        assert fleet.workers == {"localhost-0": 64} and not fleet.moved
        assert len(set(first[::2])) == len(set(first[1::2])) == 1
        for socket in sockets:
            socket.send(json.dumps({"type": "step", "data": TAP}))
        assert all(json.loads(socket.recv(300))["type"] == "observation" for socket in sockets)
    eventually(lambda: not descendants_with("digirl_dist.rollout.emulator_process"), 60, "the end of the emulators")

"""A chat endpoint acts for a fleet: asked many times at once, recorded with its tokens; its failures are losses."""

from __future__ import annotations

import json
import math
import re
import threading
import time
from array import array
from collections.abc import Iterator
from dataclasses import fields, replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chat_server import Answer, answers_with, endpoint, fails, sends
from chat_server import Endpoint as Served
from run_files import events
from small_run import episode as made
from test_run import ROOT

from digirl_dist import Endpoint, Fleet, Run, Task
from digirl_dist.agent.answers import Coordinates
from digirl_dist.agent.plugins.endpoint import EndpointSettings
from digirl_dist.api.episodes import Episode
from digirl_dist.collect.leases import Lost
from digirl_dist.emulator.episode_limits import check_step
from digirl_dist.emulator.touch_actions import SAID
from digirl_dist.errors import SettingsError, TrajectoryError
from digirl_dist.storage import episode_file, parquet
from digirl_dist.trajectory import Observation, Step

pytestmark = pytest.mark.system
WAIT = answers_with('{"type": "wait"}', [-0.5, -0.25], [11, 12], [1, 2, 3])
COUNTER: dict[str, Any] = {"name": "custom", "entry_point": "user_classes:Counter"}
KEY = "sk-very-secret-0123456789"


@pytest.fixture
def served() -> Iterator[Served]:
    with endpoint() as found:
        found.then = WAIT
        yield found


def test_over_ssh_it_acts_with_many_at_a_time_and_its_tokens_are_read_back(served: Served, tmp_path: Path) -> None:
    together = threading.Barrier(3)

    def first(handler: BaseHTTPRequestHandler) -> None:
        together.wait(60)  # none is answered before three have come
        WAIT(handler)

    served.script = [first] * 3
    with Fleet.dry_run(2, bsize=2, emulator="phone", max_steps=3, save_path=str(tmp_path / "kept")) as fleet:
        act = Endpoint(served.url, "my-model", {"temperature": 0.7}, at_once=3)
        rollouts = [fleet.submit(fleet.tasks[0], act=act) for _ in range(6)]
        found = [each.result(90) for each in rollouts]
        assert fleet.update(Endpoint(served.url, "other-model"), version=9) == 9
        later = fleet.submit(fleet.tasks[0]).result(90)
    for one in [*found, later, *Run(tmp_path / "kept").episodes()]:
        assert isinstance(one, Episode), one
        for step in one.steps:
            assert step.action == {"type": "wait", SAID: '{"type": "wait"}'} and step.log_prob == -0.75
            told = (step.tokens, step.token_log_probs, step.prompt_tokens)
            assert [list(each) for each in told] == [[11, 12], [-0.5, -0.25], [1, 2, 3]]
    assert isinstance(later, Episode) and later.ticket.policy_version == 9
    asked = served.requests[0]
    assert (asked["model"], asked["temperature"], asked["return_token_ids"]) == ("my-model", 0.7, True)
    assert served.requests[-1]["model"] == "other-model" and "Your latest answers" in str(served.requests[2:])


def test_weights_that_change_within_an_episode_are_told_by_its_steps(served: Served, tmp_path: Path) -> None:
    came = threading.Event()

    def answer(handler: BaseHTTPRequestHandler) -> None:
        if len(served.requests) == 2:
            came.set()
        time.sleep(0.02)
        is_new = served.requests[-1]["model"] == "n"
        (answers_with('{"type": "done"}', [-0.5]) if is_new else WAIT)(handler)

    served.then = answer
    with Fleet.dry_run(1, bsize=1, emulator="phone", max_steps=400, save_path=str(tmp_path / "kept")) as fleet:
        rollout = fleet.submit(fleet.tasks[0], act=Endpoint(served.url, "m"))
        assert came.wait(90)
        fleet.update(Endpoint(served.url, "n"), version=5)
        episode = rollout.result(90)
    acted = [request["model"] for request in served.requests]
    assert acted == [*["m"] * (len(acted) - 1), "n"] and len(acted) > 2
    (stored,) = Run(tmp_path / "kept").episodes()
    for each in (episode, stored):
        assert isinstance(each, Episode) and each.ticket.policy_version == 0
        assert [step.policy_version for step in each.steps] == [*[None] * (len(acted) - 1), 5]


def test_an_endpoint_that_was_replaced_answers_what_it_was_asked(served: Served, tmp_path: Path) -> None:
    under_way, replaced = threading.Event(), threading.Event()

    def answer(handler: BaseHTTPRequestHandler) -> None:
        time.sleep(0.02)
        model = served.requests[-1]["model"]
        if model == "1" and not under_way.is_set():
            under_way.set()
            replaced.wait(60)
        (answers_with('{"type": "done"}', []) if model == "3" else WAIT)(handler)

    served.then, kept = answer, tmp_path / "kept"
    with Fleet.inline(bsize=2, emulator="phone", max_steps=400, save_path=str(kept)) as fleet:
        first = fleet.submit(fleet.tasks[0], act=Endpoint(served.url, "0"))
        while not served.requests:
            time.sleep(0.01)
        fleet.update(Endpoint(served.url, "1"))
        assert under_way.wait(60)
        for model in ("2", "3"):
            fleet.update(Endpoint(served.url, model))
            fleet.submit(fleet.tasks[0], deadline_s=0.0 if model == "2" else 60.0).result(90)
        replaced.set()
        episode = first.result(90)
    assert isinstance(episode, Episode) and {step.policy_version for step in episode.steps} == {None, 1, 3}
    assert not events(kept, "episode_retried")


def test_places_are_asked_for_and_read_in_the_units_of_the_model(served: Served) -> None:
    served.then = answers_with('{"type": "tap", "x": 500, "y": 250}', [])
    with Fleet.inline(bsize=1, emulator="phone", max_steps=2) as fleet:
        act = Endpoint(served.url, "m", coordinates="thousandths", screenshots=2)
        episode = fleet.submit(fleet.tasks[0], act=act).result(90)
    assert isinstance(episode, Episode)
    taps = [{name: step.action[name] for name in ("type", "x", "y")} for step in episode.steps]
    assert taps == [{"type": "tap", "x": 0.5, "y": 0.25}] * 2
    chats = [json.dumps(request["messages"]) for request in served.requests]
    assert "1000" in chats[0] and [chat.count("data:image") for chat in chats] == [1, 2]


@pytest.mark.component
def test_each_setting_of_an_agent_that_is_an_endpoint_is_the_endpoints() -> None:
    words = {"model": "m", "base_url": "http://127.0.0.1:1/v1", "system": "s", "key_variable": "K", "seed": False}
    numbers = {"answer_s": 1.0, "outage_s": 2.0, "requests_per_minute": 3.0, "previous_actions": 4, "screenshots": 5}
    asked = EndpointSettings(**words, **numbers, coordinates=Coordinates.pixels, labels=True, request={"top_k": 6})
    defaults = {each.name: each.default for each in fields(asked) if each.name not in ("name", "request")}
    assert not [name for name, default in defaults.items() if getattr(asked, name) == default]
    assert replace(Endpoint.of(asked).settings, request=asked.request) == asked


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    monkeypatch.chdir(ROOT / "tests")
    with Fleet.inline(bsize=2, emulator=COUNTER, limits={"episode_attempts": 2}) as opened:
        yield opened


def only_texts(observation: Observation) -> list[dict[str, Any]]:
    return [{"role": "user", "content": "count"}]


def test_your_own_chat_and_reader_serve_any_emulator_and_a_server_that_knows_no_token_ids(
    served: Served, fleet: Fleet
) -> None:
    def strict(handler: BaseHTTPRequestHandler) -> None:
        knows = "return_token_ids" not in served.requests[-1]
        (answers_with("1", []) if knows else fails(400, "Unrecognized request argument: return_token_ids"))(handler)

    served.then = strict
    act = Endpoint(served.url, "m", {"temperature": np.float32(0.5)}, messages=only_texts, read=int)
    found = [fleet.submit(Task("fine"), act=act, seed=seed).result(60) for seed in range(2)]
    for episode in found:
        assert isinstance(episode, Episode) and [step.action for step in episode.steps] == [1, 1, 1]
        assert all(math.isnan(step.log_prob) and not len(step.tokens) for step in episode.steps)
    assert [request["messages"] for request in served.requests] == [only_texts(Observation())] * len(served.requests)
    assert {request["temperature"] for request in served.requests} == {0.5}
    assert sum("return_token_ids" in request for request in served.requests) == 1, "asked once, and never again"
    episode = fleet.submit(Task("fine"), act=replace(act, model="n", read=np.int64)).result(60)
    assert isinstance(episode, Episode) and episode.ticket.policy_version == 1 and served.requests[-1]["model"] == "n"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (fails(401, f"wrong key {KEY}"), "check the key"),
        (fails(503, "busy"), "was away: "),
        (answers_with("one", []), "Endpoint.read cannot read 'one': ValueError"),
        (answers_with("1", [-0.5], [4, 5]), "1 log-probabilities for 2 tokens"),
        (sends("<html>welcome</html>"), r"is Endpoint\(url=…\) right"),
    ],
)
def test_what_fails_is_a_loss_to_the_agent_and_no_reward_of_0(
    served: Served, fleet: Fleet, monkeypatch: pytest.MonkeyPatch, answer: Answer, said: str
) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    served.then = answer
    act = Endpoint(served.url, "m", messages=only_texts, read=int, key_variable="MY_KEY", outage_s=0.0)
    lost = fleet.submit(Task("fine"), act=act).result(60)
    assert isinstance(lost, Lost) and lost.kind == "agent", lost
    assert re.search(said, lost.reason) and KEY not in lost.reason, lost.reason
    served.then = answers_with("1", [-0.5], [7])
    assert isinstance(episode := fleet.submit(Task("fine")).result(60), Episode) and episode.reward == 3.0


@pytest.mark.parametrize("odd", [np.zeros(2), object(), "\ud800", {1j: 2}])
def test_messages_that_are_no_json_are_named(served: Served, fleet: Fleet, odd: Any) -> None:
    act = Endpoint(served.url, "m", messages=lambda _: [{"role": "user", "content": odd}], read=int)
    lost = fleet.submit(Task("fine"), act=act).result(60)
    assert isinstance(lost, Lost) and lost.kind == "agent" and not served.requests
    assert "Endpoint.messages returned what is no JSON: " in lost.reason and "Traceback" not in lost.reason


def test_a_server_that_is_away_is_named_at_once_and_once(served: Served, fleet: Fleet) -> None:
    served.script, served.then = [fails(503, "busy")] * 3, answers_with("1", [-0.5], [7])
    act = Endpoint(served.url, "m", messages=only_texts, read=int, at_once=1)
    with pytest.warns(UserWarning, match=f"m at {served.url} is away: 503 .*; asked again for 120 s") as told:
        (group,) = fleet.stream([Task("fine")], act=act, group_size=2)
    assert len(group) == 2 and [each.category for each in told].count(UserWarning) == 1


def test_an_endpoint_that_is_refused_acts_in_nothing_and_leaves_no_thread(served: Served, fleet: Fleet) -> None:
    served.then = answers_with("1", [-0.5], [7])
    act = Endpoint(served.url, "m", messages=only_texts, read=int)
    fleet.update(act, version=5)
    assert isinstance(fleet.submit(Task("fine")).result(60), Episode)
    threads = sum(each.name == "chat" for each in threading.enumerate())
    for refused in (replace(act, model="n"), lambda seen: [1 for _ in seen]):
        with pytest.raises(SettingsError, match="version=3 is no whole number from 6|something else acts"):
            fleet.update(refused, version=3)
    assert sum(each.name == "chat" for each in threading.enumerate()) == threads
    assert isinstance(fleet.submit(Task("fine")).result(60), Episode)
    assert {request["model"] for request in served.requests} == {"m"}


@pytest.mark.component
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"url": "localhost"}, r"Endpoint\(url=…\) is no plain address"),
        ({"at_once": 0}, "at_once=0"),
        ({"model": 3}, r"Endpoint\(model=…\)=3 is no text"),
        ({"model": ""}, r"Endpoint\(model=…\)='' is no text"),
        ({"coordinates": "inches"}, "coordinates must be .*, not 'inches'"),
    ],
)
def test_an_endpoint_that_cannot_be_is_refused_at_once(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        Endpoint(**{"url": "http://127.0.0.1:1/v1", "model": "m", **wrong})


@pytest.mark.component
def test_a_missing_key_and_another_kind_of_act_are_refused_when_they_are_named(fleet: Fleet) -> None:
    url = "http://127.0.0.1:1/v1"
    with pytest.raises(SettingsError, match="export NO_SUCH_KEY"):
        fleet.submit(Task("fine"), act=Endpoint(url, "m", read=int, key_variable="NO_SUCH_KEY"))
    with pytest.raises(SettingsError, match=r"agent=endpoint is made for screenshots"):
        fleet.submit(Task("fine"), act=Endpoint(url, "m"))
    assert isinstance(fleet.submit(Task("fine"), act=lambda seen: [1] * len(seen)).result(60), Episode)
    with pytest.raises(SettingsError, match="something else acts for this fleet"):
        fleet.submit(Task("fine"), act=Endpoint(url, "m", read=int))


@pytest.mark.component
def test_both_kinds_of_files_give_back_tokens_and_versions(tmp_path: Path) -> None:
    plain = made(0, 0, True)
    first, *rest = plain.steps
    told = (array("f", [-0.5, -1.5]), array("i", [5, 2]), array("i", range(900)), 7)
    kept = replace(plain, steps=[Step(first.observation, first.action, -2.0, 0.0, False, False, (), *told), *rest])
    episode_file.write(tmp_path / "one.episode", kept)
    parquet.write(tmp_path / "one.parquet", [kept])
    for found in (episode_file.read(tmp_path / "one.episode"), *parquet.stream(tmp_path / "one.parquet")):
        back, *others = found.steps
        assert (back.token_log_probs, back.tokens, back.prompt_tokens, back.policy_version) == told
        assert not any(len(one.tokens) or len(one.prompt_tokens) or one.policy_version for one in others)


@pytest.mark.unit
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tokens": [5]}, "2 log-probabilities of tokens for 1 tokens"),
        ({"token_log_probs": []}, "0 log-probabilities of tokens for 2 tokens"),
        ({"tokens": [5, -2]}, "negative"),
        ({"prompt_tokens": [-1]}, "negative"),
        ({"log_prob": -1.0}, "sum up to -2"),
    ],
)
def test_tokens_that_do_not_fit_are_refused(changes: dict[str, Any], said: str) -> None:
    fits = Step(Observation(), 1, -2.0, 0.0, True, False, (), [-0.5, -1.5], [5, 2], [1, 2, 3])
    check_step(fits)
    with pytest.raises(TrajectoryError, match=said):
        check_step(replace(fits, **changes))

"""Several servers with the same weights share requests, one may be lost, and all sleep while the host learns."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from chat_server import Answer, Endpoint, answers_with, endpoint, fails, hangs_up, sends
from process_watch import eventually

from digirl_dist.chat.client import Outage
from digirl_dist.chat.engine_servers import LoraServer
from digirl_dist.errors import ChatAway, ChatRefused, SettingsError
from digirl_dist.inference.engine_policies import EnginePolicies, Outages
from digirl_dist.inference.requests import InferenceReply, InferenceRequest, InferenceResult, RandomStream
from digirl_dist.inference.spread import SpreadAgent
from digirl_dist.settings import OpenAIEngineSettings
from digirl_dist.storage.checkpoint import Checkpoints
from digirl_dist.storage.events import Events
from digirl_dist.storage.status import Status
from digirl_dist.trajectory import Decision, Observation

pytestmark = pytest.mark.component

SEEN, CHAT = Observation("open"), [{"role": "user", "content": "open"}]


class Speaker:
    """A served agent of few words, on a real connection."""

    def __init__(self, server: LoraServer) -> None:
        self._server = server
        self.sleep, self.wake = server.sleep, server.wake

    def load(self, version: int, state: Mapping[str, Any]) -> str:
        self._server.load(f"v{version}", Path("/adapters"))
        return "m"

    def unload(self, adapter: str) -> None:
        self._server.unload(adapter)

    def decide(self, adapter: str, observation: Observation, rng: np.random.Generator) -> Decision:
        sampled = self._server.sample(adapter, CHAT, {"seed": int(rng.integers(2**31))})  # type: ignore[arg-type]
        return Decision("done", sum(sampled.log_probs))


SAYS: Answer = answers_with("done", [-0.5], [5])


def held(began: threading.Event, until: threading.Event) -> Answer:
    """An answer that comes once it may."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        began.set()
        until.wait(60)
        SAYS(handler)

    return answer


@contextmanager
def servers(count: int) -> Iterator[list[Endpoint]]:
    with ExitStack() as stack:
        found = [stack.enter_context(endpoint()) for _ in range(count)]
        for one in found:
            one.then, one.models = SAYS, [{"id": "base", "owned_by": "vllm"}]
        yield found


def spread(found: list[Endpoint], outage_s: float = 0.0) -> tuple[SpreadAgent, list[Outage]]:
    settings = OpenAIEngineSettings(url=[one.url for one in found], outage_s=outage_s)
    lost: list[Outage] = []
    return SpreadAgent([Speaker(LoraServer(each)) for each in settings.servers], outage_s, lost.append), lost


def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def chats(one: Endpoint) -> list[dict[str, Any]]:
    return [request for request in one.requests if request["path"].endswith("completions")]


def test_a_request_goes_to_the_server_that_answers_the_fewest() -> None:
    began, until = threading.Event(), threading.Event()
    with servers(2) as found:
        found[0].script = [held(began, until)]
        agent, _ = spread(found)
        busy = threading.Thread(target=agent.decide, args=("m", SEEN, rng()))
        busy.start()
        assert began.wait(60)
        for _ in range(3):
            agent.decide("m", SEEN, rng())
        until.set()
        busy.join(60)
        assert [len(chats(one)) for one in found] == [1, 3]


def test_one_that_is_lost_is_named_once_and_the_others_go_on_with_the_same_randomness() -> None:
    with servers(3) as found:
        found[0].then = hangs_up
        agent, lost = spread(found)
        for _ in range(6):
            assert agent.decide("m", SEEN, rng()).log_prob == -0.5
        (told,) = lost
        assert found[0].url in told.reason and told.reason.endswith("2 of 3 servers go on")
        assert len(chats(found[0])) == 1, "it is left out for a while"
        assert len({request["seed"] for one in found for request in chats(one)}) == 1


def test_one_that_was_lost_is_tried_again_by_one_request_and_then_shares_the_work() -> None:
    with servers(2) as found:
        found[0].script = [hangs_up]
        agent, lost = spread(found)
        until = time.monotonic() + 60
        while len(chats(found[0])) < 3:
            assert time.monotonic() < until, "it is never tried again"
            agent.decide("m", SEEN, rng())
            time.sleep(0.05)
        assert len(lost) == 1


def test_where_all_are_away_a_request_waits_and_then_fails_with_the_reason() -> None:
    with servers(2) as found:
        for one in found:
            one.script = [fails(503, "starting")]
        agent, lost = spread(found, outage_s=30.0)
        assert agent.decide("m", SEEN, rng()).log_prob == -0.5, "they came back within the limit"
        assert lost[-1].reason.endswith("0 of 2 servers go on")
    agent, _ = spread(found, outage_s=0.0)
    with pytest.raises(ChatAway, match="was away: "):
        agent.decide("m", SEEN, rng())
    with pytest.raises(ChatAway, match="all 2 servers of engine.url are away"):
        agent.decide("m", SEEN, rng())


def test_where_all_are_away_weights_wait_for_them_as_requests_do() -> None:
    with servers(2) as found:
        for one in found:
            one.script = [fails(503, "starting")]
        agent, lost = spread(found, outage_s=300.0)
        assert agent.load(3, {}) == "m" and len(lost) == 2
    errors: queue.SimpleQueue[Exception] = queue.SimpleQueue()

    def wake() -> None:
        try:
            agent.wake()
        except ChatAway as error:
            errors.put(error)

    threading.Thread(target=wake, daemon=True).start()
    with pytest.raises(queue.Empty):
        errors.get(timeout=2)
    agent.close()
    assert str(errors.get(timeout=60)).endswith("was away: All connection attempts failed"), "it does not wait for one"


def test_weights_are_loaded_by_all_that_are_there_and_a_refusal_is_told() -> None:
    with servers(2) as found:
        found[0].then = hangs_up
        agent, lost = spread(found)
        assert agent.load(3, {}) == "m" and len(lost) == 1
        assert [request["lora_name"] for request in found[1].requests] == ["v3"]
        agent._servers[0].away_until += 600.0
        agent.load(4, {})
        assert [[request["lora_name"] for request in one.requests] for one in found] == [["v3"], ["v3", "v4"]]
        found[1].script = [fails(400, "no LoRA")]
        with pytest.raises(ChatRefused, match="no LoRA"):
            agent.load(5, {})
    with pytest.raises(ChatAway):
        agent.load(6, {})


def test_one_that_refuses_what_another_answers_is_left_out_and_what_all_refuse_is_told() -> None:
    with servers(2) as found:
        agent, lost = spread(found)
        found[0].then = fails(404, "no such adapter")
        for _ in range(6):
            assert agent.decide("m", SEEN, rng()).log_prob == -0.5
        assert len(chats(found[0])) == 1
        (told,) = lost
        assert "no such adapter" in told.reason and told.reason.endswith("1 of 2 servers go on")
        agent.unload("m")
        assert found[1].requests[-1]["path"].endswith("unload_lora_adapter")
    with servers(2) as found:
        agent, lost = spread(found)
        for one in found:
            one.script = [fails(400, "too many tokens")] * 2
        with pytest.raises(ChatRefused, match="too many tokens"):
            agent.decide("m", SEEN, rng())
        assert not lost, "the request was at fault"


def test_a_server_that_says_nothing_keeps_none_waiting_for_another() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, servers(1) as (one,):
        port = silent.getsockname()[1]
        hung = LoraServer(OpenAIEngineSettings(url=f"http://127.0.0.1:{port}/v1", answer_s=600.0))

        def ask() -> None:
            with suppress(ChatAway):
                hung.sleep()

        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        connection, _ = silent.accept()
        assert connection.recv(1), "it is being asked what it is"
        sleeping = threading.Thread(target=LoraServer(OpenAIEngineSettings(url=one.url)).sleep, daemon=True)
        sleeping.start()
        sleeping.join(30)
        hung.close()
        asking.join(60)
        assert not sleeping.is_alive() and not asking.is_alive()


def test_closing_ends_the_wait_for_servers_that_are_away() -> None:
    with servers(1) as found:
        found[0].then = hangs_up
        lost: list[Outage] = []
        away = Speaker(LoraServer(OpenAIEngineSettings(url=found[0].url, outage_s=0.0)))
        agent = SpreadAgent([away], 300.0, lost.append)
        errors: queue.SimpleQueue[Exception] = queue.SimpleQueue()

        def ask() -> None:
            try:
                agent.decide("m", SEEN, rng())
            except ChatAway as error:
                errors.put(error)

        threading.Thread(target=ask, daemon=True).start()
        until = time.monotonic() + 60
        while not lost and time.monotonic() < until:
            time.sleep(0.01)
        agent.close()
        assert isinstance(errors.get(timeout=60), ChatAway)


def test_requests_that_wait_for_a_server_go_to_it_as_soon_as_it_has_answered_one() -> None:
    began, until = threading.Event(), threading.Event()
    with servers(1) as found:
        found[0].script = [held(began, until)]
        agent, _ = spread(found, outage_s=300.0)
        agent._servers[0].pause_s = 60.0  # it was lost, and a request may try it
        waiting = [threading.Thread(target=agent.decide, args=("m", SEEN, rng()), daemon=True) for _ in range(3)]
        for each in waiting:
            each.start()
        assert began.wait(60)
        until.set()
        for each in waiting:
            each.join(20)
        assert not any(each.is_alive() for each in waiting)


@pytest.mark.unit
@pytest.mark.parametrize("urls", [[], ["http://a/v1", "http://a/v1"], ["http://a/v1", "b"]])
def test_addresses_are_several_different_ones(urls: list[str]) -> None:
    with pytest.raises(SettingsError, match=r"engine\.url"):
        OpenAIEngineSettings(url=urls)
    assert [one.outage_s for one in OpenAIEngineSettings(url=["http://a/v1", "http://b/v1"]).servers] == [0.0, 0.0]
    assert [one.outage_s for one in OpenAIEngineSettings(url="http://a/v1").servers] == [120.0]


@contextmanager
def policies(one: Endpoint, folder: Path) -> Iterator[EnginePolicies]:
    events = Events(folder / "events.jsonl")
    outages = Outages(events, Status(folder / "status.json"), one.url)
    server = LoraServer(OpenAIEngineSettings(url=one.url, outage_s=1.0), outages)
    speaker = Speaker(server)
    found = EnginePolicies(speaker, 2, outages, server.close, sleeper=speaker)
    try:
        yield found
    finally:
        found.close()
        events.close()


def test_no_thread_of_it_outlives_a_policy(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    with servers(1) as (one,), policies(one, tmp_path):
        assert {each.name for each in set(threading.enumerate()) - before} >= {"engine-0", "engine-1", "engine-load-0"}
    until = time.monotonic() + 60
    while any(each.name.startswith("engine") for each in set(threading.enumerate()) - before):
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("owner", "paths"),
    [
        ("vllm", ["/sleep?level=1", "/wake_up"]),
        ("sglang", ["/release_memory_occupation", "/resume_memory_occupation"]),
    ],
)
def test_the_server_sleeps_between_collections_and_nothing_is_asked_meanwhile(
    tmp_path: Path, owner: str, paths: list[str]
) -> None:
    began, until = threading.Event(), threading.Event()
    replies: queue.SimpleQueue[InferenceReply] = queue.SimpleQueue()
    with servers(1) as (one,), policies(one, tmp_path) as acting:
        one.models[0]["owned_by"] = owner
        one.script = [sends("Success"), held(began, until)]
        name = "base:m" if owner == "sglang" else "m"
        answer = (
            f'{{"model": "{name}", "choices": [{{"message": {{"content": "?"}}, "token_ids": [5], '
            '"finish_reason": "stop", "logprobs": {"content": '
        )
        one.then = sends(answer + '[{"logprob": -0.5}]}}]}')

        def ask() -> None:
            acting.ask(InferenceRequest(4, 1, RandomStream(0, 1, 2), SEEN), replies.put)

        saved = Checkpoints(tmp_path / "checkpoints").save(1, {"weight": torch.zeros(1)}, {}, {})
        acting.serve(saved, set())
        ask()
        assert began.wait(60)
        resting = threading.Thread(target=acting.rest)
        resting.start()
        ask()  # of an episode that nobody waits for any more
        until.set()
        resting.join(60)
        assert not resting.is_alive() and replies.get(timeout=60).number == 4
        asked = [request["path"] for request in one.requests]
        assert asked[-1] == paths[0] and asked.count("/v1/chat/completions") == 1
        acting.serve(saved, {1})
        assert isinstance(replies.get(timeout=60), InferenceResult)
        assert [request["path"] for request in one.requests][-2:] == [paths[1], "/v1/chat/completions"]
        if owner == "sglang":
            assert [request["tags"] for request in one.requests if "memory" in request["path"]] == [["kv_cache"]] * 2


def test_a_server_that_does_not_wake_up_is_told(tmp_path: Path) -> None:
    with servers(1) as (one,), policies(one, tmp_path) as acting:
        one.then = sends("Success")
        acting.rest()
        one.then = fails(400, "out of memory")
        acting.serve(Checkpoints(tmp_path / "checkpoints").save(1, {"weight": torch.zeros(1)}, {}, {}), set())
        eventually(lambda: "out of memory" in (tmp_path / "events.jsonl").read_text())


def test_a_server_that_cannot_sleep_is_told_with_the_remedy() -> None:
    with servers(1) as (one,):
        one.then = fails(404, "Not Found")
        with pytest.raises(ChatRefused, match=r"Not Found.*--enable-sleep-mode and VLLM_SERVER_DEV_MODE=1"):
            LoraServer(OpenAIEngineSettings(url=one.url)).sleep()

"""A server's answers are taken as they are documented, and refused by name where they are anything else."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from chat_server import Endpoint, drips_a_body, endless, endpoint, fails, hangs_up, redirects, sends

from digirl_dist.chat.client import Sampled
from digirl_dist.chat.engine_servers import LoraServer, reach
from digirl_dist.errors import ChatAway, ChatError, ChatRefused, SettingsError
from digirl_dist.settings import OpenAIEngineSettings

pytestmark = pytest.mark.component

KEY = "sk-very-secret-0123456789"
CHAT: Any = [{"role": "user", "content": "open"}]


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    monkeypatch.setenv("ENGINE_KEY", KEY)
    with endpoint() as found:
        found.models = [{"id": "base", "owned_by": "vllm"}]
        yield found


def server(served: Endpoint, **settings: Any) -> LoraServer:
    given = {"url": served.url, "key_variable": "ENGINE_KEY", "outage_s": 0.0, **settings}
    return LoraServer(OpenAIEngineSettings(**given))


def answer(**changes: Any) -> str:
    """An answer of vLLM's, with parts replaced."""
    told = {
        "message": {"content": "ab"},
        "token_ids": [5, 2],
        "finish_reason": "stop",
        "logprobs": {"content": [{"token": "a", "logprob": -0.5}, {"token": "b", "logprob": -0.25}]},
        **{name: value for name, value in changes.items() if name != "model"},
    }
    return json.dumps({"model": changes.get("model", "run-v3"), "choices": [told], "prompt_token_ids": [7, 8]})


def test_tokens_and_log_probabilities_are_taken_from_vllm(served: Endpoint) -> None:
    served.script = [sends(answer())]
    assert server(served).sample("run-v3", CHAT, {"seed": 4}) == Sampled([5, 2], [-0.5, -0.25], [7, 8])
    (asked,) = served.requests
    assert (asked["model"], asked["seed"], asked["logprobs"], asked["return_token_ids"]) == ("run-v3", 4, True, True)
    assert asked["key"] == f"Bearer {KEY}" and asked["n"] == 1


def test_sglang_is_spoken_to_in_its_own_forms(served: Endpoint, tmp_path: Path) -> None:
    served.models = [{"id": "org/base", "owned_by": "sglang", "parent": None}]
    served.script = [
        sends('{"success": true}'),
        sends(answer(model="org/base:run-v3", token_ids=None, response_token_ids=[5, 2], prompt_token_ids=[9])),
    ]
    speaker = server(served)
    speaker.load("run-v3", tmp_path)
    assert speaker.sample("run-v3", CHAT, {}).tokens == [5, 2]
    assert [request["path"] for request in served.requests] == ["/load_lora_adapter", "/v1/chat/completions"]
    assert served.requests[0]["lora_path"] == str(tmp_path) and served.requests[1]["model"] == "org/base:run-v3"


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (sends(answer(logprobs=None)), "sends no log-probabilities"),
        (sends(answer(token_ids=None)), "sends no token ids"),
        (sends(answer(token_ids=[5])), "sends 2 log-probabilities for 1 tokens"),
        (sends(answer(model="base")), "answered by the model base, not by run-v3"),
        (sends(answer(model=None)), "answered by the model None, not by run-v3"),
        (sends(answer(message=None)), r"sends no chat completion.*message"),
        (sends(answer(finish_reason="abort")), "broke an answer off: abort"),
        (sends(answer(logprobs={"content": [{"logprob": -9999.0}] * 2})), "sends -9999.0 as a log-probability"),
        (sends(answer(logprobs={"content": [{"logprob": 0.7}] * 2})), "sends 0.7 as a log-probability"),
        (sends(answer().replace("-0.25", "NaN")), r"sends no chat completion; is engine\.url right"),
        (sends(answer().replace("-0.25", "1e999")), "sends no chat completion|as a log-probability"),
        (sends(answer(token_ids=[-1, 2])), r"sends no chat completion.*token_ids"),
        (sends("<html>welcome</html>"), r"sends no chat completion; is engine\.url right"),
        (sends('{"model": "run-v3", "choices": []}'), "sends no chat completion"),
        (
            sends(json.dumps({"detail": f"no {KEY} here"})),
            r"is engine\.url right.*: {\"detail\": \"no \*\*\* here\"}\)",
        ),
        (
            sends(json.dumps({"error": {"code": 401, "message": f"wrong {KEY}"}})),
            "401 .*wrong.*check the key in ENGINE_KEY",
        ),
        (sends('{"error": {"code": "404", "message": "no such model"}}'), "404 .*no such model.*check agent.model"),
        (sends('{"error": {"code": 7, "message": "odd"}}'), "sends no chat completion.*odd"),
        (sends("[" * 100_000), "sends no chat completion"),
        (redirects("http://127.0.0.1:9/v1"), r"redirects, which is not followed: set engine\.url"),
        (fails(401, f"wrong key {KEY}"), "check the key in ENGINE_KEY"),
        (endless, "an answer of more than 4 MiB"),
    ],
)
def test_what_is_no_such_answer_is_refused_by_name(served: Endpoint, script: Any, said: str) -> None:
    served.script = [script]
    with pytest.raises(ChatRefused, match=said) as refusal:
        server(served).sample("run-v3", CHAT, {})
    assert KEY not in str(refusal.value)


@pytest.mark.parametrize("script", [hangs_up, drips_a_body, fails(503, "starting")])
def test_an_outage_ends_at_its_limit(served: Endpoint, script: Any) -> None:
    served.script = [script] * 50
    with pytest.raises(ChatAway, match="was away: "):
        server(served, answer_s=1.0).sample("run-v3", CHAT, {})


def test_a_request_that_is_given_up_costs_no_other_one(served: Endpoint) -> None:
    came, given_up = threading.Event(), threading.Event()

    def waits(handler: BaseHTTPRequestHandler) -> None:
        came.set()
        given_up.wait(60)
        sends(answer())(handler)

    served.script = [waits, drips_a_body]
    speaker = server(served, answer_s=60.0)
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(speaker.sample, "run-v3", CHAT, {})
        assert came.wait(60)
        speaker._server._http._limit_s = 1.0
        with pytest.raises(ChatAway, match="no whole answer"):
            speaker.sample("run-v3", CHAT, {})
        given_up.set()
        assert other.result(60).tokens


def test_weights_that_cannot_be_loaded_are_told_with_the_remedy_and_loading_twice_is_no_error(
    served: Endpoint, tmp_path: Path
) -> None:
    speaker = server(served)
    served.script = [fails(404, "Not Found")]
    with pytest.raises(ChatRefused, match=r"Not Found.*VLLM_ALLOW_RUNTIME_LORA_UPDATING=True.*engine\.adapters"):
        speaker.load("run-v3", tmp_path)
    served.models.append({"id": "run-v3", "parent": "base"})
    served.script = [fails(400, "has already been loaded")]
    speaker.load("run-v3", tmp_path)
    served.script = [fails(500, "stuck")]
    with pytest.raises(ChatError, match="stuck"):
        speaker.unload("run-v3")


def test_a_server_that_is_not_there_is_one_line_with_its_address(served: Endpoint) -> None:
    reach(OpenAIEngineSettings(url=served.url))
    with pytest.raises(
        SettingsError, match=r"^engine\.url=http://127.0.0.1:9/v1 cannot be used: .* -> start the server"
    ):
        reach(OpenAIEngineSettings(url="http://127.0.0.1:9/v1"))
    served.models = []
    with pytest.raises(SettingsError, match="has no model"):
        reach(OpenAIEngineSettings(url=served.url))


@pytest.mark.unit
@pytest.mark.parametrize("url", ["gpu:8000/v1", f"http://me:{KEY}@gpu/v1", f"http://gpu/v1?key={KEY}", "file:///etc"])
def test_an_address_is_plain_and_has_no_key(url: str) -> None:
    with pytest.raises(SettingsError, match=r"engine\.key_variable names") as refusal:
        OpenAIEngineSettings(url=url)
    assert KEY not in str(refusal.value)

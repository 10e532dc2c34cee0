"""A chat model behind a real HTTP server, as an agent."""

from __future__ import annotations

import base64
import json
import math
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chat_server import Answer, Endpoint, answers_with, endpoint, fails, hangs, says, sends
from run_files import events

from digirl_dist.assembly import run
from digirl_dist.emulator import DeviceActions, EmulatorSpec
from digirl_dist.emulator.touch_actions import SAID
from digirl_dist.errors import AgentError, ChatRefused, SettingsError
from digirl_dist.settings import EndpointSettings, configuration
from digirl_dist.storage import parquet
from digirl_dist.trajectory import Decision, NoDecision, Observation

pytestmark = pytest.mark.component

ROOT = Path(__file__).resolve().parent.parent.parent
KEY = "sk-very-secret-0123456789"
SPEC = EmulatorSpec(DeviceActions(), image_size=(4, 4))
SEEN = [Observation(f"Task: number {number}", b"\x89PNG image %d" % number) for number in range(4)]


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with endpoint() as found:
        found.then = '{"type": "tap", "x": 0.12, "y": 0.35}'
        yield found


def act(served: Endpoint, seen: list[Observation], **settings: Any) -> list[Decision | NoDecision]:
    agent = EndpointSettings(model="m", base_url=served.url, **settings).build(SPEC)()
    return agent.act(seen, [np.random.default_rng(row) for row in range(len(seen))])


def test_each_screen_is_a_request_with_the_rules_the_task_and_a_seed_of_its_own(served: Endpoint) -> None:
    decisions = act(served, SEEN[:2])
    assert [decision.action for decision in decisions if isinstance(decision, Decision)] == [
        {"type": "tap", "x": 0.12, "y": 0.35, SAID: served.then}
    ] * 2
    first, second = sorted(served.requests, key=lambda request: request["messages"][1]["content"][1]["text"])
    rules, asked = first["messages"]
    assert "one line of JSON" in rules["content"][0]["text"] and asked["content"][1]["text"] == "Task: number 0"
    picture = asked["content"][0]["image_url"]["url"].split(",")[1]
    assert base64.b64decode(picture) == SEEN[0].image and first["key"] == f"Bearer {KEY}"
    assert first["seed"] == int(np.random.default_rng(0).integers(2**31)) != second["seed"]
    assert (first["temperature"], first["max_tokens"], first["logprobs"]) == (1.0, 256, True)


def test_log_probabilities_are_those_that_the_server_tells(served: Endpoint) -> None:
    served.script = [answers_with("home", [-0.5, -0.25]), says("home"), answers_with("home", [-0.5, -9999.0])]
    told, untold, unlikely = (act(served, SEEN[:1])[0] for _ in range(3))
    assert isinstance(told, Decision) and isinstance(untold, Decision) and isinstance(unlikely, Decision)
    assert told.action == {"type": "home", SAID: "home"} and told.log_prob == -0.75 and math.isnan(untold.log_prob)
    assert math.isnan(unlikely.log_prob), "OpenAI writes -9999 for a token that is not among the likeliest"


def told(content: Any, reason: str | None, model: str | None = "m", **further: Any) -> Answer:
    choice = {"message": {"role": "assistant", "content": content}, "finish_reason": reason, **further}
    return sends(json.dumps({"model": model, "choices": [choice]}))


@pytest.mark.parametrize("reason", ["abort", "error", "content_filter"])
@pytest.mark.parametrize("further", [{}, {"token_ids": [4], "logprobs": {"content": [{"logprob": -0.5}]}}])
def test_an_answer_that_the_server_broke_off_is_no_action(
    served: Endpoint, reason: str, further: dict[str, Any]
) -> None:
    served.script = [told("I will ta", reason, **further), told(None, reason), told("home", "length")]
    for _ in range(2):
        (lost,) = act(served, SEEN[:1])
        assert isinstance(lost, NoDecision) and lost.reason == f"m at {served.url} broke an answer off: {reason}"
    (kept,) = act(served, SEEN[:1])
    assert isinstance(kept, Decision) and kept.action["type"] == "home"


@pytest.mark.parametrize("reason", ["stop", "eos_token", None])
def test_an_answer_in_parts_and_one_of_no_model_are_read(served: Endpoint, reason: str | None) -> None:
    thought = {"type": "thinking", "thinking": [{"type": "text", "text": "back?"}]}
    served.script = [told([thought, {"type": "text", "text": "ho"}, {"type": "text", "text": "me"}], reason, None)]
    (decision,) = act(served, SEEN[:1])
    assert isinstance(decision, Decision) and decision.action == {"type": "home", SAID: "home"}


def test_requests_go_out_together_and_one_that_hangs_costs_its_own_episode(served: Endpoint) -> None:
    others = threading.Barrier(3)  # none of the three is answered before all have come
    served.script = [hangs(60)] + [lambda handler: (others.wait(30), says("back")(handler))] * 3
    started = time.monotonic()
    decisions = act(served, SEEN, answer_s=4.0, outage_s=1.0)
    assert time.monotonic() - started < 40
    lost = [decision.reason for decision in decisions if isinstance(decision, NoDecision)]
    assert len(lost) == 1 and "was away for 1 s" in lost[0] and KEY not in lost[0]


def test_a_refusal_is_raised_with_its_remedy_and_without_the_key(served: Endpoint) -> None:
    served.script = [fails(401, f"wrong key {KEY}")]
    with pytest.raises(ChatRefused, match="check the key in OPENAI_API_KEY") as refusal:
        act(served, SEEN[:1])
    assert KEY not in str(refusal.value)


@pytest.mark.parametrize(
    ("first", "said"),
    [
        (fails(404, "The model `m` does not exist"), "does not exist"),
        (fails(401, "no key"), "check the key"),
        (answers_with("home", [-0.5], [4, 5]), "1 log-probabilities for 2 tokens"),
    ],
)
def test_only_a_server_that_does_not_know_token_ids_is_asked_without(
    served: Endpoint, first: Answer, said: str
) -> None:
    agent = EndpointSettings(model="m", base_url=served.url).build(SPEC)(tokens=True)
    served.script = [first, answers_with("home", [-0.5], [4])]
    served.then = answers_with("home", [])
    with pytest.raises(ChatRefused, match=said):
        agent.act(SEEN[:1], [np.random.default_rng(0)])
    (later,) = agent.act(SEEN[:1], [np.random.default_rng(0)])
    assert isinstance(later, Decision) and list(later.tokens) == [4]
    assert all("return_token_ids" in request for request in served.requests)


@pytest.mark.unit
def test_it_cannot_learn_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = EndpointSettings(model="m").build(SPEC)()
    assert list(agent.parameters()) == [] and agent.state_dict() == {}
    with pytest.raises(AgentError, match="cannot be trained"):
        agent.log_prob(SEEN, [{}] * 4)
    monkeypatch.chdir(ROOT)
    with pytest.raises(SettingsError, match=r"cannot be trained.*task_mode=evaluate"):
        run.run(configuration.load("config/multimachine", "host", ["dry_run=true", "agent=endpoint", "agent.model=m"]))


WHERE = [["parallel=single"], ["dry_run=true", "dry_run_workers=1", "inference=host"]]


@pytest.mark.system
@pytest.mark.parametrize("where", WHERE)
def test_a_server_that_is_away_is_named_once_while_it_is_asked_again(
    served: Endpoint, tmp_path: Path, monkeypatch: Any, capsys: pytest.CaptureFixture[str], where: list[str]
) -> None:
    monkeypatch.chdir(ROOT)
    served.script = [fails(503, "overloaded")] * 4
    words = ["agent=endpoint", "agent.model=m", f"agent.base_url={served.url}", "agent.outage_s=60", "bsize=1"]
    words += ["rollout_size=2", "max_steps=2", f"save_path={tmp_path / 'run'}"]
    words += [f"worker_temp_path={tmp_path}"] * ("dry_run=true" in where)
    run.run(configuration.load("config/multimachine", "eval", [*words, *where]))
    (told,) = [line for line in capsys.readouterr().out.splitlines() if f"m at {served.url} is away: 503" in line]
    assert told.endswith("asked again for 60 s")
    assert len(events(tmp_path / "run", "engine_away")) == 1 and not events(tmp_path / "run", "episode_retried")


@pytest.mark.system
@pytest.mark.parametrize("where", WHERE)
def test_it_collects_and_an_outage_costs_a_retry(
    served: Endpoint, tmp_path: Path, monkeypatch: Any, where: list[str]
) -> None:
    monkeypatch.chdir(ROOT)
    served.script = [fails(503, "overloaded")] * 2
    (tmp_path / "tasks.yaml").write_text("- open-clock-0\n")
    words = ["agent=endpoint", "agent.model=m", f"agent.base_url={served.url}", "agent.outage_s=0", "bsize=2"]
    folders = [f"save_path={tmp_path / 'run'}", f"task_set={tmp_path / 'tasks.yaml'}"]
    folders += [f"worker_temp_path={tmp_path}"] * ("dry_run=true" in where)
    settings = configuration.load("config/multimachine", "eval", [*words, *where, *folders, "rollout_size=4"])
    run.run(settings)
    (rows,) = (tmp_path / "run").rglob("*.parquet")
    episodes = parquet.read(rows)
    assert len(episodes) == 4 and all(episode.success for episode in episodes)
    assert all(step.action[SAID] == served.then for episode in episodes for step in episode.steps)
    retried = events(tmp_path / "run", "episode_retried")
    assert len(retried) == 2 and all("was away" in event["reason"] for event in retried)
    asked, joined = len(served.requests), events(tmp_path / "run", "worker_joined")
    measured = (tmp_path / "run" / "evaluation.jsonl").read_text()
    run.run(settings)  # measured already: nothing is started, or told again
    assert (tmp_path / "run" / "evaluation.jsonl").read_text() == measured and measured
    assert len(served.requests) == asked and events(tmp_path / "run", "worker_joined") == joined
    assert KEY not in "".join(path.read_text(errors="replace") for path in (tmp_path / "run").glob("*.*"))

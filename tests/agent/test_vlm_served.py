"""A chat model that acts through an inference server, which is a process of its own with a real model."""

from __future__ import annotations

import json
import queue
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from chat_server import endpoint, sends
from engine_server import Engine, engine
from image_files import encoded
from PIL import Image
from tiny_vlm import save_tiny_vlm

from digirl_dist.agent.vlm import VlmAgent
from digirl_dist.agent.vlm.served import ServedVlm
from digirl_dist.chat.engine_servers import LoraServer, engine_server
from digirl_dist.emulator import DeviceActions, EmulatorSpec
from digirl_dist.emulator.touch_actions import TOKENS
from digirl_dist.errors import ChatAway, ChatRefused
from digirl_dist.inference.engine_policies import EnginePolicies, Outages
from digirl_dist.inference.requests import InferenceFailure, InferenceRequest, InferenceResult, RandomStream
from digirl_dist.settings import EngineWeights, LoraSettings, OpenAIEngineSettings, VlmSettings
from digirl_dist.storage.checkpoint import Checkpoint, Checkpoints
from digirl_dist.storage.events import Events
from digirl_dist.storage.status import Status
from digirl_dist.trajectory import Observation

pytestmark = [pytest.mark.system, pytest.mark.nightly, pytest.mark.long_file(30)]

SPEC = EmulatorSpec(DeviceActions(), image_size=(40, 30))


def _png() -> bytes:
    return encoded(Image.fromarray(np.random.default_rng(3).integers(255, size=(40, 30, 3), dtype=np.uint8)))


SEEN = Observation("open <image> <end> hmm", _png())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_vlm(tmp_path_factory.mktemp("vlm") / "model")


@pytest.fixture(scope="module")
def running(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with engine(folder, tmp_path_factory.mktemp("engine") / "log") as found:
        yield found


@pytest.fixture
def server(request: pytest.FixtureRequest, running: Engine) -> Iterator[Engine]:
    """The server, with these options."""
    running.start_anew(*request.param)
    yield running
    running.start_anew()


def agent_of(folder: Path, shift: float = 0.0) -> VlmAgent:
    torch.manual_seed(1)
    settings = VlmSettings(model=str(folder), lora=LoraSettings(r=2), max_new_tokens=5, temperature=0.7)
    agent = settings.build(SPEC)()
    with torch.no_grad():
        for parameter in agent.parameters():
            parameter += shift * torch.randn_like(parameter)
    return agent


def served_by(running: Engine, agent: VlmAgent, folder: Path, weights: EngineWeights = EngineWeights.lora) -> ServedVlm:
    settings = OpenAIEngineSettings(url=running.url, outage_s=1.0, weights=weights)
    return ServedVlm(agent, engine_server(settings), folder, "run")


def rng(number: int = 0) -> np.random.Generator:
    return np.random.default_rng(number)


def test_log_probabilities_are_those_of_the_agent_whatever_the_server_has_as_defaults(
    folder: Path, running: Engine, tmp_path: Path
) -> None:
    agent = agent_of(folder, 0.1)
    served = served_by(running, agent, tmp_path)
    adapter = served.load(7, agent.state_dict())
    decisions = [served.decide(adapter, SEEN, rng(number)) for number in range(12)]
    assert len({len(decision.action[TOKENS]) for decision in decisions}) > 1, "answers of several lengths"
    with torch.no_grad():
        computed = agent.log_prob([SEEN] * 12, [decision.action for decision in decisions])
    assert torch.allclose(computed, torch.tensor([decision.log_prob for decision in decisions]), atol=1e-4)
    assert served.decide(adapter, SEEN, rng(3)) == decisions[3], "the same ticket, the same action"


@pytest.mark.parametrize("server", [[], ["--sglang"]], ids=["vllm", "sglang"], indirect=True)
def test_a_version_is_answered_by_its_own_weights_alone(folder: Path, tmp_path: Path, server: Engine) -> None:
    old, new = agent_of(folder, 0.1), agent_of(folder, 0.3)
    served = served_by(server, old, tmp_path / "adapters")
    names = [served.load(1, old.state_dict()), served.load(2, new.state_dict())]
    assert ["-v1-" in names[0], "-v2-" in names[1], names[0] == served.load(1, old.state_dict())] == [True] * 3
    for agent, name in zip((old, new), names, strict=True):
        decision = served.decide(name, SEEN, rng())
        with torch.no_grad():
            assert agent.log_prob([SEEN], [decision.action]).item() == pytest.approx(decision.log_prob, abs=1e-4)
    served.unload(names[0])
    with pytest.raises(ChatRefused, match="No adapter"):
        served.decide(names[0], SEEN, rng())
    served_by(server, old, tmp_path / "adapters").clear()
    assert LoraServer(OpenAIEngineSettings(url=server.url)).loaded() == []
    assert list((tmp_path / "adapters").iterdir()) == []


@pytest.mark.parametrize(
    ("server", "is_exact"),
    [([], True), (["--raw"], False), (["--lora-scale", "0"], False)],
    ids=["exact", "raw", "ignores LoRA"],
    indirect=["server"],
)
def test_a_server_is_compared_with_the_agent_by_weights_that_matter(
    folder: Path, tmp_path: Path, server: Engine, is_exact: bool
) -> None:
    agent = agent_of(folder)
    found = served_by(server, agent, tmp_path / "adapters").check(agent)
    assert (found.mean < 1e-4) == is_exact and found.answers == 4 and found.prompts == ""
    tolerance = OpenAIEngineSettings().tolerance
    assert (found.mean <= min(tolerance, found.without)) == is_exact, "a run would start, or would not"


@pytest.mark.parametrize(
    "server", [["--can-sleep"], ["--can-sleep", "--sglang"]], ids=["vllm", "sglang"], indirect=True
)
def test_a_server_that_slept_answers_as_before(folder: Path, tmp_path: Path, server: Engine) -> None:
    agent = agent_of(folder, 0.1)
    served = served_by(server, agent, tmp_path / "adapters")
    adapter = served.load(1, agent.state_dict())
    before = served.decide(adapter, SEEN, rng())
    served.sleep()
    with pytest.raises(ChatAway, match="it sleeps"):
        served.decide(adapter, SEEN, rng())
    served.wake()
    assert served.decide(adapter, SEEN, rng()) == before


@pytest.mark.parametrize(
    ("server", "options"),
    [(["--dev-mode"], ["--dev-mode"]), (["--sglang"], ["--sglang"])],
    ids=["vllm", "sglang"],
    indirect=["server"],
)
def test_a_server_without_lora_gets_the_whole_model_and_one_that_lost_it_gets_it_again(
    folder: Path, tmp_path: Path, server: Engine, options: list[str]
) -> None:
    agent = agent_of(folder)
    served = served_by(server, agent, tmp_path / "weights", EngineWeights.full)
    found = served.check(agent)
    assert found.mean < 1e-4 < found.without
    agents = {version: agent_of(folder, shift) for version, shift in ((1, 0.1), (2, 0.3))}
    names = {version: served.load(version, agent.state_dict()) for version, agent in agents.items()}
    for version in 1, 2, 1:
        decision = served.decide(names[version], SEEN, rng())
        with torch.no_grad():
            own = agents[version].log_prob([SEEN], [decision.action]).item()
        assert own == pytest.approx(decision.log_prob, abs=1e-4)
    server.start_anew(*options)
    assert served.decide(names[1], SEEN, rng()) == decision
    served.unload(names[2])
    assert [path.name for path in (tmp_path / "weights").iterdir()] == [names[1]]
    server.start_anew()
    with pytest.raises(ChatRefused, match="VLLM_SERVER_DEV_MODE=1"):
        served.load(2, agents[2].state_dict())


@pytest.mark.parametrize("tokens", [[5], [5, 2, 5], [5] * 6, [5, 99, 2], [5, 3, 2]])
def test_an_answer_that_the_model_cannot_have_given_so_is_refused(
    folder: Path, tmp_path: Path, tokens: list[int]
) -> None:
    """Cut, gone on after its end, too long, with a token outside of the vocabulary, with a picture's placeholder."""
    chances = {"content": [{"logprob": -0.5}] * len(tokens)}
    choice = {"message": {"content": "?"}, "token_ids": tokens, "finish_reason": "stop", "logprobs": chances}
    told = {"model": "run-v1", "choices": [choice]}
    with endpoint() as scripted:
        scripted.models = [{"id": "base"}, {"id": "run-v1", "parent": "base"}]
        scripted.script = [sends(json.dumps(told))]
        agent = agent_of(folder)
        server = LoraServer(OpenAIEngineSettings(url=scripted.url))
        with pytest.raises(ChatRefused, match=r"the server of engine\.url (ended an answer|sends tokens)"):
            ServedVlm(agent, server, tmp_path, "run").decide("run-v1", SEEN, rng())


@contextmanager
def policies(running: Engine, agent: VlmAgent, folder: Path) -> Iterator[tuple[EnginePolicies, list[str]]]:
    told: list[str] = []
    events = Events(folder / "events.jsonl", (lambda kind, content: told.append(kind),))
    outages = Outages(events, Status(folder / "status.json"), running.url)
    server = LoraServer(OpenAIEngineSettings(url=running.url, outage_s=3.0), outages)
    served = ServedVlm(agent, server, folder / "adapters", "run")
    found = EnginePolicies(served, 4, outages, server.close)
    try:
        yield found, told
    finally:
        found.close()
        events.close()


def test_versions_come_and_go_and_a_server_that_was_started_again_gets_its_weights_back(
    folder: Path, tmp_path: Path
) -> None:
    agent = agent_of(folder, 0.1)

    def saved(version: int) -> Checkpoint:
        return Checkpoints(tmp_path / "checkpoints", keep_every=1).save(version, agent.state_dict(), {}, {})

    def reply(version: int) -> Any:
        answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        acting.ask(InferenceRequest(4, version, RandomStream(0, 1, 2), SEEN), answers.put)
        return answers.get(timeout=120)

    with engine(folder, tmp_path / "log") as running, policies(running, agent, tmp_path) as (acting, told):
        port = int(running.url.split(":")[2].split("/")[0])
        acting.serve(saved(1), set())
        first = reply(1)
        assert isinstance(first, InferenceResult)
        acting.serve(saved(2), {1})
        assert reply(1) == first and isinstance(reply(2), InferenceResult)
        acting.serve(saved(3), {2})
        retired = reply(1)
        assert isinstance(retired, InferenceFailure) and "no longer acts with policy version 1" in retired.reason
        running.kill()
        lost = reply(3)
        assert isinstance(lost, InferenceFailure) and "engine.url" in lost.reason and "was away for 3 s" in lost.reason
        assert set(told) == {"engine_away"}
        with engine(folder, tmp_path / "again", port=port) as again:
            assert isinstance(reply(3), InferenceResult)
            acting.close()
            assert [path for path, _ in again.posts()][-1] == "/v1/unload_lora_adapter"

"""What an agent of the user's answers wrongly is told with its class, its method and what is wrong."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from digirl_dist.agent import contract
from digirl_dist.agent.plugins.custom import CustomAgentSettings
from digirl_dist.api.rollouts import FunctionAgent
from digirl_dist.emulator import DiscreteActions, EmulatorSpec
from digirl_dist.errors import AgentError, SettingsError, StateError, TrainingError
from digirl_dist.storage.checkpoint import Checkpoints
from digirl_dist.trajectory import Decision, NoDecision, Observation
from digirl_dist.user_code.entry_point import load_state

SEEN = [Observation("one"), Observation("two")]


class Faulty:
    """Answers as it is told."""

    feature_size = 3

    def __init__(self, answer: Callable[[], Any]) -> None:
        self.act = self.log_prob = self.features = lambda *_: answer()


def of(answer: Any) -> Any:
    return Faulty(lambda: answer)


def decided(agent: Any) -> list[Decision | NoDecision]:
    return contract.decisions(agent, SEEN, [np.random.default_rng(0)] * 2)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ([], "Faulty.act returned none for 2 observations"),
        ([Decision(0, 0.0)] * 3, "Faulty.act returned 3 of Decision for 2 observations"),
        (None, "Faulty.act returned None for 2 observations"),
        (torch.zeros(2), "Faulty.act returned a tensor of shape [2] for 2 observations"),
        ([0, 1], "Faulty.act returned a int in place of a Decision"),
        ([(0, -0.5)] * 2, "Faulty.act returned 2 of int in place of a Decision"),
        ([Decision(0, None)] * 2, "Faulty.act returned a Decision whose log_prob is None"),  # type: ignore[arg-type]
        ([Decision([math.nan, 0.0], 0.0)] * 2, "and action [nan, 0.0]: Out of range float values"),
        ([Decision(np.array([0.0, np.inf]), 0.0)] * 2, "and action array([ 0., inf]): Out of range float values"),
        ([Decision({1}, 0.0)] * 2, "and action {1}: 'set' object has no attribute 'tolist'"),  # type: ignore[arg-type]
    ],
)
def test_decisions_that_are_none_are_refused(answer: Any, told: str) -> None:
    with pytest.raises(AgentError, match=re.escape(told)):
        decided(of(answer))


def test_numbers_of_numpy_and_torch_become_plain_ones() -> None:
    cannot = NoDecision("no server")
    assert decided(of([Decision(np.int64(3), np.float32(-0.5)), cannot])) == [Decision(3, -0.5), cannot]
    [first, _] = decided(of([Decision(torch.tensor([1, 2]), torch.tensor(-0.25))] * 2))
    assert first == Decision([1, 2], -0.25) and type(first.log_prob) is float
    inside: Any = {"type": "tap", "x": np.float32(0.5), "on": np.bool_(True), "of": (torch.tensor(2), [np.arange(2)])}
    [first, _] = decided(of([Decision(inside, 0.1)] * 2))
    assert first == Decision({"type": "tap", "x": 0.5, "on": True, "of": [2, [[0, 1]]]}, 0.1)
    [first, _] = decided(of([Decision([0.1, 1e-300, 2**60], 0.0)] * 2))
    assert first == Decision([0.1, 1e-300, 2**60], 0.0), "nothing is rounded"


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (None, "FunctionAgent.act returned None for 2 observations, not a list of one Decision for each"),
        (1, "FunctionAgent.act returned a int for 2 observations"),
        (np.float32(0.5), "FunctionAgent.act returned an array of shape [] for 2 observations"),
        (torch.tensor(1), "FunctionAgent.act returned a tensor of shape [] for 2 observations"),
        ([1], "FunctionAgent.act returned 1 of Decision for 2 observations"),
    ],
)
def test_a_function_that_returns_no_list_is_told_what_it_returned(answer: Any, told: str) -> None:
    """As one without ``return`` does: it lost its episode with a traceback of code that is not the user's."""
    with pytest.raises(AgentError, match=re.escape(told)):
        decided(FunctionAgent(lambda _: answer))


@pytest.mark.parametrize("answer", [[1, 0], (np.int64(1), 0), torch.tensor([1, 0]), np.array([1, 0])])
def test_a_function_may_return_its_actions_in_any_row(answer: Any) -> None:
    assert decided(FunctionAgent(lambda _: answer)) == [Decision(1, 0.0), Decision(0, 0.0)]


def test_what_an_agent_raises_is_told_with_its_line_and_what_this_package_raises_stays() -> None:
    def broken() -> Any:
        return {}["policy"]

    with pytest.raises(AgentError, match=r"^Faulty.act: KeyError: 'policy' \(at .*test_contract.py:\d+ in broken\)$"):
        decided(Faulty(broken))
    with pytest.raises(AgentError, match="^its own$"):
        decided(Faulty(_raises))


def _raises() -> Any:
    raise AgentError("its own")


@pytest.mark.parametrize("answer", [None, torch.zeros(2, 1), torch.zeros(3), 0.5])
def test_log_probabilities_and_features_of_another_shape_are_refused(answer: Any) -> None:
    with pytest.raises(TrainingError, match=r"^Faulty.log_prob returned .*, not a tensor of shape \[2\]$"):
        contract.log_prob(of(answer), SEEN, [0, 1])
    with pytest.raises(TrainingError, match=r"^Faulty.features returned .*, not a tensor of shape \[2, 3\]$"):
        contract.inputs(of(answer), SEEN)


def test_arrays_are_no_tensors() -> None:
    with pytest.raises(TrainingError, match=r"^Faulty.log_prob returned an array of shape \[2\], not a tensor"):
        contract.log_prob(of(np.zeros(2)), SEEN, [0, 1])
    with pytest.raises(TrainingError, match=r"^Faulty.features returned an array of shape \[2, 3\], not a tensor"):
        contract.inputs(of(np.zeros((2, 3))), SEEN)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_what_is_learned_from_is_at_least_in_single_precision(dtype: torch.dtype) -> None:
    assert contract.inputs(of(torch.zeros(2, 3, dtype=dtype)), SEEN).dtype == torch.float32
    found = contract.log_prob(of(torch.zeros(2, dtype=dtype, requires_grad=True)), SEEN, [0, 1])
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32) and found.requires_grad


def test_log_probabilities_without_a_gradient_teach_nothing_and_are_refused() -> None:
    with pytest.raises(TrainingError, match="without gradient"):
        contract.log_prob(of(torch.zeros(2)), SEEN, [0, 1])
    assert contract.log_prob(of(torch.zeros(2, requires_grad=True)), SEEN, [0, 1]).shape == (2,)
    with torch.no_grad():
        assert contract.log_prob(of(torch.zeros(2)), SEEN, [0, 1]).shape == (2,)


def test_an_action_without_tokens_is_refused() -> None:
    speaker = of(None)
    speaker.token_log_probs = lambda *_: (
        torch.zeros(2, 3, requires_grad=True),
        torch.tensor([[1, 0, 0], [0, 0, 0]]) > 0,
    )
    with pytest.raises(TrainingError, match="Faulty.token_log_probs says that an action has no token"):
        contract.token_log_probs(speaker, SEEN, [0, 1])


def no_agent(spec: EmulatorSpec) -> Any:
    return Faulty(lambda: None)


def broken_agent(spec: EmulatorSpec) -> Any:
    raise OSError("no weights")


@pytest.mark.parametrize(
    ("name", "told"),
    {
        "no_agent": r"^no_agent makes a Faulty, which lacks train\(mode: bool = True\) -> Any and parameters\(\)",
        "broken_agent": r"^broken_agent: OSError: no weights \(at .*test_contract.py:\d+ in broken_agent\)$",
    }.items(),
)
def test_a_class_that_makes_no_agent_is_named(name: str, told: str) -> None:
    factory = CustomAgentSettings(entry_point=f"{__name__}:{name}").build(EmulatorSpec(DiscreteActions(2)))
    with pytest.raises(SettingsError, match=told):
        factory()


def test_an_agent_written_for_the_cpu_is_told_what_to_change_on_a_gpu() -> None:
    def written_for_the_cpu() -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    with pytest.raises(AgentError, match=r"^Faulty.act: TypeError: .*; the agent is on a GPU: .*trainer.device=cpu$"):
        decided(Faulty(written_for_the_cpu))


class Extra(torch.nn.Linear):
    def get_extra_state(self) -> dict[str, int]:
        return {"seen": 3}

    def set_extra_state(self, state: Any) -> None:
        pass


class Answers:
    def __init__(self, state: Any) -> None:
        self.state_dict = lambda: state


@pytest.mark.parametrize(
    ("agent", "told"),
    [
        (Extra(2, 2), "Extra.state_dict: '_extra_state' is a dict, and a policy's state must be tensors"),
        (torch.nn.LazyLinear(2), "LazyLinear.state_dict: 'weight' has no size yet; give the sizes of Lazy modules"),
        (Answers({"weights": np.zeros(2)}), "Answers.state_dict: 'weights' is an array of shape [2], and a policy's"),
        (Answers({"step": 3}), "Answers.state_dict: 'step' is a int, and a policy's state must be tensors"),
        (Answers({7: torch.zeros(1)}), "Answers.state_dict: 7 is a key and not a string"),
        (Answers({"w": torch.eye(3).to_sparse()}), "Answers.state_dict: 'w' is a tensor that is sparse"),
        (
            Answers({"w": torch.zeros(3, device="meta")}),
            "Answers.state_dict: 'w' is a tensor that is sparse, quantized",
        ),
        (Answers([torch.zeros(1)]), "Answers.state_dict returned 1 of Tensor, not a dict of tensors by name"),
    ],
)
def test_extra_states_and_others_that_are_no_tensors_are_named(agent: Any, told: str) -> None:
    with pytest.raises(StateError, match=re.escape(told)):
        contract.state_of(agent)


def test_extra_states_of_tensors_and_tied_weights_come_back(tmp_path: Path) -> None:
    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
            self.second.weight = self.first.weight
            self.register_buffer("seen", torch.tensor(4))
            self.register_buffer("none", None)
            self.extra = torch.ones(2)

        def get_extra_state(self) -> torch.Tensor:
            return self.extra

        def set_extra_state(self, state: torch.Tensor) -> None:
            self.extra = state

    left, found = Tied(), Tied()
    left.extra += 1
    checkpoint = Checkpoints(tmp_path).save(0, contract.state_of(left), {}, {})
    load_state(found, checkpoint.state())
    assert found.extra.tolist() == [2, 2] and torch.equal(found.second.weight, left.first.weight)
    assert found.second.weight is found.first.weight


def test_of_a_long_episode_few_screens_are_decoded_at_once() -> None:
    asked: list[int] = []

    class Counting(Faulty):
        def __init__(self) -> None:
            """Its features are a method of its own."""

        def features(self, observations: Sequence[Observation]) -> torch.Tensor:
            asked.append(len(observations))
            return torch.full((len(observations), 3), float(len(asked)), requires_grad=True)

    agent: Any = Counting()
    found = contract.inputs(agent, [SEEN[0]] * 200)
    assert found.shape == (200, 3) and not found.requires_grad
    assert sum(asked) == 200 and max(asked) <= 64 and found[:, 0].tolist() == sorted(found[:, 0].tolist())
    assert contract.inputs(agent, []).shape == (0, 3)

"""Asks an agent, and holds its answers against the protocol: an error names its class, its method and what is wrong."""

from __future__ import annotations

import copy
import json
import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from digirl_dist.agent import critic
from digirl_dist.errors import AgentError, StateError, TrainingError
from digirl_dist.trajectory import Decision, NoDecision, Observation
from digirl_dist.types import Json
from digirl_dist.user_code.blame import blaming
from digirl_dist.user_code.entry_point import saved_state

if TYPE_CHECKING:
    import numpy as np
    import torch

    from digirl_dist.agent import Actor, Agent, TokenAgent

_ROWS_AT_ONCE = 64
"""Screens that may be decoded at the same time."""
MEMBERS = ("act", "log_prob", "features", "feature_size", "train", "parameters", "state_dict", "load_state_dict")
"""What each agent has."""
_LEARNING = "log_prob", "parameters", "state_dict"
encoded = json.JSONEncoder(allow_nan=False, default=lambda number: number.tolist()).encode
"""Writes an action as every link and file will, with numbers of NumPy and torch as plain ones."""


def decisions(
    agent: Actor, observations: Sequence[Observation], rngs: Sequence[np.random.Generator]
) -> list[Decision | NoDecision]:
    """Returns what an agent decides, in plain numbers and JSON, as links and files have it. Raises AgentError."""
    name = f"{type(agent).__name__}.act"
    with blaming(name, AgentError):
        decided = agent.act(observations, rngs)
    if not isinstance(decided, Sequence) or len(decided) != len(observations):
        raise AgentError(f"{name} returned {_described(decided)} for {len(observations)} observations, not a list of "
                         "one Decision for each")  # fmt: skip
    return [_plain(each, name) for each in decided]


def log_prob(agent: Agent, observations: Sequence[Observation], actions: Sequence[Json]) -> torch.Tensor:
    """Returns the actions' log-probabilities, shape [B], in float32 at least. Raises TrainingError."""
    return _learnable(agent, "log_prob", agent.log_prob(observations, actions), (len(actions),))


def token_log_probs(
    agent: Agent, observations: Sequence[Observation], actions: Sequence[Json]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the log-probabilities of the actions' tokens, and which are tokens: both [B, T].

    They are 0 beyond an action's end. An agent that does not speak in tokens has one per action. Raises TrainingError.
    """
    import torch

    if not hasattr(agent, "token_log_probs"):
        found = torch.stack([log_prob(agent, observations, actions)], dim=1)  # no view, which FSDP warns of
        return found, torch.ones_like(found, dtype=torch.bool)
    found, mask = cast("TokenAgent", agent).token_log_probs(observations, actions)
    shape = len(actions), mask.shape[-1]
    if not _shaped(agent, "token_log_probs", mask, shape).any(dim=1).all():
        raise TrainingError(f"{type(agent).__name__}.token_log_probs says that an action has no token")
    return _learnable(agent, "token_log_probs", found, shape), mask


def inputs(agent: Agent, observations: Sequence[Observation]) -> torch.Tensor:
    """Returns what value functions read, as wide as ``critic`` tells: [B, V], float32, without gradients.

    Of however many observations: few are decoded at once. Raises TrainingError.
    """
    import torch

    method, size = critic(agent)
    parts = [observations[first : first + _ROWS_AT_ONCE] for first in range(0, len(observations), _ROWS_AT_ONCE)]
    with torch.no_grad():
        found = [_shaped(agent, method, getattr(agent, method)(part), (len(part), size)).float() for part in parts]
        return torch.cat(found) if found else torch.empty(0, size)


def state_of(agent: Agent) -> dict[str, torch.Tensor]:
    """Returns the agent's weights. Raises StateError, naming its class and the key, for anything but plain tensors."""
    state: Any = saved_state(agent)
    name = f"{type(agent).__name__}.state_dict"
    if not isinstance(state, Mapping):
        raise StateError(f"{name} returned {_described(state)}, not a dict of tensors by name")
    for key, value in state.items():
        if wrong := _unlike_weights(value) if isinstance(key, str) else "is a key and not a string":
            raise StateError(f"{name}: {key!r:.100} {wrong}")
    return dict(state)


def another(agent: Agent) -> Agent | None:
    """Returns a copy of a torch module that shares with it every parameter that is neither learned nor in its state.

    Of a model with low-rank weights that is nearly all. Returns None for an agent without any such.
    """
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(agent, torch.nn.Module):
        return None
    own = {tensor.data_ptr() for tensor in state_of(agent).values()}
    frozen = (each for each in torch.nn.Module.parameters(agent) if not each.requires_grad)
    shared: dict[int, Any] = {id(each): each for each in frozen if each.data_ptr() not in own}
    return cast("Agent", copy.deepcopy(agent, shared)) if shared else None


def _unlike_weights(value: Any) -> str:
    """Returns why a part of a policy's state cannot be sent to workers, and what to do; empty if it can."""
    import torch
    from torch.nn.parameter import is_lazy

    if not isinstance(value, torch.Tensor):
        return (
            f"is {_described(value)}, and a policy's state must be tensors, which alone go to workers; return a tensor "
            "of get_extra_state, or keep it out of state_dict"
        )
    if is_lazy(value):
        return "has no size yet; give the sizes of Lazy modules, or call the module once in __init__"
    if value.layout != torch.strided or value.is_meta or value.is_quantized:
        return "is a tensor that is sparse, quantized or of no device; return it as x.to_dense() or x.dequantize()"
    return ""


def _plain(decision: Any, name: str) -> Decision | NoDecision:
    if isinstance(decision, NoDecision):
        return decision
    if not isinstance(decision, Decision):
        raise AgentError(f"{name} returned {_described(decision)} in place of a Decision")
    try:
        action = json.loads(encoded(decision.action))
        written, read = (tuple(array("i", tokens)) for tokens in (decision.tokens, decision.prompt_tokens))
        return Decision(action, float(decision.log_prob), tuple(map(float, decision.token_log_probs)), written, read)
    except (AttributeError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise AgentError(
            f"{name} returned a Decision whose log_prob is {decision.log_prob!r:.100}, "
            f"token_log_probs {decision.token_log_probs!r:.100}, tokens {decision.tokens!r:.100}, "
            f"and action {decision.action!r:.100}: {error}"
        ) from error


def _learnable(agent: Agent, method: str, returned: Any, shape: tuple[int, ...]) -> torch.Tensor:
    import torch

    found = _shaped(agent, method, returned, shape)
    if torch.is_grad_enabled() and not found.requires_grad:
        raise TrainingError(f"{type(agent).__name__}.{method} returned a tensor without gradient to the weights")
    return found.to(torch.promote_types(found.dtype, torch.float32))


def _shaped(agent: Agent, method: str, found: Any, shape: tuple[int, ...]) -> torch.Tensor:
    import torch

    if not isinstance(found, torch.Tensor) or tuple(found.shape) != shape:
        raise TrainingError(
            f"{type(agent).__name__}.{method} returned {_described(found)}, not a tensor of shape {list(shape)}"
        )
    return found


def _described(thing: Any) -> str:
    if hasattr(thing, "shape"):
        kind = "an array" if type(thing).__module__ == "numpy" else "a tensor"
        return f"{kind} of shape {list(thing.shape)}"
    if isinstance(thing, Sequence) and not isinstance(thing, str):
        return f"{len(thing)} of {type(thing[0]).__name__}" if thing else "none"
    return "None" if thing is None else f"a {type(thing).__name__}"


class ActsAlone:
    """All of ``Agent`` but ``act``, for a policy without weights."""

    feature_size = 0

    def log_prob(self, observations: Sequence[Observation], actions: Sequence[Json]) -> torch.Tensor:
        """Raises AgentError."""
        raise AgentError(f"{type(self).__name__} acts, and cannot be trained")

    def features(self, observations: Sequence[Observation]) -> torch.Tensor:
        """Raises AgentError."""
        raise AgentError(f"{type(self).__name__} acts, and cannot be trained")

    def train(self, mode: bool = True) -> None:
        """There is no other mode than acting."""

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        return iter(())

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {}

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Raises RuntimeError for weights: they are another agent's."""
        if state:
            raise RuntimeError(f"{type(self).__name__} has no weights")


class ActsAsNamed(ActsAlone):
    """An agent of the caller's process, which names what acts as a version before that version comes."""

    def __init__(self, first: Any) -> None:
        self.acting = first
        self.named: dict[int, Any] = {}
        """What will act as versions that have not come yet, in their order."""

    def came(self, version: int) -> None:
        """What was named for that version acts from now on; those before it that did not come never will."""
        for each in [each for each in self.named.copy() if each <= version]:
            self.acting = self.named.pop(each)


def acts_alone(kind: Any) -> bool:
    """Whether a class of the user's has ``act`` and nothing to learn with: a policy without weights."""
    return isinstance(kind, type) and hasattr(kind, "act") and not any(hasattr(kind, each) for each in _LEARNING)


def completed(kind: Any) -> Any:
    """Returns a class of the user's, if it acts alone together with the rest of ``Agent``."""
    return kind if not acts_alone(kind) else type(kind.__name__, (kind, ActsAlone), {"__module__": kind.__module__})

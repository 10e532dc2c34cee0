"""Policies that act: an agent with the weights of one version."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from digirl_dist.agent import ActionProbabilities, Agent, ExplainingAgent, contract
from digirl_dist.agent.contract import completed
from digirl_dist.api import arguments
from digirl_dist.errors import AgentError, CheckpointError, StateError
from digirl_dist.settings.extras import refuse_without_torch
from digirl_dist.storage.checkpoint import Checkpoint, read_checkpoint
from digirl_dist.trajectory import Decision, NoDecision, Observation
from digirl_dist.types import Json
from digirl_dist.user_code.entry_point import construct, load_state, refuse_uncallable

if TYPE_CHECKING:
    import torch

    from digirl_dist.agent.plugins import AgentPlugin
    from digirl_dist.emulator import EmulatorSpec
    from digirl_dist.settings import AgentSettings


_LARGEST_SEED = 2**53
_MEMBERS = "act", "train", "state_dict", "load_state_dict"
_OBSERVATION = "an Observation, as episode.steps[0].observation"


class Policy:
    """Acts on observations. ``Run(...).policy()`` returns a run's policy; ``Policy(MyAgent, spec=fleet.spec)`` has
    fresh weights.

    ``agent`` is a class, or a function, that makes the agent from ``spec``, as ``agent.entry_point`` names it; without
    ``spec``, one that takes no arguments. ``state`` holds the weights of its ``state_dict``; without it, ``seed``
    determines fresh ones. Raises CheckpointError if the weights do not fit, SettingsError if the agent cannot be made.
    """

    def __init__(
        self,
        agent: Callable[..., Agent],
        state: Mapping[str, torch.Tensor] | None = None,
        version: int = 0,
        seed: int = 0,
        *,
        spec: EmulatorSpec | None = None,
    ) -> None:
        refuse_without_torch("a policy")
        import torch

        if not callable(agent):
            raise TypeError(f"agent must be a class or function that makes one, as Policy(MyAgent), not {agent!r:.80}")
        name = getattr(agent, "__name__", "MyAgent")
        given = () if spec is None else (spec,)
        remedy = f"Policy({name}, spec=fleet.spec) gives it the emulator's shapes, Policy(lambda: {name}(…)) anything"
        refuse_uncallable(f"{name} cannot be made: {remedy}", agent, given)
        seed = arguments.whole("seed", seed, 0, _LARGEST_SEED)
        self.factory: Callable[[], Agent] = partial(completed(agent), *given)
        self.version = arguments.whole("version", version, 0)
        """Number of updates that led to this policy."""
        self.settings: AgentSettings | None = None
        """The agent's settings, if a checkpoint names them."""
        self.described: Mapping[str, Json] = {}
        """What that checkpoint's manifest says of the agent."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.agent = construct(completed(agent), Agent, _MEMBERS, *given)
        if state is not None:
            arguments.of_kind("state", state, Mapping, "a state_dict")
            try:
                load_state(self.agent, state)
            except StateError as error:
                raise CheckpointError(f"the weights do not fit the agent: {error}") from error
        self.agent.train(False)
        self._rng = np.random.default_rng(seed)

    @classmethod
    def load(cls, checkpoint: Checkpoint, trust: bool = False) -> Policy:
        """Returns the policy of a checkpoint.

        Raises CheckpointError if it is damaged or does not name its agent, and UntrustedError if it names a class,
        model or server of its own, unless you ``trust`` whoever made it.
        """
        arguments.of_kind("checkpoint", checkpoint, Checkpoint, "a Checkpoint; a folder is for Policy.from_folder")
        refuse_without_torch("a policy")
        from digirl_dist.assembly.policy import agent_settings_of

        settings, spec = agent_settings_of(checkpoint, trust)
        if not trust:
            _refuse_other_shapes(settings, spec, checkpoint)
        made = cls(settings.build(spec), checkpoint.state(), checkpoint.iteration)
        made.settings, made.described = settings, checkpoint.policy
        return made

    @classmethod
    def from_folder(cls, folder: str | Path, trust: bool = False) -> Policy:
        """Returns the policy of an exported folder or a checkpoint's folder. Raises as ``load``."""
        path = arguments.folder("folder", folder)
        if not (path / "manifest.json").exists():
            raise CheckpointError(
                f"{path} holds no policy -> "
                f"name an export's or RUN/checkpoints/NUMBER; Run({str(path)!r}).policy() takes that of a run"
            )
        return cls.load(read_checkpoint(path), trust)

    def act(self, observation: Observation, seed: int | None = None) -> Decision:
        """Samples an action; the same ``seed`` gives the same action. Raises AgentError if the agent cannot decide."""
        import torch

        arguments.of_kind("observation", observation, Observation, _OBSERVATION)
        rng = self._rng if seed is None else np.random.default_rng(arguments.whole("seed", seed, 0))
        with torch.no_grad():
            decision = contract.decisions(self.agent, [observation], [rng])[0]
        if isinstance(decision, NoDecision):
            raise AgentError(decision.reason)
        return decision

    def __repr__(self) -> str:
        return f"<policy {self.version} of {type(self.agent).__name__}>"

    def probabilities(self, observations: Sequence[Observation]) -> list[ActionProbabilities]:
        """Returns the policy's probability of each action. Raises AgentError if the agent does not provide them."""
        import torch

        if not hasattr(self.agent, "probabilities"):
            raise AgentError(f"{type(self.agent).__name__} does not tell the probabilities of its actions")
        for each in arguments.of_kind("observations", observations, Sequence, "a list of Observations"):
            arguments.of_kind("each of observations", each, Observation, _OBSERVATION)
        if not observations:
            return []
        with torch.no_grad():
            return list(cast(ExplainingAgent, self.agent).probabilities(observations))


def _refuse_other_shapes(settings: AgentPlugin, spec: EmulatorSpec, checkpoint: Checkpoint) -> None:
    """Builds the agent without memory for its weights. Raises CheckpointError if its tensors are not the checkpoint's,
    which a stranger's manifest may have made larger than any machine."""
    import torch

    with torch.device("meta"):
        state = construct(settings.build(spec), Agent, _MEMBERS).state_dict()
    built = {name: tuple(tensor.shape) for name, tensor in state.items()}
    if built != {name: info.shape for name, info in checkpoint.tensors.items()}:
        raise CheckpointError(f"the tensors of {checkpoint.folder} are not those of the agent that its manifest names")

"""Why a policy acted as it did, and what an update made of it: computed from checkpoints on demand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from digirl_dist.agent import ActionProbabilities
from digirl_dist.algorithm import ExplainingAlgorithm, StepOutcome
from digirl_dist.algorithm.contract import expect
from digirl_dist.errors import DigirlDistError
from digirl_dist.parallel.rank import Rank
from digirl_dist.settings.modes import only_measures
from digirl_dist.storage import parquet
from digirl_dist.storage.checkpoint import Checkpoints
from digirl_dist.storage.of_ranks import newest_of_rank, of_rank
from digirl_dist.storage.trajectory_store import Store
from digirl_dist.trajectory import Trajectory
from digirl_dist.user_code.state import load_state

if TYPE_CHECKING:
    from digirl_dist.algorithm import Algorithm
    from digirl_dist.api.policy import Policy
    from digirl_dist.api.run import Run
    from digirl_dist.settings import Settings


@dataclass(frozen=True)
class Explanation:
    """What is known about an episode's steps besides the record; ``no_…`` says why something is unknown."""

    version: int
    """The policy to which the probabilities belong."""
    probabilities: Sequence[ActionProbabilities]
    log_probs: Sequence[float]
    """Log-probabilities of the recorded actions under that policy."""
    no_probabilities: str
    outcomes: Sequence[StepOutcome]
    no_outcomes: str


def explain(run: Run, episode: Trajectory, version: int | None) -> Explanation:
    """Returns what can be found out, with the reason for the rest, such as a removed checkpoint."""
    version = episode.ticket.policy_version if version is None else version
    probabilities: list[ActionProbabilities] = []
    log_probs: list[float] = []
    outcomes: list[StepOutcome] = []
    no_probabilities = no_outcomes = ""
    try:
        policy = run.policy(version)
        log_probs = _log_probs(policy, episode)
        probabilities = policy.probabilities([step.observation for step in episode.steps])
    except DigirlDistError as error:
        no_probabilities = str(error)
    try:
        outcomes, no_outcomes = _outcomes(run, episode)
    except DigirlDistError as error:
        no_outcomes = str(error)
    return Explanation(version, probabilities, log_probs, no_probabilities, outcomes, no_outcomes)


def _log_probs(policy: Policy, episode: Trajectory) -> list[float]:
    import torch

    with torch.no_grad():
        found = policy.agent.log_prob([step.observation for step in episode.steps], [s.action for s in episode.steps])
        values: list[float] = found.tolist()
    return values


def _outcomes(run: Run, episode: Trajectory) -> tuple[list[StepOutcome], str]:
    """Returns the outcomes, or why there are none. Raises DigirlDistError."""
    iteration = episode.ticket.iteration
    if episode.ticket.purpose != "train":
        return [], "nothing is learned from an evaluation"
    if not (run.folder / "trajectories" / f"{iteration:06d}.parquet").exists():
        return [], "its iteration has not ended yet"
    settings = _settings(run)
    if only_measures(settings):
        return [], "a fleet learns nothing"
    algorithm = _algorithm(settings, run.policy(iteration))
    if not hasattr(algorithm, "explain"):
        return [], f"{type(algorithm).__name__} does not tell what it makes of a step"
    if iteration + 1 not in run.checkpoints():
        return [], f"checkpoint {iteration + 1} is not kept, or the update has not been made yet"
    checkpoints = Checkpoints(run.folder / "checkpoints")
    before, after = (checkpoints.open(each).trainer_state()["algorithm"] for each in (iteration, iteration + 1))
    load_state(algorithm, before)
    fresh, replay = _learned_from(run, episode, settings, algorithm)
    if all(each.ticket.key != episode.ticket.key for each in fresh):
        return [], "the update did not see it: its policy was too old, or the episode counts in another iteration"
    return cast(ExplainingAlgorithm, algorithm).explain(episode, fresh, replay, after), ""


def _learned_from(
    run: Run, episode: Trajectory, settings: Settings, algorithm: Algorithm
) -> tuple[list[Trajectory], list[Trajectory]]:
    """Returns the new episodes and the replay of the episode's update: those of its rank, if ranks have their own.

    Reports to the algorithm what the update reported to it.
    """
    store = Store(run.folder / "trajectories", read_file=parquet.read_stored)
    iteration, size, staleness = episode.ticket.iteration, settings.trainer.replay_size, settings.max_staleness
    world_size = next((line.get("world_size", 1) for line in run.figures() if line["iteration"] == iteration), 1)
    if world_size == 1:
        expect(algorithm, store, iteration)
        return store.fresh(iteration, staleness)[-size:], store.replay(iteration, size, staleness)
    rank = Rank(episode.ticket.index % world_size, world_size)
    return of_rank(store.read(iteration), rank)[-size:], newest_of_rank(store, iteration + 1, size, rank)


def _settings(run: Run) -> Settings:
    from digirl_dist.settings.run_source import RunSource

    return RunSource(str(run.folder.resolve()), trust=run.trust).load()


def _algorithm(settings: Settings, policy: Policy) -> Algorithm:
    """Returns the run's algorithm, for the policy as it was before the update."""
    from digirl_dist.assembly.parts import build_algorithm, build_device
    from digirl_dist.parallel.peers import ALONE

    return build_algorithm(settings, build_device(settings, settings.emulator))(policy.agent, ALONE)

"""``digirl-dist doctor --tasks``: plays each task without doing anything, untrained, and by an oracle.

So one sees which rewards come for nothing, and which cannot be had.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import msgspec

from digirl_dist.agent import AgentFactory, contract
from digirl_dist.doctor.trial import some_action
from digirl_dist.emulator import DeviceActions, EmulatorFactory, EmulatorSpec
from digirl_dist.emulator.episode_guard import EpisodeGuard
from digirl_dist.emulator.starts import REMEDY, start_alike
from digirl_dist.errors import CollectionError, TrajectoryError
from digirl_dist.inference.local import LocalPolicies
from digirl_dist.inference.requests import InferenceReply, InferenceRequest, InferenceResult, RandomStream
from digirl_dist.plain_text import one_line
from digirl_dist.protocol.messages import Acting, EpisodeFailed, SlotChanged, SlotLimits
from digirl_dist.rollout.rollout import Finished, Happening, Rollout
from digirl_dist.rollout.slot import Slot
from digirl_dist.tasks import Key, Task, Ticket
from digirl_dist.trajectory import Decision, Observation, Trajectory, Transition
from digirl_dist.types import Json
from digirl_dist.user_code.packing import pack

Player = Literal["idle", "untrained", "oracle"]
PLAYERS: tuple[Player, ...] = ("idle", "untrained", "oracle")
"""A player's place is the policy version of its tickets."""

_TURN_S = 0.5
_EPISODE_S = 300.0
"""Longest episode: one that only the emulator could end may take for ever."""
_TRIES = 2
"""Lost episodes of a task, of which none ended, after which the task is left."""
_SOLVE = "doctor: solve"
"""A key of the params of a task that the oracle is to solve."""


class Guided:
    """Fulfils ``Emulator``: another one, whose oracle acts in tasks that are marked for it, whatever action comes."""

    def __init__(self, factory: EmulatorFactory) -> None:
        self._emulator = factory()
        self._is_solved = False

    def reset(self, task: Task, seed: int) -> Observation:
        self._is_solved = _SOLVE in task.params
        params = {name: value for name, value in task.params.items() if name != _SOLVE}
        return self._emulator.reset(Task(task.id, task.instruction, params), seed)

    def step(self, action: Json) -> Transition:
        return self._emulator.step(self.oracle() if self._is_solved else action)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._emulator, name)


@dataclass(frozen=True)
class CensusJob:
    """What is played. ``emulator`` is one that is ``Guided``; without ``agent`` nobody plays untrained."""

    emulator: EmulatorFactory
    spec: EmulatorSpec
    tasks: Sequence[Task]
    agent: AgentFactory | None
    has_oracle: bool
    slots: int
    limits: SlotLimits
    max_steps: int | None
    guard: EpisodeGuard
    tells_success: bool
    episodes: int
    """Of each player at each task."""
    seed: int = 0
    """Of the untrained agent's weights."""

    @property
    def players(self) -> list[Player]:
        there = {"idle": True, "untrained": self.agent is not None, "oracle": self.has_oracle}
        return [player for player in PLAYERS if there[player]]

    def tickets(self) -> list[Ticket]:
        """Returns the tickets, those of one task far from each other; all players start from the same seeds."""
        asked = [
            (seed, player, task) for seed in range(self.episodes) for player in self.players for task in self.tasks
        ]
        mark = {"oracle": {_SOLVE: True}}
        return [
            Ticket(0, index, replace(task, params={**task.params, **mark.get(who, {})}), seed, PLAYERS.index(who))
            for index, (seed, who, task) in enumerate(asked)
        ]


@dataclass(frozen=True)
class Played:
    """How an episode ended: ``by_itself`` where the emulator ended it."""

    success: bool
    reward: float
    steps: int
    by_itself: bool


@dataclass(frozen=True)
class Finding:
    """Something wrong with a task, and what to do. ``blocks``: nothing sound can be learned from it."""

    says: str
    remedy: str
    blocks: bool = True


@dataclass
class TaskCensus:
    """What was seen of one task."""

    task: str
    played: dict[Player, list[Played]] = field(default_factory=lambda: {player: [] for player in PLAYERS})
    lost: list[str] = field(default_factory=list)
    """Why each lost episode was."""
    starts: dict[int, Observation] = field(default_factory=dict)
    """By seed."""
    unlike: bool = False

    def add(self, episode: Trajectory, steady: bool) -> None:
        """``steady`` is that of the emulator's spec."""
        ticket, first, last = episode.ticket, episode.steps[0], episode.steps[-1]
        ending = Played(episode.success, episode.reward, len(episode.steps), last.terminated)
        self.played[PLAYERS[ticket.policy_version]].append(ending)
        known = self.starts.setdefault(ticket.seed, first.observation)
        self.unlike |= not start_alike(known, first.observation, steady)

    @property
    def has_ended(self) -> bool:
        return any(self.played.values())

    def figure(self, player: Player, tells_success: bool) -> float | None:
        """Returns the player's success rate, or its mean return where success means nothing."""
        found = self.played[player]
        return fmean(one.success if tells_success else one.reward for one in found) if found else None

    def findings(self, job: CensusJob) -> Iterator[Finding]:
        """Yields what is wrong with the task, the worst first."""
        idle, others = self.played["idle"], [one for player in PLAYERS[1:] for one in self.played[player]]
        if self.lost:
            tried = len(self.lost) + sum(map(len, self.played.values()))
            why = one_line(Counter(self.lost).most_common(1)[0][0])
            yield Finding(f"{len(self.lost)} of {tried} episodes were lost: {why}", "mend that, or leave the task out")
        if job.tells_success:
            yield from self._reached(idle, job.max_steps)
        elif idle and others and len({round(one.reward, 6) for one in (*idle, *others)}) == 1:
            yield Finding(f"whatever was done earned {idle[0].reward:g}", "give rewards that tell actions apart", False)
        if isinstance(job.spec.actions, DeviceActions) and any(one.by_itself and not one.success for one in idle):
            steps = min(one.steps for one in idle if one.by_itself and not one.success)
            remedy = "see that no clock of its own ends it"
            yield Finding(f"ends by itself after {steps} steps without a touch", remedy, False)
        if self.unlike:
            yield Finding("episodes of one seed started differently", REMEDY, False)

    def _reached(self, idle: Sequence[Played], max_steps: int | None) -> Iterator[Finding]:
        won, oracle = sum(one.success for one in idle), self.played["oracle"]
        if won:
            remedy = "begin where the goal is not reached, and judge what the episode changed"
            yield Finding(f"{won} of {len(idle)} episodes succeed in which nothing is done", remedy)
        elif any(one.reward > 0 for one in idle):
            earned = fmean(one.reward for one in idle)
            yield Finding(f"doing nothing earns {earned:.2g}", "reward what the episode changed", False)
        if failed := sum(not one.success for one in oracle):
            within = "" if max_steps is None else f" in at most {max_steps} steps"
            remedy = "raise max_steps, or correct the goal or its judge"
            yield Finding(f"the oracle fails in {failed} of {len(oracle)} episodes{within}", remedy)

    def to_json(self, job: CensusJob) -> dict[str, Json]:
        found = [{"detail": one.says, "remedy": one.remedy, "blocks": one.blocks} for one in self.findings(job)]
        figures: dict[str, Json] = {player: _figures(self.played[player]) for player in PLAYERS}
        return {"task": self.task, **figures, "lost": len(self.lost), "findings": found}


def _figures(played: Sequence[Played]) -> dict[str, Json] | None:
    if not played:
        return None
    means = {name: round(fmean(getattr(one, name) for one in played), 6) for name in ("success", "reward", "steps")}
    return {"episodes": len(played), **means}


class _Players:
    """Implements ``rollout.Policies``: the untrained agent, and doing nothing, which is what the oracle's tasks ask."""

    waiting = "policy"
    limit_s: float | None = None

    def __init__(self, job: CensusJob) -> None:
        nothing: Json = {"type": "wait"}
        self._idle = nothing if isinstance(job.spec.actions, DeviceActions) else some_action(job.spec.actions)
        self._agents: LocalPolicies | None = None
        self._answers: list[InferenceReply] = []
        if job.agent is not None:
            import torch

            torch.manual_seed(job.seed)
            self._agents = LocalPolicies(job.agent)
            self._agents.load(PLAYERS.index("untrained"), contract.state_of(job.agent()))

    def __contains__(self, version: object) -> bool:
        return True

    def expect(self, stream: RandomStream) -> None:
        """Nothing here needs to be known early."""

    def ask(self, requests: Sequence[InferenceRequest]) -> None:
        """Raises AgentError for an agent that does not do as its protocol says."""
        untrained = PLAYERS.index("untrained")
        for request in requests:
            if request.version != untrained:
                self._answers.append(InferenceResult(request.number, Decision(self._idle, 0.0)))
        if self._agents is not None:
            self._agents.ask([request for request in requests if request.version == untrained])
            self._answers += self._agents.answers()

    def answers(self) -> list[InferenceReply]:
        answers, self._answers = self._answers, []
        return answers


class Census:
    """Plays the tasks in emulator processes of this machine."""

    def __init__(self, job: CensusJob) -> None:
        self._job = job
        self._of = {task.id: TaskCensus(task.id) for task in job.tasks}
        self._open = {ticket.key: ticket for ticket in job.tickets()}
        self._asked = len(self._open)
        self._began_at: dict[Key, float] = {}
        self._failed_starts = 0
        """In a row."""

    def take(self, told: Callable[[int, int], None]) -> list[TaskCensus]:
        """Returns what was seen of each task; ``told`` hears how many of how many episodes are over.

        Raises CollectionError if no emulator can be started.
        """
        job = self._job
        players = _Players(job)
        # A task that always breaks its emulator must not take the slot out of service for the others.
        limits = msgspec.structs.replace(job.limits, failures=job.limits.failures + self._asked)
        with tempfile.TemporaryDirectory(prefix="digirl-dist-doctor-") as place:
            packed = Path(place) / "emulator"
            packed.write_bytes(pack(job.emulator))
            slots = [Slot(k, packed, limits, Path(place) / f"slot-{k}.log") for k in range(job.slots)]
            with closing(Rollout("doctor", slots, players, job.max_steps)) as rollout:
                rollout.lease([*self._open.values()])
                while self._open:
                    self._refuse_dead(rollout)
                    for happening in rollout.turn(_TURN_S):
                        self._note(happening)
                    rollout.drop(self._given_up())
                    told(self._asked - len(self._open), self._asked)
        return [*self._of.values()]

    def _refuse_dead(self, rollout: Rollout) -> None:
        if self._failed_starts >= self._job.limits.failures * self._job.slots or not rollout.in_service():
            raise CollectionError(
                f"the emulator does not start on this machine: {rollout.slots[0].reason} -> `digirl-dist doctor --try`"
            )

    def _note(self, happening: Happening) -> None:
        match happening:
            case Acting(_, key):
                self._began_at[key] = time.monotonic()
            case SlotChanged(_, state):
                self._failed_starts = 0 if state == "ready" else self._failed_starts + (state != "long")
            case EpisodeFailed(_, key, reason, by):
                self._failed_starts -= by == "environment"  # the slot's change, which follows, is no failed start
                if (lost := self._open.pop(key, None)) is not None:
                    self._of[lost.task.id].lost.append(reason)
            case Finished(episode) if (ticket := self._open.pop(episode.ticket.key, None)) is not None:
                try:
                    self._job.guard.check(episode, ticket, "doctor")
                except TrajectoryError as error:
                    self._of[ticket.task.id].lost.append(str(error))
                else:
                    self._of[ticket.task.id].add(episode, self._job.spec.steady)

    def _given_up(self) -> set[Key]:
        """Returns the tickets that shall run no longer: those without an end, and those of tasks that always fail."""
        now, gone = time.monotonic(), set()
        for key, ticket in [*self._open.items()]:
            seen = self._of[ticket.task.id]
            if now - self._began_at.get(key, now) > _EPISODE_S:
                seen.lost.append(f"it did not end within {_EPISODE_S:.0f} s")
            elif len(seen.lost) < _TRIES or seen.has_ended:
                continue
            gone.add(key)
            del self._open[key]
        return gone


def as_text(found: Sequence[TaskCensus], job: CensusJob) -> str:
    """Returns a line for each finding, and the table of all tasks."""
    findings = [(one.task, finding) for one in found for finding in one.findings(job)]
    lines = [
        f"{'FAIL' if each.blocks else 'warn'}  {task}: {each.says}\n      -> {each.remedy}" for task, each in findings
    ]
    return "\n".join(
        [*lines, *[""] * bool(lines), *_table(found, job), "", _verdict(found, job, [each for _, each in findings])]
    )


def _table(found: Sequence[TaskCensus], job: CensusJob) -> Iterator[str]:
    width = max(len("mean"), *(len(one.task) for one in found))
    yield f"{'task':<{width}}" + "".join(f"{player:>11}" for player in PLAYERS)
    rows = [(one.task, [one.figure(player, job.tells_success) for player in PLAYERS]) for one in found]
    known = [
        [figure for figure in column if figure is not None] for column in zip(*(row for _, row in rows), strict=True)
    ]
    for task, row in [*rows, ("mean", [fmean(column) if column else None for column in known])]:
        yield f"{task:<{width}}" + "".join(f"{'–' if figure is None else f'{figure:.2f}':>11}" for figure in row)


def _verdict(found: Sequence[TaskCensus], job: CensusJob, findings: Sequence[Finding]) -> str:
    shown = "shares of successes" if job.tells_success else "mean returns"
    wrong, warnings = sum(each.blocks for each in findings), sum(not each.blocks for each in findings)
    text = f"{len(found)} tasks, {shown} of {job.episodes} episodes: {wrong} to mend, {warnings} to look at"
    never = [one for one in found if one.has_ended and not any(one.figure(p, True) for p in PLAYERS)]
    return text + (f"; {len(never)} were solved by nobody" if job.tells_success and never else "")


def is_sound(found: Sequence[TaskCensus], job: CensusJob) -> bool:
    return not any(finding.blocks for one in found for finding in one.findings(job))

"""A host of a single simulated worker program, which a test plays message by message."""

from __future__ import annotations

from typing import Any, TypeVar

from digirl_dist.protocol.messages import (
    SPOKEN,
    EpisodeManifest,
    Heartbeat,
    Hello,
    HostMessage,
    Loaded,
    LoadPolicy,
    Pushed,
    SlotLimits,
    StartJob,
    TensorEntry,
    WorkerMessage,
)
from digirl_dist.tasks import Key
from simulate.behaviour import Behaviour
from simulate.program import RUN, SimulatedProgram
from simulate.world import World

M = TypeVar("M")
JOB = StartJob("w", "a1", "e1", SlotLimits(), slots=2)
ASKING_JOB = StartJob("w", None, "e1", SlotLimits(), slots=2)


class Host:
    """What a host does with one program, which answers at once."""

    def __init__(self, **behaviour: Any) -> None:
        self.world = World()
        self.program = SimulatedProgram(self.world, "w", Behaviour(slots=2, **behaviour), orphan_s=10.0)
        self.heard: list[WorkerMessage] = []
        self.program.say = self.heard.append

    def say(self, message: HostMessage) -> list[WorkerMessage]:
        """Returns what the program says to it before anything else happens."""
        before = len(self.heard)
        self.program.receive(message)
        return self.heard[before:]

    def of(self, kind: type[M]) -> list[M]:
        return [message for message in self.heard if isinstance(message, kind)]

    def work(self, job: StartJob = JOB) -> None:
        """Up to the point where the program acts with version 0."""
        self.say(Hello(RUN, list(SPOKEN)))
        self.say(job)
        self.say(Pushed("job"))
        self.say(policy(0))
        self.say(Pushed("policy"))
        assert isinstance(self.heard[-1], Loaded)

    def beat(self) -> Heartbeat:
        self.program.beat()
        found = self.heard[-1]
        assert isinstance(found, Heartbeat)
        return found

    def wait(self, seconds: float) -> None:
        until = self.world.now + seconds
        while self.world.advance(until):
            pass

    def did(self, name: str) -> list[list[Any]]:
        """Returns the arguments of all calls of that name that the core made."""
        return [arguments for called, *arguments in self.program.done if called == name]


def policy(version: int, digest: str = "0a") -> LoadPolicy:
    return LoadPolicy(version, {"logits": TensorEntry(digest, "float32", [2])})


def manifest(episode_id: str, run: str = RUN) -> EpisodeManifest:
    return EpisodeManifest(run, Key(0, 7), 0, 0, episode_id, 100, "ab", 0, 1.0, 0.0, {})

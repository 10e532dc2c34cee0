"""A fleet that is asked over HTTP: what is asked for is durable, and ends in an order that is durable too."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import queue
import threading
from collections import Counter
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from digirl_dist.api.endpoint import Endpoint
from digirl_dist.api.episodes import Episode
from digirl_dist.api.fleet import Fleet
from digirl_dist.api.policy import Policy
from digirl_dist.collect.leases import Lost
from digirl_dist.collect.stream import Rollout
from digirl_dist.errors import RunFolderError
from digirl_dist.serve.journal import Entry, Journal
from digirl_dist.storage import json_lines, strict_json
from digirl_dist.storage.checkpoint import read_weights
from digirl_dist.tasks import Share, Task
from digirl_dist.trajectory import Observation
from digirl_dist.types import Json, Natural

_AGAIN_S = 1.0
_TASKS_BYTES = 16 << 20
"""Of the task of one request, once for each rollout in the files."""
_SHARES = 32
"""So many rollouts may have tasks of that size together, and one alone no larger one than its share: how it ends must
find room in its line (``json_lines.LONGEST_LINE``)."""
_LONGEST_REASON = 10_000

Text = Annotated[str, Meta(min_length=1, max_length=900)]


class TaskGiven(msgspec.Struct, forbid_unknown_fields=True):
    """A task that is in no task set."""

    id: Text
    instruction: Annotated[str, Meta(max_length=20_000)] = ""
    params: dict[str, Json] = {}


class Ask(msgspec.Struct, forbid_unknown_fields=True):
    """What is asked for: one rollout, or a group."""

    key: Text
    """Your own name for it, which is durable: asked again, it is the same rollout."""
    task: Text | TaskGiven
    """The id of one of ``GET /tasks``, or a task."""
    n: Annotated[int, Meta(ge=1, le=1024)] | None = None
    """A group: n rollouts that start alike, with the keys KEY/0, KEY/1 and so on."""
    seed: Annotated[int, Meta(ge=0, lt=2**31)] | None = None
    """How the emulator starts; null draws a seed of the share, always the same one for a key."""
    share: Share = "train"
    """Whence the seed is drawn: training never meets those of ``test``."""
    deadline_s: Annotated[float, Meta(gt=0, le=1e7)] | None = None
    """Seconds after which it is cancelled, counted again if the server starts again meanwhile."""


class Acknowledgement(msgspec.Struct, forbid_unknown_fields=True):
    """Which rollouts you are done with. Their episodes stay in the run folder."""

    keys: Annotated[list[Annotated[str, Meta(max_length=1000)]], Meta(max_length=10_000)]
    """Those of groups one by one; what is not over, or unknown, is left out."""


class NewPolicy(msgspec.Struct, forbid_unknown_fields=True):
    """Who acts in all rollouts that begin from now on: a folder or weights, whose paths are those of the server's
    machine, or what is new about the endpoint that acts. For new weights behind an endpoint's name, a version is
    enough."""

    folder: Text | None = None
    """The folder of a checkpoint or an export, with manifest.json and policy.safetensors."""
    weights: Text | None = None
    """A safetensors file with other weights for the agent that acts now, in place of a folder."""
    model: Text | None = None
    """The name by which the endpoint that acts knows its new weights."""
    sampling: dict[str, Json] | None = None
    """Further keys of the endpoint's requests, in place of those before."""
    version: Natural | None = None
    """Your own number for it, larger than those before; null takes the next one."""


class Refusal(Exception):
    """An answer that is no success."""

    def __init__(self, status: int, error: str) -> None:
        super().__init__(error)
        self.status = status


class Service:
    """A fleet's rollouts by key, and the thread that notes how they ended."""

    def __init__(self, fleet: Fleet, policy: Policy | Endpoint, trust: bool = False) -> None:
        """Has the fleet act with the policy, and takes up what a server before this one was asked for.

        ``trust`` lets policies name classes, models and servers of their own. Raises DigirlDistError if the fleet
        cannot start, or its folder cannot be read.
        """
        self.ended: Counter[str] = Counter()
        """How many rollouts landed, or were lost to what, since the server began."""
        self._disk = self._machines = ""
        """What troubles them, if anything does."""
        self.closing = threading.Event()
        self.fleet = fleet
        fleet.update(policy)  # has the folder locked
        self.journal = Journal(fleet.folder / "serve.jsonl")
        self._policy = policy
        self._trust = trust
        self._changing = threading.Lock()
        self._noting = threading.Lock()
        """Held from what is known of a key until what comes of it is noted."""
        self._rollouts: dict[str, Rollout] = {}
        """Those that are under way."""
        self._over: queue.SimpleQueue[Rollout | None] = queue.SimpleQueue()
        self.journal.ask(  # what a server that was killed noted in the fleet's file alone
            {key: Entry(one.task, one.seed) for key, one in fleet.asked().items() if self.journal.get(key) is None}
        )
        threading.Thread(target=self._note, name="journal", daemon=True).start()
        for key, entry in self.journal.running().items():
            limit_s = math.inf if entry.deadline_s is None else entry.deadline_s
            self._follow(key, fleet.submit(entry.task, seed=entry.seed, key=key, deadline_s=limit_s))

    def close(self) -> None:
        """What is under way is taken up by the next server of the folder."""
        self.closing.set()
        self._over.put(None)

    def ask(self, wanted: Ask) -> dict[str, Entry]:
        """Returns the rollouts that are asked for by their keys: new ones, and those that there are already.

        Raises SettingsError if one cannot be had.
        """
        keys = [wanted.key] if wanted.n is None else [f"{wanted.key}/{member}" for member in range(wanted.n)]
        task = wanted.task if isinstance(wanted.task, str) else Task(**msgspec.structs.asdict(wanted.task))
        size = len(strict_json.dumps(msgspec.to_builtins(task)))
        if size * max(_SHARES, len(keys)) > _TASKS_BYTES:
            raise Refusal(400, f"{len(keys)} times {size:,} bytes of a task are too much: shorten it, or ask in parts")
        limit_s = math.inf if wanted.deadline_s is None else wanted.deadline_s
        found: dict[str, Rollout] = {}
        with self._noting:
            if sum(self.journal.get(key) is None for key in keys) > max(0, json_lines.MOST_KEYS - len(self.journal)):
                raise Refusal(400, f"{len(self.journal):,} rollouts are kept: acknowledge those that you are done with")
            try:
                for key in keys:
                    found[key] = self.fleet.submit(
                        task, seed=wanted.seed, share=wanted.share, group=wanted.key, key=key, deadline_s=limit_s
                    )
            finally:
                new = {key: rollout for key, rollout in found.items() if self._is_new(key, rollout)}
                self.journal.ask(
                    {key: Entry(each.ticket.task, each.ticket.seed, wanted.deadline_s) for key, each in new.items()}
                )
                for key, rollout in new.items():
                    self._follow(key, rollout)
        return {key: self.entry(key) for key in keys}

    def _is_new(self, key: str, rollout: Rollout) -> bool:
        known = self.journal.get(key)
        has_landed = known is not None and known.state == "landed" and rollout.done()
        return not has_landed and self._rollouts.get(key) is not rollout

    def _follow(self, key: str, rollout: Rollout) -> None:
        self._rollouts[key] = rollout
        rollout.add_done_callback(lambda _: self._over.put(rollout))

    def entry(self, key: str) -> Entry:
        if (found := self.journal.get(key)) is None:
            raise Refusal(404, f"nobody asked for {key!r}, or it was acknowledged: ask for it by POST /rollouts")
        return found

    def episode(self, key: str) -> Episode | None:
        """Returns the episode of a rollout; None if it has not landed."""
        if self.entry(key).state != "landed":
            return None
        if (found := self.fleet.landed(key)) is None:
            raise Refusal(410, f"the episode of {key!r} was removed from {self.fleet.folder}: acknowledge it")
        return found

    def cancel(self, key: str) -> Entry:
        if (rollout := self._rollouts.get(key)) is not None:
            rollout.cancel()
        return self.entry(key)

    def acknowledge(self, keys: list[str]) -> int:
        """Forgets those that are over; returns how many."""
        over = [key for key in keys if (entry := self.journal.get(key)) is not None and entry.number]
        self.fleet.acknowledge(over)
        self.journal.forget(over)
        return len(over)

    def act_with(self, given: NewPolicy) -> int:
        """Returns the version of the policy that acts from now on. Raises SettingsError, CheckpointError."""
        with self._changing:
            acts = self._policy
            policy = _changed(acts, given) if isinstance(acts, Endpoint) else self._loaded(acts, given)
            found = self.fleet.update(policy, given.version)
            self._policy = policy
        return found

    def _loaded(self, before: Policy, given: NewPolicy) -> Policy:
        if given.model is not None or given.sampling is not None:
            raise Refusal(400, "no endpoint acts, which would have a model and sampling: name a folder or weights")
        if (given.folder is None) == (given.weights is None):
            raise Refusal(400, "name a folder or a file of weights: one of both")
        if given.folder is not None:
            return Policy.from_folder(given.folder, self._trust)
        policy = Policy(before.factory, read_weights(Path(str(given.weights))))
        policy.settings, policy.described = before.settings, before.described
        return policy

    @property
    def trouble(self) -> str:
        """What keeps the server from its work: the disk, or what the newest rollout was lost to; empty: nothing."""
        return self._disk or self._machines

    def status(self) -> dict[str, Json]:
        return {
            "rollouts": len(self.journal),
            "running": len(self._rollouts),
            "cursor": self.journal.newest,
            "workers": self.fleet.status(),
        }

    def _note(self) -> None:
        """Writes down what is over, all that came meanwhile at once; while the disk is full, it tries again."""
        waiting: list[Rollout] = []
        while (rollout := self._over.get()) is not None:
            waiting.append(rollout)
            if self._over.empty():
                while not self._has_noted(waiting) and not self.closing.wait(_AGAIN_S):
                    pass
                waiting = []

    def _has_noted(self, waiting: list[Rollout]) -> bool:
        with self._noting:  # else who asks meanwhile for one that was lost would find it over
            ended = {str(each.key): entry for each in waiting if (entry := self._ended(each)) is not None}
            try:
                self.journal.end(ended)
            except RunFolderError as error:
                self._disk = str(error)
                return False
            self._disk = ""
            self.ended.update(entry.state for entry in ended.values())
            for entry in ended.values():
                if entry.state in ("landed", "infrastructure"):
                    self._machines = entry.about.get("reason", "")
            for rollout in waiting:
                if self._rollouts.get(str(rollout.key)) is rollout and not self.closing.is_set():
                    del self._rollouts[str(rollout.key)]
            return True

    def _ended(self, rollout: Rollout) -> Entry | None:
        """Returns how it ended; None where that does not count: the server closes, or it was asked for again."""
        entry = self.journal.get(str(rollout.key))
        if entry is None or self.closing.is_set() or self._rollouts.get(str(rollout.key)) is not rollout:
            return None
        result = rollout.result()
        if isinstance(result, Lost):
            return msgspec.structs.replace(entry, state=result.kind, about={"reason": result.reason[:_LONGEST_REASON]})
        about: dict[str, Json] = {"reward": result.reward, "success": result.success, "steps": len(result.steps)}
        about |= {"policy_version": result.ticket.policy_version, "episode_id": result.episode_id}
        return msgspec.structs.replace(entry, state="landed", about=about)


def _changed(acts: Endpoint, given: NewPolicy) -> Endpoint:
    if given.folder is not None or given.weights is not None:
        raise Refusal(400, "an endpoint acts, whose weights are its server's: name a model, sampling or a version")
    return dataclasses.replace(
        acts, model=given.model or acts.model, sampling=acts.sampling if given.sampling is None else given.sampling
    )


def as_json(episode: Episode) -> dict[str, Json]:
    """Returns an episode as JSON has it; pictures are named by their digests."""
    ticket = episode.ticket
    steps = [
        {
            "observation": _seen(step.observation),
            "action": step.action,
            "log_prob": step.log_prob,
            "tokens": list(step.tokens),
            "token_log_probs": list(step.token_log_probs),
            "prompt_tokens": list(step.prompt_tokens),
            "policy_version": version,
            "reward": step.reward,
            "terminated": step.terminated,
            "truncated": step.truncated,
        }
        for step, version in zip(episode.steps, episode.versions, strict=True)
    ]
    return {
        "episode_id": episode.episode_id,
        "worker": episode.worker,
        "task": dataclasses.asdict(ticket.task),
        "seed": ticket.seed,
        "policy_version": ticket.policy_version,
        "success": episode.success,
        "reward": episode.reward,
        "steps": steps,
        "final_observation": _seen(episode.final_observation),
    }


def image_of(episode: Episode, digest: str) -> bytes | None:
    """Returns the picture of that digest; None if the episode has none such."""
    images = (each.image for each in episode.observations if each.image is not None)
    return next((image for image in images if _digest(image) == digest), None)


def _seen(observation: Observation) -> dict[str, Json]:
    vector, image = observation.vector, observation.image
    return {
        "text": observation.text,
        "image": None if image is None else _digest(image),
        "vector": None if vector is None else vector.tolist(),
    }


def _digest(image: bytes) -> str:
    return hashlib.sha256(image).hexdigest()

"""Fleets of emulators driven from Python: collect episodes with a policy, wherever they run."""

from __future__ import annotations

import atexit
import concurrent.futures
import math
import os
import shutil
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from digirl_dist.agent import contract
from digirl_dist.agent.plugins.endpoint import EndpointSettings
from digirl_dist.api import arguments
from digirl_dist.api.endpoint import Endpoint, Endpoints
from digirl_dist.api.episodes import Episode, Episodes, html_table
from digirl_dist.api.rollouts import Act, FunctionAgent, Group, Rollouts
from digirl_dist.api.training import compose
from digirl_dist.collect.leases import LeaseLedger, Lost
from digirl_dist.collect.stream import Request, Rollout
from digirl_dist.errors import IncompleteError, SettingsError
from digirl_dist.plain_text import nearest
from digirl_dist.report.output import redraws, shown
from digirl_dist.settings.keys import key_of
from digirl_dist.settings.safe_yaml import read_mapping
from digirl_dist.storage.episode_index import summarise
from digirl_dist.tasks import SEEDS, Plan, Share, Task, Ticket
from digirl_dist.types import Closeable, Json

if TYPE_CHECKING:
    from digirl_dist.agent import Agent
    from digirl_dist.api.policy import Policy
    from digirl_dist.assembly.collector import OpenFleet
    from digirl_dist.emulator import EmulatorSpec
    from digirl_dist.settings import Settings
    from digirl_dist.settings.configuration import Source
    from digirl_dist.storage.checkpoint import Checkpoint, TensorInfo


_MOST_EPISODES = 10**6
"""All tickets of a round are in memory."""
_SHOWN = 5
_LARGEST_SEED = 2**31 - 1
_LARGEST_VERSION = 2**52
"""Files and messages hold twice as much: there is room for those that have no number of the caller's own."""
_LONGEST_OF_A_STREAM = 900
"""Characters of its key: its rollouts have longer ones."""
_MEASURES = {"task_mode": "evaluate"}
"""Nothing is learned, so every episode is awaited."""
_OF_LEARNING = (
    *("task_mode", "train_algorithm", "train_mode", "train_iterations", "eval_iterations", "algorithm", "offline"),
    *("evaluation", "start_from", "save_freq", "keep_checkpoints", "loggers", "logger_project"),
    *("media", "ahead", "distributed"),
)
_DECIDED = {
    **dict.fromkeys(_OF_LEARNING, "a fleet measures: it learns nothing"),
    "agent": "a fleet acts with the agent of the policy that it is given",
    "rollout_size": "collect(policy, episodes=…) says how many",
    "seed": "collect(policy, seed=…) has it",
    "task_order": "collect runs the tasks in their order",
}
"""Settings of ``train`` that are none of a fleet's -> why."""


class Fleet(Closeable):
    """Emulators on machines that you can ssh to: ``Fleet(["10.0.0.2", "10.0.0.3"], bsize=8, emulator="phone")``.

    ``Fleet.dry_run()`` starts localhost workers behind real SSH servers, ``Fleet.ray()`` actors of a Ray cluster, and
    ``Fleet.inline()`` emulators on this machine only. All take the settings of ``train``, but for ``agent`` and
    those of learning. ``workers`` are entries of ``worker_ips``; without them, those of the YAML file are used. Use a
    fleet as a context manager, or call ``close``; one that nobody closed ends with the process, at the latest. It
    belongs to the process that opened it: a forked child opens its own.

    The workers start with the first policy. All later policies must have the same agent, but may have other weights.
    With ``save_path``, episodes are kept in that folder, which ``digirl-dist view`` shows: a new one, or one that a
    fleet has made.
    """

    def __init__(self, workers: Sequence[str | Mapping[str, Any]] = (), /, **settings: Any) -> None:
        """Raises SettingsError for wrong settings; connects to nothing yet."""
        if isinstance(workers, str | Mapping):
            raise SettingsError(f"workers are a list of machines: Fleet([{workers!r}])")
        arguments.of_kind("workers", workers or (), Sequence, "a list of machines, as Fleet(['10.0.0.2'])")
        _refuse_decided(settings.keys(), "Fleet({}=…)")
        kept = settings.pop("save_path", None)
        folder = arguments.folder("save_path", kept) if kept else tempfile.mkdtemp(prefix="digirl-dist-fleet-")
        named = {"worker_ips": list(workers)} if workers else {}
        with ExitStack() as undone:
            if not kept:
                undone.callback(shutil.rmtree, folder, ignore_errors=True)
            self._set_up(compose("host", {**named, **settings, **_MEASURES, "save_path": str(folder)}))
            self._stack.push(undone.pop_all())

    def _set_up(self, settings: Settings) -> None:
        """Raises SettingsError."""
        from digirl_dist.assembly.parts import build_device, run_root
        from digirl_dist.assembly.validate import Command, refuse_contradictions

        self._settings = settings
        self._folder = run_root(settings)
        refuse_contradictions(settings, command=Command.fleet)
        _refuse_others_run(self._folder)
        self._device = build_device(_acted_by(None, settings), settings.emulator)
        self._stack = ExitStack()
        self._acknowledged: list[str] = []
        """Keys to forget once the fleet has its folder."""
        self._started: OpenFleet | None = None
        self._sent: tuple[Policy, Checkpoint] | None = None
        self._acts: Policy | Act | None = None
        """The one that was sent, as the caller named it."""
        self._rollouts: Rollouts | None = None
        self._collecting = threading.Lock()
        self._sending = threading.Lock()
        self._is_closed = False
        self._process = os.getpid()
        self._forgotten = weakref.finalize(self, _close_aside, self._stack, self._process)
        self._forgotten.atexit = False
        _open.add(self)

    @classmethod
    def dry_run(cls, workers: int = 2, /, **settings: Any) -> Fleet:
        """Returns a fleet of localhost workers behind SSH servers with throw-away keys."""
        return cls(dry_run=True, dry_run_workers=workers, **settings)

    @classmethod
    def ray(cls, workers: int = 2, /, address: str | None = None, **settings: Any) -> Fleet:
        """Returns a fleet of actors of the Ray cluster at ``address`` (None: RAY_ADDRESS; ``auto``: the one on this
        machine); ``local`` starts one here."""
        return cls(collector={"name": "ray", "workers": workers, "address": address}, **settings)

    @classmethod
    def inline(cls, **settings: Any) -> Fleet:
        """Returns a fleet of ``bsize`` emulators on this machine."""
        return cls(parallel="single", **settings)

    @classmethod
    def configured(cls, source: Source) -> Fleet:
        """Returns the fleet of a YAML file and its overrides, ``save_path`` included. Raises SettingsError."""
        _refuse_decided(set(map(key_of, source.overrides)) - {"agent"}, "{}=…")
        measures = [f"{key}={value}" for key, value in _MEASURES.items()]
        fleet = cls.__new__(cls)
        fleet._set_up(replace(source, overrides=(*source.overrides, *measures)).load())
        return fleet

    @property
    def folder(self) -> Path:
        """The run folder: ``save_path``, or one that goes with the fleet."""
        return self._folder

    @property
    def spec(self) -> EmulatorSpec:
        """What an agent must know to fit the emulators: ``Policy(MyAgent, spec=fleet.spec)``."""
        return self._device.spec

    @property
    def tasks(self) -> list[Task]:
        """Tasks of the task set."""
        return list(self._device.tasks)

    def starting_policy(self, trust: bool = False) -> Policy | Endpoint:
        """Returns the policy that acted last in ``save_path``, or else the configuration's agent with fresh weights.

        With ``agent=endpoint``, that is the endpoint. Raises as ``Policy.from_folder``.
        """
        from digirl_dist.api.policy import Policy
        from digirl_dist.assembly.parts import agent_plugin, build_device
        from digirl_dist.assembly.policy import describe_policy

        if isinstance(agent := self._settings.agent, EndpointSettings):
            return Endpoint.of(agent)
        newest = self._folder / "checkpoints" / "latest"
        if (newest / "manifest.json").exists():
            return Policy.from_folder(newest, trust)
        spec = build_device(self._settings, self._settings.emulator).spec
        made = Policy(agent_plugin(self._settings).build(spec), seed=self._settings.seed)
        made.settings, made.described = agent_plugin(self._settings), describe_policy(self._settings, spec)
        return made

    def push(self, policy: Policy) -> None:
        """Starts to send the policy to the workers, so that the next ``collect`` with it need not wait."""
        self.update(policy)

    def update(self, act: Policy | Act, version: int | None = None) -> int:
        """Has all episodes that begin from now on act with this policy; returns its version.

        Where the host acts (a function, an endpoint, ``inference=host``), so do those under way, from their next step
        on: such steps have a ``policy_version`` of their own. ``version`` is your own number for it, larger than those
        before; without it, the next one. Raises SettingsError for another agent than that of the policy before.
        """
        rollouts, checkpoint = self._send(act, version, is_update=True)
        rollouts.act_with(checkpoint)
        return checkpoint.iteration

    def submit(
        self,
        task: str | Task,
        *,
        act: Policy | Act | None = None,
        seed: int | None = None,
        share: Share = "train",
        group: str | None = None,
        key: str | None = None,
        deadline_s: float = math.inf,
    ) -> Rollout:
        """Asks for one episode of the task; returns a future of it, which can be awaited.

        Its result is an ``Episode``, or ``Lost``, which says what it was lost to: ``infrastructure``, ``environment``,
        ``agent``, or ``cancelled``. Episodes that are lost run again, on other machines, before they count as lost.

        Args:
            act: the policy, if it is not the one of the call before: a ``Policy``, whose weights go to the workers, a
                function of this process that returns a decision (or an action) for each of a list of observations, or
                an ``Endpoint``.
            seed: how the emulator starts; None draws one of the ``share``, the same for all of a ``group``.
            key: your own name for the rollout, which is durable in ``save_path``. Who asks for the same key again,
                also in another process after a crash, gets the same episode; one that was lost runs again.
            deadline_s: seconds after which it is cancelled.

        Raises SettingsError for an unknown task, or for a key that was asked for with another task or start.
        """
        for argument, given in (("key", key), ("group", group)):
            if given is not None:
                arguments.name(argument, given)
        rollouts, checkpoint = self._send(act)
        start = self._start_of(rollouts, seed, share, group or key)
        request = Request(self._task(task), start, key, time.monotonic() + deadline_s)
        return rollouts.ask(checkpoint, [request])[0]

    def stream(
        self,
        tasks: Iterable[str | Task],
        *,
        act: Policy | Act | None = None,
        group_size: int = 1,
        ahead: int = 1,
        share: Share = "train",
        key: str | None = None,
        until: threading.Event | None = None,
    ) -> Iterator[Group]:
        """Yields, as they are complete, the episodes of each task: ``group_size`` that start alike.

        ``tasks`` may be endless. New groups begin as long as those under way and those that were not taken yet have no
        more rollouts than ``ahead`` + 1 times the slots, so the machines work while you learn; ``update`` changes the
        policy for those that begin afterwards. With a ``key``, rollout n of group g has the key ``KEY/g/n`` (see
        ``submit``). A group tells what is ``missing``, and why. Once ``until`` is set, by any thread, or the iterator
        is closed, what is under way is cancelled.
        """
        size = arguments.whole("group_size", group_size, 1, _MOST_EPISODES)
        room = arguments.whole("ahead", ahead, 0, _MOST_EPISODES)
        if key is not None:
            arguments.name("key", key, _LONGEST_OF_A_STREAM)
        rollouts, checkpoint = self._send(act)

        def ask(number: int, task: Task) -> list[Rollout]:
            label = None if key is None else f"{key}/{number}"
            seed = self._start_of(rollouts, None, share, label)
            names = [None if label is None else f"{label}/{member}" for member in range(size)]
            return rollouts.ask(checkpoint, [Request(task, seed, name) for name in names])

        def groups() -> Iterator[Group]:
            with self._shown():
                yield from rollouts.groups(map(self._task, tasks), ask, room, until or threading.Event())

        return groups()

    def as_completed(self, rollouts: Iterable[Rollout]) -> Iterator[Rollout]:
        """Yields the rollouts as they are over: landed, or lost."""
        return cast("Iterator[Rollout]", concurrent.futures.as_completed(rollouts))

    def acknowledge(self, keys: Iterable[str]) -> None:
        """Forgets these keys. Their episodes stay in ``save_path``; who asks for one again gets a new one.

        A fleet that has not started yet forgets them as soon as it does.
        """
        with self._sending:
            self._acknowledged.extend(keys)
            if self._rollouts is not None:
                self._rollouts.stream.acknowledge(self._acknowledged)
                self._acknowledged = []

    def asked(self) -> dict[str, Ticket]:
        """Returns the keys that are not acknowledged, with their tickets, but for lost ones; none before the start."""
        return {} if self._rollouts is None else self._rollouts.stream.asked

    def landed(self, key: str) -> Episode | None:
        """Returns the episode of a key; None if there is none, or the fleet has not started yet."""
        return None if self._rollouts is None else cast("Episode | None", self._rollouts.stream.landed_as(key))

    def collect(
        self,
        policy: Policy,
        tasks: Sequence[str | Task] | None = None,
        episodes: int | None = None,
        seed: int = 0,
    ) -> Episodes:
        """Runs ``episodes`` episodes (one per task if None) and returns them in the order of the tasks.

        ``tasks`` are ids of the task set, or Tasks; None means the whole set. ``seed`` determines how the episodes
        start and the policy's randomness, so a second call starts the same episodes; none of them starts as one
        in training does. Threads that collect with one fleet take turns.

        Raises IncompleteError, with each worker's reason, if an episode cannot be collected: its ``result`` holds the
        episodes that were (where a judge decides, none: they wait in ``save_path`` for its verdicts). Raises
        SettingsError for an unknown task, and at the first call for workers that cannot be reached.
        """
        chosen = self._chosen(tasks)
        count = len(chosen) if episodes is None else arguments.whole("episodes", episodes, 1, _MOST_EPISODES)
        plan = Plan(chosen, count, arguments.whole("seed", seed, 0), "sequential", share="test")
        requests = [Request(ticket.task, ticket.seed) for ticket in plan.tickets(0, 0)]
        with self._collecting:
            rollouts, checkpoint = self._send(policy)
            asked = rollouts.ask(checkpoint, requests, as_page=True)
            try:
                with self._shown():
                    results = [rollout.result() for rollout in asked]
            except BaseException:  # such as Ctrl-C
                for rollout in asked:
                    rollout.cancel()
                raise
        landed = [one for one in results if not isinstance(one, Lost)]
        found = Episodes(summarise(landed), landed.__getitem__)
        if missing := [(one, why) for one, why in zip(asked, results, strict=True) if isinstance(why, Lost)]:
            raise IncompleteError(f"{len(found)} of {count} episodes were collected; {_told(missing)}", found)
        return found

    def status(self) -> dict[str, dict[str, Json]]:
        """Returns each worker's activity, slots, last sign of life (monotonic seconds) and last trouble.

        It is at most a second old while ``collect`` runs in another thread, and empty before the first policy.
        """
        if self._started is None:
            return {}
        return {name: asdict(worker) for name, worker in dict(self._started.context.status.workers).items()}

    def _repr_html_(self) -> str:
        """Shows in a notebook what the workers do."""
        workers = self.status().items()
        return html_table("Fleet", {name: f"{one['doing']}, {len(one['slots'])} slots" for name, one in workers})

    @contextmanager
    def _shown(self) -> Iterator[None]:
        """Shows a bar on stderr until the block ends, if it is a terminal or that of a notebook."""
        from digirl_dist.assembly.parts import follow_verdicts

        assert self._started is not None
        context = self._started.context
        if not redraws(sys.stderr):
            yield
            return
        with shown("", sys.stderr, context.status) as progress, context.events.heard_by(progress.listen):
            follow_verdicts(progress, context.settings)
            yield

    def close(self) -> None:
        """Ends the emulators and worker programs; a second call is harmless, and so is one in a forked child."""
        self._is_closed = True
        self._forgotten.detach()
        _open.discard(self)
        if self._process == os.getpid():
            self._stack.close()

    @staticmethod
    def _start_of(rollouts: Rollouts, seed: int | None, share: Share, label: str | None) -> int:
        if share not in SEEDS:
            raise SettingsError(f"share={share!r:.80} is none of {', '.join(SEEDS)}")
        return rollouts.seed(share, label) if seed is None else arguments.whole("seed", seed, 0, _LARGEST_SEED)

    def _send(
        self, act: Policy | Act | None, version: int | None = None, is_update: bool = False
    ) -> tuple[Rollouts, Checkpoint]:
        """Returns the fleet's rollouts and the policy as one of its checkpoints; None is the policy before.

        Of threads at once the first one starts the fleet.
        """
        with self._sending:
            if act is None and self._sent is None:
                raise SettingsError("who acts? The first call names it: act=Run(...).policy(), or a function")
            policy = self._sent[0] if act is None and self._sent else self._policy(act)
            self._start(policy)
            assert self._rollouts is not None
            if act is None and self._sent:  # whose weights need not be looked at for each rollout
                return self._rollouts, self._sent[1]
            changes = _acts_here(policy) and (is_update or act != self._acts)  # its weights are not seen here
            checkpoint, self._acts = self._checkpoint(policy, version, changes), act
            if changes:
                cast(contract.ActsAsNamed, policy.agent).named[checkpoint.iteration] = act
            return self._rollouts, checkpoint

    def _policy(self, act: Any) -> Policy:
        """Returns a policy as it is, or one that is a function of this process."""
        from digirl_dist.api.policy import Policy
        from digirl_dist.assembly.validate import refuse_keyless

        kind = Endpoints if isinstance(act, Endpoint) else FunctionAgent
        if isinstance(act, Policy) or not (callable(act) or kind is Endpoints):
            arguments.of_kind("policy", act, Policy, "a Policy, such as Run(...).policy(), a function or an Endpoint")
            return cast(Policy, act)
        if isinstance(act, Endpoint) and act != self._acts:  # each look reads the machine's certificates
            refuse_keyless("act=Endpoint(…)", act.settings, "agent", "endpoint")
        if self._sent is not None and type(self._sent[0].agent) is kind:
            return self._sent[0]
        made = kind(act)
        policy = Policy(lambda: made)
        if isinstance(act, Endpoint) and act.read is None:
            policy.settings = act.settings  # its emulators show texts as agent=endpoint reads them
        return policy

    def _start(self, policy: Policy) -> None:
        from digirl_dist.assembly.collector import open_fleet
        from digirl_dist.assembly.parts import build_device
        from digirl_dist.assembly.validate import Command, refuse_before_start
        from digirl_dist.settings import Inference

        if self._is_closed:
            raise SettingsError("this fleet is closed: open another one")
        if self._process != os.getpid():
            raise SettingsError(f"this fleet is that of process {self._process}, the parent: open another one here")
        if self._started is None:
            settings, acts_here = _acted_by(policy, self._settings), _acts_here(policy)
            if acts_here:
                settings = replace(settings, inference=Inference.host)
            refuse_before_start(settings, None, Command.fleet)
            device = build_device(settings, settings.emulator)  # as this agent uses it
            if acts_here:  # it may not know how probable its actions are
                device = replace(device, guard=replace(device.guard, knows_log_prob=False))
            with shown("start the fleet", sys.stderr if redraws(sys.stderr) else None), ExitStack() as undone:
                started = open_fleet(settings, device, policy.factory, self._folder, undone, acts_here)
                rollouts = Rollouts(started, self._first_round(self._folder))  # which is ours alone by now
                undone.callback(rollouts.close)
                rollouts.stream.acknowledge(self._acknowledged)
                self._stack.push(undone.pop_all())
            if self._is_closed:  # by another thread, which may have found nothing to take down
                self._stack.close()
                raise SettingsError("this fleet was closed while it started: open another one")
            self._started, self._rollouts, self._acknowledged = started, rollouts, []

    def _checkpoint(self, policy: Policy, wanted: int | None = None, changes: bool = False) -> Checkpoint:
        """The policy as it is now, under the version that is ``wanted``, or the number of policies before it."""
        from digirl_dist.storage.checkpoint import Checkpoints, describe

        state = {name: tensor.detach().cpu() for name, tensor in contract.state_of(policy.agent).items()}
        weights = describe(state)
        is_new = self._sent is None or self._sent[0] is not policy or self._sent[1].tensors != weights
        if changes or is_new or self._sent is None or wanted not in (None, self._sent[1].iteration):
            checkpoints = Checkpoints(self._folder / "checkpoints", keep=3, policy=policy.described)
            newest = checkpoints.newest()
            if _class_of((self._sent or [policy])[0].agent) is not _class_of(policy.agent):
                raise SettingsError("something else acts for this fleet; open a second Fleet for this")
            if newest is not None and _shapes(newest.tensors) != _shapes(weights):
                raise SettingsError(
                    f"this fleet runs another agent, whose weights are in {self._folder}; open a Fleet with another "
                    "save_path for this policy"
                )
            if newest is not None and self._is_the_same(policy, newest, weights) and wanted in (None, newest.iteration):
                self._sent = policy, newest
                return newest
            least = 0 if newest is None else newest.iteration + 1
            version = least if wanted is None else arguments.whole("version", wanted, least, _LARGEST_VERSION)
            self._sent = policy, checkpoints.save(version, state, {}, {})
        return self._sent[1]

    def _is_the_same(self, policy: Policy, newest: Checkpoint, weights: Mapping[str, TensorInfo]) -> bool:
        """Whether a fleet before this one acted with it last, which one that has just opened takes up."""
        return self._sent is None and bool(weights) and newest.tensors == weights and newest.policy == policy.described

    def _task(self, task: str | Task) -> Task:
        return self._chosen([task])[0]

    def _chosen(self, tasks: Sequence[str | Task] | None) -> Sequence[Task]:
        from digirl_dist.assembly.parts import refuse_unstorable

        known = {task.id: task for task in self._device.tasks}
        wanted = list(known) if tasks is None else tasks
        if isinstance(wanted, str) or not isinstance(wanted, Collection) or not len(wanted):
            raise SettingsError(f"tasks are a list of at least one task, not {tasks!r:.80}")
        if missing := [task for task in wanted if isinstance(task, str) and task not in known]:
            raise SettingsError(f"there is no task {missing[0]!r}; {nearest(missing[0], list(known))}")
        if wrong := [task for task in wanted if not isinstance(task, str | Task)]:
            raise SettingsError(f"{wrong[0]!r:.100} is neither a Task nor the id of one")
        chosen = [known[task] if isinstance(task, str) else task for task in wanted]
        refuse_unstorable(chosen)
        return chosen

    @staticmethod
    def _first_round(folder: Path) -> int:
        """After all that an earlier fleet began in the folder, also if it was killed and its workers live on."""
        trajectories = folder / "trajectories"
        paths = [*trajectories.glob("[0-9]*.parquet"), *trajectories.glob(".landing/[0-9]*")]
        leased = [grant.key.iteration for grant in LeaseLedger(folder / "leases.jsonl").known()]
        return max([int(path.stem) for path in paths] + leased, default=-1) + 1


def _acts_here(policy: Policy) -> bool:
    """Returns whether it is the caller's own: a function, or an endpoint."""
    return isinstance(policy.agent, contract.ActsAsNamed)


def _class_of(agent: Agent) -> type:
    """Returns an agent's class; where it has ``act`` alone, the user's, which is completed anew for each policy."""
    return type(agent).__bases__[0] if contract.ActsAlone in type(agent).__bases__[1:] else type(agent)


_open: weakref.WeakSet[Fleet] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Else the emulators and folders of a script that forgot its fleets would outlive it."""
    for fleet in list(_open):
        with suppress(Exception):  # Ray, say, may have ended before
            fleet.close()


def _close_aside(stack: ExitStack, process: int) -> None:
    """Closes a fleet that became garbage, which may be noticed in one of its own threads."""
    if process == os.getpid():
        threading.Thread(target=stack.close, name="close-fleet", daemon=True).start()


def _told(missing: Sequence[tuple[Rollout, Lost]]) -> str:
    """Returns what an error says of rollouts without an episode: each reason once."""
    of: dict[str, list[str]] = {}
    for rollout, lost in missing:
        of.setdefault(lost.reason, []).append(f"ticket {rollout.ticket.index} (task {rollout.ticket.task.id})")
    reasons = [*of.items()][:_SHOWN]
    return "\n  ".join(["missing:", *(f"{', '.join(places[:_SHOWN])}: {reason}" for reason, places in reasons)])


def _shapes(tensors: Mapping[str, TensorInfo]) -> dict[str, tuple[int, ...]]:
    return {name: info.shape for name, info in tensors.items()}


def _refuse_decided(keys: Collection[str], shown: str) -> None:
    for key in _DECIDED.keys() & keys:
        raise SettingsError(f"{shown.format(key)}: {_DECIDED[key]}; leave it out")


def _refuse_others_run(folder: Path) -> None:
    """Raises SettingsError for the folder of a training run, whose checkpoints and config.yaml would be replaced."""
    if (folder / "config.yaml").exists() and read_mapping(folder / "config.yaml").get("task_mode") != "evaluate":
        raise SettingsError(
            f"Fleet(save_path={str(folder)!r}): that is a training run, and a fleet writes checkpoints of its own -> "
            "name a new folder"
        )


def _acted_by(policy: Policy | None, settings: Settings) -> Settings:
    """Returns the settings with a policy's agent; before there is one, any agent may come."""
    from digirl_dist.settings.plugins import AGENT

    return replace(settings, agent=(policy and policy.settings) or AGENT.settings("custom")(entry_point=""))

"""Keys that are read only while another key has a certain value: given without it, they would silently do nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from digirl_dist.errors import SettingsError
from digirl_dist.settings.keys import is_below, key_of, written
from digirl_dist.settings.plugins import ALGORITHM


@dataclass(frozen=True)
class _Rule:
    """``key``, or the whole block of that name, is read only if another key, ``decider``, has one of the ``values``."""

    key: str
    decider: str
    values: tuple[str, ...] = ()
    """Empty: anything but null, 0, false and an empty list."""
    waits: bool = True
    """Whether a file may hold the key for the commands that choose what reads it. Then only an override is refused."""

    def is_broken(self, settings: Any) -> bool:
        """Returns whether nothing reads the key. False where the chosen option does not have it at all."""
        found = _value(settings, self.decider)
        return found is not _ABSENT and not (_word(found) in self.values if self.values else found)

    def refuse(self, given: str, settings: Any) -> None:
        """Raises SettingsError, which calls the key ``given``."""
        now = f"{self.decider}={_word(_value(settings, self.decider))}"
        readers = " or ".join(f"{self.decider}={each}" for each in self.values)
        remedy = f"add {readers}" if readers else f"set {self.decider}"
        raise SettingsError(f"{given} is not read with {now}: {remedy}, or leave {given} out")


_ABSENT = object()
_ONLINE = ("online", "offline_to_online")
_ON_WORKERS = (
    *("worker_ips", "worker_username", "worker_temp_path", "worker_run_path", "worker_python", "worker_torch_threads"),
    *("collector", "inference", "inference_batch", "inference_wait_ms", "push_dtype", "relay", "prefetch", "speculate"),
    *("dry_run", "dry_run_workers", "ssh", "slurm", "install"),
)
_OVER_SSH = ("worker_ips", "worker_username", "worker_run_path", "worker_python", "relay", "ssh", "slurm", "install")
_IMITATING, _SHARED = ("filtered_bc", "digirl", "grpo_replay"), ("hindsight", "erase_loops", "unsolved")
_RULES = (
    _Rule("predicate", "success", ("predicate",), waits=False),
    _Rule("offline.data", "train_mode", ("offline", "offline_to_online"), waits=False),
    _Rule("algorithm.kwargs", "algorithm.entry_point", waits=False),
    _Rule("trainer.shard_blocks", "trainer.shard", ("true",), waits=False),
    _Rule("judge", "success", ("judge",)),
    _Rule("offline.iterations", "train_mode", ("offline_to_online",)),
    _Rule("ahead", "train_mode", _ONLINE),
    _Rule("evaluation.episodes", "evaluation.every"),
    _Rule("inference_batch", "inference", ("host",)),
    _Rule("inference_wait_ms", "inference", ("host",)),
    _Rule("inference_wait_ms", "engine.name", ("transformers",)),
    _Rule("push_dtype", "inference", ("worker",)),
    _Rule("dry_run_workers", "dry_run", ("true",)),
    *(_Rule(key, "dry_run", ("false",)) for key in ("worker_ips", "slurm")),
    *(_Rule(key, "parallel", ("host",)) for key in _ON_WORKERS),
    *(_Rule(key, "collector.name", ("ssh",)) for key in _OVER_SSH),
    _Rule("train_algorithm", "algorithm.entry_point", ("null",)),
    *(_Rule(f"algorithm.{name}", "train_algorithm", (name,)) for name in ALGORITHM.names()),
    *(_Rule(f"algorithm.{name}", "algorithm.entry_point", ("null",)) for name in ALGORITHM.names()),
    *(_Rule(f"algorithm.{name}", "train_algorithm", _IMITATING) for name in _SHARED),
    _Rule("algorithm.hindsight.achieved", "algorithm.hindsight.most"),
    _Rule("algorithm.digirl.lam", "algorithm.digirl.advantage", ("paper",)),
    _Rule("algorithm.digirl.discount", "algorithm.digirl.advantage", ("code",)),
    _Rule("emulator.endless_updates", "emulator.updates"),
    _Rule("emulator.success_reward", "success", ("environment",)),
    _Rule("emulator.adb_server", "emulator.serials"),
    *(_Rule(f"emulator.{key}", "emulator.avd") for key in ("snapshot", "boots_at_once", "emulator_args")),
)


_OF_A_HOST = (
    *_ON_WORKERS,
    *("rollout_size", "ahead"),
    *("eval_iterations", "task_order", "media", "limits"),
)
_OF_RANKS = ("distributed",)


def refuse_unread_overrides(settings: Any, overrides: Sequence[str]) -> None:
    """Raises SettingsError for an override of a key that nothing reads in these settings.

    One that leaves its key empty, as ``predicate=null``, is fine.
    """
    for given in map(key_of, overrides):
        for rule in _RULES:
            if is_below(given, rule.key) and _value(settings, given) and rule.is_broken(settings):
                rule.refuse(given, settings)


def refuse_unread(settings: Any) -> None:
    """Raises SettingsError for a key that nothing reads, whoever gave it, unless it may wait in a file."""
    usual = replace(type(settings)(), trainer=type(settings.trainer)())
    for rule in _RULES:
        if not rule.waits and rule.is_broken(settings) and _value(settings, rule.key) != _value(usual, rule.key):
            rule.refuse(rule.key, settings)


def refuse_others_overrides(overrides: Sequence[str], ranks: bool) -> None:
    """Raises SettingsError for an override of a key that only the other command reads: that of a host, or of ranks."""
    others, command = (_OF_A_HOST, "digirl-dist run") if ranks else (_OF_RANKS, "python -m digirl_dist.train")
    for given in map(key_of, overrides):
        if any(is_below(given, other) for other in others):
            raise SettingsError(f"{given} is read by {command} alone: leave it out")


def _value(settings: Any, key: str) -> Any:
    """Returns the value of a dotted key, ``_ABSENT`` where these settings do not have it."""
    for name in key.split("."):
        settings = settings.get(name, _ABSENT) if isinstance(settings, Mapping) else getattr(settings, name, _ABSENT)
    return settings


def _word(value: Any) -> str:
    """Returns a value as the command line has it."""
    return value if isinstance(value, str) else written(value)

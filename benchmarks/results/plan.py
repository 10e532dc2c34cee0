"""Which runs the learning results are made of, and with which settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

SPLITS = "train", "test"
_ALGORITHMS = "algorithms"
_FIVE = (0, 1, 2, 3, 4)
"""Seeds where the question is which algorithm leads."""


@dataclass(frozen=True)
class Series:
    """Runs that differ by their seed alone: one curve, one line of a table.

    Each has ``iterations`` with ``episodes`` in each, after ``offline`` updates without any. ``seeds``: instead of
    those that are asked for. ``measured``: episodes of each split, on instances that training never meets, on which the
    last policy is measured. ``after``: the runs, one of each seed, whose policies these begin with. ``group``: where
    another group makes these runs, its name.
    """

    name: str
    iterations: int
    episodes: int
    overrides: tuple[str, ...]
    seeds: tuple[int, ...] | None = None
    offline: int = 0
    measured: int = 0
    after: Path | None = None
    group: str = ""

    @property
    def updates(self) -> int:
        """All iterations, with and without episodes."""
        return self.offline + self.iterations

    @property
    def follows(self) -> bool:
        """Whether other runs must end before these begin."""
        return self.after is not None or self.offline > 0


@dataclass(frozen=True)
class Group:
    """Series that are looked at together: a table and a picture."""

    name: str
    title: str
    text: str
    series: tuple[Series, ...]


@dataclass(frozen=True)
class Run:
    """One run and where it is kept."""

    series: Series
    seed: int
    folder: Path

    def overrides(self) -> list[str]:
        """What the ordinary entry is told."""
        return [
            "parallel=single",
            "keep_checkpoints=1",
            f"seed={self.seed}",
            f"rollout_size={self.series.episodes}",
            f"train_iterations={self.series.updates}",
            f"offline.iterations={self.series.offline}",
            f"save_path={self.folder}",
            *([] if self.series.after is None else [f"start_from={_of_seed(self.series.after, self.seed)}"]),
            *self.series.overrides,
        ]


@dataclass(frozen=True)
class Measurement:
    """The last policy of a run in one split of its tasks, and where the measurement is kept."""

    run: Run
    split: str

    @property
    def folder(self) -> Path:
        return self.run.folder.with_name(f"{self.run.folder.name}-{self.split}")

    def overrides(self) -> list[str]:
        """What the ordinary entry is told, for an evaluation."""
        return [
            "parallel=single",
            f"rollout_size={self.run.series.measured}",
            f"start_from={self.run.folder}",
            f"save_path={self.folder}",
            *self.run.series.overrides,
            f"task_split={self.split}",
        ]


def numbers(text: str) -> list[int]:
    """The seeds that a command line names, as ``0,1,2``."""
    return [int(word) for word in text.split(",")]


def measurements_of(run: Run) -> list[Measurement]:
    """Of the training wording and of the test split, if the run is to be measured."""
    return [Measurement(run, split) for split in SPLITS] if run.series.measured else []


def runs_of(group: Group, seeds: Sequence[int], root: Path) -> list[Run]:
    """All runs of a group, seed after seed, so that whoever stops early has whole seeds."""
    return [
        Run(series, seed, _of_seed(root / (series.group or group.name) / series.name, seed))
        for seed in dict.fromkeys([*(seed for series in group.series for seed in series.seeds or ()), *seeds])
        for series in group.series
        if seed in (series.seeds or seeds)
    ]


def _of_seed(folder: Path, seed: int) -> Path:
    return folder / f"seed-{seed}"


def shortened(group: Group) -> Group:
    """The same with four small iterations each: shows that everything runs, not that anything learns."""
    small = tuple(
        replace(one, iterations=4, episodes=16, offline=min(1, one.offline), measured=min(8, one.measured))
        for one in group.series
    )
    return replace(group, series=small)


def groups(root: Path) -> tuple[Group, ...]:
    """All of them; ``root`` is where the runs are kept, for those that learn from others."""
    return (_phone(), _algorithms(), _warm(root), _luck(root), _long(), _ablations(), _off2on(root))


def _phone() -> Group:
    return Group(
        "phone",
        "Demo phone",
        "Filtered cloning with its default settings. `default` is the task set of `script/demo`. `easy` opens all "
        "twelve apps, with two wordings each.",
        (
            Series("default", 14, 128, ("task_set=default",)),
            Series("easy", 14, 128, ("task_set=easy",)),
        ),
    )


def _algorithms() -> Group:
    return Group(
        _ALGORITHMS,
        "Algorithms on the multi-step tasks of the demo phone",
        "77 tasks of two to four steps. All rows have the same agent, the same number of episodes, and the shipped "
        "defaults of their algorithm.",
        (
            _on_multistep("filtered_bc"),
            _on_multistep("digirl-paper", "train_algorithm=digirl"),
            _on_multistep("digirl-code", "train_algorithm=digirl", "algorithm.digirl.advantage=code"),
            _on_multistep("grpo_replay", "train_algorithm=grpo_replay"),
        ),
    )


def _on_multistep(name: str, *told: str) -> Series:
    return Series(name, 14, 96, ("task_set=multistep", *told), measured=154)


def _long() -> Group:
    told = "task_set=long", "max_steps=12"
    return Group(
        "long",
        "Algorithms on the long tasks of the demo phone",
        "96 tasks of five or six steps: two things to do in different apps, each for half of the reward. An episode "
        "succeeds if it does both.",
        (
            Series("filtered_bc", 14, 96, told, measured=192),
            Series("digirl-paper", 14, 96, (*told, "train_algorithm=digirl"), measured=192),
            Series("grpo_replay", 14, 96, (*told, "train_algorithm=grpo_replay"), measured=192),
        ),
    )


def _warm(root: Path) -> Group:
    told, imitated = ("task_set=multistep",), root / "phone" / "default"
    return Group(
        "warm",
        "After imitation: reinforcement or more imitation",
        "Every run starts from the policy that filtered cloning of the same seed learned on the set `default` (first "
        "table). It continues with one algorithm on the 77 multi-step tasks, for the same number of episodes.",
        (
            Series("filtered_bc", 8, 96, told, measured=154, after=imitated),
            Series("grpo_replay", 8, 96, (*told, "train_algorithm=grpo_replay"), measured=154, after=imitated),
        ),
    )


def _luck(root: Path) -> Group:
    told, imitated = ("task_set=switches", "emulator.updates=2"), root / "luck" / "imitation"
    after: dict[str, tuple[str, ...]] = {
        "filtered_bc": (),
        "filtered_bc-alone": (
            "algorithm.hindsight.most=0", "algorithm.filtered_bc.actor.learning_rate=1e-3"
        ),
        "digirl-paper": (
            "train_algorithm=digirl", "algorithm.hindsight.most=0", "algorithm.digirl.lam=0.1",
            "algorithm.digirl.actor.learning_rate=1e-3",
        ),
        "grpo_replay": ("train_algorithm=grpo_replay",),
        "grpo": (
            "train_algorithm=grpo", "algorithm.grpo.group_size=4", "algorithm.grpo.clip_high=5",
            "algorithm.grpo.actor.learning_rate=5e-4",
        ),
    }  # fmt: skip
    return Group(
        "luck",
        "Where luck decides: reinforcement or more imitation",
        "42 tasks of six steps: an app, two updates that it offers, and a switch or a button. The first row learns "
        "them from nothing, on phones where every update ends. The other runs start from its policy of the same "
        "seed, which accepts most updates, on phones where three in ten accepted updates never end. To decline takes "
        "as many steps and always works. `grpo` learns from its groups alone (of four, with `clip_high=5`) "
        "at half the learning rate; `filtered_bc-alone` and `digirl-paper` also have half "
        "the learning rate, and no hindsight; `digirl-paper` has `lam=0.1`.",
        (
            Series("imitation", 10, 96, (*told, "emulator.endless_updates=0"), seeds=_FIVE),
            *(Series(name, 8, 96, (*told, *ours), _FIVE, measured=84, after=imitated) for name, ours in after.items()),
        ),
    )


def _ablations() -> Group:
    left_out: dict[str, tuple[str, ...]] = {
        "hindsight": ("algorithm.hindsight.most=0",),
        "loop-erasure": ("algorithm.erase_loops=false",),
        "unsolved": ("algorithm.unsolved=0",),
        "memory": ("agent.memory=0",),
        "saliency": ("agent.saliency=0",),
        "reluctance": ("agent.reluctance=0",),
        "context": ("agent.context=false",),
    }
    left_out["hindsight-unsolved"] = left_out["hindsight"] + left_out["unsolved"]
    return Group(
        "ablations",
        "What each ingredient is worth",
        "The 77 multi-step tasks of the demo phone. `filtered_bc` and `grpo_replay` are the complete algorithms, as "
        "above. Each row between them is cloning without what it names, of which `hindsight-unsolved` names two "
        "things. `grpo_replay-hindsight` has no hindsight.",
        (
            replace(_on_multistep("filtered_bc"), group=_ALGORITHMS),
            *(_on_multistep(name, *without) for name, without in left_out.items()),
            replace(_on_multistep("grpo_replay", "train_algorithm=grpo_replay"), group=_ALGORITHMS),
            _on_multistep("grpo_replay-hindsight", "train_algorithm=grpo_replay", "algorithm.hindsight.most=0"),
        ),
    )


def _off2on(root: Path) -> Group:
    data = root / "off2on" / "data" / "seed-100"
    learned = ("train_mode=offline_to_online", f"offline.data=[{data / 'trajectories'}]")
    return Group(
        "off2on",
        "Offline to online",
        "Demo phone, set `default`, filtered cloning. `offline-to-online` first makes ten updates from 512 stored "
        "episodes of `data`, a run of four iterations with another seed. It then continues as `online` does, with as "
        "many episodes of its own; the table counts only those. In total it learns from 1,088 episodes and `online` "
        "from 576, so the rows show what stored episodes are worth, not what equal numbers of episodes are.",
        (
            Series("data", 4, 128, ("task_set=default",), seeds=(100,)),
            Series("online", 6, 96, ("task_set=default",)),
            Series("offline-to-online", 6, 96, ("task_set=default", *learned), offline=10),
        ),
    )

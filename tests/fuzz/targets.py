"""What is fuzzed: each target has samples, makes a case from them by a generator, and feeds it to what reads it."""

from __future__ import annotations

import copy
import io
import json
import math
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import xxhash
from PIL import Image

from digirl_dist.agent.plugins.device import DeviceAgentSettings
from digirl_dist.emulator import DeviceActions, EmulatorSpec
from digirl_dist.emulator.episode_guard import EpisodeGuard
from digirl_dist.errors import CheckpointError
from digirl_dist.judge.model import Verdicts
from digirl_dist.protocol import messages as protocol
from digirl_dist.report.metrics import Metrics
from digirl_dist.storage import episode_file, import_digirl, parquet, task_file
from digirl_dist.storage.checkpoint import Checkpoint, Checkpoints
from digirl_dist.storage.run_folder import RunFolder
from digirl_dist.storage.trajectory_store import Store
from digirl_dist.tasks import Key
from digirl_dist.trajectory import Observation, Step, Trajectory
from fuzz.chat_answers import ChatAnswers
from fuzz.mutation import mutated, mutated_json, pages, with_other_values, with_right_checksums
from fuzz.target import Target
from fuzz.texts import Texts
from fuzz.wire import TICKET, Courier, Delta, Lines

_DIGEST_BYTES = 16
SPEC = EmulatorSpec(DeviceActions(), 2, (6, 4))
GUARD = EpisodeGuard("phone", SPEC, 50, DeviceAgentSettings().check_action)


def _picture(form: str) -> bytes:
    data = io.BytesIO()
    Image.fromarray(np.arange(72, dtype=np.uint8).reshape(6, 4, 3)).save(data, form)
    return data.getvalue()


def _episode(steps: int) -> Trajectory:
    seen = Observation("open it", _picture("png"), np.ones(2, np.float32))
    last = Observation("open it", _picture("jpeg"), np.zeros(2, np.float32))
    taken = [Step(seen, {"type": "tap", "x": 0.5, "y": 0.5}, -1.0, 0.5, False, False) for _ in range(steps - 1)]
    taken.append(Step(last, {"type": "back"}, -1.0, 1.0, True, False))
    return Trajectory(TICKET, "000001-00003-0-w1-0", "w1", 0, taken, last, True)


class Parquet(Target):
    """A file of trajectories: damaged, and damaged with right checksums; and whole ones with other values in them."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._path = folder / "e.parquet"
        parquet.write(self._path, [_episode(3)])
        self._table = parquet.to_table(_episode(3))
        packed = self._path.read_bytes()
        pq.write_table(self._table, self._path, **{**parquet.AS_WRITTEN, "compression": "none"})
        plain = self._path.read_bytes()
        parquet.write(self._path, [_episode(50)])
        self.samples = [packed, plain, self._path.read_bytes()]
        self._pages = [pages(data) for data in self.samples]

    def case(self, random: Random) -> bytes:
        choice = random.random()
        if choice < 0.3:
            return mutated(random, self.samples)
        if choice < 0.6:
            return self._with_other_values(random)
        number = random.randrange(len(self.samples))
        data, places = bytearray(self.samples[number]), self._pages[number]
        for _ in range(random.choice((1, 2, 5))):
            _, begin, end = random.choice(places)
            place = random.randrange(begin, end) if end > begin else begin
            data[place] = random.choice((0, 255, data[place] ^ (1 << random.randrange(8))))
        return with_right_checksums(bytes(data), places)

    def _with_other_values(self, random: Random) -> bytes:
        rows = self._table.to_pylist()
        for _ in range(random.choice((1, 2, 3))):
            row = random.choice(rows)
            inside = random.choice([row, *(value for value in row.values() if isinstance(value, dict))])
            name = random.choice(list(inside))
            inside[name] = random.choice(_VALUES)
        try:
            table = pa.Table.from_pylist(rows, schema=parquet.SCHEMA)
        except (pa.ArrowException, TypeError, ValueError, OverflowError, AttributeError):
            table = pa.Table.from_pylist(self._table.to_pylist() * random.choice((0, 2, 20)), schema=parquet.SCHEMA)
        options = random.choice(({}, {"use_dictionary": True}, {"data_page_version": "2.0"}, {"row_group_size": 1}))
        out = io.BytesIO()
        pq.write_table(table, out, **{**parquet.AS_WRITTEN, **options})
        return out.getvalue()

    def feed(self, data: bytes) -> None:
        self._path.write_bytes(data)
        for episode in parquet.stream(self._path):
            GUARD.check(episode, TICKET, "w1")


class Episodes(Target):
    """An episode's file as a worker sends it: damaged, or with a right digest and other values."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._path = folder / "e.episode"
        self.samples = [episode_file.encode(_episode(steps)) for steps in (3, 50)]
        self._values: list[Any] = []
        for sample in self.samples:
            rows, images = msgspec.msgpack.decode(sample[_DIGEST_BYTES:])
            self._values.append([msgspec.msgpack.decode(zlib.decompress(rows)), images])

    def case(self, random: Random) -> bytes:
        choice = random.random()
        if choice < 0.1:
            return mutated(random, self.samples)
        rows, images = copy.deepcopy(random.choice(self._values))
        packed = msgspec.msgpack.encode(rows)
        if choice < 0.4:
            packed = mutated(random, [packed])
        else:
            with suppress(UnicodeEncodeError, OverflowError):  # values that no MessagePack can hold
                packed = msgspec.msgpack.encode(with_other_values(random, rows))
        content = msgspec.msgpack.encode([zlib.compress(packed, 1), images])
        if choice > 0.9:
            content = mutated(random, [content])
        return xxhash.xxh3_128_digest(content) + content

    def feed(self, data: bytes) -> None:
        self._path.write_bytes(data)
        GUARD.check(episode_file.read(self._path, GUARD.most_steps), TICKET, "w1")


_VALUES: tuple[Any, ...] = (
    *(None, math.nan, math.inf, -math.inf, 1e38, 0, -1, 2**31 - 1, 2**62, True, "", "x" * 100_000, "[" * 5000, "{}"),
    *(
        '{"type": "tap", "x": NaN, "y": 1}',
        '{"type": []}',
        "1e999",
        "\x00",
        b"",
        b"\x89PNG\r\n\x1a\n",
        [],
        [math.nan] * 2,
    ),
    *([1.0] * 10_000, [1.0, 2.0, 3.0], {"text": None, "image": b"", "vector": None}),
)


class Released(Target):
    """A ``.pt`` file of trajectories as DigiRL released them."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        row = {
            "observation": "Goal: open it",
            "next_observation": "Goal: open it",
            "image_features": np.ones(4, np.float32),
            "next_image_features": torch.ones(4, dtype=torch.bfloat16),
            "task": "open it",
            "reward": np.float64(1.0),
            "done": np.bool_(True),
            "action": "tap",
        }
        self._path = folder / "general.pt"
        self.samples = []
        for is_zip in (True, False):
            torch.save([[row, row], [row]], self._path, _use_new_zipfile_serialization=is_zip)
            self.samples.append(self._path.read_bytes())

    def feed(self, data: bytes) -> None:
        self._path.write_bytes(data)
        import_digirl.read(self._path)


class Manifests(Target):
    """The small files of a run folder and of a worker's: manifests, notes, lists, figures."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._run = RunFolder(folder / "run", "")
        self._store, self._checkpoints = Store(self._run.trajectories), Checkpoints(self._run.checkpoints)
        saved = self._checkpoints.save(0, {"w": torch.ones(3)}, {}, {"loss": 1.0})
        self._checkpoints.rate(saved, 0.5)
        self._store.refused.add(_episode(2), "it broke")
        key = Key(1, 3)
        manifest = protocol.EpisodeManifest("r1", key, 0, 1, "e", 9, "0f", 0, 1.0, 0.5, {"step": 0.5})
        metrics, verdicts = self._run.metrics, self._run.verdicts
        metrics.write_text(json.dumps({"iteration": 0, "episodes": 4}) + "\n")
        verdicts.write_text(json.dumps({"question": "q", "success": True, "said": "yes"}) + "\n")
        paths = {
            self._run.root / "run.json": self._reopen,
            saved.folder / "manifest.json": lambda: self._checkpoints.open(0).state(),
            saved.folder / "metrics.json": lambda: self._checkpoints.open(0).metrics(),
            self._run.checkpoints / "best.json": self._checkpoints.best,
            self._run.trajectories / ".refused" / "000001-00003.json": self._store.refused.all,
            metrics: lambda: Metrics(metrics),
            verdicts: lambda: Verdicts(verdicts),
        }
        self._readers: list[tuple[Path, Callable[[], Any]]] = list(paths.items())
        self._whole = [path.read_bytes() for path, _ in self._readers]
        self.samples = [bytes([number]) + data for number, data in enumerate(self._whole)]
        self.samples.append(bytes([255]) + protocol.encode_manifest(manifest))

    def _reopen(self) -> None:
        RunFolder(self._folder / "again", "").close()

    def case(self, random: Random) -> bytes:
        sample = random.choice(self.samples)
        return sample[:1] + mutated_json(random, [sample[1:]])

    def feed(self, data: bytes) -> None:
        if data[0] >= len(self._readers):
            protocol.decode_manifest(data[1:])
            return
        path, read = self._readers[data[0]]
        if path.name == "run.json":
            path = self._folder / "again" / "run.json"
            path.parent.mkdir(exist_ok=True)
        path.write_bytes(data[1:])
        try:
            read()
        finally:
            path.write_bytes(self._whole[data[0]])


class TrainerState(Target):
    """``trainer.pt`` and the weights of a checkpoint, which have digests: nothing altered is read.

    Whoever made the checkpoint made the digests as well, so ``trainer.pt`` is read without its own, too.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._checkpoints = Checkpoints(folder / "checkpoints")
        trainer = {"algorithm": {"step": 3, "moments": torch.ones(9)}, "replayed": 4}
        saved = self._checkpoints.save(0, {"w": torch.ones(3)}, trainer, {})
        self._readers = {
            saved.folder / "trainer.pt": Checkpoint.trainer_state,
            saved.folder / "policy.safetensors": Checkpoint.state,
        }
        self.samples = [place.read_bytes() for place in self._readers]

    def feed(self, data: bytes) -> None:
        self._read_as_given(data)
        pairs = zip(self._readers, self.samples, strict=True)
        read = [place.name for place, whole in pairs if self._reads(place, data, whole)]
        if read:
            raise AssertionError(f"altered files were read: {read}")
        if data not in self.samples:
            raise CheckpointError("altered files are refused")

    def _read_as_given(self, data: bytes) -> None:
        place = next(iter(self._readers))
        place.write_bytes(data)
        with suppress(CheckpointError):
            replace(self._checkpoints.open(0), files={}).trainer_state()
        place.write_bytes(self.samples[0])

    def _reads(self, place: Path, data: bytes, whole: bytes) -> bool:
        """Returns whether the file is read with this content, although that is not its own."""
        place.write_bytes(data)
        try:
            self._readers[place](self._checkpoints.open(0))
        except CheckpointError:
            return False
        finally:
            place.write_bytes(whole)
        return data != whole


class Yaml(Target):
    """A list of tasks in YAML."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._path = folder / "tasks.yaml"
        self.samples = [
            b"train:\n- open the clock\n- id: a\n  instruction: open it\n  params: {app: clock, x: 1.5}\ntest: [two]\n",
            b"- &a {id: a, instruction: go}\n- {<<: *a, id: b}\n- {id: c, params: {when: 2024-01-02, n: 0x1f}}\n",
            b'[{"id": "a", "instruction": "b", "split": "train"}, "c\\u00e9"]',
            b"a0: &a0 [x, x]\na1: &a1 [*a0, *a0, *a0]\na2: [*a1, *a1, *a1]\n",
        ]

    def feed(self, data: bytes) -> None:
        self._path.write_bytes(data)
        task_file.from_file(str(self._path), "train")


TARGETS: dict[str, Callable[[Path], Target]] = {
    "lines": Lines,
    "courier": Courier,
    "delta": Delta,
    "parquet": Parquet,
    "episode": Episodes,
    "pt": Released,
    "manifest": Manifests,
    "trainer": TrainerState,
    "yaml": Yaml,
    "judge": ChatAnswers,
    "texts": Texts,
}

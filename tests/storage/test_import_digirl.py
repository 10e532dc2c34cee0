"""DigiRL's released trajectory files become ours; a file that would run something is refused before it does."""

from __future__ import annotations

import os
import pickle
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from digirl_dist.errors import TrajectoryError
from digirl_dist.storage import parquet
from digirl_dist.storage.import_digirl import main, read
from digirl_dist.storage.safe_torch_load import load_plain


def released(steps: int, won: bool, features: Any = np.ndarray) -> list[dict[str, Any]]:
    """A trajectory in the released layout, NumPy's scalars included."""
    rows = []
    for step in range(steps):
        reward = np.float64(won and step == steps - 1)
        seen = [np.full(1408, step + after, np.float32) for after in (0, 1)]
        rows.append(
            {
                "observation": f"Previous Actions: {step} Goal: open the clock",
                "next_observation": f"Previous Actions: {step + 1} Goal: open the clock",
                "image_features": seen[0] if features is np.ndarray else torch.tensor(seen[0], dtype=torch.bfloat16),
                "next_image_features": seen[1] if features is np.ndarray else torch.tensor(seen[1]),
                "image_path": f"/somewhere/else/{step}.png",
                "video_path": None,
                "task": "open the clock",
                "reward": reward,
                "done": np.bool_(step == steps - 1),
                "action": '"action_type": "DUAL_POINT"',
                "mc_return": np.float64(0.5 ** (steps - 1 - step) * won),
                "trajectory_reward": np.float64(won),
            }
        )
    return rows


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "general.pt"
    torch.save([released(3, won=True), [], released(2, won=False, features=torch.Tensor)], path)
    return path


def test_a_released_file_becomes_a_parquet_file_of_ours(file: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.parquet"
    assert main([str(file), str(target)]) == 0
    won, lost = parquet.read(target)
    assert (won.success, won.reward, len(won.steps)) == (True, 1.0, 3)
    assert (lost.success, lost.reward, len(lost.steps)) == (False, 0.0, 2)
    assert won.ticket.task.instruction == "open the clock"
    assert won.steps[1].observation.text == "Previous Actions: 1 Goal: open the clock"
    assert won.steps[1].action == '"action_type": "DUAL_POINT"'
    assert [step.terminated for step in won.steps] == [False, False, True]
    for trajectory in (won, lost):
        for number, step in enumerate(trajectory.steps):
            np.testing.assert_array_equal(step.observation.vector, np.full(1408, number, np.float32))
        np.testing.assert_array_equal(
            trajectory.final_observation.vector, np.full(1408, len(trajectory.steps), np.float32)
        )


def test_screenshots_belong_to_what_was_seen_after_the_step_that_names_them(file: Path, tmp_path: Path) -> None:
    (tmp_path / "0.png").write_bytes(b"after the first step")
    won, _ = read(file, images=tmp_path)
    assert won.steps[0].observation.image is None
    assert won.steps[1].observation.image == b"after the first step"


class Malicious:
    """Makes a file when it is unpickled in the plain way."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.marker}",)


def _as_torch(content: Any, path: Path) -> None:
    torch.save(content, path)


def _as_old_torch(content: Any, path: Path) -> None:
    torch.save(content, path, _use_new_zipfile_serialization=False)


def _as_pickle(content: Any, path: Path) -> None:
    path.write_bytes(pickle.dumps(content))


@pytest.mark.component
@pytest.mark.parametrize("save", [_as_torch, _as_old_torch, _as_pickle])
def test_a_malicious_file_is_refused_and_nothing_runs(save: Any, tmp_path: Path, capfd: Any) -> None:
    marker, path = tmp_path / "it_ran", tmp_path / "evil.pt"
    rows = released(2, won=True)
    rows[1]["action"] = Malicious(marker)
    save([rows], path)
    assert main([str(path), str(tmp_path / "out.parquet")]) == 1
    assert not marker.exists() and not (tmp_path / "out.parquet").exists()
    assert "is refused" in capfd.readouterr().err
    if save is _as_pickle:  # the file is not a dud: the plain way would have run it
        pickle.loads(path.read_bytes())
        assert marker.exists()


def test_arrays_of_objects_are_refused(tmp_path: Path) -> None:
    torch.save([np.array([Malicious(tmp_path / "it_ran")], dtype=object)], tmp_path / "objects.pt")
    with pytest.raises(TrajectoryError, match="refused"):
        load_plain(tmp_path / "objects.pt")
    assert not (tmp_path / "it_ran").exists()


@pytest.mark.parametrize("kind", ["f2", "f4", ">f8", "i8", "u1", "?"])
def test_numeric_arrays_come_through_as_they_are(kind: str, tmp_path: Path) -> None:
    array = np.arange(6).reshape(2, 3).astype(kind)
    torch.save({"c": array, "fortran": np.asfortranarray(array), "scalar": array[1, 2]}, tmp_path / "a.pt")
    loaded = load_plain(tmp_path / "a.pt")
    np.testing.assert_array_equal(loaded["c"], array)
    np.testing.assert_array_equal(loaded["fortran"], array)
    assert loaded["c"].dtype == array.dtype and loaded["scalar"] == array[1, 2]


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    rows = released(2, won=True)
    del rows[1]["reward"]
    torch.save([rows], tmp_path / "a.pt")
    with pytest.raises(TrajectoryError, match="trajectory 0, step 1 has no 'reward'"):
        read(tmp_path / "a.pt")


class Allocates:
    """In a pickle: a call of something harmless whose result is large."""

    def __init__(self, call: Any, *arguments: Any) -> None:
        self._reduced = (call, arguments)

    def __reduce__(self) -> Any:
        return self._reduced


def nested(depth: int) -> list[Any]:
    """Twice itself at each level: 2 ** depth values when written out."""
    value: list[Any] = ["x"]
    for _ in range(depth):
        value = [value, value]
    return value


def inside_itself() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.component
@pytest.mark.parametrize(
    "content",
    [
        Allocates(bytearray, 10**10),
        Allocates(torch.FloatStorage, 10**9),
        torch.zeros(1).expand(10**10),
        [[{**released(1, True)[0], "image_features": torch.zeros(1).expand(10**9)}]],
        [[{**released(1, True)[0], "image_features": torch.sparse_coo_tensor(size=(10**9,))}]],
        [[{**released(1, True)[0], "observation": "x" * 100_000}] * 100_000],
        [released(1, True)] * 1_000_000,
        nested(60),
        inside_itself(),
    ],
    ids=["bytearray", "storage", "expanded", "features", "sparse", "text", "episodes", "nested", "itself"],
)
def test_a_file_that_stands_for_more_than_memory_holds_is_refused(content: Any, tmp_path: Path) -> None:
    path = tmp_path / "bomb.pt"
    torch.save(content, path)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(TrajectoryError, match=r"bomb\.pt"):
        read(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 256 << 10, "KiB"


@pytest.mark.parametrize("key", ["reward", "image_features"])
def test_numbers_that_are_none_are_refused(key: str, tmp_path: Path) -> None:
    rows = released(2, won=True)
    rows[1][key] = rows[1][key] * np.nan
    torch.save([rows], tmp_path / "nan.pt")
    with pytest.raises(TrajectoryError, match=r"nan\.pt, trajectory 0"):
        read(tmp_path / "nan.pt")

"""Trajectories survive their way through Parquet, and what is not one is refused."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from image_files import encoded
from PIL import Image

from digirl_dist.errors import TrajectoryError
from digirl_dist.storage import parquet
from digirl_dist.tasks import Task, Ticket
from digirl_dist.trajectory import Observation, Step, Trajectory


def png(shade: int) -> bytes:
    return encoded(Image.new("RGB", (4, 6), (shade, 0, 0)))


def episode(index: int = 0, steps: int = 3) -> Trajectory:
    taken = [
        Step(Observation("open it", png(k), None), {"type": "tap", "x": 0.5, "y": k / 10}, -0.5 * k, 0.0, False, False)
        for k in range(steps - 1)
    ]
    vector = np.array([1.5, 2.5], np.float32)
    last, met = Observation("open it", png(9), vector), ({"app": "Clock"},)
    taken.append(Step(last, {"type": "done"}, -0.25, 1.0, True, False, met))
    task = Task("open_clock", "open it", {"app": "Clock", "on": True, "within": [1, 0.5, None]})
    ticket = Ticket(4, index, task, seed=99, policy_version=4)
    return Trajectory(ticket, f"e{index}", "w1", 2, taken, Observation("open it", png(200)), success=True)


def test_an_episode_reads_back_as_it_was_written(tmp_path: Path) -> None:
    written = episode()
    parquet.write(tmp_path / "e.parquet", [written])
    (read,) = parquet.read(tmp_path / "e.parquet")
    assert (read.ticket, read.episode_id, read.worker, read.slot) == (written.ticket, "e0", "w1", 2)
    assert [step.action for step in read.steps] == [step.action for step in written.steps]
    assert [step.observation.image for step in read.steps] == [step.observation.image for step in written.steps]
    assert read.steps[2].observation.vector is not None
    assert read.steps[2].observation.vector.tolist() == [1.5, 2.5]
    assert (read.reward, read.success, read.steps[2].terminated) == (1.0, True, True)
    assert read.final_observation.image == png(200)
    assert [list(step.achieved) for step in read.steps] == [[], [], [{"app": "Clock"}]]


@pytest.mark.parametrize("said", ["{}", "[1]", "[", "null"])
def test_goals_that_are_no_goals_are_refused(said: str) -> None:
    table = parquet.to_table(episode())
    altered = table.set_column(table.schema.get_field_index("achieved"), "achieved", pa.array([said] * len(table)))
    with pytest.raises(TrajectoryError, match="goals|row"):
        parquet.from_table(altered)


@pytest.mark.parametrize("said", ["[]", "[", "null", '{"app": "Maps"}'])
def test_params_that_are_none_or_differ_are_refused(said: str) -> None:
    table = parquet.to_table(episode())
    first = table["params"].to_pylist()[0]
    rows = [first, *[said] * (len(table) - 1)] if said.startswith("{") else [said] * len(table)
    altered = table.set_column(table.schema.get_field_index("params"), "params", pa.array(rows))
    with pytest.raises(TrajectoryError, match="params|row"):
        parquet.from_table(altered)


def test_an_episode_is_a_small_part_of_a_large_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A viewer that shows one does not unpack the screenshots of all."""
    noise = np.random.default_rng(0)
    monkeypatch.setattr(parquet, "_GROUP_BYTES", 1 << 20)
    episodes = [episode(number, steps=30) for number in range(4)]
    for step in (step for one in episodes for step in one.steps):
        object.__setattr__(step.observation, "image", noise.bytes(60_000))
    parquet.write(tmp_path / "e.parquet", episodes)
    with pq.ParquetFile(tmp_path / "e.parquet") as file:
        assert [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)] == [30] * 4
    with parquet.opened(tmp_path / "e.parquet") as bounded:
        allocated = pa.total_allocated_bytes()
        assert next(bounded.batches(1, first=60))["ticket"].to_pylist() == [2]
        assert pa.total_allocated_bytes() < allocated + (4 << 20)


def test_a_file_keeps_its_episodes_in_order(tmp_path: Path) -> None:
    parquet.write(tmp_path / "e.parquet", [episode(2), episode(0), episode(1)])
    assert [read.ticket.index for read in parquet.read(tmp_path / "e.parquet")] == [2, 0, 1]


def test_an_observation_is_stored_once(tmp_path: Path) -> None:
    rows = parquet.to_table(episode()).to_pylist()
    assert [row["final_text"] is None for row in rows] == [True, True, False]


@pytest.mark.parametrize("keep", [0, 10, 500])
def test_a_truncated_file_is_refused_by_name(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "e.parquet"
    parquet.write(path, [episode()])
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(TrajectoryError, match=r"e\.parquet is not a trajectory file"):
        parquet.read(path)


def test_foreign_columns_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1]}), tmp_path / "e.parquet")
    with pytest.raises(TrajectoryError, match="columns"):
        parquet.read(tmp_path / "e.parquet")


def test_an_episode_with_a_missing_step_is_refused() -> None:
    whole = parquet.to_table(episode())
    with pytest.raises(TrajectoryError, match="episode e0 is not complete"):
        parquet.from_table(pa.concat_tables([whole.slice(0, 1), whole.slice(2)]))


@pytest.mark.component
def test_pandas_and_datasets_open_the_file_and_images_decode(tmp_path: Path) -> None:
    import datasets
    import pandas as pd

    parquet.write(tmp_path / "000000.parquet", [episode(0), episode(1)])
    frame = pd.read_parquet(tmp_path / "000000.parquet")
    assert len(frame) == 6 and Image.open(io.BytesIO(frame["image"][0]["bytes"])).size == (4, 6)
    rows = datasets.load_dataset(
        "parquet", data_files=str(tmp_path / "*.parquet"), split="train", cache_dir=str(tmp_path / "cache")
    )
    assert len(rows) == 6 and rows[0]["image"].size == (4, 6)

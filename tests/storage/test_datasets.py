"""Trajectories from elsewhere are read as they are: Parquet, folders of it, and what ``datasets`` saved."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from digirl_dist.errors import TrajectoryError
from digirl_dist.storage import episode_file, parquet
from digirl_dist.storage.datasets import read_datasets
from digirl_dist.tasks import Purpose, Task, Ticket
from digirl_dist.trajectory import Observation, Step, Trajectory


def episode(iteration: int, index: int, steps: int = 3) -> Trajectory:
    rows = [
        Step(Observation("go", b"png", np.full(2, at, np.float32)), {"type": "back"}, -0.5, float(at), False, False)
        for at in range(steps)
    ]
    ticket = Ticket(iteration, index, Task("t", "go"), 3, 1)
    return Trajectory(ticket, f"{iteration}-{index}", "w", 0, rows, Observation("go"), True)


PURPOSES: list[Purpose] = ["train", "evaluate", "measure"]
EPISODES = [episode(0, 0), episode(0, 1), episode(1, 0, steps=1)]


def written(folder: Path) -> Path:
    """The trajectories of a run with two iterations, and of one that goes on."""
    (folder / ".landing" / "000002").mkdir(parents=True)
    parquet.write(folder / "000000.parquet", EPISODES[:2])
    parquet.write(folder / "000001.parquet", EPISODES[2:])
    episode_file.write(folder / ".landing" / "000002" / "00000.episode", episode(2, 0))
    return folder


def described(episodes: list[Trajectory]) -> list[str]:
    return [json.dumps(parquet.to_table(each).to_pylist(), default=repr) for each in episodes]


def test_the_finished_iterations_of_a_run_are_read(tmp_path: Path) -> None:
    assert described(read_datasets([str(written(tmp_path / "a"))])) == described(EPISODES)


def test_identity_by_place_episodes_of_other_purposes_or_measured_policies_are_not_mixed(tmp_path: Path) -> None:
    """Their rows were sorted among each other, because iteration and ticket are equal."""
    tickets = [replace(EPISODES[0].ticket, purpose=purpose) for purpose in PURPOSES]
    tickets.append(replace(tickets[-1], policy_version=2))
    found = [replace(EPISODES[0], ticket=ticket, episode_id=ticket.key.name) for ticket in tickets]
    for number, one in enumerate(found):
        parquet.write(tmp_path / f"{number:06d}.parquet", [one])
    assert sorted(described(read_datasets([str(tmp_path)]))) == sorted(described(found))


def test_a_folder_that_datasets_saved_is_read(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    loaded = datasets.Dataset(pa.concat_tables([parquet.to_table(each) for each in EPISODES]))
    loaded.save_to_disk(tmp_path / "saved", num_shards=2)
    datasets.DatasetDict({"train": loaded.shuffle(seed=1)}).save_to_disk(tmp_path / "shuffled")
    for name in ("saved", "shuffled"):
        assert described(read_datasets([str(tmp_path / name)])) == described(EPISODES)


@pytest.mark.component
@pytest.mark.nightly  # it writes and reads them for half a minute
def test_more_than_2_gib_of_screenshots_are_read(tmp_path: Path) -> None:
    """Arrow's columns of them end there. Equal ones take no memory once they are read."""
    seen = Observation("go", bytes(4 << 20))
    steps = [Step(seen, {"type": "back"}, -0.5, 0.0, False, False)] * 60
    for number in reversed(range(9)):
        one = replace(episode(number, 0), steps=steps, final_observation=seen)
        parquet.write(tmp_path / f"{9 - number:06d}.parquet", [one], flushed=False)
    found = read_datasets([str(tmp_path)])
    assert [each.ticket.iteration for each in found] == [*range(9)]
    assert sum(len(step.observation.image or b"") for each in found for step in each.steps) > 1 << 31


def test_a_damaged_file_of_a_folder_is_named(tmp_path: Path) -> None:
    (written(tmp_path / "a") / "000001.parquet").write_bytes(b"PAR1")
    with pytest.raises(TrajectoryError, match=r"a holds no trajectories of this project: .*000001\.parquet: "):
        read_datasets([str(tmp_path / "a")])


def test_further_columns_and_wider_types_do_no_harm(tmp_path: Path) -> None:
    rows = parquet.to_table(EPISODES[0])
    wider = rows.set_column(rows.schema.get_field_index("task"), "task", rows["task"].cast(pa.large_string()))
    pq.write_table(wider.append_column("note", pa.array(["x"] * len(rows))), tmp_path / "a.parquet")
    assert described(read_datasets([str(tmp_path / "a.parquet")])) == described(EPISODES[:1])


def test_what_holds_no_trajectories_is_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "foreign.parquet")
    with pytest.raises(TrajectoryError, match=r"foreign\.parquet holds no trajectories"):
        read_datasets([str(tmp_path / "foreign.parquet")])
    with pytest.raises(TrajectoryError, match="nowhere is no Parquet file and no folder"):
        read_datasets([str(tmp_path / "nowhere")])


def test_a_file_in_which_few_bytes_stand_for_many_is_refused_before_it_takes_memory(tmp_path: Path) -> None:
    rows = pa.concat_tables([parquet.to_table(episode(0, 0, steps=1))] * 16)
    text = pa.array(["a" * (1 << 20)]).take(pa.array([0] * 16, pa.int32()))
    rows = rows.set_column(rows.schema.get_field_index("instruction"), "instruction", text)
    with pq.ParquetWriter(tmp_path / "bomb.parquet", rows.schema, compression="zstd") as writer:
        for _ in range(40):
            writer.write_table(rows)
    assert (tmp_path / "bomb.parquet").stat().st_size < 1 << 20
    with pytest.raises(TrajectoryError, match=r"bomb.parquet would unpack to more than \d+ bytes"):
        read_datasets([str(tmp_path / "bomb.parquet")])


def test_an_episode_with_a_reward_that_would_end_the_update_is_named(tmp_path: Path) -> None:
    one = episode(0, 0)
    parquet.write(tmp_path / "a.parquet", [replace(one, steps=[replace(step, reward=3e38) for step in one.steps])])
    with pytest.raises(TrajectoryError, match=f"episode {one.episode_id}: the reward is 3e\\+38"):
        read_datasets([str(tmp_path)])

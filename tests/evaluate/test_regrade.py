"""``digirl-dist regrade``: new verdicts beside the old ones, once for each episode, by nobody whom a stranger names."""

from __future__ import annotations

import hashlib
import json
import pickle
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from chat_server import endpoint, says
from run_files import lines
from small_run import make_run

from digirl_dist import Run
from digirl_dist.cli.main import main
from digirl_dist.errors import RunFolderError, SettingsError
from digirl_dist.storage import verdicts

pytestmark = pytest.mark.component

Regrade = Callable[..., tuple[int, str, str]]


@pytest.fixture
def regrade(capsys: pytest.CaptureFixture[str]) -> Regrade:
    def act(folder: Path, *words: str, success: str = "predicate") -> tuple[int, str, str]:
        status = main(["regrade", str(folder), "--success", success, *words])
        return status, *capsys.readouterr()

    return act


def digests(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file() and "verdicts" not in path.parts)
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_each_episode_is_judged_once_whatever_ends_it_and_the_old_verdicts_stay(
    regrade: Regrade, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, asked = make_run(tmp_path / "run", iterations=2), tmp_path / "asked"
    monkeypatch.setenv("ASKED", str(asked))
    before, words = digests(folder), "predicate=user_classes:notes_each_and_fails_at_the_fourth"
    status, _, said = regrade(folder, words)
    assert status == 1 and "notes_each_and_fails_at_the_fourth, episode 0-3: ConnectionError" in said
    file = folder / "verdicts" / "predicate.jsonl"
    with file.open("a") as half_a_line:
        half_a_line.write('{"key": "t1.')
    (tmp_path / "asked.repaired").touch()
    said = f"{file}: 9 episodes judged, 3 were before; success 0.50, was 0.17\n"
    assert regrade(folder, words)[:2] == (0, said)
    assert regrade(folder, words)[1].startswith(f"{file}: 0 episodes judged, 12 were before")
    keys = [f"t{iteration}.{ticket}" for iteration in range(2) for ticket in range(6)]
    assert asked.read_text().split() == [*keys[:4], *keys[3:]], "the one that failed was asked about again"
    first, *given = lines(file)
    assert first["judge"]["predicate"] == words.removeprefix("predicate=")
    assert [one["key"] for one in given] == keys and {one["score"] for one in given} == {0.0, 1.0}
    assert digests(folder) == before
    run = Run(folder)
    assert run.episodes().table["success"].to_pylist() != [key[-1] in "135" for key in keys]
    chosen = run.episodes(verdicts="predicate")
    assert chosen.table["success"].to_pylist() == [key[-1] in "135" for key in keys]
    assert [one.reward for one in chosen] == chosen.table["reward"].to_pylist()


class Counted(dict[str, Any]):
    """Notes how often all of it is gone through."""

    times = 0

    def __iter__(self) -> Iterator[str]:
        return super().__iter__()

    def keys(self) -> Any:
        Counted.times += 1
        return super().keys()


def test_verdicts_that_were_there_are_gone_through_once_and_not_for_each_episode(
    regrade: Regrade, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, read = make_run(tmp_path / "run", iterations=1), verdicts.read
    assert regrade(folder, "predicate=user_classes:half")[0] == 0
    monkeypatch.setattr(verdicts, "read", lambda *where: Counted(read(*where)))
    assert regrade(folder, "predicate=user_classes:half")[1].startswith(f"{folder / 'verdicts/predicate.jsonl'}: 0 ep")
    assert Counted.times <= 1


def test_a_grade_between_is_the_reward_and_no_success(regrade: Regrade, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", iterations=1)
    assert regrade(folder, "predicate=user_classes:half", "--name", "graded")[0] == 0
    chosen = pickle.loads(pickle.dumps(Run(folder).episodes(verdicts="graded")))
    assert chosen.table["reward"].to_pylist() == [0.5] * 6 and not any(one.success for one in chosen)
    assert main(["export", str(folder), str(tmp_path / "out"), "--to", "datasets", "--verdicts", "graded"]) == 0
    rows = pq.read_table(tmp_path / "out" / "data").to_pylist()
    assert sum(row["reward"] for row in rows) == 3.0 and not any(row["success"] for row in rows)


def test_a_model_may_grade(regrade: Regrade, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", iterations=1)
    with endpoint() as served:
        served.script = [says("It is half of it.\nVerdict: 0.5"), says("Verdict: 7/10"), says("Verdict: yes")]
        words = [f"judge.base_url={served.url}", "judge.key_variable=''", "judge.model=m", "judge.parallel=1"]
        assert regrade(folder, *words, success="judge")[0] == 0
    scores = [one.score for one in verdicts.read(folder, "judge").values()]
    assert scores == [0.5, 0.5, 1.0, 1.0, 1.0, 1.0]
    assert len(served.requests) == 4, "one for each of three pairs of equal episodes, and one for a fraction of ten"


def test_verdicts_of_two_judges_or_names_that_are_none_do_not_meet(regrade: Regrade, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", iterations=1)
    assert regrade(folder, "predicate=user_classes:half")[0] == 0
    status, _, said = regrade(folder, "predicate=user_classes:second_action_is_one")
    assert status == 2 and "another judge" in said and "--name" in said
    for name in ("../judge", ".", "a/b", "x" * 65):
        status, _, said = regrade(folder, "predicate=user_classes:half", "--name", name)
        assert status == 2 and "is no name of verdicts" in said
    with pytest.raises(RunFolderError, match="no verdicts 'predicat'.*did you mean 'predicate'"):
        Run(folder).episodes(verdicts="predicat")
    with pytest.raises(SettingsError, match="of episodes"):
        Run(folder).export("policy", tmp_path / "out", verdicts="predicate")
    with verdicts.VerdictFile(folder, "held", {}), pytest.raises(RunFolderError, match="by another process"):
        verdicts.VerdictFile(folder, "held", {})


def test_an_export_of_half_judged_episodes_names_what_is_missing(regrade: Regrade, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", iterations=1)
    assert regrade(folder, "predicate=user_classes:half")[0] == 0
    file = folder / "verdicts" / "predicate.jsonl"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))
    assert len(Run(folder).episodes(verdicts="predicate")) == 5
    with pytest.raises(RunFolderError, match=r"episode t0\.5 has no such verdict"):
        Run(folder).export("datasets", tmp_path / "out", verdicts="predicate")


def test_nothing_that_a_strangers_folder_names_is_called_or_written_to(regrade: Regrade, tmp_path: Path) -> None:
    """Class 11: ``predicate``, a judge's server, a folder that leads elsewhere, verdicts that are none."""
    folder, elsewhere = make_run(tmp_path / "run", iterations=1), tmp_path / "elsewhere"
    elsewhere.mkdir()
    config = folder / "config.yaml"
    own = config.read_text()
    config.write_text(own.replace("predicate: null", "predicate: antigravity:geohash"))
    assert "antigravity:geohash" in config.read_text()
    status, _, said = regrade(folder)
    assert status == 2 and "--trust" in said and "antigravity" not in sys.modules
    config.write_text(own.replace("base_url: null", "base_url: http://127.0.0.1:9/v1"))
    status, _, said = regrade(folder, "judge.key_variable=''", success="judge")
    assert status == 2 and "--trust" in said and not (folder / "verdicts").exists()
    theirs = own.replace("worker_ips: []", "worker_ips: [evil.example.org]")
    assert theirs != own
    config.write_text(theirs)
    assert regrade(folder, "predicate=user_classes:half", "--name", "mine")[0] == 0, "what is not used is no danger"
    shutil.rmtree(folder / "verdicts")
    (folder / "verdicts").symlink_to(elsewhere)
    status, _, said = regrade(folder, "predicate=user_classes:half")
    assert status == 1 and "is a link out of the run folder" in said and not [*elsewhere.iterdir()]
    (folder / "verdicts").unlink()
    (folder / "verdicts").mkdir()
    planted = [{"key": 3}, {"key": "t0.0", "episode_id": "x", "score": 7.0}, {"key": "t0.1", "episode_id": "x"}, []]
    rows = "".join(json.dumps(line) + "\n" for line in planted)
    (folder / "verdicts" / "theirs.jsonl").write_text(rows + "\0" * 100)
    assert verdicts.read(folder, "theirs") == {}

"""Run folders that strangers made, through every command that reads one (threats, promise 11; faults, class 4)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hostile_folders import hostile_folders
from hostile_reading import COMMANDS
from small_run import make_run

from digirl_dist.child_process import environment
from digirl_dist.storage.status import Status

pytestmark = [pytest.mark.system, pytest.mark.long_file(100)]

_SECRET = "the victim's own words\n"
_FEW = 7
"""By day each command reads one folder in so many: each folder is read by a few of them."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Path]]:
    place = tmp_path_factory.mktemp("strangers").resolve()
    usual = make_run(place / "usual", iterations=2)
    Status(usual / "status.json").host("learn")
    (place / "home").mkdir()
    victim = place / "home" / "bashrc"
    victim.write_text(_SECRET)
    (place / "stranger_code.py").write_text(f"open({str(victim)!r}, 'w')\n")
    (place / "runs").mkdir()
    yield [place, victim, usual, *hostile_folders(place / "runs", usual, victim, seed=0)]
    assert victim.read_text() == _SECRET


@pytest.mark.nightly
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.timeout(1800)
def test_no_command_calls_what_a_stranger_names_or_leaves_the_folder(
    command: str, folders: list[Path], tmp_path: Path
) -> None:
    place, victim, usual, *runs = folders
    assert len(runs) > 60
    _refuses_all(command, place, victim, [usual, *runs], tmp_path.resolve())


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.timeout(1800)
def test_neither_does_it_on_a_few_folders(command: str, folders: list[Path], tmp_path: Path) -> None:
    place, victim, usual, *runs = folders
    first = list(COMMANDS).index(command) % _FEW
    _refuses_all(command, place, victim, [usual, *runs[first::_FEW]], tmp_path.resolve())


def _refuses_all(command: str, place: Path, victim: Path, runs: list[Path], out: Path) -> None:
    reading = Path(__file__).with_name("hostile_reading.py")
    own = {"HOME": str(out), "TMPDIR": str(out), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    words = [sys.executable, str(reading), command, str(out), str(victim), *map(str, runs)]
    done = subprocess.run(words, cwd=place, env={**environment(), **own}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == []
    assert victim.read_text() == _SECRET

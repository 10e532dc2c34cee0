"""The page on parts of one's own, followed to the letter in an empty folder: every file, then every command."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from run_files import metrics

pytestmark = [pytest.mark.system, pytest.mark.long_file(90), pytest.mark.timeout(600)]

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "own.md").read_text()
FILES = dict(re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
BLOCKS = re.findall(r"^```bash\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
COMMANDS = "".join(BLOCKS).replace("\\\n", " ").splitlines()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One in which somebody has copied the page's files, in the order of the page."""
    folder = tmp_path_factory.mktemp("mine")
    for name, content in FILES.items():
        (folder / name).write_text(content)
    return folder


@pytest.mark.unit
def test_every_block_of_the_page_is_a_file_or_a_command() -> None:
    assert PAGE.count("```") == 2 * (len(FILES) + len(BLOCKS))
    assert len(FILES) == 6 and len(COMMANDS) == 6


@pytest.mark.parametrize(
    "command",
    [pytest.param(each, marks=[pytest.mark.nightly] if "lamps" in each else []) for each in COMMANDS],
)
def test_a_command_of_the_page_ends_well(command: str, folder: Path) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"PATH": path}
    done = subprocess.run(command, shell=True, cwd=folder, env=variables, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    if run := re.search(r"save_path=(\S+)", command):
        rewards = [line["reward_mean"] for line in metrics(folder / run[1])]
        assert len(rewards) == int(re.findall(r"train_iterations=(\d+)", command)[0])
        assert len(rewards) < 8 or rewards[-1] > rewards[0] + 0.5, "long enough to learn"
    else:
        numbers = [float(number) for number in re.findall(r"\d+\.\d+", done.stdout)]
        assert "sound" in done.stdout or numbers[-1] > numbers[-2], done.stdout

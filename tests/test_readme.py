"""The README's commands, as they are written, in a fresh copy of the checkout."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from process_watch import processes_with

pytestmark = pytest.mark.system

ROOT = Path(__file__).resolve().parent.parent
BLOCKS = re.findall(r"^```bash\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
COMMANDS = [line for block in BLOCKS for line in block.strip().splitlines()]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a fresh clone would hold, with changes that are not committed yet."""
    folder = tmp_path_factory.mktemp("checkout")
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


def shell(command: str, folder: Path, limit_s: float) -> subprocess.CompletedProcess[str]:
    """As in a terminal in which the README's environment is active."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env={**environment, "PATH": path},
        capture_output=True,
        text=True,
        timeout=limit_s,
    )


def success_rates(folder: Path) -> list[float]:
    return [json.loads(line)["success_rate"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.unit
def test_the_readme_names_the_commands_that_these_tests_run() -> None:
    assert COMMANDS[:3] == [
        "python run.py --config-path config/multimachine --config-name host",
        "script/demo",
        "script/test",
    ]
    assert len(COMMANDS) == 4 and "examples.corridor" in COMMANDS[3]
    assert os.access(ROOT / "script" / "test", os.X_OK), "script/test is what runs this"


@pytest.mark.unit
def test_the_readme_is_short_and_links_to_what_is_there() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.split()) <= 600
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    for page in pages:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_main_command_asks_for_workers(checkout: Path) -> None:
    done = shell(COMMANDS[0], checkout, 60)
    assert done.returncode == 2 and "worker_ips is empty" in done.stderr


@pytest.mark.long(60)
def test_ones_own_environment_and_agent_run_over_ssh(checkout: Path) -> None:
    done = shell(COMMANDS[3], checkout, 120)
    assert done.returncode == 0, done.stderr
    rates = success_rates(checkout / "runs" / "corridor")
    assert len(rates) == 14 and sum(rates[-2:]) > sum(rates[:2])
    assert not processes_with(checkout)


@pytest.mark.long(120)
@pytest.mark.timeout(900)
def test_the_demo_learns_on_a_fresh_machine(checkout: Path) -> None:
    done = shell(f"{COMMANDS[1]} train_iterations=4", checkout, 880)  # of 14
    assert done.returncode == 0, done.stdout + done.stderr
    assert "runs/demo/report.html" in done.stdout
    rates = success_rates(checkout / "runs" / "demo")
    assert rates[0] <= 0.35 and sum(rates[-2:]) / 2 >= 0.9, rates
    assert (checkout / "runs" / "demo" / "report.html").exists()
    assert not processes_with(checkout)

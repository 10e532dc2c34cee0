"""The README's commands, as they are written, in a fresh copy of the checkout."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from process_watch import nothing_is_left_of

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


def needed(name: str, *extras: str) -> Iterator[metadata.Distribution]:
    """What pip would install for ``name[extras]``; some of it several times."""
    yield metadata.distribution(name)
    for line in metadata.requires(name) or ():
        wanted = Requirement(line)
        if wanted.marker is None or any(wanted.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield from needed(wanted.name, *wanted.extras)


def make_environment(folder: Path, extras: str) -> None:
    """What ``make_environment EXTRAS`` of script/environment makes, in a second: its packages are links to ours."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / ".venv"], check=True)
    [site] = (folder / ".venv").glob("lib/python*/site-packages")
    for one in {one.metadata["Name"]: one for one in needed("digirl_dist", *extras.split(","))}.values():
        for top in {file.parts[0] for file in one.files or ()} - {"..", "__pycache__"}:
            if not top.startswith("__editable__"):
                (site / top).symlink_to(one.locate_file(top))
    made_of = f'"[{extras}] $(python3 --version) $(cat setup.py constraints.txt | sha256sum)"'
    shell(f"echo {made_of} >.venv/installed", folder, 10)


def success_rates(folder: Path) -> list[float]:
    return [json.loads(line)["success_rate"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.unit
def test_the_readme_names_the_commands_that_these_tests_run() -> None:
    assert COMMANDS == [
        "script/demo",
        "script/test",
        "python run.py --config-path config/multimachine --config-name host",
    ]
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
    done = shell(COMMANDS[2], checkout, 60)
    assert done.returncode == 2 and "worker_ips is empty" in done.stderr


@pytest.mark.nightly
def test_ones_own_environment_and_agent_run_over_ssh(checkout: Path) -> None:
    said = ast.get_docstring(ast.parse((checkout / "examples" / "corridor.py").read_text())) or ""
    command = said[said.index("python run.py") :].replace("\\\n", " ")
    done = shell(f"{command} train_iterations=8", checkout, 170)  # of 14
    assert done.returncode == 0, done.stderr
    rates = success_rates(checkout / "runs" / "corridor")
    assert len(rates) == 8 and sum(rates[-2:]) > sum(rates[:2])
    nothing_is_left_of(checkout)


@pytest.mark.nightly
@pytest.mark.long(120)
@pytest.mark.timeout(900)
def test_the_demo_learns_on_a_fresh_machine(checkout: Path) -> None:
    make_environment(checkout, "train,view,data")
    done = shell(f"{COMMANDS[0]} train_iterations=4", checkout, 880)  # of 14
    assert done.returncode == 0 and ".venv is up to date" in done.stdout, done.stdout + done.stderr
    assert "runs/demo/report.html" in done.stdout
    rates = success_rates(checkout / "runs" / "demo")
    assert rates[0] <= 0.35 and sum(rates[-2:]) / 2 >= 0.9, rates
    assert (checkout / "runs" / "demo" / "report.html").exists()
    nothing_is_left_of(checkout)

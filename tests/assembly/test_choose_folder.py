"""``save_path=auto``: a second experiment has a folder of its own, and what was cut off goes on in its folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from digirl_dist.assembly.parts import choose_folder
from digirl_dist.errors import SettingsError
from digirl_dist.parallel.rank import Rank
from digirl_dist.settings import configuration
from digirl_dist.settings.places import own_folder
from digirl_dist.storage.run_folder import RunFolder
from digirl_dist.storage.status import Status


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def chosen(*words: str, resume: bool = False, name: str = "") -> str:
    settings = configuration.load(str(own_folder()), "host", words)
    choose_folder(settings, None, resume, name)
    return settings.save_path


def run(*words: str, ends: bool) -> str:
    """A run with these settings, which has finished or was killed."""
    settings = configuration.load(str(own_folder()), "host", words)
    choose_folder(settings, None)
    with RunFolder(Path(settings.save_path), configuration.to_yaml(settings)) as folder:
        status = Status(folder.root / "status.json")
        status.host("collect")
        if ends:
            with status.until_the_end_of("the run", folder.open_events()):
                pass
        status.write()
    return settings.save_path


def test_an_experiment_has_a_folder_of_its_own() -> None:
    assert run("emulator=phone", ends=False) == "runs/phone-filtered_bc"
    assert chosen("emulator=phone") == "runs/phone-filtered_bc", "it was cut off, and goes on"
    assert chosen("emulator=phone", "bsize=7", "train_iterations=99", "worker_ips=[h]") == "runs/phone-filtered_bc"
    assert run("emulator=phone", "seed=1", ends=True) == "runs/phone-filtered_bc-2"
    assert chosen("emulator=phone", "seed=1") == "runs/phone-filtered_bc-3"
    assert chosen("emulator=phone", "train_algorithm=grpo", "rollout_size=64") == "runs/phone-grpo"
    assert chosen("emulator=phone", "task_mode=collect") == "runs/phone-collect"


def test_resume_continues_the_newest_in_any_case() -> None:
    assert chosen("emulator=phone", resume=True) == "runs/phone-filtered_bc", "there is none: it begins"
    run("emulator=phone", ends=True)
    assert chosen("emulator=phone", resume=True) == chosen("emulator=phone", "seed=1", resume=True)
    assert chosen("emulator=phone", "task_mode=evaluate") == "runs/phone-filtered_bc", "which it measures"


def test_in_the_folder_of_a_run_that_is_continued(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run("emulator=phone", ends=True))
    assert chosen("emulator=phone") == "."


def test_what_lies_there_is_not_taken_for_a_run_and_not_overwritten() -> None:
    for name in ("demo", "demo-2", "demo-x"):
        Path("runs", name).mkdir(parents=True)
    Path("runs/demo-2/config.yaml").write_text("[")
    Path("runs/demo-3").symlink_to("nowhere")
    assert chosen("emulator=phone", name="demo") == "runs/demo-4"


def test_the_processes_of_a_launch_are_told_to_agree() -> None:
    settings = configuration.load(str(own_folder()), "host", ["save_path=auto"])
    with pytest.raises(SettingsError, match="save_path=runs/NAME"):
        choose_folder(settings, Rank(0, 2))

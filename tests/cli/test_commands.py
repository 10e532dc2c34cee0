"""The commands: alone it shows what there is, each has its own help, and the YAML to edit is written by one."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from small_run import make_run

import digirl_dist
from digirl_dist.child_process import environment
from digirl_dist.cli import entry
from digirl_dist.cli.completion import complete_override
from digirl_dist.cli.main import COMMANDS, main
from digirl_dist.exit_status import interruptions_wait
from digirl_dist.settings import GymnasiumSettings, configuration, reference
from digirl_dist.settings.places import HERE

WANTED = {"init", "demo", "run", "doctor", "setup", "why", "report", "eval", "eval-jobs", "completion"}


def test_alone_it_shows_every_command_and_starts_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert set(COMMANDS) >= WANTED
    for name in COMMANDS:
        assert f"  {name} " in shown and COMMANDS[name].summary in shown
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("words", [[], *([name, "--help"] for name in COMMANDS)], ids=" ".join)
def test_help_is_no_wider_than_the_terminal_and_breaks_no_word(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = []
    for columns in ("1000", "80"):
        monkeypatch.setenv("COLUMNS", columns)
        with contextlib.suppress(SystemExit):
            main(words)
        shown.append(capsys.readouterr().out)
    assert max(map(len, shown[1].splitlines())) <= 80
    assert shown[1].split() == shown[0].split()


def test_a_key_for_experts_is_printed_and_works_as_any_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["settings", "limits", "--expert"]) == 0
    shown = capsys.readouterr().out
    assert "limits.stuck_s  (a number above 0" in shown and "limits.boot_s" not in shown
    assert main(["settings", "limits"]) == 0
    assert "limits.boot_s" in capsys.readouterr().out
    assert configuration.load(HERE, "host", ["limits.stuck_s=7"]).limits.stuck_s == 7


def test_every_key_is_found_by_the_name_that_is_printed_and_by_that_of_the_page(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    every = list(reference.sections())
    monkeypatch.setattr(reference, "sections", lambda: every)
    for row in (row for section in every for row in section.rows):
        for word in (row.key, row.anchor):
            assert main(["settings", word]) == 0
            assert f"{row.key}  (" in capsys.readouterr().out
    assert main(["settings", "train_iterations", "--expert"]) == 2
    assert "no expert key has 'train_iterations' in it; leave out --expert" in capsys.readouterr().err


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_its_own_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: digirl-dist {name}") and COMMANDS[name].summary.split()[0] in shown


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"digirl-dist {digirl_dist.__version__}\n"


def test_a_command_that_there_is_not_is_refused_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["docter"]) == 2
    assert "no command 'docter' (`digirl-dist` alone shows all); did you mean 'doctor'?" in capsys.readouterr().err


def test_init_writes_one_file_to_edit_which_the_other_configurations_build_on(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init"]) == 0
    path = tmp_path / HERE / "host.yaml"
    path.write_text(path.read_text().replace("worker_ips: []", "worker_ips: [10.1.2.3]"))
    for name in ("host", "eval"):
        assert configuration.load(HERE, name, []).worker_ips == ["10.1.2.3"], name
    assert main(["init"]) == 2
    assert "is there already" in capsys.readouterr().err
    assert main(["init", "--config-path", str(path)]) == 2
    assert f"--config-path {path} is no folder" in capsys.readouterr().err
    assert main(["init", "--config-path", "my folder"]) == 0
    assert "run --config-path 'my folder'`" in capsys.readouterr().out
    assert "10.1.2.3" in path.read_text()


@pytest.mark.nightly
@pytest.mark.component
def test_files_are_utf8_whatever_the_locale(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", iterations=1)
    ascii_only = {**os.environ, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}
    export = ["export", str(run), "--to", "datasets", "export"]
    for words in (["init"], ["view", "--bundle", "out.html", str(run)], export):
        command = [sys.executable, "-m", "digirl_dist", *words]
        done = subprocess.run(command, cwd=tmp_path, env=ascii_only, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert "…" in (tmp_path / "export" / "README.md").read_text("utf-8")
    assert "…" in (tmp_path / "out.html").read_text("utf-8")


def test_init_leaves_no_file_where_the_disk_is_full(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert main(["init", "--config-path", str(tmp_path / "new")]) == 2
    assert "new cannot be written: No space left on device" in capsys.readouterr().err
    assert not list((tmp_path / "new").iterdir())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["eval", "{run}", "save_path=elsewhere"], "save_path=elsewhere contradicts {run}, whose"),
        (["eval", "{run}", "--config-name", "host"], "eval {run} takes the run's own configuration: leave"),
        (["export", "{run}", "new", "--to", "atif", "--public"], "--public says who may read what is uploaded"),
        (
            ["why", "{run}", "--save-path", "other"],
            "{run} and --save-path other name a run each: leave one",
        ),
        (["view", "{run}", "--port", "80", "--bundle", "new.html"], "--port 80 is for the viewer, which --bundle does"),
        (["doctor", "--emulator", "phone", "emulator=miniwob"], "emulator=miniwob and --emulator phone say the same"),
    ],
)
def test_words_that_nothing_would_read_are_refused(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.yaml").write_text("seed: 1\n")
    assert main([word.format(run=tmp_path) for word in words]) == 2
    assert said.format(run=tmp_path) in capsys.readouterr().err


@pytest.mark.component
def test_the_configuration_in_a_run_folder_is_one_to_start_from(tmp_path: Path) -> None:
    settings = configuration.load(HERE, "host", ["emulator=gymnasium", "emulator.id=A-v0", "bsize=3"])
    (tmp_path / "config.yaml").write_text(configuration.to_yaml(settings))
    assert configuration.load(str(tmp_path), "config", []) == settings
    again = configuration.load(str(tmp_path), "config", ["train_iterations=3", "emulator.id=B-v0"])
    assert isinstance(again.emulator, GymnasiumSettings)
    assert (again.emulator.id, again.train_iterations, again.bsize) == ("B-v0", 3, 3)


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("roll", "rollout_size="),
        ("limits.bo", "limits.boot_s="),
        ("emulator=", "emulator=phone"),
        ("emulator.su", "emulator.success_reward="),
        ("algorithm.grpo.actor.le", "algorithm.grpo.actor.learning_rate="),
        ("task_order=", "task_order=random"),
        ("train_algorithm=", "train_algorithm=grpo"),
        ("speculate=", "speculate=false"),
    ],
)
def test_a_shell_is_offered_keys_and_values(typed: str, offered: str) -> None:
    assert offered in complete_override(typed)
    assert all(each.startswith(typed) for each in complete_override(typed))


def test_completion_prints_what_a_shell_evaluates(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    assert "digirl-dist" in capsys.readouterr().out


@pytest.mark.component
def test_no_command_imports_torch_to_explain_itself_or_to_refuse_a_run_that_is_not_there() -> None:
    """Each command in a process of its own would take a minute; torch stays imported, so the first culprit is named."""
    program = (
        "import sys, os, digirl_dist\n"
        "from digirl_dist.cli.main import COMMANDS, main\n"
        "sys.stdout = sys.stderr = open(os.devnull, 'w')\n"
        "asked = [words for name in COMMANDS for words in ([name, '--help'], [name, '/nowhere/x'])]\n"
        "for words in [*asked, [], ['--version']]:\n"
        "    try: main(words)\n"
        "    except SystemExit: pass\n"
        "    if 'torch' in sys.modules: sys.exit(f'{words} imports torch')\n"
        "for name in digirl_dist.__dir__(): hasattr(digirl_dist, name) if name in ('Run', 'Task', 'train') else None\n"
        "sys.exit('Run, Task or train imports torch' if 'torch' in sys.modules else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], env=environment(), stdin=subprocess.DEVNULL, timeout=120)
    assert done.returncode == 0


WITHOUT_TORCH = """
import json, sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
sys.meta_path.insert(0, Missing())
from digirl_dist.cli.main import main
statuses = []
for words in json.loads(sys.argv[1]):
    print("##", *words, file=sys.stderr, flush=True)
    statuses.append(main(words))
print(json.dumps(statuses))
"""
LIGHT = [
    ["init"],
    ["settings", "ssh"],
    ["plan", "emulator=rehearsal", "--fleet", "2"],
    ["report", "runs/small"],
    ["view", "--bundle", "small.html", "runs/small"],
    ["export", "runs/small", "rows", "--to", "datasets"],
    ["export", "runs/small", "policy", "--to", "policy"],
]
ACTING = [
    ["run", "dry_run=true"],
    ["demo"],
    ["eval", "runs/small", "dry_run=true"],
    ["eval-jobs", "--eval_jobs_config", "jobs.json"],
    ["doctor", "--tasks", "dry_run=true"],
    ["serve", "dry_run=true", "agent=device"],
]


def without_torch(folder: Path, commands: list[list[str]]) -> tuple[list[int], dict[str, str]]:
    """Returns the status of each command in an environment without PyTorch, and what it said on stderr."""
    words = [sys.executable, "-c", WITHOUT_TORCH, json.dumps(commands)]
    done = subprocess.run(words, cwd=folder, env=environment(), capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), dict(part.split("\n", 1) for part in done.stderr.split("## ")[1:])


@pytest.mark.nightly
@pytest.mark.component
def test_a_light_installation_looks_at_runs_and_prepares_machines(tmp_path: Path) -> None:
    make_run(tmp_path / "runs/small")
    statuses, said = without_torch(tmp_path, LIGHT)
    assert statuses == [0] * len(LIGHT), said
    [status], _ = without_torch(tmp_path, [["doctor", "dry_run=true"]])
    assert status == 1, "a run would not start"


@pytest.mark.component
def test_a_command_that_needs_torch_says_how_this_machine_gets_it_and_writes_nothing(tmp_path: Path) -> None:
    make_run(tmp_path / "runs/small")
    (tmp_path / "jobs.json").write_text('{"jobs": [{"name": "phone", "num_episodes": 2}]}')
    before = sorted(tmp_path.rglob("*"))
    statuses, said = without_torch(tmp_path, ACTING)
    assert statuses == [2] * len(ACTING), said
    for command, text in said.items():
        [error] = [line for line in text.splitlines() if line.startswith("error: ")]
        assert "needs PyTorch: pip install 'digirl_dist[train]'" in error, command
        assert Path("/dev/nvidiactl").exists() or "--extra-index-url" in error
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(("own", "used"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_threads_that_wait_sleep_unless_the_user_wants_them_to_spin(
    monkeypatch: pytest.MonkeyPatch, own: str | None, used: str
) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", own or "")
    if own is None:
        monkeypatch.delenv("OMP_WAIT_POLICY")
    assert main(["--version"]) == 0 and os.environ["OMP_WAIT_POLICY"] == used


@pytest.mark.component
def test_a_forecast_needs_no_output_that_is_open() -> None:
    command = f'"{sys.executable}" -m digirl_dist plan emulator=rehearsal --fleet 1 >&-'
    done = subprocess.run(command, shell=True, env=environment(), capture_output=True, text=True, timeout=120)
    assert (done.returncode, re.sub(r"\S+ \d\d:\d\d:\d\d  .*, for .*\n", "", done.stderr)) == (0, "")


@pytest.mark.component
@pytest.mark.parametrize("sent", ["SIGINT", "SIGTERM"])
def test_an_interruption_of_torchs_import_is_not_lost(sent: str, tmp_path: Path) -> None:
    """Where it comes while C++ calls Python, the exception is swallowed there, and the run used to go on."""
    program = (
        "import signal, sys\n"
        "class Swallowing:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'torch':\n"
        "            sys.meta_path.remove(self)\n"
        "            try: signal.raise_signal(signal.{sent})\n"
        "            except KeyboardInterrupt: pass\n"
        "sys.meta_path.insert(0, Swallowing())\n"
        "from digirl_dist.cli import entry\n"
        "sys.exit(entry())\n"
    )
    words = ["run", "parallel=single", "train_iterations=0", f"save_path={tmp_path / 'run'}"]
    command = [sys.executable, "-c", program.replace("{sent}", sent), *words]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (130, "interrupted; the same command resumes where it stopped\n")
    assert not (tmp_path / "run").exists()


def test_a_second_interruption_does_not_wait() -> None:
    with pytest.raises(KeyboardInterrupt), interruptions_wait():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        pytest.fail("it waited")


def test_ctrl_c_is_one_line_from_the_first_import_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("digirl_dist.cli.main.main", interrupted)
    assert entry() == 130 and capsys.readouterr().err == "interrupted\n"

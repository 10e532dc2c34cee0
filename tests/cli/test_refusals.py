"""What a user types wrongly ends in one line, status 2 and nothing written, before torch is imported."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any

import pytest

from digirl_dist.child_process import environment

pytestmark = pytest.mark.component

MISTAKES = {
    "rollout_size must be a whole number from 1 to 1,000,000, not -4": ["run", "dry_run=true", "rollout_size=-4"],
    "the host name no-such-machine.invalid is unknown": ["run", "worker_ips=[no-such-machine.invalid]"],
    "127.0.0.1:1 cannot be reached": ["run", "worker_ips=['127.0.0.1:1']"],
    "save_path= is no path": ["run", "dry_run=true", "save_path="],
    "agent.entry_point must be given": ["run", "dry_run=true", "agent=custom"],
    "too many positional arguments": ["run", "dry_run=true", "agent=custom", "agent.entry_point=os:getcwd"],
    "got an unexpected keyword argument": ["run", "dry_run=true", "algorithm.entry_point=statistics:mean"],
    "Could not determine home directory": ["report", "~no-such-user/run"],
    "~no-such-user/jobs: Could not determine": ["eval-jobs", "--eval_jobs_config", "~no-such-user/jobs"],
    "task_set=~no-such-user/mine.txt: Could not determine": ["demo", "task_set=~no-such-user/mine.txt"],
    "there is no command 'RUN' (`digirl-dist` alone shows all); did you mean 'run'?": ["RUN"],
    "is no port": ["run", "worker_ips=['[::1]:x']"],
    "holds no checkpoint to measure": ["eval", "dry_run=true"],
    "runs/mistyped is no run folder": ["eval", "runs/mistyped"],
    "no task set 'unheard-of'": ["demo", "task_set=unheard-of"],
    "save_path=/proc/mine cannot be written": ["demo", "save_path=/proc/mine"],
    "runs/mistyped is no run folder: it has no config.yaml; name the save_path of a run": ["why", "runs/mistyped"],
    "is no run folder": ["report", "runs/mistyped"],
    "error: runs/mistyped is no run folder": ["view", "runs/mistyped"],
    "xxx cannot be read: File name too long; allow it to this user, or name another": ["why", "x" * 300],
    "yyy cannot be read: File name too long": ["export", "y" * 300, "new", "--to", "atif"],
    "export/mistyped is no run folder": ["export", "export/mistyped", "--to", "atif", "new"],
    "plan/mistyped is no run folder": ["plan", "--run", "plan/mistyped"],
    "argument --port: invalid int value: 'x'; `digirl-dist view --help`": ["view", "--port", "x"],
    "is a folder: name one of DigiRL's files in it; there is none": ["migrate", "."],
    "there is no file": ["migrate", "missing.yaml"],
    "unrecognized arguments: two": ["why", "one", "two"],
    "did you mean '--version'?": ["--versoin"],
    "task_set missing.txt cannot be read: No such file or directory": ["demo", "task_set=missing.txt"],
    "error: . cannot be read: Is a directory": ["eval-jobs", "--eval_jobs_config", "."],
    "--fleet many: must be whole numbers": ["plan", "--fleet", "many"],
    "name a run that measured it, as --run runs/mine": ["plan"],
    "limits.orphan_s must be a number from 6 to 100,000,000, not 3": ["demo", "limits.orphan_s=3"],
    "emulator.setup=missing.sh is not there": ["demo", "emulator.setup=missing.sh"],
    "predicate=done must read module:name, as in predicate=my_file:Mine": [
        "demo",
        "success=predicate",
        "predicate=done",
    ],
    "agent.entry_point=nowhere:Mine: module 'nowhere'": ["demo", "agent=custom", "agent.entry_point=nowhere:Mine"],
    "predicate=this_file_ends:x: module 'this_file_ends' cannot be imported from": [
        *("demo", "success=predicate", "predicate=this_file_ends:x"),
    ],
    "emulator.image_size must be a list": ["demo", "emulator=rehearsal", "emulator.image_size=[[]]"],
}
PROGRAM = """
import contextlib, io, json, sys
from digirl_dist.cli.main import main
for words in json.loads(sys.argv[1]):
    said, printed = io.StringIO(), io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(printed):
        try:
            status = main(words)
        except SystemExit as end:
            status = end.code
    told = {"status": status, "said": said.getvalue(), "printed": printed.getvalue()}
    heavy = ("torch", "transformers", "selenium", "gymnasium", "jax", "ray", "openai")
    print(json.dumps({**told, "heavy": [name for name in heavy if name in sys.modules]}))
"""


SIGN_OF_LIFE = re.compile(r"\d\d:\d\d:\d\d  .*, for .*\n")
"""A line of progress, which a busy machine leads to."""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What each mistake came to, one after the other in one process; nothing of it may write a file."""
    empty, modules = tmp_path_factory.mktemp("empty"), tmp_path_factory.mktemp("modules")
    (modules / "this_file_ends.py").write_text("import sys\n\nsys.exit(0)\n")
    command = [sys.executable, "-c", PROGRAM, json.dumps(list(MISTAKES.values()))]
    ours = environment()
    with_modules = {**ours, "PYTHONPATH": f"{modules}:{ours['PYTHONPATH']}", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=empty, env=with_modules, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stderr
    assert not list(empty.iterdir())
    return dict(zip(MISTAKES, map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.mark.parametrize("said", MISTAKES)
def test_a_mistake_is_told_in_one_line_and_nothing_is_written(said: str, answers: dict[str, dict[str, Any]]) -> None:
    told = {**answers[said], **{each: SIGN_OF_LIFE.sub("", answers[said][each]) for each in ("said", "printed")}}
    assert said in told["said"] and told["said"].startswith("error: ") and told["said"].count("\n") == 1
    assert (told["status"], told["printed"], told["heavy"]) == (2, "", []), "what is not heavy takes less than a second"

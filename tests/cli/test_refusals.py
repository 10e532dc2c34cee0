"""What a user types wrongly ends in one line, status 2 and nothing written, before torch is imported."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from digirl_dist.child_process import environment
from digirl_dist.cli.main import main
from digirl_dist.settings import configuration
from digirl_dist.settings import hints as hints_module
from digirl_dist.settings.key_places import all_keys
from digirl_dist.settings.places import HERE
from digirl_dist.settings.plugins import ALGORITHM

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
HABITS = {
    # a name where a block takes keys, or in another key's place
    "run algorithm=ppo": "did you mean train_algorithm=ppo?",
    "run agent=grpo": "did you mean train_algorithm=grpo?",
    "run mode=offline": "did you mean train_mode=offline?",
    "run parallel=ray": "parallel must be one of single, host, worker, not 'ray'; did you mean collector=ray?",
    "run task_split=evaluate": "did you mean task_mode=evaluate?",
    "run collector=torchrun": "did you mean trainer=torchrun?",
    "run judge=gpt-4o": "judge must be given by its keys, as judge.model=",
    "run ssh=root@10.0.0.2": "ssh must be given by its keys, as ssh.",
    "run loggers=wandb": "loggers must be a list, as loggers=[wandb]",
    "run offline.data=x.parquet": "offline.data must be a list, as offline.data=[x.parquet]",
    # a key of another option, or of none
    "run emulator.id=CartPole-v1": "emulator=gymnasium has it; add emulator=gymnasium",
    "run agent=vlm agent.model=x agent.width=8": "agent=device or generic has it; add agent=device",
    "run trainer.shard=true": "trainer=torchrun has it; add trainer=torchrun",
    "run collector.address=auto": "collector=ray has it; add collector=ray",
    "run train_algorithm=grpo algorithm.grpo.groupsize=4": "did you mean 'group_size'?",
    "run limits.boot=5": "did you mean 'boot_s'?",
    "run emulator.name=miniwob": "choose by emulator=miniwob",
    # what other tools call it
    "run lr=1e-3": "did you mean 'algorithm.filtered_bc.actor.learning_rate'?",
    "run train_algorithm=grpo lr=1e-3": "did you mean 'algorithm.grpo.actor.learning_rate'?",
    "run batch_size=32": "did you mean 'algorithm.filtered_bc.actor.batch_size'?",
    "run algo=grpo": "did you mean 'train_algorithm'?",
    "run env=miniwob": "did you mean 'emulator'?",
    "run env_id=CartPole-v1": "did you mean 'emulator.id'?",
    "run num_envs=8": "did you mean 'bsize'?",
    "run workers=[10.0.0.2]": "did you mean 'worker_ips'?",
    "run hosts=10.0.0.2": "did you mean 'worker_ips'?",
    "run user=ann": "did you mean 'worker_username'?",
    "run output_dir=runs/x": "did you mean 'save_path'?",
    "run resume=runs/x": "did you mean 'start_from'?",
    "run wandb=true": "did you mean 'loggers'?",
    "run device=cuda": "did you mean 'trainer.device'?",
    "run gpus=2": "did you mean 'trainer.nproc_per_node'?",
    "run total_timesteps=1000000": "did you mean 'train_iterations'?",
    "demo iterations=2": "did you mean 'train_iterations'?",
    "run episodes=64": "did you mean 'rollout_size'?",
    "run max_episode_steps=100": "did you mean 'max_steps'?",
    "run tasks=[a,b]": "did you mean 'task_set'?",
    "run eval_freq=5": "did you mean 'evaluation.every'?",
    "run model_name_or_path=x/y": "did you mean 'agent.model'?",
    "run num_generations=8": "did you mean 'algorithm.grpo.group_size'?",
    # a class, an environment or a model in place of a name
    "run emulator=gym": "did you mean 'gymnasium'?",
    "run emulator=ALE/Pong-v5": "emulator=gymnasium emulator.id=ALE/Pong-v5",
    "run emulator=./my_env.py:MyEnv": "emulator=custom emulator.entry_point=my_env:MyEnv",
    "run agent=my_file:X": "agent=custom agent.entry_point=my_file:X",
    "run agent=Qwen/Qwen2.5-VL-3B-Instruct": "agent=vlm agent.model=Qwen/Qwen2.5-VL-3B-Instruct",
    "run dry_run=true agent=custom agent.entry_point=my_file.py:X": "write its module, as agent.entry_point=my_file:X",
    "run dry_run=true algorithm.entry_point=mine.py": "write its module, as algorithm.entry_point=mine:Mine",
    "run dry_run=true algorithm.entry_point=src/mine.py:X": "as algorithm.entry_point=src.mine:X",
    "run dry_run=true success=predicate predicate=../mine.py:done": "predicate=mine:done and run the command in /",
    "run dry_run=true success=predicate predicate=..src.mine:done": "'..src.mine' is no name of a module",
    "run emulator=../mine.py:MyEnv": "emulator=custom emulator.entry_point=mine:MyEnv and run the command in /",
    "run emulator=src.mine:MyEnv": "emulator=custom emulator.entry_point=src.mine:MyEnv\n",
    # a flag for a key
    "run --iterations 3": "did you mean train_iterations=3?",
    "run --dry-run": "did you mean dry_run=true?",
    "run --seed 3": "did you mean seed=3?",
    "run --save_path=runs/x": "did you mean save_path=runs/x?",
    "run --lr 1e-3": "did you mean algorithm.filtered_bc.actor.learning_rate=1e-3?",
    "demo --iterations 2": "did you mean train_iterations=2?",
    "setup --dryrun": "did you mean --dry-run?",
    "plan --json5 emulator=rehearsal": "did you mean --json?",
    "run dry_run": "did you mean dry_run=true?",
    "run rollout_size": "did you mean rollout_size=…?",
    # what Hydra has
    "run --multirun seed=1": "Hydra's, which only reads the files here",
    "run -m seed=1": "Hydra's, which only reads the files here",
    "run hydra.run.dir=out": "Hydra's, which only reads the files here: leave it out",
    "run seed=1,2,3": "one run takes one of them: start one for each",
    "run worker_ips=10.0.0.2,10.0.0.3": "a list is written worker_ips=[a,b]",
    # names of files
    "run --config-name my.yaml": "there is no my.yaml in",
    "run my.yaml": "did you mean --config-name my?",
    "run host": "did you mean --config-name host?",
    "run host.yaml": "did you mean --config-name host?",
    # values
    "run seed=one": "seed must be a whole number from 0 to",
    "run close=90%": "there is no key 'close'; did you mean 'ahead'?",
    "run media=yes": "none, failures, all or top-3",
    "run dry_run=maybe": "dry_run must be true or false",
    "run Seed=1": "did you mean 'seed'?",
    "run rollout-size=8": "did you mean 'rollout_size'?",
    # commands
    "train": "did you mean 'run'?",
    "evaluate runs/x": "did you mean 'eval'?",
    "status": "did you mean 'why'?",
    "install": "did you mean 'setup'?",
    "ui": "did you mean 'view'?",
    "doctor --emulator gym": "did you mean 'gymnasium'?",
    "export runs/x --to csv out": "choose from 'atif'",
    "eval runs/x --config-name host": "leave out --config-path and --config-name",
}
"""What people type out of habit -> the remedy that they are told."""
MORE_HABITS = {
    # a class, an environment, a model or a word of other tools in place of a name
    "run emulator=CartPole-v1": "emulator=gymnasium emulator.id=CartPole-v1",
    "run emulator=gymnasium.CartPole": "did you mean 'gymnasium'?",
    "run emulator=cartpole": "there are android, androidworld, custom, gymnasium,",
    "run agent=gpt-4o": "a chat model behind a server is agent=endpoint agent.model=gpt-4o",
    "run agent=openai": "did you mean engine=openai?",
    "run train_algorithm=PPO": "did you mean 'ppo'?",
    "run train_algorithm=reinforce": "there are digirl, filtered_bc, grpo, grpo_replay, ppo",
    "run train_algorithm=mine:Mine": "a class of yours is algorithm.entry_point=mine:Mine",
    "run algorithm=mine.py": "a class of yours is algorithm.entry_point=mine:Mine",
    "run engine=vllm": "did you mean engine=openai?",
    "run inference=vllm": "did you mean engine=openai?",
    "run inference=gpu": "did you mean inference=host?",
    "run trainer=ddp": "did you mean trainer=torchrun?",
    "run trainer=fsdp": "did you mean trainer=torchrun trainer.shard=true?",
    "run collector=slurm": "did you mean worker_ips=slurm:4?",
    "run parallel=cluster": "did you mean parallel=host?",
    "run success=llm": "did you mean success=judge?",
    "run success=my_file:done": "did you mean success=predicate predicate=my_file:done?",
    "run task_split=validation": "did you mean task_split=test?",
    "run task_mode=eval": "did you mean task_mode=evaluate?",
    "run train_mode=sft": "did you mean train_mode=offline?",
    # a key of another place
    "run algorithm.lr=1e-3": "did you mean 'algorithm.filtered_bc.actor.learning_rate'?",
    "run train_algorithm=ppo algorithm.ppo.lr=1e-3": "did you mean 'algorithm.ppo.learning_rate'?",
    "run ppo.learning_rate=1e-3": "did you mean 'algorithm.ppo.learning_rate'?",
    "run grpo.group_size=4": "did you mean 'algorithm.grpo.group_size'?",
    "run agent.lr=1e-4": "did you mean 'algorithm.filtered_bc.actor.learning_rate'?",
    "run agent.temperature=0.5": "agent=autoui or vlm has it; add agent=autoui",
    "run actor.learning_rate=1": "actor.learning_rate'",
    "run emulator=gymnasium emulator.env_id=CartPole-v1": "did you mean 'emulator.id'?",
    "run trainer.devices=2": "did you mean 'trainer.nproc_per_node'?",
    "run trainer.gpus=2": "did you mean 'trainer.nproc_per_node'?",
    "run ssh.user=ann": "did you mean 'worker_username'?",
    "run evaluation.num_episodes=5": "did you mean 'episodes'?",
    "run emulator=custom emulator.class=my:Env": "emulator.entry_point must be given: emulator.entry_point=",
    # values of another kind
    "run bsize=max": "bsize must be a whole number from 1 to 4,096, or auto, not 'max'",
    "run rollout_size=1.5": "rollout_size must be a whole number from 1 to 1,000,000",
    "run train_iterations=-1": "train_iterations must be a whole number from 0",
    "run evaluation=5": "evaluation must be given by its keys, as evaluation.every=",
    "run worker_ips={host:10.0.0.2}": "worker_ips must be a list, as worker_ips=[{host:10.0.0.2}]",
    "run worker_ips=[{ip:10.0.0.2}]": "must be a host name or a mapping with `host`",
    "run worker_ips=[{host:10.0.0.2,bs:4}]": "there is no key 'bs'; there are host, name, port,",
    "run worker_ips=[10.0.0.2,10.0.0.2]": "names '10.0.0.2' twice; give one of them another `name`",
    "run worker_ips=[http://10.0.0.2]": "write host, user@host, host:port,",
    "run worker_ips=slurm": "start it by sbatch or salloc, or write slurm:4 for four jobs",
    "run dry_run=true loggers=[tensorbord]": "did you mean 'tensorboard'?",
    "run media=always": "media must be none, failures, all or top-3",
    "run dry_run=true train_mode=offline": "train_mode=offline needs offline.data=[FOLDER]",
    "run max_steps=inf": "or null, not inf",
    # words without a key
    "run 10.0.0.2": "did you mean worker_ips=[10.0.0.2]?",
    "doctor ann@gpu1": "did you mean worker_ips=[ann@gpu1]?",
    "demo runs/x": "did you mean save_path=runs/x?",
    "run ppo": "did you mean train_algorithm=ppo?",
    "run lr": "did you mean algorithm.filtered_bc.actor.learning_rate=…?",
    "run agent:device": "did you mean agent=device?",
    "run agent=": "there are autoui, custom, device,",
    "run agent = device": "did you mean agent=…?",
    # flags
    "run --no-dry-run": "did you mean dry_run=false?",
    "run --agent device": "did you mean agent=device?",
    "run --config host": "could match --config-path, --config-name",
    "serve --host 0.0.0.0": "did you mean --address?",
    "plan --workers 8": "did you mean --fleet?",
    "eval runs/x --episodes 100": "did you mean rollout_size=100?",
    "setup --all": "settings are written key=value (`digirl-dist setup --help` shows all)",
    "init --force": "`digirl-dist init --help` shows what there is",
    # commands
    "demoo": "did you mean 'demo'?",
    "version": "did you mean '--version'?",
    "settings lr": "did you mean 'algorithm.filtered_bc.actor.learning_rate'?",
    "settings learningrate": "actor.learning_rate'",
    "log runs/x --to wand": "choose from 'mlflow', 'tensorboard', 'trackio', 'wandb'",
    # a block misspelt, with what is below it
    "run algorithms.ppo.learning_rate=1": "did you mean 'algorithm.ppo.learning_rate'?",
    "run limit.boot_s=5": "did you mean 'limits.boot_s'?",
    # a word where a number belongs chooses nothing
    "run seed=random": "9,007,199,254,740,992, not 'random'\n",
    "run 'worker_ips=[{host: a, port: ssh}]'": "port must be a whole number from 1 to 65,535 or null, not 'ssh'\n",
    # lists and mappings
    "run 'worker_ips=[a;b]'": '\'worker_ips=["...", "..."]\'',
    "run 'worker_ips=[{host: 127.0.0.1, key: ~/no-such}]'": "worker_ips[0].key=~/no-such is not there",
    "run 'worker_ips=[{a: {bsize: 4}}]'": "must be a host name or a mapping with `host`, as {host: a, bsize: 8}",
    # two settings that exclude each other
    "run dry_run=true worker_ips=[a]": "worker_ips is not read with dry_run=true: add dry_run=false, or leave",
    "run parallel=single inference=host": "inference is not read with parallel=single: add parallel=host",
    "run dry_run=true train_algorithm=grpo rollout_size=100": "no multiple of algorithm.grpo.group_size=8, as 96 is",
    "run dry_run=true train_algorithm=grpo algorithm.grpo.group_size=1": "group_size must be a whole number from 2 to",
    "run dry_run=true train_algorithm=grpo_replay algorithm.grpo_replay.group_size=1": "a whole number from 2 to",
    "run dry_run=true algorithm.filtered_bc.min_return=-1": "min_return must be a number from 0 to",
    # a model that is nowhere
    "run dry_run=true agent=vlm agent.model=Qwen/no-such-model": "is no folder of this machine, and the hub",
    # files of another kind, and secrets
    "run dry_run=true train_mode=offline offline.data=[/dev/null]": "name a run's folder trajectories, an exported",
    "run dry_run=true task_set=/tmp/mine.csv": "and yours are files that end in .txt, .yaml or .json",
    "run dry_run=true emulator=miniwob emulator.task=click-test task_set=mine.csv": "has no task set 'mine.csv'",
    "run dry_run=true emulator=rehearsal task_set=hard": "emulator=rehearsal has no task set 'hard', only default",
    "run dry_run=true success=judge judge.key_variable=NO_SUCH_KEY": "export NO_SUCH_KEY with it, or set",
    "eval dry_run=true agent=endpoint agent.model=m agent.key_variable=NO_SUCH_KEY": "the agent needs a key: export",
    "eval 'worker_ips=[a]' inference=host agent=endpoint agent.model=m agent.key_variable=NO_SUCH_KEY": "or set agent.",
    "serve parallel=single agent=endpoint agent.model=m agent.key_variable=NO_SUCH_KEY": "export NO_SUCH_KEY with it",
    # a number of workers, a folder in place of a flag's
    "demo workers=3": "did you mean 'dry_run_workers'?",
    "demo --workers 3": "did you mean dry_run_workers=3?",
    "plan /tmp": "/tmp is a folder: `--run /tmp` takes the figures of a run",
    "doctor --tasks --episodes 0": "--episodes 0 must be from 1 to 1000\n",
    "serve --address no-such.invalid dry_run=true": "--address no-such.invalid --port 0 cannot be listened on",
    "list": "did you mean 'view'?",
    "reproduce runs/x": "did you mean 'view'?",
    "-V": "did you mean '--version'?",
}
"""Those of a second and third look, by the same classes."""
FILES = {
    "- seed: 1": "mine.yaml must hold `key: value`, not [{'seed': 1}]",
    "defaults: [hst]": "the defaults of a file name 'hst', and there is no hst.yaml; did you mean 'host'?",
    "defaults: [host, _self_]\nworker_ips: {a: {bsize: 4}}": "must be a list, as `worker_ips: [a, b]`",
    "defaults: [host, _self_]\nevaluation: [1]": "must be given by its keys",
    "defaults: [host, _self_]\nseed: 1\nseed: 2": "'seed' is given twice, in lines 2 and 3: keep one",
    "defaults: [host, _self_]\nlogger_project: Pr\udcfcfung": "cannot be read: it is no UTF-8: save it as such",
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


SIGN_OF_LIFE = re.compile(r"\S+ \d\d:\d\d:\d\d  .*, for .*\n")
"""A line of progress, which a busy machine leads to."""


def answered(folder: Path, commands: Sequence[Sequence[str]], **variables: str) -> list[dict[str, Any]]:
    """Returns what each command came to, one after the other in one process; nothing of it may write a file."""
    command = [sys.executable, "-c", PROGRAM, json.dumps(list(map(list, commands)))]
    with_modules = {**environment(), "PYTHONDONTWRITEBYTECODE": "1", **variables}
    done = subprocess.run(command, cwd=folder, env=with_modules, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert not list(folder.iterdir())
    return [json.loads(line) for line in done.stdout.splitlines()]


def refused(answer: dict[str, Any], said: str) -> None:
    told = {**answer, **{each: SIGN_OF_LIFE.sub("", answer[each]) for each in ("said", "printed")}}
    assert said in told["said"] and told["said"].startswith("error: ") and told["said"].count("\n") == 1
    assert (told["status"], told["printed"], told["heavy"]) == (2, "", []), "what is not heavy takes less than a second"


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    empty, modules = tmp_path_factory.mktemp("empty"), tmp_path_factory.mktemp("modules")
    (modules / "this_file_ends.py").write_text("import sys\n\nsys.exit(0)\n")
    path = f"{modules}:{environment()['PYTHONPATH']}"
    return dict(zip(MISTAKES, answered(empty, list(MISTAKES.values()), PYTHONPATH=path), strict=True))


@pytest.fixture(scope="module")
def hints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    return dict(zip(HABITS, answered(tmp_path_factory.mktemp("empty"), list(map(shlex.split, HABITS))), strict=True))


@pytest.fixture(scope="module")
def more_hints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    found = answered(tmp_path_factory.mktemp("empty"), list(map(shlex.split, MORE_HABITS)))
    return dict(zip(MORE_HABITS, found, strict=True))


@pytest.mark.parametrize("said", MISTAKES)
def test_a_mistake_is_told_in_one_line_and_nothing_is_written(said: str, answers: dict[str, dict[str, Any]]) -> None:
    refused(answers[said], said)


@pytest.mark.parametrize("typed", HABITS)
def test_what_people_type_out_of_habit_is_answered_with_what_to_type(
    typed: str, hints: dict[str, dict[str, Any]]
) -> None:
    refused(hints[typed], HABITS[typed])


@pytest.mark.parametrize("typed", MORE_HABITS)
def test_so_it_is_with_others_of_the_same_kinds(typed: str, more_hints: dict[str, dict[str, Any]]) -> None:
    refused(more_hints[typed], MORE_HABITS[typed])


def test_a_path_below_a_run_and_the_name_of_a_run_are_understood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs/demo/trajectories").mkdir(parents=True)
    (tmp_path / "runs/demo/config.yaml").write_text("seed: 1\n")
    for words in (["view", "runs/demo/trajectories"], ["report", "runs/demo/report.html"], ["why", "runs/demo/x/y"]):
        assert main(words) == 2
        assert "it lies in the run runs/demo; name that" in capsys.readouterr().err
    for words in (["eval", "demo"], ["why", "demo"], ["plan", "--run", "demo"]):
        assert main(words) == 2
        assert "did you mean 'runs/demo'?" in capsys.readouterr().err


def test_a_file_beside_the_command_is_found_and_one_without_defaults_is_told_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.yaml").write_text("seed: 1\n")
    assert main(["run", "--config-name", "my.yaml"]) == 2
    assert "add --config-path . --config-name my" in capsys.readouterr().err
    assert main(["run", "--config-path", "my.yaml"]) == 2
    assert "write --config-path . --config-name my" in capsys.readouterr().err
    assert main(["run", "--config-path", ".", "--config-name", "my"]) == 2
    assert "let it begin with `defaults: [host, _self_]`" in capsys.readouterr().err


@pytest.mark.parametrize("content", FILES)
def test_a_file_that_is_no_configuration_is_told_what_it_must_hold(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.yaml").write_bytes(content.encode("utf-8", "surrogateescape"))
    assert main(["run", "--config-path", str(tmp_path), "--config-name", "mine"]) == 2
    assert FILES[content] in capsys.readouterr().err


def test_a_folder_of_runs_is_no_run_and_a_folder_that_is_not_readable_is_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "runs/small").mkdir(parents=True)
    (tmp_path / "runs/small/config.yaml").write_text("seed: 1\n")
    assert main(["run", "dry_run=true", f"save_path={tmp_path}/runs"]) == 2
    assert "is a folder of runs, as small: name another one in it" in capsys.readouterr().err
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)  # root may read everything
    assert main(["run", "--config-path", str(tmp_path)]) == 2
    assert f"--config-path {tmp_path} cannot be read here: allow it, or name another" in capsys.readouterr().err


@pytest.mark.parametrize("algorithm", ALGORITHM.names())
def test_every_word_of_the_field_leads_to_a_key_that_there_is(algorithm: str) -> None:
    known = {".".join(place) for place, _ in all_keys()}
    for word in chain.from_iterable(hints_module._FIELD.values()):
        assert hints_module.word_of_the_field(word, algorithm) in known, word


def test_a_whole_number_may_be_written_as_people_do() -> None:
    assert configuration.load(HERE, "host", ["train_iterations=1e3"]).train_iterations == 1000

"""Hints for what people type out of habit: words of other tools, a choice in place of a key, a flag, a file's name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from enum import Enum

from digirl_dist.plain_text import as_entry_point, closest
from digirl_dist.settings import Settings
from digirl_dist.settings.key_places import options_of_groups
from digirl_dist.settings.keys import types_of
from digirl_dist.settings.plugins import ALGORITHM, settings_classes
from digirl_dist.types import Json

_FIELD: dict[str, tuple[str, ...]] = {
    "algorithm.entry_point": ("algorithm_class", "trainer_class"),
    "ahead": ("async", "async_level", "asynchronous", "collect_ahead", "close", "max_staleness"),
    "agent": ("model", "policy", "net", "network", "agent_name", "agent_type"),
    "agent.model": ("model_name", "model_path", "model_name_or_path", "hf_model", "base_model"),
    "bsize": ("num_envs", "n_envs", "num_emulators", "envs", "envs_per_worker", "slots", "num_slots", "env_num"),
    "dry_run": ("dryrun", "local", "localhost", "fake"),
    "emulator": ("env", "environment", "simulator", "game", "env_name", "env_type"),
    "emulator.id": ("env_id", "gym_id", "environment_id", "id"),
    "evaluation.every": ("eval_every", "eval_freq", "eval_interval", "eval_steps", "evaluate_every"),
    "evaluation.episodes": ("eval_episodes", "n_eval_episodes", "num_eval_episodes"),
    "algorithm.grpo.group_size": ("num_generations", "n_samples", "group", "group_size", "rollouts_per_task"),
    "logger_project": ("project", "wandb_project", "project_name", "experiment", "experiment_name"),
    "loggers": ("log", "logger", "report_to", "track", "tracking", "wandb", "tensorboard", "mlflow", "trackio"),
    "max_steps": ("max_episode_steps", "episode_length", "horizon", "max_turns", "max_len", "time_limit"),
    "parallel": ("distributed_mode", "backend"),
    "rollout_size": ("episodes", "num_episodes", "n_episodes", "episodes_per_iteration", "num_rollouts", "rollouts"),
    "save_freq": ("save_every", "save_steps", "checkpoint_every", "checkpoint_freq", "save_interval"),
    "save_path": (
        *("out", "output", "output_dir", "out_dir", "logdir", "log_dir", "dir", "path", "run", "run_dir", "run_name"),
        *("name", "exp_name", "experiment_dir", "checkpoint_dir", "save_dir", "folder", "results_dir"),
    ),
    "seed": ("random_seed", "rng", "seeds"),
    "start_from": ("resume", "resume_from", "checkpoint", "ckpt", "load", "load_from", "pretrained", "init_from"),
    "success": ("reward_function", "reward_fn", "success_fn", "verifier"),
    "task_set": ("task", "tasks", "dataset", "prompts", "instructions", "task_file"),
    "train_algorithm": ("algo", "alg", "algorithm", "method", "rl_algorithm"),
    "train_iterations": (
        *("iterations", "iters", "n_iterations", "num_iterations", "steps", "total_steps", "total_timesteps"),
        *("num_steps", "max_iterations", "timesteps", "updates", "num_updates", "num_epochs", "rounds"),
    ),
    "trainer.device": ("device", "gpu", "cuda", "accelerator"),
    "trainer.nproc_per_node": (
        *("gpus", "num_gpus", "n_gpus", "world_size", "nproc", "ranks", "num_processes", "devices"),
    ),
    "worker_ips": ("workers", "hosts", "machines", "nodes", "ips", "worker", "host", "hostfile", "worker_hosts"),
    "worker_username": ("user", "username", "ssh_user", "login"),
    "worker_python": ("python", "python_path"),
    "{actor}.learning_rate": ("lr", "learning_rate", "actor_lr", "policy_lr", "alpha", "step_size"),
    "{actor}.batch_size": ("batch", "batch_size", "minibatch", "minibatch_size", "mini_batch_size"),
    "{actor}.epochs": ("epochs", "n_epochs", "ppo_epochs", "update_epochs"),
    "{actor}.clip_norm": ("max_grad_norm", "grad_clip", "clip_grad", "gradient_clip"),
}
"""Keys, each with what the field calls them."""
_VALUES: dict[str, tuple[str, ...]] = {
    "engine=openai": ("vllm", "sglang", "tgi", "ollama"),
    "inference=host": ("gpu", "server", "remote", "central"),
    "parallel=host": ("multi", "multimachine", "cluster", "ssh"),
    "parallel=single": ("local", "inline"),
    "success=judge": ("llm", "vlm", "model"),
    "task_mode=evaluate": ("eval", "test", "measure"),
    "task_split=test": ("validation", "val", "dev"),
    "train_mode=offline": ("sft", "bc", "imitation"),
    "trainer=torchrun": ("ddp", "multi_gpu", "nccl", "accelerate"),
    "trainer=torchrun trainer.shard=true": ("fsdp", "fsdp2", "deepspeed", "zero3"),
    "worker_ips=slurm:4": ("slurm",),
}
"""Choices, each with what the field calls them."""
_FLAGS = {"--host": "--address", "--bind": "--address", "--workers": "--fleet", "--machines": "--fleet"}
"""Flags, each with what it is called here where there is one."""
_ADDRESS = re.compile(r"(\w+@)?[\w-]+(\.[\w-]+)+(:\d+)?|\w+@[\w-]+")
_OF_HYDRA = (
    "m",
    "multirun",
    "cfg",
    "c",
    "info",
    "config_dir",
    "cd",
    "hydra_help",
    "resolve",
    "package",
    "p",
    "shell_completion",
)
_CLASS = re.compile(r"[\w./-]+(\.py)?:\w+|[\w./-]+\.py")
_SERVED = re.compile(r"(gpt|o[1-9]|claude|gemini|llama|qwen|mistral|deepseek)[\w.-]*$", re.IGNORECASE)
"""Families of models that are served, by name."""
_SHORT = 3
"""A flag of so few letters resembles every key."""
_ENVIRONMENT = re.compile(r"(\w+/)?[\w-]+-v\d+")


def word_of_the_field(name: str, algorithm: str, value: Json = "") -> str:
    """Returns the key that other tools call ``name``, of the ``algorithm`` in use; empty if none is known.

    A number of workers are those of a dry run.
    """
    word = name.lower().replace("-", "_")
    key = next((key for key, words in _FIELD.items() if word in words), "")
    key = "dry_run_workers" if key == "worker_ips" and str(value).isdigit() else key
    block = settings_classes(ALGORITHM).get(algorithm)
    actor = ".actor" if block is not None and "actor" in types_of(block) else ""
    return key.format(actor=f"algorithm.{algorithm}{actor}")


def as_question(key: str) -> str:
    """Asks for a key; empty for none."""
    return f"did you mean {key!r}?" if key else ""


def choice(value: Json, unless: str = "") -> str:
    """Returns ``key=value`` for a value that is the name of a choice, of another key than ``unless``, or that other
    tools have for one; empty for others."""
    if unless == "success" and _CLASS.fullmatch(value):
        return f"success=predicate predicate={as_entry_point(value)}"
    word = value.lower().replace("-", "_")
    found = (f"{key}={value}" for key, names in _choices() if key != unless and value in names)
    return next(found, "") or next((chosen for chosen, words in _VALUES.items() if word in words), "")


def instead_of(group: str, value: str) -> str:
    """Returns what may be meant by an option that a group does not have: a class, an environment, a model."""
    if meant := own_class(group, value):
        return meant
    if group == "emulator" and _ENVIRONMENT.fullmatch(value):
        return f"an environment of Gymnasium is emulator=gymnasium emulator.id={value}"
    if group == "agent" and _SERVED.match(value):
        return f"a chat model behind a server is agent=endpoint agent.model={value}"
    if group == "agent" and "/" in value:
        return f"a model of the Hugging Face hub is agent=vlm agent.model={value}"
    other = choice(value, unless=group)
    return f"did you mean {other}?" if other else ""


def own_class(group: str, value: str) -> str:
    """Says how a class of the user's is given, if the value names one and the group may have one; else empty."""
    if not _CLASS.fullmatch(value) or (group != "algorithm" and "custom" not in options_of_groups()[group]):
        return ""
    chosen = "" if group == "algorithm" else f"{group}=custom "
    return f"a class of yours is {chosen}{group}.entry_point={as_entry_point(value)}"


def flag(word: str, following: str, options: Sequence[str]) -> str:
    """Says what a flag may mean that a command with other ``options`` does not have; ``following`` may be its value."""
    name, sign, value = word.lstrip("-").partition("=")
    name, known, value = name.replace("-", "_"), types_of(Settings), value if sign else following
    if name in _OF_HYDRA:
        return "it is one of Hydra's, which only reads the files here; start one run for each value"
    plain, positive = word.partition("=")[0], name.removeprefix("no_")
    option = _FLAGS.get(plain, "")
    if option := option if option in options else closest(plain, options):
        return f"did you mean {option}?"
    if known.get(positive) is bool and positive != name:
        return f"settings are written key=value; did you mean {positive}=false?"
    near = closest(name, list(known)) if len(name) > _SHORT else ""
    key = name if name in known else word_of_the_field(name, Settings().train_algorithm, value) or near
    value = value or ("true" if known.get(key) is bool else "…")
    return f"settings are written key=value; did you mean {key}={value}?" if key else "settings are written key=value"


def bare(word: str) -> str:
    """Says what may be meant by a word without a key: a choice, a machine, a folder; empty if nothing is known."""
    key, colon, value = word.partition(":")
    if colon and key in types_of(Settings):
        return f"{key}={value or '…'}"
    key = word_of_the_field(word, Settings().train_algorithm)
    if found := choice(word) or (f"{key}=…" if key else ""):
        return found
    if _ADDRESS.fullmatch(word):
        return f"worker_ips=[{word}]"
    return f"save_path={word}" if "/" in word else ""


def _choices() -> Iterator[tuple[str, list[str]]]:
    yield "train_algorithm", ALGORITHM.names()
    for group, options in options_of_groups().items():
        yield group, list(options)
    for key, hint in types_of(Settings).items():
        if isinstance(hint, type) and issubclass(hint, Enum):
            yield key, list(hint.__members__)

"""What each key of DigiRL's own YAML files becomes here.

The keys, their values and what DigiRL does with them are those of github.com/DigiRL-agent/digirl, commit c74ec34
(``scripts/config``, ``scripts/run.py``, ``digirl/algorithms``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from digirl_dist.plain_text import near, without_secrets_in
from digirl_dist.settings.keys import written

Values = Mapping[str, Any]
"""A whole file of DigiRL's, with what it includes."""

_PLACEHOLDER = "<username>"
_AVD = "test_Android"
_SCREEN_ENCODER = "Salesforce/blip2-opt-2.7b"
_BATCH, _TRAJECTORY_BATCH, _TRAJECTORY_EPOCHS = 2, 8, 5
_JUDGE = {
    "success": "judge",
    "judge.model": "gemini-2.5-pro",
    "judge.base_url": "https://generativelanguage.googleapis.com/v1beta/openai/",
    "judge.key_variable": "GEMINI_API_KEY",
}


@dataclass(frozen=True)
class Became:
    """What one key of DigiRL's became: settings of this package, by dotted key, or nothing, or a refusal."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""
    """Why it has no meaning here, or how its value was converted; with ``refused``, what to do."""
    refused: bool = False

    def __str__(self) -> str:
        parts = [f"{key}={written(value)}" for key, value in self.settings.items()]
        text = ", ".join(parts) if parts else "refused" if self.refused else "nothing"
        return f"{text} ({self.note})" if self.note else text


def became(key: str, values: Values) -> Became:
    """Returns what ``key`` of the file ``values`` becomes."""
    rule = KEYS.get(key)
    if rule is None:
        hint = near(key, list(KEYS))
        return Became(note=f"DigiRL has no such key{hint and f'; {hint}'}", refused=True)
    try:
        found = rule(values[key], values)
    except (TypeError, ValueError, OverflowError) as error:  # of a number's place, or of one that it is reckoned with
        return Became(note=f"{without_secrets_in({key: values[key]})[key]!r} cannot be used: {error}", refused=True)
    if _PLACEHOLDER in str(list(found.settings.values())):
        return Became(note=f"{values[key]} still has {_PLACEHOLDER} in it", refused=True)
    return found


Rule = Callable[[Any, Values], Became]
"""From the key's value, and the whole file, to what becomes of it."""


def _to(*keys: str, note: str = "") -> Rule:
    return lambda value, _: Became(dict.fromkeys(keys, value), note)


def _of_agent(key: str) -> Rule:
    """A key of DigiRL's own agent, which a file that names none means as well."""
    return lambda value, values: Became({key: value, **({} if "agent_name" in values else {"agent": "autoui"})})


def _nothing(reason: str) -> Rule:
    return lambda _, __: Became(note=reason)


def _only(meant: Any, reason: str, remedy: str) -> Rule:
    return lambda value, _: Became(note=reason) if value == meant else Became(note=remedy, refused=True)


def _secret(variable: str, **settings: Any) -> Rule:
    remedy = f"keys do not belong into files: export {variable}=… on the host and leave it empty"
    note = f"the environment variable {variable} has the key"
    return lambda value, _: Became(note=remedy, refused=True) if value else Became(settings, note)


def _words(key: str, **words: Became) -> Rule:
    known = ", ".join(words)
    return lambda value, _: words.get(str(value), Became(note=f"{key} is one of {known}, not {value}", refused=True))


def _is_digirl(values: Values) -> bool:
    return bool(values.get("train_algorithm", "digirl") == "digirl")


def _actor(values: Values) -> str:
    return f"algorithm.{'digirl' if _is_digirl(values) else 'filtered_bc'}.actor"


def _critics(values: Values) -> tuple[str, ...]:
    return ("algorithm.digirl.step_value", "algorithm.digirl.instruction_value") if _is_digirl(values) else ()


def _by_algorithm(digirl: Rule, filtered_bc: Rule) -> Rule:
    """One rule where the file trains by DigiRL, another where it imitates."""
    return lambda value, values: (digirl if _is_digirl(values) else filtered_bc)(value, values)


def _unless_online(offline: Callable[[Any], Became], unread: str) -> Rule:
    """A key that training online does not read."""
    return lambda value, values: (
        Became(note=unread) if values.get("train_mode", "online") == "online" else offline(value)
    )


def _batch_size(value: Any, values: Values) -> Became:
    first = _rows(value, (_actor(values), *_critics(values)[:1]), values)
    fixed = _rows(_TRAJECTORY_BATCH, _critics(values)[1:], values)
    return Became(first | fixed, f"DigiRL's instruction-level critic always takes {_TRAJECTORY_BATCH}" if fixed else "")


def _rows(size: Any, places: Sequence[str], values: Values) -> dict[str, Any]:
    """Returns settings by which a step has the rows that DigiRL accumulates, as many at once as its batch has."""
    rows = int(size) * int(values.get("grad_accum_steps", 1))
    return {f"{place}.batch_size": rows for place in places} | {f"{place}.rows_at_once": int(size) for place in places}


def _steps(place: str, steps: int, values: Values, batch: int | None = None) -> tuple[dict[str, Any], str]:
    """Settings by which an update makes as many optimizer steps, from however few rows, as DigiRL's epochs are."""
    size = int(values.get("batch_size", _BATCH)) if batch is None else batch
    accumulate = int(values.get("grad_accum_steps", 1))
    rows = int(steps) * accumulate * size
    return {f"{place}.epochs": rows, f"{place}.max_examples": rows}, f"{steps} steps of {accumulate} · {size} rows"


def _epochs(value: Any, values: Values) -> Became:
    settings, note = _steps(_critics(values)[0], value, values)
    if "trajectory_critic_epochs" not in values:
        more = _trajectory_critic_epochs(_TRAJECTORY_EPOCHS, values)
        settings, note = {**settings, **more.settings}, f"{note}; instruction-level: {more.note}, DigiRL's default"
    return Became(settings, note)


def _trajectory_critic_epochs(value: Any, values: Values) -> Became:
    return Became(*_steps(_critics(values)[1], value, values, _TRAJECTORY_BATCH))


def _capacity(value: Any, values: Values) -> Became:
    found = {"trainer.replay_size": value}
    if _is_digirl(values):
        found["algorithm.digirl.value_episodes"] = value
    return Became(found, "counts episodes here, steps in DigiRL, whose filter nevertheless looks at all episodes")


def _task_set(value: Any, values: Values) -> Became:
    folder = values.get("assets_path")
    return Became({"task_set": f"{folder}/{value}_{{split}}.txt" if folder else value})


def _order(value: Any, values: Values) -> Became:
    if values.get("task_mode") == "evaluate":
        return Became({"task_order": value})
    return Became({"task_order": "random"}, "DigiRL trains in random order; evaluations go through the tasks in order")


def _rollout_size(value: Any, values: Values) -> Became:
    workers = len(values.get("worker_ips") or []) if values.get("parallel") == "host" else 1
    note = f"counts all workers here, each of {workers} in DigiRL" if workers > 1 else ""
    return Became({"rollout_size": int(value) * max(1, workers)}, note)


def _sdk(below: str) -> Rule:
    """The Android SDK, of which DigiRL names two programs."""

    def rule(value: Any, values: Values) -> Became:
        sdks = {
            _sdk_of(values.get("emulator_path"), "emulator/emulator"),
            _sdk_of(values.get("adb_path"), "platform-tools/adb"),
        }
        sdk = _sdk_of(value, below)
        if sdk is None or len(sdks - {None}) != 1:
            return Became(
                note=f"{value} is not {below} of one Android SDK, of which the other program is too", refused=True
            )
        return Became({"emulator.sdk_path": sdk})

    return rule


def _sdk_of(program: Any, below: str) -> str | None:
    path = PurePosixPath(str(program))
    return str(path.parents[1]) if len(path.parents) > 1 and str(path).endswith(f"/{below}") else None


def _record(value: Any, values: Values) -> Became:
    if not value:
        return Became({"emulator.record_path": None})
    return Became({"emulator.record_path": f"{values.get('worker_temp_path') or values.get('save_path')}/videos"})


def _wandb(value: Any, values: Values) -> Became:
    if not value:
        return Became()
    if not (project := values.get("project_name")):
        return Became(note="no project_name: the curves go to TensorBoard alone")
    return Became({"loggers": ["tensorboard", "wandb"], "logger_project": project})


def _train_iterations(value: Any, values: Values) -> Became:
    offline = int(values.get("offline_actor_iterations", 20))
    match values.get("train_mode"):
        case "offline":
            return Became({"train_iterations": offline}, "those of offline_actor_iterations")
        case "off2on":
            return Became({"train_iterations": int(value) + offline}, f"with the {offline} offline ones before them")
    return Became({"train_iterations": value})


def _eval_iterations(value: Any, values: Values) -> Became:
    if values.get("parallel") == "worker":
        return Became(
            {"eval_iterations": values.get("train_iterations", 1)}, "a worker collects train_iterations times"
        )
    if values.get("task_mode") == "evaluate":
        return Became({"eval_iterations": value})
    return Became(
        note="training ends with its last update; --config-name eval measures, evaluation.every during training"
    )


_DIGIRL_CODE = {
    "algorithm.digirl.advantage": "code",
    "algorithm.digirl.top_share": 0.1,
    "algorithm.erase_loops": False,
    "algorithm.hindsight.most": 0,
    "algorithm.unsolved": 0,
}
_NO_CRITICS = _nothing("filteredbc has no critics")
KEYS: dict[str, Rule] = {
    "task_set": _task_set,
    "task_split": _to("task_split"),
    "eval_sample_mode": _order,
    "max_steps": _to("max_steps"),
    "huggingface_token": _secret("HF_TOKEN"),
    "wandb_key": _secret("WANDB_API_KEY"),
    "gemini_key": _secret("GEMINI_API_KEY", **_JUDGE),
    "policy_lm": _of_agent("agent.model"),
    "critic_lm": _of_agent("agent.critic_encoder"),
    "capacity": _capacity,
    "epochs": _by_algorithm(_epochs, _NO_CRITICS),
    "batch_size": _batch_size,
    "bsize": _to("bsize"),
    "rollout_size": _rollout_size,
    "grad_accum_steps": lambda _, values: _batch_size(values.get("batch_size", _BATCH), values),
    "warmup_iter": _by_algorithm(
        _to("algorithm.digirl.warmup_iterations"),
        _only(0, "filteredbc has no critics to warm up", "filteredbc cannot warm up: set it to 0"),
    ),
    "actor_epochs": lambda value, values: Became(*_steps(_actor(values), value, values)),
    "trajectory_critic_epochs": _by_algorithm(_trajectory_critic_epochs, _NO_CRITICS),
    "lm_lr": lambda value, values: Became({f"{_actor(values)}.learning_rate": value}),
    "critic_lr": _by_algorithm(
        _to("algorithm.digirl.step_value.learning_rate", "algorithm.digirl.instruction_value.learning_rate"),
        _NO_CRITICS,
    ),
    "max_grad_norm": lambda value, values: Became(
        {f"{place}.clip_norm": value for place in (_actor(values), *_critics(values))}
    ),
    "gamma": _by_algorithm(
        _to("algorithm.digirl.discount"),
        lambda *_: Became({"algorithm.filtered_bc.discount": 1.0}, "filteredbc weighs all steps of an episode alike"),
    ),
    "use_lora": _nothing("DigiRL's run.py never hands it to its agent"),
    "agent_name": _words(
        "agent_name",
        autoui=Became({"agent": "autoui", "agent.vision_encoder": _SCREEN_ENCODER}, "DigiRL always takes this encoder"),
        cogagent=Became(note="serve it and use agent=endpoint, which measures and collects", refused=True),
    ),
    "cogagent_url": _nothing("see agent_name"),
    "do_sample": _only(True, "agents sample", "agents sample: set it to True, and agent.temperature low"),
    "temperature": _of_agent("agent.temperature"),
    "tau": _nothing("DigiRL makes no target network"),
    "max_new_tokens": _of_agent("agent.answer_length"),
    "record": _record,
    "use_wandb": _wandb,
    "entity_name": _only("", "the environment variable WANDB_ENTITY", "export WANDB_ENTITY=… and leave it empty"),
    "project_name": _nothing("see use_wandb"),
    "android_avd_home": lambda value, _: Became(
        {"emulator": "android", "emulator.avd": _AVD, "emulator.avd_home": value}, "DigiRL's run.py names that AVD"
    ),
    "emulator_path": _sdk("emulator/emulator"),
    "adb_path": _sdk("platform-tools/adb"),
    "assets_path": _nothing("see task_set"),
    "cache_dir": _nothing("models of the Hugging Face hub are where HF_HUB_CACHE says, on each machine"),
    "offline_data_path": _unless_online(
        lambda value: Became({"offline.data": [value]}), "train_mode=online does not read it"
    ),
    "offline_actor_iterations": _unless_online(
        lambda value: Became({"offline.iterations": value}, "each fits the critics as well"),
        "train_mode=online makes none",
    ),
    "offline_critic_iterations": _nothing("see offline_actor_iterations"),
    "offline_trajectory_critic_iterations": _nothing("see offline_actor_iterations"),
    "parallel": _to("parallel"),
    "run_name": _nothing("a run is named by its folder, save_path"),
    "save_path": _to("save_path"),
    "worker_temp_path": _to("worker_temp_path", note="need not be the save_path of the worker"),
    "worker_run_path": _to("worker_run_path", note="the package is installed in a subfolder; nothing else is touched"),
    "worker_ips": _to("worker_ips"),
    "worker_username": _to("worker_username"),
    "save_freq": _to("save_freq"),
    "train_algorithm": _words(
        "train_algorithm",
        digirl=Became({"train_algorithm": "digirl", **_DIGIRL_CODE}, "by the formulas of DigiRL's released code"),
        filteredbc=Became(
            {
                "train_algorithm": "filtered_bc",
                "algorithm.erase_loops": False,
                "algorithm.hindsight.most": 0,
                "algorithm.filtered_bc.avoid": 0,
                "algorithm.filtered_bc.newest": 1_000_000,
                "algorithm.unsolved": 0,
            }
        ),
    ),
    "train_mode": _words(
        "train_mode",
        online=Became({"train_mode": "online"}),
        offline=Became({"train_mode": "offline"}),
        off2on=Became({"train_mode": "offline_to_online"}),
    ),
    "task_mode": _to("task_mode"),
    "train_iterations": _train_iterations,
    "eval_iterations": _eval_iterations,
}
"""Every key that DigiRL's files have, in their order."""

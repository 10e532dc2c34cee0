"""DigiRL's three multi-machine files as facts: keys and values of github.com/DigiRL-agent/digirl, commit c74ec34."""

from __future__ import annotations

from pathlib import Path

HOME = "/home/<username>"
DEFAULT = {
    "task_set": "general",
    "task_split": "train",
    "eval_sample_mode": "random",
    "max_steps": 10,
    "huggingface_token": "",
    "wandb_key": "",
    "gemini_key": "",
    "policy_lm": f"{HOME}/Auto-UI-Base",
    "critic_lm": "roberta-base",
    "capacity": 2000,
    "epochs": 5,
    "batch_size": 4,
    "bsize": 8,
    "rollout_size": 16,
    "grad_accum_steps": 32,
    "warmup_iter": 0,
    "actor_epochs": 20,
    "lm_lr": "1e-4",
    "critic_lr": "1e-4",
    "max_grad_norm": 0.01,
    "gamma": 0.5,
    "use_lora": False,
    "agent_name": "autoui",
    "do_sample": True,
    "temperature": 1.0,
    "tau": 0.01,
    "max_new_tokens": 128,
    "record": False,
    "use_wandb": True,
    "entity_name": "",
    "project_name": "",
    "android_avd_home": f"{HOME}/.android/avd",
    "emulator_path": f"{HOME}/.android/emulator/emulator",
    "adb_path": f"{HOME}/.android/platform-tools/adb",
    "assets_path": f"{HOME}/digirl/digirl/environment/android/assets/task_set",
    "cache_dir": f"{HOME}/.cache",
    "offline_data_path": f"{HOME}/logs/general-off2on-sft-trajectories.pt",
    "offline_actor_iterations": 30,
    "offline_critic_iterations": 20,
    "offline_trajectory_critic_iterations": 20,
}
HOST = {
    "parallel": "host",
    "run_name": "general-digirl-off2on-host",
    "save_path": f"{HOME}/logs/multimachine",
    "worker_temp_path": f"{HOME}/logs/worker",
    "worker_run_path": f"{HOME}/digirl/scripts",
    "worker_ips": ["34.45.185.211"],
    "worker_username": "<username>",
    "save_freq": 1,
    "train_algorithm": "digirl",
    "train_mode": "online",
    "task_mode": "train",
    "train_iterations": 400,
    "eval_iterations": 1000,
}
WORKER = {
    "parallel": "worker",
    "run_name": "general-digirl-off2on-worker",
    "save_path": f"{HOME}/logs/worker",
    "train_algorithm": "digirl",
    "train_mode": "online",
    "task_mode": "train",
    "train_iterations": 1,
    "eval_iterations": 0,
}


def write(folder: Path, home: Path | str = HOME, **edited: object) -> Path:
    """Writes the files as DigiRL does, unquoted numbers included; ``home`` and ``edited`` are the user's edits."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, values in (("default", DEFAULT), ("host", HOST), ("worker", WORKER)):
        lines = ["defaults: [default, _self_]"] if name != "default" else []
        for key, value in (values | {key: edited[key] for key in values.keys() & edited.keys()}).items():
            shown = value if key in ("lm_lr", "critic_lr") else repr(value)
            lines.append(f"{key}: {shown}".replace(HOME, str(home)))
        (folder / f"{name}.yaml").write_text("\n".join(lines) + "\n")
    return folder

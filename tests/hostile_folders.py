"""Sixty run folders that strangers made: what their files name, what they are, and how large they would become."""

from __future__ import annotations

import json
import os
import random
import shutil
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from digirl_dist.settings.safe_yaml import read_yaml

CALLED = ("antigravity:fly", "this:d", "os:system", "builtins:exec", "stranger_code:Mine", "subprocess:getoutput")
"""What no run has a reason to call: modules of Python that nothing else here imports, and one beside the folders."""

Make = Callable[[Path], None]
_HOLE = 8 << 30
_MANY = 300_000


def hostile_folders(place: Path, run: Path, victim: Path, seed: int) -> list[Path]:
    """Copies ``run``, changes one thing in each copy, and returns them. ``victim`` is a file outside of them all."""
    made = []
    for name, make in _kinds(victim, random.Random(seed)):
        folder = shutil.copytree(run, place / f"{len(made):02d}-{name}", symlinks=True)
        make(folder)
        made.append(folder)
    return made


def _kinds(victim: Path, rng: random.Random) -> Iterator[tuple[str, Make]]:
    yield from _agents(rng)
    yield from _configurations(rng, victim)
    yield from _files(victim)
    yield from _contents(rng)


def _agents(rng: random.Random) -> Iterator[tuple[str, Make]]:
    """Of the manifest of each checkpoint."""
    custom = {"name": "custom", "entry_point": rng.choice(CALLED), "kwargs": {"command": "true"}}
    yield "agent-entry-point", partial(_manifest, agent=custom)
    yield "agent-of-torch", partial(_manifest, agent={**custom, "entry_point": "torch.hub:load"})
    yield (
        "agent-endpoint",
        partial(_manifest, agent={"name": "endpoint", "model": "m", "base_url": "http://127.0.0.1:9"}),
    )
    yield "agent-hub", partial(_manifest, agent={"name": "vlm", "model": "strangers/model"})
    yield "agent-folder", partial(_manifest, agent={"name": "autoui", "model": "/etc"})
    yield "agent-unknown", partial(_manifest, agent={"name": rng.choice(["os", "../x", "custom.os"])})
    yield "agent-list", partial(_manifest, agent=[1, 2])
    yield "agent-reference", partial(_manifest, agent={"name": "device", "actions": ["${oc.env:HOME}"]})
    shapes = {"vector_size": 10**12, "image_size": None, "labels": False}
    wide = {
        "agent": {"name": "generic", "width": 16_384},
        "emulator": {**shapes, "actions": {"kind": "discrete", "n": 9}},
    }
    yield "agent-wide", partial(_manifest, **wide)
    many = {**shapes, "vector_size": 4, "actions": {"kind": "discrete", "n": 10**12}}
    yield "agent-actions", partial(_manifest, agent={"name": "generic"}, emulator=many)


def _configurations(rng: random.Random, victim: Path) -> Iterator[tuple[str, Make]]:
    named = {
        "success": {"success": "predicate", "predicate": rng.choice(CALLED)},
        "judge": {"success": "judge", "judge": {"base_url": "http://127.0.0.1:9"}},
        "hindsight": {"algorithm": {"hindsight": {"most": 2, "achieved": rng.choice(CALLED)}}},
        "advantage": {"train_algorithm": "digirl", "algorithm": {"digirl": {"advantage": rng.choice(CALLED)}}},
        "algorithm": {"algorithm": {"entry_point": rng.choice(CALLED), "kwargs": {"x": 1}}},
        "setup": {"emulator": {"setup": str(victim)}},
        "packages": {"emulator": {"packages": ["evil"]}},
        "worker": {"worker_ips": ["127.0.0.1"], "worker_username": "root"},
        "python": {"worker_python": "/bin/sh"},
        "loggers": {"loggers": ["wandb", "mlflow"]},
        "start": {"start_from": "/dev"},
        "data": {"train_mode": "offline", "offline": {"data": [str(victim)]}},
        "tasks": {"task_set": f"{victim}.txt"},
        "reference": {"logger_project": "${oc.env:HOME}"},
        "path": {"hydra": {"searchpath": ["pkg://antigravity"]}},
        "defaults": {"defaults": ["settings", {"agent": "../../x"}, "_self_"]},
        "device": {"trainer": {"device": "x" * 10_000}},
    }
    for name, changes in named.items():
        yield f"config-{name}", partial(_configured, changes=changes)
    for kind, block in {
        "custom": {"entry_point": rng.choice(CALLED)},
        "openenv": {"app": rng.choice(CALLED)},
        "gymnasium": {"id": "antigravity:Env-v0"},
    }.items():
        yield f"config-{kind}", partial(_replaced, group="emulator", block={"name": kind, **block})
    bomb = "a: &a [x, x]\n" + "".join(f"{b}: &{b} [*{a}, *{a}]\n" for a, b in pairwise("abcdefghijklmn"))
    texts = {
        "tag": "!!python/object/apply:os.system ['true']",
        "bomb": bomb,
        "deep": "[" * 100_000,
        "long": "seed: " + "1" * (5 << 20),
        "nothing": "",
    }
    for name, text in texts.items():
        yield f"config-{name}", partial(_written, name="config.yaml", content=text)
    yield "config-beside", partial(_written, name="settings.yaml", content="predicate: 'antigravity:fly'\n")


def _files(victim: Path) -> Iterator[tuple[str, Make]]:
    """What the files are."""
    weights, newest = "checkpoints/000002/policy.safetensors", "checkpoints/000002"
    table, episodes = "checkpoints/updates/000002.parquet", "trajectories/000001.parquet"
    pipes = (weights, f"{newest}/manifest.json", f"{newest}/trainer.pt", table, episodes, "metrics.jsonl")
    for name in (*pipes, "status.json", "run.json", ".lock", "config.yaml", "trajectories/.landing/000002/x.episode"):
        yield f"pipe-{Path(name).name}", partial(_put, name=name, make=os.mkfifo)
    for name in (weights, table, episodes, "events.jsonl", "provenance.jsonl"):
        yield f"endless-{Path(name).name}", partial(_put, name=name, make=partial(os.symlink, "/dev/zero"))
    for name in ("report.html", "report.html.part", "config.yaml", "events.jsonl", "status.json", ".lock", "run.json"):
        yield f"link-{name}", partial(_put, name=name, make=partial(os.symlink, victim))
    for name in ("checkpoints", "checkpoints/updates", "trajectories", "evaluation", newest):
        yield f"folder-{Path(name).name}", partial(_put, name=name, make=partial(os.symlink, victim.parent))
    yield "loop", partial(_put, name=weights, make=partial(os.symlink, "policy.safetensors"))
    yield "hard-link", partial(_put, name="events.jsonl", make=partial(os.link, victim))
    for name in (weights, table, episodes, "metrics.jsonl"):
        yield f"holes-{Path(name).name}", partial(_stretched, name=name)


def _contents(rng: random.Random) -> Iterator[tuple[str, Make]]:
    """What the files hold."""
    yield "dense-lines", partial(_written, name="metrics.jsonl", content='{"iteration":1}\n' * (3 << 20))
    line = json.dumps({"iteration": 1, "x": [[]] * (8 << 20)})
    yield "long-line", partial(_written, name="metrics.jsonl", content=line + "\n")
    yield "dense-events", partial(_written, name="events.jsonl", content="{}\n" * (8 << 20))
    yield "deep-status", partial(_written, name="status.json", content="[" * rng.randrange(10**5, 10**6))
    yield "large-status", partial(_written, name="status.json", content=f"[{'[],' * (8 << 20)}1]")
    tensors = {f"t{number}": ["0" * 32, "float32", [1]] for number in range(_MANY)}
    yield "many-tensors", partial(_manifest, tensors=tensors)
    header = json.dumps({f"t{n}": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]} for n in range(_MANY)})
    yield "many-names", partial(_weights, content=len(header).to_bytes(8, "little") + header.encode())
    yield "long-header", partial(_weights, content=b"\xff" * 8)
    yield "deep-run", partial(_written, name="run.json", content="[" * 200_000)
    place = {"iteration": 1, "ticket": 1, "purpose": "train", "time": 1.0}
    told = [{**place, "event": "episode_retried", "reason": "\ud800"}, {**place, "event": "episode", "attempt": 2**40}]
    odd = "".join(f"{json.dumps(each)}\n" for each in told)
    yield "odd-events", partial(_written, name="events.jsonl", content=odd)
    retried = json.dumps({**told[0], "ticket": 0, "reason": "x" * 1000}).replace('"ticket": 0', '"ticket": %d')
    many = "".join(f"{retried % number}\n" for number in range(_MANY))
    yield "many-reasons", partial(_written, name="events.jsonl", content=many)
    yield "many-checkpoints", _many_checkpoints
    yield "many-files", _many_files
    yield "many-entries", _many_entries


def _written(folder: Path, name: str, content: str) -> None:
    (folder / name).write_text(content)


def _weights(folder: Path, content: bytes) -> None:
    for weights in folder.glob("checkpoints/0*/policy.safetensors"):
        weights.write_bytes(content)


def _configured(folder: Path, changes: dict[str, Any]) -> None:
    path = folder / "config.yaml"
    OmegaConf.save(OmegaConf.merge(OmegaConf.create(read_yaml(path)), changes), path)


def _replaced(folder: Path, group: str, block: dict[str, Any]) -> None:
    path = folder / "config.yaml"
    OmegaConf.save(OmegaConf.create({**read_yaml(path), group: block}), path)


def _manifest(folder: Path, tensors: Any = None, **policy: Any) -> None:
    for path in folder.glob("checkpoints/0*/manifest.json"):
        content = json.loads(path.read_text())
        content["policy"] |= policy
        content["tensors"] = tensors or content["tensors"]
        path.write_text(json.dumps(content))


def _put(folder: Path, name: str, make: Callable[[Path], None]) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    make(path)


def _stretched(folder: Path, name: str) -> None:
    with (folder / name).open("ab") as file:
        file.truncate(_HOLE)


def _many_checkpoints(folder: Path) -> None:
    for number in range(3, 3000):
        (folder / f"checkpoints/{number:06d}").mkdir()


def _many_files(folder: Path) -> None:
    for number in range(2, 20_000):
        (folder / f"trajectories/{number:06d}.parquet").touch()


def _many_entries(folder: Path) -> None:
    for path in folder.glob("checkpoints/0*/trainer.pt"):
        with zipfile.ZipFile(path, "w") as packed:
            for number in range(20_000):
                packed.writestr(f"{number}", b"")

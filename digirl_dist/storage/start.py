"""``start_from``: the checkpoint of another run whose policy a run begins with, and the record of it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from digirl_dist.errors import CheckpointError, SettingsError
from digirl_dist.settings.safe_yaml import read_mapping, read_yaml
from digirl_dist.storage import atomic_files
from digirl_dist.storage.checkpoint import Checkpoint, Checkpoints, read_checkpoint, reading
from digirl_dist.storage.digest import file_digest
from digirl_dist.storage.run_folder import run_id_of
from digirl_dist.types import Json

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Start:
    """A checkpoint that was asked for by ``asked``, an absolute path."""

    asked: str
    checkpoint: Checkpoint | DigirlCheckpoint

    @property
    def agent(self) -> str | None:
        """The name of the agent in the configuration of the checkpoint's run, if that lies beside it."""
        if isinstance(self.checkpoint, DigirlCheckpoint):
            return "autoui"
        agent = read_mapping(self.checkpoint.folder.parent.parent / "config.yaml").get("agent")
        return agent.get("name") if isinstance(agent, dict) else None

    def record(self, run: Path) -> dict[str, Json]:
        """Writes ``start.json`` into the run folder and returns its content."""
        folder = self.checkpoint.folder
        content: dict[str, Json] = {"start_from": self.asked, "checkpoint": str(folder)}
        if isinstance(self.checkpoint, DigirlCheckpoint):
            content |= {"iteration": None, "run_id": None, "tensors": {POLICY_FILE: file_digest(folder / POLICY_FILE)}}
        else:
            tensors = {name: info.digest for name, info in self.checkpoint.tensors.items()}
            source = run_id_of(folder.parent.parent) or None
            content |= {"iteration": self.checkpoint.iteration, "run_id": source, "tensors": tensors}
        atomic_files.write_json(run / "start.json", content)
        return content


def start_of(start_from: str | None, run: Path) -> Start | None:
    """Returns where the run in the folder ``run`` starts; None if it starts afresh or continues.

    ``start_from`` is the folder of a checkpoint, or of a run, whose newest checkpoint counts, here or of DigiRL.
    Raises SettingsError if it is neither, or if the run started otherwise.
    """
    if start_from is None:
        return None
    asked = os.path.abspath(os.path.expanduser(start_from))
    if Checkpoints(run / "checkpoints").has_any():
        began = _recorded(run / "start.json").get("start_from")
        if began != asked:
            how = f"from {began}" if began else "with fresh weights"
            raise SettingsError(
                f"save_path={run} holds a run that started {how}: leave start_from out to continue it, or use another "
                "save_path"
            )
        return None
    try:
        own = _own(Path(asked))
    except CheckpointError as error:
        raise SettingsError(f"start_from={start_from}: {error}") from error
    if own is not None:
        return Start(asked, own)
    for folder in (Path(asked), Path(asked) / "trainer.pt", Path(asked) / "model.pt"):
        if os.path.isfile(folder / POLICY_FILE):
            return Start(asked, DigirlCheckpoint(folder))
    raise SettingsError(
        f"start_from={start_from} is no checkpoint; name a folder like RUN/checkpoints/000014, a run folder, or the "
        "folder trainer.pt of a DigiRL run"
    )


def _recorded(path: Path) -> Mapping[str, Json]:
    """Returns what ``Start.record`` wrote, and nothing if it wrote nothing. Raises SettingsError if it is damaged."""
    if not path.exists():
        return {}
    found = read_yaml(path)
    if not isinstance(found, Mapping):
        raise SettingsError(f"{path} is damaged: restore it, or leave start_from out to continue the run")
    return found


def _own(asked: Path) -> Checkpoint | None:
    """Returns the checkpoint in a folder, or the newest of a run's; None if it is neither. Raises CheckpointError."""
    if os.path.isfile(asked / "manifest.json"):  # False for paths that no system would take
        return read_checkpoint(asked.resolve())
    if os.path.isdir(asked / "checkpoints"):
        return Checkpoints((asked / "checkpoints").resolve()).newest()
    return None


POLICY_FILE = "pytorch_model.bin"
_RANK_PREFIX = "module."
_TIED = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
"""The policy's embeddings by two more names."""


@dataclass(frozen=True)
class DigirlCheckpoint:
    """The policy of a DigiRL or DistRL run, which has Auto-UI's form. How many updates made it is not written there."""

    folder: Path

    def state(self) -> dict[str, torch.Tensor]:
        """Returns the policy's weights under the names of ``Auto-UI-Base``, loaded without running any code in them.

        Runs on several GPUs put a prefix before each name. Raises CheckpointError if the file cannot be read.
        """
        import torch

        from digirl_dist.storage.safe_torch_load import load_state

        path = self.folder / POLICY_FILE
        with reading(path):
            content = load_state(path)
        if not isinstance(content, Mapping) or not all(isinstance(each, torch.Tensor) for each in content.values()):
            raise CheckpointError(f"{path} does not hold the weights of a policy")
        named = {str(name).removeprefix(_RANK_PREFIX): tensor for name, tensor in content.items()}
        return {name: tensor for name, tensor in named.items() if name not in _TIED}

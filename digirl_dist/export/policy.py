"""The newest policy and its model card, for the model hub and for ``start_from``."""

from __future__ import annotations

import shutil
from pathlib import Path

from digirl_dist.errors import CheckpointError
from digirl_dist.export.cards import model_card
from digirl_dist.export.source import Source
from digirl_dist.settings import regular_file
from digirl_dist.storage import atomic_files
from digirl_dist.storage.checkpoint import Checkpoints


def write(source: Source, folder: Path) -> None:
    """Copies weights and manifest. Raises CheckpointError if there are none, or if they are damaged."""
    newest = Checkpoints(source.folder / "checkpoints").newest()
    if newest is None:
        raise CheckpointError(f"{source.folder} has no checkpoint")
    newest.verify()
    for name in ("policy.safetensors", "manifest.json"):
        with regular_file.opened(newest.folder / name) as file, atomic_files.created(folder / name) as copy:
            shutil.copyfileobj(file, copy)
    atomic_files.write_text(folder / "README.md", model_card(source, newest.iteration))

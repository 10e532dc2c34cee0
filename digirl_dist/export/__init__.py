"""Writes runs in the formats of other tools, and uploads them to the Hugging Face hub. Each format is one module."""

from __future__ import annotations

import importlib
import os
import shlex
import shutil
import tempfile
from pathlib import Path

from digirl_dist.errors import HubError, RunFolderError, SettingsError
from digirl_dist.settings.extras import extra_needed
from digirl_dist.settings.paths import PathUse, refuse_unwritable
from digirl_dist.storage.status import Status

FORMS = {"atif": "dataset", "datasets": "dataset", "policy": "model"}
"""The formats, which are modules of this room, and what the hub calls their repositories."""


def export(run: Path, name: str, destination: Path, verdicts: str | None = None, status: Status | None = None) -> Path:
    """Writes the run in the folder ``run`` to ``destination``, a new folder that is there when all of it is.

    ``verdicts`` names those that stand in place of the episodes' own; ``status`` shows how far it is.

    Raises SettingsError if ``destination`` exists, RunFolderError if it cannot be written, TrajectoryError for a
    damaged file.
    """
    destination = destination.expanduser().absolute()
    if os.path.lexists(destination):
        raise SettingsError(f"{destination} is there already; name a folder that is not, or move it away")
    if name not in FORMS:
        raise SettingsError(f"there is no format {name!r}: choose from {', '.join(FORMS)}")
    if verdicts is not None and FORMS[name] != "dataset":
        raise SettingsError(f"verdicts={verdicts!r} are of episodes, and {name} exports none: leave them out")
    module = importlib.import_module(f"{__name__}.{name}")
    refuse_unwritable("destination", destination, PathUse.output_folder)
    from digirl_dist.export.source import Source

    source = Source(run, verdicts, status)
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=f".{destination.name}.", suffix=".part", dir=destination.parent))
        try:
            module.write(source, part)
            part.chmod(0o755)
            part.rename(destination)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    except OSError as error:
        place = error.filename or destination
        raise RunFolderError(f"{place} cannot be read or written: {error.strerror or error}") from error
    return destination


def refuse_no_repository(repository: str) -> None:
    """Raises SettingsError for a name that is none on the hub; before anything is written."""
    with extra_needed("the hub", "huggingface_hub", "hub"):
        from huggingface_hub.errors import HFValidationError
        from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]
    try:
        validate_repo_id(repository)
    except HFValidationError as error:
        raise SettingsError(f"{repository!r} is no repository such as ann/my-run: {error}") from error


def push(folder: Path, name: str, repository: str, private: bool = True, kept: bool = True) -> str:
    """Uploads ``folder``, an export in the format ``name``; returns the address of the commit.

    The repository is made if it is missing, private unless asked for otherwise. The login is the library's own
    (``hf auth login``, or ``HF_TOKEN``). Raises HubError, which tells how to upload the folder later if that is
    ``kept``.
    """
    refuse_no_repository(repository)
    from huggingface_hub import HfApi

    api, kind = HfApi(), FORMS[name]
    try:
        api.create_repo(repository, repo_type=kind, private=private, exist_ok=True)
        commit = api.upload_folder(repo_id=repository, repo_type=kind, folder_path=folder)
    except Exception as error:  # without a network that of its transport, which differs by its version
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        remedy = "hf auth login, or check HF_ENDPOINT"
        if kept:
            again = shlex.join(["hf", "upload", repository, str(folder), ".", f"--repo-type={kind}"])
            remedy += f"; the export is complete, and goes there by `{again}`"
        raise HubError(f"{repository} cannot be pushed: {reason} -> {remedy}") from error
    return str(commit.commit_url)

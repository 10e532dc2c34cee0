"""Uploads an exported folder to the Hugging Face hub, or to whatever ``HF_ENDPOINT`` names."""

from __future__ import annotations

import shlex
from pathlib import Path

from digirl_dist.errors import HubError, SettingsError
from digirl_dist.settings.extras import extra_needed

_KINDS = {"datasets": "dataset", "lerobot": "dataset", "atif": "dataset", "policy": "model"}


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

    api, kind = HfApi(), _KINDS[name]
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

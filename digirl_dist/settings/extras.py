"""The optional parts of the package, where one of them is missing or does not fit."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import metadata

from digirl_dist.errors import SettingsError
from digirl_dist.exit_status import interruptions_wait

CPU_INDEX = "https://download.pytorch.org/whl/cpu"
"""PyTorch's CPU builds."""
_DRIVER = "/dev/nvidiactl"


@contextmanager
def extra_needed(chosen: str, packages: str, extra: str) -> Iterator[None]:
    """Imports that need an extra. Raises SettingsError with its installation in place of their ImportError, and for a
    package of another version than the extra names."""
    remedy = installation(extra)
    if misfit := _misfit(extra):
        raise SettingsError(f"{chosen} needs {misfit}: {remedy}")
    try:
        yield
    except ImportError as error:
        raise SettingsError(f"{chosen} needs {packages}: {remedy} ({error})") from error


def installation(extra: str) -> str:
    """Returns the command that installs an extra on this machine."""
    command = f"pip install 'digirl_dist[{extra}]'"
    if extra != "train" or os.path.exists(_DRIVER):
        return command
    return f"{command} --extra-index-url {CPU_INDEX} (no NVIDIA GPU is here; else pip would fetch 6 GB of CUDA)"


def refuse_without_torch(chosen: str) -> None:
    """Raises SettingsError, with the command that installs it on this machine, where PyTorch is missing or too old.

    Imports nothing.
    """
    with extra_needed(chosen, "PyTorch", "train"), interruptions_wait():  # hooks of imports may swallow them
        if importlib.util.find_spec("torch") is None:
            raise ImportError("there is no module torch")


def _misfit(extra: str) -> str:
    """Returns which package another version is wanted of; empty if there is none, or this one is not installed."""
    from packaging.requirements import Requirement

    with suppress(metadata.PackageNotFoundError):
        for wanted in map(Requirement, metadata.requires("digirl_dist") or ()):
            if wanted.marker is None or not wanted.marker.evaluate({"extra": extra}):
                continue
            with suppress(metadata.PackageNotFoundError):
                found = metadata.version(wanted.name)
                if not wanted.specifier.contains(found, prereleases=True):
                    return f"{wanted.name}{wanted.specifier}, and {found} is installed"
    return ""

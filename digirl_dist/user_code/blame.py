"""Tells what code of the user's raised in one line, with its file and line, in place of a traceback."""

from __future__ import annotations

import functools
import os
import pickle
import sys
import sysconfig
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

import digirl_dist
from digirl_dist.errors import DigirlDistError
from digirl_dist.plain_text import in_short

_LONGEST = 500
RAISED = (Exception, SystemExit)
"""What code of the user's raises: a script that parses arguments, or ends with ``sys.exit``, may have been named."""


@contextmanager
def blaming(what: str, kind: type[DigirlDistError]) -> Iterator[None]:
    """Raises ``kind``, saying ``what``, in place of an error that passed through code of the user's."""
    try:
        yield
    except DigirlDistError:
        raise
    except RAISED as error:
        if _users_frame(error) is None:
            raise
        raise kind(f"{what}: {described(error)}{_remedy(error)}") from error


def described(error: BaseException) -> str:
    """Returns an error in one line, with the innermost line of the user's own code, or else of any."""
    frame = _users_frame(error) or traceback.extract_tb(error.__traceback__)[-1]
    said = in_short(error, _LONGEST)
    return f"{type(error).__name__}: {said} (at {frame.filename}:{frame.lineno} in {frame.name})"


def _remedy(error: BaseException) -> str:
    """Returns what to do about code that was written for the CPU and met a GPU; empty for other errors."""
    if "cuda:" not in str(error) or not isinstance(error, (TypeError, RuntimeError)):
        return ""
    return (
        "; the agent is on a GPU: move what it reads to the device of its weights and bring numbers back with .cpu(), "
        "or set trainer.device=cpu"
    )


def lacking_here(error: BaseException) -> str:
    """Returns what to do about code that misses, on a worker, what lies beside it on the host; empty otherwise."""
    frame = _users_frame(error)
    folder = os.path.dirname(frame.filename) if frame else ""
    match error:
        case FileNotFoundError(filename=str() as path) if frame and (
            not os.path.isabs(path) or path.startswith(folder)
        ):
            return (
                "; data files do not go to workers: read them at the top of your module, whose globals are sent, or "
                "install it there with a package (emulator.packages) or emulator.setup"
            )
        case pickle.PicklingError() if "import" in str(error) or "same object" in str(error):
            return (
                "; on a worker, a process started by spawn or forkserver cannot import your file: use "
                'multiprocessing.get_context("fork"), or install the code as a package (emulator.packages)'
            )
    return ""


def at_work() -> str:
    """Returns the innermost line of the user's own code that the main thread runs now; empty where it runs none.

    The file that Python was started with does not count: all that the process does runs below it. Nor does code
    without a file, such as the methods that dataclasses of installed packages get.
    """
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        path = frame.f_code.co_filename
        if frame.f_globals.get("__name__") != "__main__" and not path.startswith("<") and is_users(path):
            return f"{path}:{frame.f_lineno} in {frame.f_code.co_name}"
        frame = frame.f_back
    return ""


def is_users(path: str) -> bool:
    """Returns whether a file is neither installed nor part of Python or of this package."""
    return not (path.startswith("<frozen") or _is_recorded(path)) and _is_users_folder(os.path.dirname(path))


def _users_frame(error: BaseException) -> traceback.FrameSummary | None:
    frames = traceback.extract_tb(error.__traceback__)
    return next((frame for frame in reversed(frames) if is_users(frame.filename)), None)


@functools.cache
def _is_recorded(path: str) -> bool:
    """Returns whether ``pip install --target`` put a file where it is."""
    return any(
        _recorded(folder).intersection(Path(path).relative_to(folder).parts[:1])
        for folder in {os.path.abspath(entry) for entry in sys.path}
        if Path(path).is_relative_to(folder)
    )


@functools.cache
def _recorded(folder: str) -> frozenset[str]:
    """Returns the top-level names of the packages in a folder that have a record of their installation beside them."""
    found = [each for each in metadata.distributions(path=[folder]) if each.read_text("RECORD")]
    return frozenset(file.parts[0] for each in found for file in each.files or ())


@functools.cache
def _is_users_folder(folder: str) -> bool:
    place = os.path.join(os.path.realpath(folder), "")
    # site-packages of another environment are installed as well: one environment may be laid over another
    return not (place.startswith(_roots()) or "/site-packages/" in place or "/dist-packages/" in place)


@functools.cache
def _roots() -> tuple[str, ...]:
    paths = {*sysconfig.get_paths().values(), sys.base_prefix, sys.prefix, os.path.dirname(digirl_dist.__file__)}
    return tuple(os.path.join(os.path.realpath(path), "") for path in paths)

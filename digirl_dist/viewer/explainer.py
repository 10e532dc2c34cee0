"""Explanations of episodes, computed in a process of their own: the server needs no torch, and stays small."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import threading
from concurrent.futures import CancelledError, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path

from digirl_dist.errors import RunFolderError
from digirl_dist.settings.extras import refuse_without_torch
from digirl_dist.types import Json

_STRANGERS_BYTES = 256 << 20
"""Memory, beyond that of the process with its libraries, for a run that nobody trusts."""
_NICE = 5
"""Pages and pictures come before explanations."""


class Explainer:
    """Starts its process with the first request."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None
        self._last: Future[dict[str, Json]] | None = None

    def explain(self, folder: Path, key: str, version: int | None, trust: bool = False) -> dict[str, Json]:
        """Returns an ``Explanation`` as JSON. Raises DigirlDistError, or RuntimeError if the process dies.

        Without ``trust`` nothing that the folder names is called, and memory is limited.

        A request that has not begun gives way to a newer one: who leafs through episodes waits for the last alone.
        """
        if self._pool is None:
            self._pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _begin)
        if self._last is not None:
            self._last.cancel()
        try:
            self._last = asked = self._pool.submit(_explain, folder, key, version, trust)
            return asked.result()
        except CancelledError as error:
            raise RuntimeError("another episode was asked for since") from error
        except BrokenProcessPool as error:
            self._pool = None
            raise RuntimeError(
                "the process that computes explanations has died; is there too little memory?"
            ) from error

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


def _begin() -> None:
    """A run may be a stranger's: its classes are not looked for in the working directory, its models not on the hub."""
    threading.Thread(target=_end_with_the_server, daemon=True).start()
    os.nice(_NICE)
    os.environ |= {"PYTHONSAFEPATH": "1", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}  # a thread's stack is memory


def _end_with_the_server() -> None:
    """A pool's process holds both ends of its queue, and would wait for ever for the work of one that was killed."""
    if (server := multiprocessing.parent_process()) is not None:
        server.join()
    os._exit(1)


def _explain(folder: Path, key: str, version: int | None, trust: bool) -> dict[str, Json]:
    refuse_without_torch("an explanation")
    from digirl_dist.api.run import Run
    from digirl_dist.storage.safe_torch_load import limited_memory

    _load_libraries()
    run = Run(folder, trust)
    with nullcontext() if trust else limited_memory(_STRANGERS_BYTES):
        try:
            return asdict(run.explain(run.episode(key), version))
        except MemoryError as error:
            raise RunFolderError(
                f"{folder} takes more than {_STRANGERS_BYTES >> 20} MB to explain: "
                "`digirl-dist view --trust` sets no limit"
            ) from error


def _load_libraries() -> None:
    """What they take would count as the run's: Arrow's own allocator sets a whole gigabyte aside."""
    import pyarrow as pa

    pa.set_memory_pool(pa.system_memory_pool())
    for name in ("api.explanation", "api.policy", "assembly.parts", "settings.run_source"):
        importlib.import_module(f"digirl_dist.{name}")

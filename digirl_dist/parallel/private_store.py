"""Where ranks of one machine leave words for each other: a file that only their user can open."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from torch._C._distributed_c10d import FileStore

from digirl_dist.parallel.rank import store_path


class PrivateStore(FileStore):
    """The file is in a folder of mode 0700, which ``launch`` makes and removes."""

    def __init__(self, path: Path, world_size: int, launcher: int) -> None:
        super().__init__(str(path), world_size)
        self._launcher = launcher

    def check(self, keys: list[str]) -> bool:
        """Whether all are set. Raises RuntimeError when the launcher is gone: nobody would end this rank then."""
        if os.getppid() != self._launcher:
            raise RuntimeError(f"process {self._launcher}, which started this rank, has ended")
        return bool(super().check(keys))


def launched_store(environ: Mapping[str, str], world_size: int) -> PrivateStore | None:
    """Returns the store of the launcher that started this process; None if another launcher did."""
    path = store_path(environ)
    return PrivateStore(path, world_size, os.getppid()) if path else None

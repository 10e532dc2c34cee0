"""Prints which rank failed: several processes print at once, and a traceback must name its own."""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from digirl_dist.errors import CheckpointError, PeerError, RunFolderError, SettingsError
from digirl_dist.parallel.rank import Rank
from digirl_dist.plain_text import printable

FAILED = re.compile(r"rank \d+ of \d+ failed:")
"""The first line that ``telling`` prints."""


@contextmanager
def telling(rank: Rank) -> Iterator[None]:
    """Prints rank and traceback of an error that passes through, in one write, so that ranks do not interleave.

    What is wrong with another rank, a run folder or a checkpoint is one line.
    """
    try:
        yield
    except SettingsError:
        raise  # one line says it all
    except (CheckpointError, PeerError, RunFolderError) as error:  # so it does of these
        sys.stderr.write(f"rank {rank.rank} of {rank.world_size} failed: {printable(str(error))}\n")
        sys.stderr.flush()
        raise
    except Exception:
        sys.stderr.write(f"rank {rank.rank} of {rank.world_size} failed:\n{printable(traceback.format_exc())}")
        sys.stderr.flush()
        raise

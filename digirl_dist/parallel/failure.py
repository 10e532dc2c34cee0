"""Prints which rank failed or waits: several processes print at once, and each line must name its own."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from digirl_dist.errors import CheckpointError, EmulatorError, PeerError, RunFolderError, SettingsError, StateError
from digirl_dist.parallel.rank import Rank
from digirl_dist.plain_text import printable
from digirl_dist.threads import after

_PATIENCE_S = 10.0


def say(rank: Rank, words: str) -> None:
    """Prints words of a rank, a line or more, in one write."""
    with suppress(OSError):  # the terminal may be gone
        sys.stderr.write(f"rank {rank.rank} of {rank.world_size} {printable(words)}")
        sys.stderr.flush()


@contextmanager
def telling(rank: Rank) -> Iterator[None]:
    """Prints rank and traceback of an error that passes through, in one write, so that ranks do not interleave.

    What is wrong with another rank, a run folder, a checkpoint or an emulator's answer is one line.
    """
    try:
        yield
    except SettingsError:
        raise  # one line says it all
    except (CheckpointError, EmulatorError, PeerError, RunFolderError, StateError) as error:  # so it does of these
        say(rank, f"failed: {error}\n")
        raise
    except Exception:
        say(rank, f"failed:\n{traceback.format_exc()}")
        raise


@contextmanager
def telling_a_wait(rank: Rank, limit_s: float, what: Callable[[], str]) -> Iterator[None]:
    """Prints once, after ten seconds, what the rank waits for, and for how long it will."""

    def tell() -> None:
        say(rank, f"waits for {what()}, for up to {limit_s:g} s\n")

    with after(_PATIENCE_S, tell):
        yield

"""Prints which rank failed or waits: several processes print at once, and each line must name its own."""

from __future__ import annotations

import re
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from digirl_dist.errors import CheckpointError, EmulatorError, PeerError, RunFolderError, SettingsError, StateError
from digirl_dist.parallel.rank import Rank
from digirl_dist.plain_text import printable

_FAILED = re.compile(r"rank \d+ of \d+ failed:")
"""The first line that ``telling`` prints."""
_FIRST_LINES, _LAST_LINES = 10, 50

_PATIENCE_S = 10.0


def say(rank: Rank, words: str) -> None:
    """Prints words of a rank, a line or more, in one write."""
    sys.stderr.write(f"rank {rank.rank} of {rank.world_size} {printable(words)}")
    sys.stderr.flush()


def words_of_failure(printed: Sequence[str]) -> list[str]:
    """Returns what the first rank that failed by itself said, of all lines that ranks printed; else the last lines.

    Of long words the middle is left out: a traceback ends with what went wrong.
    """
    starts = [number for number, line in enumerate(printed) if _FAILED.match(line)]
    said = [list(printed[start:end]) for start, end in zip(starts, [*starts[1:], None], strict=False)]
    own = next((words for words in said if len(words) > 1), said[0] if said else [])  # one line tells of another rank
    if not own:
        return list(printed[-_FIRST_LINES - _LAST_LINES :])
    return own if len(own) <= _FIRST_LINES + _LAST_LINES else [*own[:_FIRST_LINES], "…", *own[-_LAST_LINES:]]


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

    timer = threading.Timer(_PATIENCE_S, tell)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()

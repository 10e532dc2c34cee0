"""Exit statuses of commands, and the line on stderr that reports an error."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

from digirl_dist.errors import DigirlDistError, SettingsError
from digirl_dist.plain_text import printable

_RESUMES = "the same command resumes where it stopped"


def exit_status(command: Callable[[], int], after_interruption: str = _RESUMES) -> int:
    """Returns ``command``'s status; 2 after a SettingsError, 1 after another DigirlDistError or a file that cannot be
    used, 130 if interrupted, 141 if its output is no longer read."""
    try:
        return command()
    except DigirlDistError as error:
        print(f"error: {printable(str(error))}", file=sys.stderr)
        return 2 if isinstance(error, SettingsError) else 1
    except KeyboardInterrupt:
        print(f"interrupted; {after_interruption}", file=sys.stderr)
        return 130
    except BrokenPipeError:  # who reads the output, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        if error.filename is None:
            raise
        print(f"error: {printable(str(error.filename))}: {error.strerror}", file=sys.stderr)
        return 1


def end_by_sigterm_as_by_ctrl_c() -> None:
    """Makes SIGTERM raise KeyboardInterrupt, so that the command stops its children in order."""
    signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt

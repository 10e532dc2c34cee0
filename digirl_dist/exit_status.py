"""How a command ends: its exit status, and one line on stderr that says what went wrong."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable

from digirl_dist.errors import DigirlDistError, SettingsError

_GOES_ON = "the same command goes on where it stopped"


def exit_status(command: Callable[[], int], after_interruption: str = _GOES_ON) -> int:
    """What ``command`` returns; 1 after an error of ours, 2 if that is a wrong configuration, 130 when interrupted."""
    try:
        return command()
    except DigirlDistError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, SettingsError) else 1
    except KeyboardInterrupt:
        print(f"interrupted; {after_interruption}", file=sys.stderr)
        return 130


def end_by_sigterm_as_by_ctrl_c() -> None:
    """So that what the command started is stopped in order."""
    signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt

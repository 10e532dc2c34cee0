"""Makes the time of day jump, and worker programs lie, in every Python process that has this file on its path.

The seconds of a jump are in the file that CHAOS_CLOCK names: a machine's clock cannot be set for a few processes alone,
and time namespaces do not change the time of day. The name of a lie is in the file that CHAOS_HOSTILE names.
"""

import os
import sys
import time

_REAL = time.time
_JUMP = os.environ["CHAOS_CLOCK"]
_LIARS = ("digirl_dist.worker_program.attach", "digirl_dist.worker_program.courier")


def _jumping() -> float:
    """Returns ``time.time`` plus the seconds in the file."""
    try:
        with open(_JUMP) as file:
            return _REAL() + float(file.read() or 0)
    except FileNotFoundError:
        return _REAL()


def _lie() -> None:
    """Replaces this process by one that lies, if it is the worker's end of a link."""
    try:
        with open(os.environ.get("CHAOS_HOSTILE", "")) as file:
            lie = file.read()
    except OSError:
        return
    if lie and sys.orig_argv[1:2] == ["-m"] and sys.orig_argv[2] in _LIARS:
        hostile = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "hostile.py")
        os.execv(sys.executable, [sys.executable, hostile, lie, *sys.orig_argv[2:]])


time.time = _jumping
_lie()

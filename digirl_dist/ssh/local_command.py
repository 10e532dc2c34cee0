"""Commands of this machine that decide about connections; whatever they start ends with them."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence

CONFIGURED_S = 8.0
"""Commands of the user's configuration may take so long to decide what it says: less than ``reachable`` waits."""


def ended(
    command: Sequence[str], limit_s: float, input: bytes = b"", environ: Mapping[str, str] | None = None
) -> tuple[int, str, str]:
    """Returns status, stdout and stderr. Raises OSError, and TimeoutExpired once all that it started has been ended."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=environ, start_new_session=True) as asked:
        try:
            output, complaint = map(os.fsdecode, asked.communicate(input, limit_s))  # paths in any encoding
        except BaseException:
            os.killpg(asked.pid, signal.SIGKILL)
            raise
    return asked.returncode, output, complaint

"""A logger in a process of its own: ``python -m digirl_dist.report.logger_process NAME``.

The run hands over lines of JSON and never waits for it, whether a server is away, a library hangs or the process dies.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from select import select
from typing import IO

from digirl_dist.child_process import environment, opened_log, reap, tail
from digirl_dist.exit_status import end_without_a_search_for_garbage
from digirl_dist.report.loggers import LoggedRun, hand, module
from digirl_dist.types import Json

CLOSE_S = 30.0
"""How long a logger may take to flush at the end of a run; then its process is killed."""
_ANSWER_S = 60.0
"""After so long without an answer people are told."""
_MOST = 1000
"""Messages that may wait."""

Trouble = Callable[[str], None]


class LoggerProcess:
    """The process of one logger. ``trouble`` is told what went wrong, once."""

    def __init__(self, name: str, run: LoggedRun, trouble: Trouble, done: Callable[[str, int], None]) -> None:
        """``done`` is told the kind and the step of what the logger has taken."""
        self._name = name
        self._log = run.root / f"logger-{name}.log"
        self._trouble: Trouble | None = trouble
        self._done = done
        self._queue: queue.Queue[dict[str, Json] | None] = queue.Queue(_MOST)
        self._is_behind = False
        """Whether something was left out: all that follows is, too, as a resumed run logs what is after the newest."""
        with opened_log(self._log) as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "digirl_dist.report.logger_process", name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C must reach only the host
                env={**os.environ, **environment()},
            )
        self._queue.put({"run": asdict(run)})
        self._thread = threading.Thread(target=self._hand_over, name=f"logger-{name}", daemon=True)
        self._thread.start()

    def give(self, kind: str, content: Json, step: int) -> None:
        """Hands over without waiting; see ``loggers.hand``."""
        if not self._is_behind:
            self._put({"kind": kind, "content": content, "step": step})

    def close(self) -> None:
        """Waits at most CLOSE_S; what was not taken by then is logged when the run is resumed."""
        deadline = time.monotonic() + CLOSE_S
        self._put(None)
        self._thread.join(CLOSE_S)
        if not reap(self._process, max(0.0, deadline - time.monotonic())):
            self._tell(f"it did not finish within {CLOSE_S:.0f} s and was ended")
        self._thread.join()

    def _put(self, message: dict[str, Json] | None) -> None:
        try:
            self._queue.put_nowait(message)
        except queue.Full:
            self._is_behind = True
            self._tell("it does not keep up; what it misses is logged when the run is resumed")

    def _hand_over(self) -> None:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        try:
            while (message := self._queue.get()) is not None:
                stdin.write(json.dumps(message).encode() + b"\n")
                stdin.flush()
                self._await(stdout)
                if "kind" in message:
                    self._done(message["kind"], message["step"])
            stdin.close()
            if self._process.wait() not in (0, -signal.SIGKILL):
                self._tell(self._last_words())
        except (OSError, EOFError):
            self._process.wait()
            self._tell(self._last_words())

    def _await(self, stdout: IO[bytes]) -> None:
        """Waits for the answer to a message. Raises EOFError when the process ends."""
        while not select([stdout], [], [], _ANSWER_S)[0]:
            self._tell(f"it has not answered for {_ANSWER_S:.0f} s; the run goes on")
        if not stdout.readline():
            raise EOFError

    def _tell(self, reason: str) -> None:
        trouble, self._trouble = self._trouble, None
        if trouble is not None:
            trouble(f"{reason} (see {self._log})")

    def _last_words(self) -> str:
        words = "".join(tail(self._log, 1))
        return f"its process ended with status {self._process.returncode}: {words[:300]}"


def main(name: str) -> None:
    """Serves the messages on stdin, and answers each on what was stdout, where libraries do not print."""
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    logger = module(name).build(LoggedRun(**json.loads(sys.stdin.buffer.readline())["run"]))
    answers.write(b"\n")
    for line in sys.stdin.buffer:
        hand(logger, **json.loads(line))
        answers.write(b"\n")
    signal.alarm(int(CLOSE_S))  # the run may have been killed, and nobody else would end what hangs now
    logger.close()


if __name__ == "__main__":
    end_without_a_search_for_garbage()
    main(sys.argv[1])

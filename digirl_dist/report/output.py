"""Shows progress on a terminal that redraws itself, or as lines with the time of day where there is no terminal."""

from __future__ import annotations

import io
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from digirl_dist.plain_text import printable
from digirl_dist.report.progress import Progress
from digirl_dist.storage.status import Status

if TYPE_CHECKING:
    from rich.live import Live

_FRAME_S = 0.25
_SILENT_S = 20.0
"""A file gets a line at least this often, so that 30 s never pass without one."""
_MESSAGES = 3
"""Share of a terminal's rows, as its divisor, that stays free for messages."""


@contextmanager
def shown(doing: str, stream: TextIO | None) -> Iterator[Progress]:
    """Shows what goes on until the block ends on ``stream``, beginning with what is done now; None: shows nothing.

    A terminal is left clean however the block ends. Once nobody reads a pipe any more nothing is written to it.
    """
    output = Terminal(stream) if stream is not None and is_terminal(stream) else Lines(stream)
    progress = Progress(Status(doing=doing), output)
    output.open(progress)
    try:
        yield progress
    finally:
        progress.close()
        output.close()


class Lines:
    """Implements ``Output`` for files and pipes: plain text, a line at least every 30 s."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._told_at = time.monotonic()
        self._is_broken = False
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def open(self, progress: Progress) -> None:
        self._thread = threading.Thread(target=self._watch, args=[progress], name="progress", daemon=True)
        self._thread.start()

    def line(self, text: str, style: str = "") -> None:
        with self._lock:
            self._told_at = time.monotonic()
            try:
                if self._stream is not None and not self._is_broken:
                    shown = f"{time.strftime('%H:%M:%S')}  {_indented(printable(text))}\n"
                    encoding = getattr(self._stream, "encoding", None) or "utf-8"
                    self._stream.write(shown.encode(encoding, "replace").decode(encoding))
                    self._stream.flush()
            except BrokenPipeError:
                self._is_broken = True
            except (OSError, ValueError):  # a full disk below a log, a closed stream
                pass

    def check(self) -> None:
        if self._is_broken:
            raise BrokenPipeError("nobody reads the output any more")

    def close(self) -> None:
        self._ended.set()

    def _watch(self, progress: Progress) -> None:
        while not self._ended.wait(1.0):
            progress.look()
            if time.monotonic() - self._told_at >= _SILENT_S:
                self.line(progress.sentence())


class Terminal:
    """Implements ``Output`` for a terminal: messages scroll by above a picture of the state, see ``frame``."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._ended = threading.Event()
        self._live: Live | None = None

    def open(self, progress: Progress) -> None:
        from rich.console import Console
        from rich.live import Live

        if isinstance(self._stream, io.TextIOWrapper):
            self._stream.reconfigure(errors="replace")
        console = Console(file=self._stream, force_terminal=True, highlight=False, markup=False, emoji=False)
        both = is_terminal(sys.stderr)
        self._live = Live(console=console, auto_refresh=False, transient=True, redirect_stderr=both)
        self._live.start()
        console.show_cursor(True)  # a process that is killed could not show it again
        self._thread = threading.Thread(target=self._draw, args=[progress, console.width], daemon=True, name="progress")
        self._thread.start()

    def line(self, text: str, style: str = "") -> None:
        from rich.text import Text

        assert self._live is not None
        shown = Text.assemble((time.strftime("%H:%M:%S"), "dim"), "  ", (_indented(printable(text)), style))
        try:
            self._live.console.print(shown, soft_wrap=True)  # the terminal wraps, so that paths can be copied
        except (OSError, ValueError):  # the terminal is gone
            pass

    def check(self) -> None:
        """Does nothing: a terminal that is gone ends its processes by SIGHUP."""

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
        try:
            if self._live is not None:
                self._live.stop()
        except (OSError, ValueError):
            pass

    def _draw(self, progress: Progress, width: int) -> None:
        """Draws the state again and again. After a change of width, which wraps old lines, on an empty screen."""
        from digirl_dist.report.frame import frame

        assert self._live is not None
        console = self._live.console
        while True:
            progress.look()
            size = console.size
            try:
                if size.width != width:
                    width = size.width
                    console.clear()
                rows = size.height - size.height // _MESSAGES
                self._live.update(frame(progress, size.width - 1, rows), refresh=True)
            except (OSError, ValueError):
                pass
            if self._ended.wait(_FRAME_S):
                return


def is_terminal(stream: TextIO | None) -> bool:
    """Returns whether text can be redrawn there; False for a stream that was closed before this process began."""
    try:
        return stream is not None and stream.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")
    except ValueError:  # it is closed
        return False


def _indented(text: str) -> str:
    return text.replace("\n", "\n" + " " * 10)

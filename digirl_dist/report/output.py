"""Shows progress as a bar on terminals and in notebooks, or as lines with the time of day elsewhere."""

from __future__ import annotations

import io
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

from digirl_dist.plain_text import printable
from digirl_dist.report.progress import Progress
from digirl_dist.storage.status import Status

_FRAME_S = 0.25
_NOTEBOOK_S = 1.0
_FIRST_S = 2.0
_SILENT_S = 20.0
"""A file gets a line at least this often, so that 30 s never pass without one, and the first after ``_FIRST_S``."""
_COUNTED = "{desc} {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}{postfix}]"
_UNCOUNTED = "{desc} [{elapsed}{postfix}]{bar}"
"""Without ``{bar}``, which is blank as long as nothing is counted, tqdm would not cut the line at the last column."""
_STYLES = {"bold": "\x1b[1m", "red": "\x1b[31m", "yellow": "\x1b[33m"}
_PLAIN = "\x1b[0m"


@contextmanager
def shown(doing: str, stream: TextIO | None, status: Status | None = None) -> Iterator[Progress]:
    """Shows what goes on until the block ends on ``stream``, beginning with what is done now; None: shows nothing.

    What goes on is what ``status`` says, if it is given. A terminal is left clean however the block ends. Once nobody
    reads a pipe any more nothing is written to it.
    """
    output = Bar(stream) if stream is not None and redraws(stream) else Lines(stream)
    progress = Progress(status or Status(doing=doing), output)
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
        self._told_at = time.monotonic() - _SILENT_S + _FIRST_S
        self._is_broken = False
        self._ended = threading.Event()

    def open(self, progress: Progress) -> None:
        if self._stream is None:
            return
        threading.Thread(target=self._watch, args=[progress], name="progress", daemon=True).start()

    def line(self, text: str, style: str = "") -> None:
        with self._lock:
            self._told_at = time.monotonic()
            try:
                if self._stream is not None and not self._is_broken:
                    shown = f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {_indented(printable(text), 21)}\n"
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


class Bar:
    """Implements ``Output`` for terminals and notebooks: messages scroll by above one of tqdm's bars."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._ended = threading.Event()

    def open(self, progress: Progress) -> None:
        from tqdm.auto import tqdm

        if isinstance(self._stream, io.TextIOWrapper):
            self._stream.reconfigure(errors="replace")
        shape = {"leave": False, "dynamic_ncols": True, "bar_format": _UNCOUNTED}
        self._bar: Any = tqdm(desc=progress.heading(), file=self._stream, **shape)
        self._draw(progress)
        self._thread = threading.Thread(target=self._keep_drawing, args=[progress], daemon=True, name="progress")
        self._thread.start()

    def line(self, text: str, style: str = "") -> None:
        code = "" if "NO_COLOR" in os.environ else _STYLES.get(style, "")
        shown = f"{code}{_indented(printable(text), 10)}{code and _PLAIN}"
        with suppress(OSError, ValueError):  # the terminal is gone
            self._bar.write(f"{time.strftime('%H:%M:%S')}  {shown}", file=self._stream)

    def check(self) -> None:
        """Does nothing: a terminal that is gone ends its processes by SIGHUP."""

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
        with suppress(OSError, ValueError):
            self._bar.close()

    def _keep_drawing(self, progress: Progress) -> None:
        pause_s = _NOTEBOOK_S if in_notebook() else _FRAME_S
        while not self._ended.wait(pause_s):
            progress.look()
            with suppress(OSError, ValueError):
                self._draw(progress)

    def _draw(self, progress: Progress) -> None:
        bar, counted, heading = self._bar, progress.counted(), progress.heading()
        bar.postfix = ", ".join(progress.remarks())
        if (heading, counted and counted[1]) != (bar.desc.removesuffix(": "), bar.total):
            bar.desc, bar.total = heading, counted and counted[1]
            bar.bar_format = _UNCOUNTED if counted is None else _COUNTED
            bar.reset(bar.total)
        bar.n = counted[0] if counted else 0
        bar.refresh()


def redraws(stream: TextIO | None) -> bool:
    """Returns whether text can be redrawn there: on a terminal, or in a notebook."""
    return is_terminal(stream) or (in_notebook() and stream in (sys.stdout, sys.stderr))


def is_terminal(stream: TextIO | None) -> bool:
    """Returns whether it is a terminal; False for a stream that was closed before this process began."""
    try:
        return stream is not None and stream.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")
    except ValueError:  # it is closed
        return False


def in_notebook() -> bool:
    """Returns whether this process is the kernel of a notebook."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return type(shell).__name__ == "ZMQInteractiveShell"


def _indented(text: str, by: int) -> str:
    return text.replace("\n", "\n" + " " * by)

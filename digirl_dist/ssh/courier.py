"""Bulk file transfer to and from a worker over one long-lived channel, without a round trip per file."""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from digirl_dist.errors import FileRefusedError, MisconductError, RunFolderError, TrajectoryError, WorkerError, on_error
from digirl_dist.protocol.relay import Answer
from digirl_dist.settings import SshSettings
from digirl_dist.ssh.channel import Allowance, Channel, FilePart
from digirl_dist.types import Closeable

Bytes = bytes | bytearray | memoryview
_CHUNK = 1 << 20
_UNANSWERED = 256
"""Puts sent before their answers are read: few enough that all answers fit the buffers on the way back."""
_LONGEST_ANSWER = 8 << 20
_ASKED_AHEAD = 8
"""Files asked for before the first of them has come."""


_ANSWERS = msgspec.json.Decoder(Answer)
_LONGEST_REASON = 4000


@dataclass(frozen=True)
class Put:
    """A file for a worker: its path there, the bytes to send, and the digest of the whole file."""

    path: str
    data: Bytes | FilePart
    digest: str
    offset: int = 0
    """Bytes that an earlier attempt left there; ``data`` continues after them."""
    base: str = ""
    """File there that ``data`` is a delta against (see protocol/tensor_delta.py); empty if ``data`` is the content."""
    width: int = 1
    """Bytes per number in a delta."""

    @property
    def size(self) -> int:
        """Bytes to send."""
        return self.data.size if isinstance(self.data, FilePart) else memoryview(self.data).nbytes

    def request(self) -> dict[str, Any]:
        asked: dict[str, Any] = {"put": self.path, "size": self.size, "digest": self.digest}
        if self.offset:
            asked["offset"] = self.offset
        if self.base:
            asked.update(base=self.base, width=self.width)
        return asked


@dataclass(frozen=True)
class Get:
    """A file on a worker: its path there and here, and what was announced of it."""

    remote: str
    local: Path
    digest: str
    size: int
    state: Callable[[], Any] = xxhash.xxh3_128
    """Makes what computes the digest."""

    @property
    def part(self) -> Path:
        return self.local.with_name(self.local.name + ".part")


class CourierClient(Closeable):
    """Copies files between this machine and one folder of a worker. One thread may use it at a time.

    ``channel`` is that of ``digirl_dist.worker_program.courier`` there. Every method raises LinkLostError if the link
    breaks, which makes the courier unusable, and WorkerError with the worker's reason if the worker refuses, after
    which the courier remains usable.
    """

    def __init__(self, channel: Channel, settings: SshSettings) -> None:
        self._worker = channel.worker
        self._settings = settings
        self._allowance = self._new_allowance()
        self._channel = channel
        self._output = _Packets(self._channel, self._allowance)

    def _new_allowance(self) -> Allowance:
        """Returns the time for one operation, however many files and answers belong to it."""
        return Allowance(self._settings.stall_s, 1024 * self._settings.slowest_kb_s)

    def put_many(self, items: Iterable[Put]) -> int:
        """Writes each file on the worker; returns the number of bytes sent.

        Starts no further item after the first refusal; the items before it are in place. A local file that becomes
        shorter meanwhile ends the courier.
        """
        waiting: list[Put] = []
        sent = 0
        refusal: tuple[Answer, str] | None = None
        self._output.allowance = self._allowance = self._new_allowance()
        with self._in_step():
            for item in items:
                self._send(item)
                waiting.append(item)
                sent += item.size
                if len(waiting) >= _UNANSWERED and (refusal := self._answers(waiting)):
                    break
            refusal = refusal or self._answers(waiting)
        if refusal:
            self._raise_refusal(*refusal)
        return sent

    def get_many(self, items: Sequence[Get]) -> Iterator[tuple[Get, TrajectoryError | FileRefusedError | None]]:
        """Fetches files, the next ones asked for while one comes; yields each when it is there, or what is wrong.

        A file appears complete under its name or not at all; it is not flushed. A ``.part`` that an earlier attempt
        left is continued; if the whole then differs from what was announced, it is fetched once more from the start.
        """
        unasked, asked = deque(items), deque[tuple[Get, int, Any]]()
        with self._in_step():
            while unasked or asked:
                while unasked and len(asked) < _ASKED_AHEAD:
                    asked.append(self._ask_for(unasked.popleft()))
                item, offset, state = asked.popleft()
                try:
                    is_whole = self._receive(item, offset, state)
                except FileRefusedError as error:
                    yield item, error
                    continue
                with _local_errors(item.local):
                    item.part.replace(item.local) if is_whole else item.part.unlink()
                if is_whole or not offset:
                    yield item, None if is_whole else self._not_as_announced(item)
                else:
                    unasked.append(item)

    def close(self) -> None:
        """Closes the channel; the worker's side then ends by itself."""
        self._channel.close_input()
        self._channel.close()

    def _answers(self, waiting: list[Put]) -> tuple[Answer, str] | None:
        """Reads the answers to all puts sent so far; returns the first refusal, if there is one."""
        self._output.flush()
        answers = [(self._answer(item.size), f"write {item.path}") for item in waiting]
        waiting.clear()
        return next((each for each in answers if each[0].error is not None), None)

    def _send(self, item: Put) -> None:
        self._send_line(item.request())
        try:
            self._output.write(item.data)
        except EOFError as error:
            raise WorkerError(
                self._worker, f"the local file for {item.path} became shorter while it was sent"
            ) from error

    def _ask_for(self, item: Get) -> tuple[Get, int, Any]:
        """Asks for what is missing of a file; returns its beginning's length and digest."""
        self._output.allowance = self._new_allowance()
        state = item.state()
        offset = _continue(item.part, item.size, state)
        self._send_line({"get": item.remote, "offset": offset})
        self._output.flush()
        return item, offset, state

    def _receive(self, item: Get, offset: int, state: Any) -> bool:
        """Appends the missing bytes to the part; returns True if it then has the digest and size.

        Never writes more than was announced. Raises FileRefusedError if the worker cannot read the file.
        """
        self._allowance = self._new_allowance()
        answer = self._answer()
        self._raise_refusal(answer, f"read {item.remote}")
        with _local_errors(item.part), open(item.part, "ab", buffering=0, opener=_no_link) as file:
            if answer.size > item.size + _CHUNK:
                reason = f"{item.remote} was announced with {item.size} bytes, and is sent with {answer.size}"
                raise MisconductError(self._worker, reason)
            for chunk in self._incoming(max(0, answer.size - offset)):
                state.update(chunk)
                if answer.size <= item.size:  # else they are only read to stay in step
                    _write(file, chunk)
        return answer.size == item.size and bool(state.hexdigest() == item.digest)

    def _not_as_announced(self, item: Get) -> TrajectoryError:
        announced = f"digest {item.digest}, {item.size} bytes"
        return TrajectoryError(f"worker {self._worker}: {item.remote} is not the file that was announced ({announced})")

    def _in_step(self) -> AbstractContextManager[None]:
        """Ends the courier if its body fails, because the stream is out of step then."""
        return on_error(self._channel.close)

    def _incoming(self, left: int) -> Iterator[bytes]:
        while left:
            chunk = self._channel.read(min(left, _CHUNK), self._allowance)
            if not chunk:
                raise self._channel.ended()
            left -= len(chunk)
            yield chunk

    def _send_line(self, request: dict[str, Any]) -> None:
        self._output.write(json.dumps(request).encode() + b"\n")

    def _answer(self, moved: int = 0) -> Answer:
        """Reads one answer, which says that ``moved`` bytes are in place."""
        line = self._channel.readline(self._allowance, _LONGEST_ANSWER, moved)
        if not line.endswith(b"\n") and len(line) <= _LONGEST_ANSWER:
            raise self._channel.ended()
        try:
            return _ANSWERS.decode(line)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            self._channel.close()
            raise MisconductError(self._worker, f"its courier answers with {line[:200]!r}: {error}") from error

    def _raise_refusal(self, answer: Answer, attempt: str) -> None:
        if answer.error is not None:
            raise FileRefusedError(
                self._worker, f"cannot {attempt}: {answer.error[:_LONGEST_REASON]}", _remedy(answer.error)
            )


class _Packets:
    """Collects small writes into full packets."""

    def __init__(self, channel: Channel, allowance: Allowance) -> None:
        self.allowance = allowance
        self._channel = channel
        self._pending = bytearray()

    def write(self, data: Bytes | FilePart) -> None:
        """Raises EOFError for a file that has become shorter."""
        if isinstance(data, FilePart):
            self.flush()
            self._channel.write_file(data, self.allowance)
            return
        view = memoryview(data).cast("B")
        if self._pending or len(view) < self._channel.packet_bytes:
            taken = view[: self._channel.packet_bytes - len(self._pending)]
            self._pending += taken
            view = view[len(taken) :]
            if len(self._pending) == self._channel.packet_bytes:
                self.flush()
        whole = len(view) - len(view) % self._channel.packet_bytes
        self._channel.write(view[:whole], self.allowance)
        self._pending += view[whole:]

    def flush(self) -> None:
        self._channel.write(self._pending, self.allowance)
        self._pending = bytearray()


@contextmanager
def _local_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunFolderError(f"cannot write {path} on this machine: {error.strerror}") from error


def _continue(part: Path, size: int, state: Any) -> int:
    """Feeds ``state`` with an earlier attempt's remainder and returns its length; removes one that is too long."""
    part.parent.mkdir(parents=True, exist_ok=True)
    if not part.exists():
        return 0
    if part.stat().st_size > size:
        part.unlink()
        return 0
    with open(part, "rb", buffering=0) as file:
        while chunk := file.read(_CHUNK):
            state.update(chunk)
        return file.tell()


def _no_link(name: str, flags: int) -> int:
    return os.open(name, flags | os.O_NOFOLLOW, 0o666)


def _write(file: Any, chunk: bytes) -> None:
    view = memoryview(chunk)
    while view:
        view = view[file.write(view) :]


def _remedy(reason: str) -> str:
    if "No space left" in reason or "quota" in reason:
        return "delete files there, or set the worker's `temp_path` to a larger disk"
    return "set the worker's `temp_path` to a folder that its user can write" if "Permission denied" in reason else ""

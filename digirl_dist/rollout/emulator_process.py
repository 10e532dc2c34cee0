"""The process of one emulator, and the guard that outlives it to clean up.

``python -m digirl_dist.rollout.emulator_process REQUESTS LIFELINE FACTORY`` forks before anything heavy is imported:
the child serves the emulator over the socket REQUESTS, the parent waits. When the child ends, or when the other end
of LIFELINE closes because its owner let go or died, the parent kills every descendant (a browser and its helpers, say),
removes their temporary files and exits. So killing the owner with SIGKILL leaves nothing behind.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import select
import signal
import socket
import struct
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from digirl_dist.child_process import ends_with_this_process
from digirl_dist.emulator import EmulatorSpec
from digirl_dist.emulator.episode_limits import check_observation, check_reward
from digirl_dist.errors import ActionError, EmulatorError, SettingsError
from digirl_dist.plain_text import in_short
from digirl_dist.trajectory import Observation, Transition
from digirl_dist.types import media_type

_LENGTH = struct.Struct("!Q")
_CHUNK = 1 << 20
_LONGEST_S = 1e6
"""``poll`` knows no longer time than 24 days."""


class Pipe:
    """One end of a connected stream socket, which it owns. Not thread-safe."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._ready: socket.socket | select.epoll = end
        self._came = bytearray()
        self._unsent = bytearray()

    def fileno(self) -> int:
        """Returns a descriptor that is readable when ``received`` can get on."""
        return self._ready.fileno()

    def send(self, message: Any, flags: int = 0) -> None:
        """Sends a message; waits while the socket is full. Raises OSError when the other end is gone.

        With MSG_DONTWAIT it never waits: ``received`` sends what did not fit.
        """
        content = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        self._unsent += _LENGTH.pack(len(content)) + content
        try:
            self._send_on(flags)
        except BlockingIOError:
            self._ready = select.epoll()
            self._ready.register(self._socket, select.EPOLLIN | select.EPOLLOUT)

    def _send_on(self, flags: int) -> None:
        while self._unsent:
            del self._unsent[: self._socket.send(self._unsent, flags)]
        self._ready = self._socket

    def receive(self, flags: int = 0) -> Any:
        """Waits for the next message and returns it. Raises EOFError or OSError when the other end is gone."""
        while (message := self._next()) is None:
            if not (came := self._socket.recv(_CHUNK, flags)):
                raise EOFError
            self._came += came
        return message

    def received(self) -> Any:
        """Returns the next message, or None while not all of it has come. Raises as ``receive`` does."""
        try:
            self._send_on(socket.MSG_DONTWAIT)
            return self.receive(socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None

    def close(self) -> None:
        """Lets the other end read that this was all, even if a fork of this process still has the socket."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _next(self) -> Any:
        start = _LENGTH.size
        if len(self._came) < start:
            return None
        end = start + _LENGTH.unpack_from(self._came)[0]
        if len(self._came) < end:
            return None
        content, self._came = self._came[start:end], self._came[end:]
        return pickle.loads(content)


def plain(answer: Observation | Transition) -> tuple[Any, ...]:
    """Returns the thing as values without classes, which pickle in a third of the time."""
    if isinstance(answer, Transition):
        return (
            *plain(answer.observation),
            float(answer.reward),
            *map(bool, (answer.terminated, answer.truncated, answer.success)),
            [dict(goal) for goal in answer.achieved],
        )
    vector = None if answer.vector is None else np.asarray(answer.vector, np.float32).tobytes()
    return _whole(answer.text), answer.image, vector, tuple(answer.earlier)


def _whole(text: Any) -> Any:
    """Returns a text without half surrogate pairs, as a page has that cuts its texts; no file can hold them."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    except AttributeError:
        pass  # whoever checks the episode says that it is none
    return text


def restored(values: tuple[Any, ...]) -> Observation | Transition:
    """Returns what ``plain`` was given. Raises TrajectoryError for what no episode may have."""
    text, image, vector, earlier, *rest = values
    seen = Observation(text, image, None if vector is None else np.frombuffer(bytearray(vector), np.float32), earlier)
    check_observation(seen)
    if rest:
        check_reward(rest[0])
    return Transition(seen, *rest) if rest else seen


_PR_SET_CHILD_SUBREAPER = 36
_CLOSE_LIMIT_S = 5.0


def main(argv: list[str]) -> int:
    requests, lifeline, factory = int(argv[0]), int(argv[1]), argv[2]
    return guarded(lambda: _serve(Pipe(socket.socket(fileno=requests)), factory), lifeline, requests)


def guarded(serve: Callable[[], None], lifeline: int | None, *of_the_child: int) -> int:
    """Forks, and runs ``serve`` in the child; waits for its end, or for that of ``lifeline``, and cleans up.

    Call this before anything heavy is imported. The descriptors ``of_the_child`` are open until the child has ended and
    stderr tells the signal that ended it, if one did: who reads their other end finds that in the log.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    tie_to_guard = ends_with_this_process()
    with tempfile.TemporaryDirectory(prefix="emulator-", ignore_cleanup_errors=True) as scratch:
        child = os.fork()
        if child == 0:
            tie_to_guard()
            if lifeline is not None:
                os.close(lifeline)
            os.environ["TMPDIR"] = tempfile.tempdir = scratch
            serve()
            os._exit(0)
        return _guard(child, lifeline, of_the_child)


def _guard(child: int, lifeline: int | None, of_the_child: Sequence[int]) -> int:
    """Waits for the end of the child or of the owner; then ends every descendant."""
    ends = _Ends(child)
    ends.wait(lifeline)
    if lifeline is not None and ends.status is None and _was_asked_to_close(lifeline):
        ends.wait(limit_s=_CLOSE_LIMIT_S)
    for descriptor in of_the_child:
        os.close(descriptor)
    _kill_descendants()
    return 0


def readable(descriptors: Sequence[int], limit_s: float | None) -> list[int]:
    """Returns those that can be read, or are at their end, within that time or ``_LONGEST_S``; none is a reason to look
    again. ``select`` takes none from 1024 on."""
    watched = select.poll()
    for each in descriptors:
        watched.register(each, select.POLLIN)
    return [each for each, _ in watched.poll(None if limit_s is None else 1000 * min(limit_s, _LONGEST_S))]


class _Ends:
    """Watches for the end of a child. By SIGCHLD, as not every Python build, nor every kernel, has a pidfd."""

    def __init__(self, child: int) -> None:
        self._child = child
        self.status: int | None = None
        self._some_child_ended, tell = os.pipe()
        os.set_blocking(tell, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # for one that is ignored or has no handler, nothing is told
        signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])

    def wait(self, lifeline: int | None = None, limit_s: float | None = None) -> None:
        """Waits until the child has ended, which stderr tells, or ``lifeline``, or the time is over."""
        also, until = [] if lifeline is None else [lifeline], time.monotonic() + (limit_s or 0.0)
        while (found := os.waitpid(self._child, os.WNOHANG)) == (0, 0):
            left_s = None if limit_s is None else max(0.0, until - time.monotonic())
            if readable([self._some_child_ended, *also], left_s) != [self._some_child_ended]:
                return
            os.read(self._some_child_ended, 1 << 16)
        self.status = os.waitstatus_to_exitcode(found[1])
        _tell_its_end(self.status)


def _tell_its_end(status: int) -> None:
    """Writes on stderr which signal ended the child, if one did."""
    if status < 0:
        advice = ", as the kernel does where memory is short" if status == -signal.SIGKILL else ""
        os.write(2, f"ended by signal {-status} ({signal.strsignal(-status)}){advice}\n".encode())


def _was_asked_to_close(lifeline: int) -> bool:
    """Returns whether the owner wrote a byte before it let go: the emulator was asked to close in order."""
    try:
        return os.read(lifeline, 1) != b""
    except OSError:
        return False


def _kill_descendants() -> None:
    import psutil

    deadline = time.monotonic() + _CLOSE_LIMIT_S
    while time.monotonic() < deadline and (running := psutil.Process().children(recursive=True)):
        for process in running:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(running, timeout=0.5)


def _serve(requests: Pipe, factory_path: str) -> None:
    """Builds the emulator, then answers one request after the other until the owner goes away."""
    from digirl_dist.user_code.blame import described, lacking_here
    from digirl_dist.user_code.packing import unpack_file

    try:
        emulator = unpack_file(factory_path)()
    except SettingsError as error:
        requests.send(("fatal", str(error), 0.0))
        return
    except (Exception, SystemExit) as error:
        requests.send((*_failed_start(error), 0.0))
        return
    requests.send(("ready", None, 0.0))
    steps, answer = 0, {"reset": (Observation, emulator.reset), "step": (Transition, emulator.step)}
    with suppress(EOFError, OSError):
        while request := requests.receive():
            started = time.monotonic()
            reply: tuple[str, Any]
            try:
                kind, ask = answer[request[0]]
                found, steps = ask(*request[1:]), steps + 1 if kind is Transition else 0
                reply = ("done", _fitting(found, kind, request[0], emulator, steps))
            except ActionError as error:
                reply = ("refused", str(error))
            except EmulatorError as error:
                reply = ("error", str(error))
            except (Exception, SystemExit) as error:
                traceback.print_exc()  # to the slot's log
                reply = ("error", described(error) + lacking_here(error))
            requests.send((*reply, time.monotonic() - started))
    emulator.close()


def _fitting(answer: Any, kind: type[Any], asked: str, emulator: Any, steps: int) -> tuple[Any, ...]:
    """Returns an answer as ``plain`` does.

    Raises EmulatorError for one that is none, has parts of other kinds, or lacks what the spec promises to agents.
    """
    called, seen = f"{type(emulator).__name__}.{asked}", getattr(answer, "observation", answer)
    if not isinstance(answer, kind) or not isinstance(seen, Observation):
        raise EmulatorError(f"{called} returned {answer!r:.100}, not digirl_dist.trajectory.{kind.__name__}")
    try:
        values = plain(answer)
    except Exception as error:  # what is asked for its number may raise anything
        from digirl_dist.user_code.blame import described

        parts = {name: part for name, part in vars(answer).items() if part is not seen}
        raise EmulatorError(f"{called} returned {parts!r:.200}: {described(error)}") from error
    spec: EmulatorSpec | None = getattr(emulator, "spec", None)
    if spec and spec.longest and steps > spec.longest:
        raise EmulatorError(
            f"step {steps} of an episode; the spec of {type(emulator).__name__} says longest={spec.longest}: end every "
            "episode by then, or leave longest out"
        )
    size = len(values[2] or b"") // 4  # bytes of a float32
    if spec and spec.vector_size and size != spec.vector_size:
        raise EmulatorError(f"a vector of {size} numbers; the emulator's spec says vector_size={spec.vector_size}")
    if spec and spec.image_size and media_type(seen.image) is None:
        raise EmulatorError(f"the image is {seen.image!r:.60}, not the bytes of a PNG or JPEG")
    return values


def _failed_start(error: BaseException) -> tuple[str, str]:
    """Returns ``fatal`` and one line for a missing package, also where a library has words of its own for it."""
    from digirl_dist.user_code.blame import described, lacking_here

    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ImportError):
        cause = cause.__cause__ or cause.__context__
    if cause is None:
        traceback.print_exception(error)  # to the slot's log
        return "error", described(error) + lacking_here(error)
    return "fatal", f"{in_short(error, 300)}; emulator.packages=[NAME] installs a package on the workers"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

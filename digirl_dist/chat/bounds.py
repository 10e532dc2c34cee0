"""Bounds on what a chat server may answer: its size, its time, and that it answers by itself."""

from __future__ import annotations

import importlib
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TypeVar

import openai

T = TypeVar("T")

_http: Any = importlib.import_module(
    next(base for base in openai.DefaultHttpxClient.__mro__ if base.__name__ == "Client").__module__.partition(".")[0]
)
"""The library below openai: httpx, or httpx2 in newer versions."""

LONGEST_ANSWER = 4 << 20
"""In bytes, as it comes over the network."""


class TooMuch(_http.RequestError):  # type: ignore[misc]  # either of two
    """The answer is larger than ``LONGEST_ANSWER``, or packed so that nobody knows how large it is."""


def bounded_client(answer_s: float) -> Any:
    """Returns a client for ``openai`` that reads no answer beyond ``LONGEST_ANSWER``; it fails by TooMuch.

    It follows no redirects, which would hand key and question to another server.
    """
    return openai.DefaultHttpxClient(
        follow_redirects=False,
        timeout=answer_s,
        headers={"Accept-Encoding": "identity"},
        event_hooks={"response": [_bound]},
    )


def within(limit_s: float, ask: Callable[[], T]) -> T:
    """Returns what ``ask`` returns, or raises what it raises. Raises TimeoutError after ``limit_s``.

    The timeouts of sockets are for each read: an answer in drops would be waited for without end.
    """
    answers: queue.SimpleQueue[Callable[[], T]] = queue.SimpleQueue()

    def run() -> None:
        try:
            answer = ask()
        except BaseException as error:
            failure = error
            answers.put(lambda: _raise(failure))
        else:
            answers.put(lambda: answer)

    threading.Thread(target=run, name="chat-request", daemon=True).start()
    try:
        return answers.get(timeout=limit_s)()
    except queue.Empty:
        raise TimeoutError(f"no whole answer within {limit_s:g} s") from None


class _Bounded(_http.SyncByteStream):  # type: ignore[misc]
    def __init__(self, stream: Any, request: Any) -> None:
        self._stream, self._request = stream, request

    def __iter__(self) -> Iterator[bytes]:
        came = 0
        for part in self._stream:
            came += len(part)
            if came > LONGEST_ANSWER:
                raise TooMuch(f"an answer of more than {LONGEST_ANSWER >> 20} MiB", request=self._request)
            yield part

    def close(self) -> None:
        self._stream.close()


def _bound(response: Any) -> None:
    """Before the answer's body is read."""
    packed = response.headers.get("content-encoding", "identity")
    if packed.lower() != "identity":
        raise TooMuch(f"an answer packed by {packed[:20]}, which was not asked for", request=response.request)
    response.stream = _Bounded(response.stream, response.request)


def _raise(error: BaseException) -> NoReturn:
    raise error

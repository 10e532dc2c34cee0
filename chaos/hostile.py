"""A worker whose account is lost: stands between the host and the honest program or courier, and lies.

``python hostile.py LIE MODULE ARGUMENTS…`` runs in place of ``python -m MODULE ARGUMENTS…``, by clock/sitecustomize.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from chaos.lies import LIES, Lie, Message, State, line

_CHUNK = 1 << 16


class Output:
    """Our stdout, for several threads; a dripping one sends a byte a second."""

    def __init__(self, drips: bool) -> None:
        self._lock = threading.Lock()
        self._drips = drips

    def send(self, parts: Iterable[bytes]) -> None:
        for part in parts:
            with self._lock:
                for piece in [bytes([byte]) for byte in part] if self._drips else [part]:
                    sys.stdout.buffer.write(piece)
                    sys.stdout.buffer.flush()
                    time.sleep(1.0 if self._drips else 0.0)


def lie_as_program(lie: Lie, program: subprocess.Popen[bytes], output: Output) -> None:
    """Passes on what the program says, as the lie has it."""
    state = State()
    threading.Thread(target=_listen, args=[lie, state, program.stdin, output], daemon=True).start()
    if lie.now_and_then is not None:
        threading.Thread(target=_chatter, args=[lie, state, output], daemon=True).start()
    if lie.drips:
        _note()
    assert program.stdout is not None
    for said in program.stdout:
        message, honest = json.loads(said), json.loads(said)
        state.last[honest["type"]] = honest
        output.send([said] if lie.say is None else _noted(list(lie.say(message, state)), honest))


def _noted(said: Sequence[bytes], honest: Message) -> Sequence[bytes]:
    """Returns what is said, and notes when it is not what an honest worker says."""
    if said != [line(honest)]:
        _note()
    return said


def _note() -> None:
    """Leaves a mark beside the lie's name: from now on, the host may know better."""
    Path(f"{os.environ['CHAOS_HOSTILE']}.told").touch()


def _listen(lie: Lie, state: State, program: IO[bytes], output: Output) -> None:
    for heard in sys.stdin.buffer:
        message = json.loads(heard)
        if message["type"] == "lease":
            state.leased += message["tickets"]
        if "order" in message:
            state.last["order"] = message
        answer = None if lie.hear is None else lie.hear(message, state)
        if answer is None:
            program.write(heard)
            program.flush()
        else:
            _note()
            output.send(answer)
    os._exit(0)


def _chatter(lie: Lie, state: State, output: Output) -> None:
    assert lie.now_and_then is not None
    time.sleep(1.0)
    while True:
        _note()
        output.send(lie.now_and_then(state))
        time.sleep(lie.every_s)


def lie_as_courier(lie: Lie, courier: subprocess.Popen[bytes], output: Output) -> None:
    """Passes on what the file server answers; files, not what it says of pushes, as the lie has them."""
    threading.Thread(target=_feed, args=[courier.stdin], daemon=True).start()
    assert courier.stdout is not None
    for said in courier.stdout:
        answer: Message = json.loads(said)
        body = _body(courier.stdout, answer.get("size", 0))
        if lie.send is not None and "size" in answer:
            _note()
            output.send(lie.send(answer, body))
            for _ in body:  # what the lie left of it
                pass
        else:
            output.send([line(answer), *body])


def _feed(courier: IO[bytes]) -> None:
    while data := os.read(0, _CHUNK):
        courier.write(data)
        courier.flush()
    os._exit(0)


def _body(source: IO[bytes], left: int) -> Iterator[bytes]:
    while left and (part := source.read(min(left, _CHUNK))):
        left -= len(part)
        yield part


def main() -> None:
    name, module, *arguments = sys.argv[1:]
    command = [sys.executable, "-m", module, *arguments]
    honest = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "CHAOS_HOSTILE": ""}
    )
    lie, output = LIES[name], Output(LIES[name].drips and module.endswith("attach"))
    try:
        (lie_as_program if module.endswith("attach") else lie_as_courier)(lie, honest, output)
    except BrokenPipeError:
        pass
    finally:
        honest.kill()
    os._exit(0)


if __name__ == "__main__":
    main()

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
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from chaos.content import CONTENT
from chaos.lies import LIES, Lie, Message, State, line
from chaos.rows import Rows
from digirl_dist.protocol.job_folder import JobFolder
from digirl_dist.storage.digest import file_digest

_CHUNK = 1 << 16
_MACHINE_OF_ITS_OWN = 10
"""How nice the liar is to the others, whose processors a real one would not share."""


class Output:
    """Our stdout, for several threads; ``lie`` may have it drip, or be late with the end of each line."""

    def __init__(self, lie: Lie) -> None:
        self._lock = threading.Lock()
        self._lie = lie

    def send(self, parts: Iterable[bytes]) -> None:
        for part in parts:
            with self._lock:
                for piece in self._pieces(part):
                    sys.stdout.buffer.write(piece)
                    sys.stdout.buffer.flush()

    def _pieces(self, part: bytes) -> Iterator[bytes]:
        if self._lie.drips:
            for byte in part:
                yield bytes([byte])
                time.sleep(1.0)
            return
        if self._lie.line_s:
            yield part[:-1]
            time.sleep(self._lie.line_s)
            part = part[-1:]
        yield part


def lie_as_program(lie: Lie, program: subprocess.Popen[bytes], output: Output, folder: JobFolder) -> None:
    """Passes on what the program says, as the lie has it."""
    state = State(folder=folder)
    threading.Thread(target=_listen, args=[lie, state, program.stdin, output], daemon=True).start()
    if lie.now_and_then is not None:
        threading.Thread(target=_chatter, args=[lie, state, output], daemon=True).start()
    if lie.drips or lie.line_s:
        _note()
    assert program.stdout is not None
    for said in program.stdout:
        message, honest = json.loads(said), json.loads(said)
        state.last[honest["type"]] = honest
        if lie.forge is not None and message["type"] == "episode_ready":
            _forge(lie.forge, message["manifest"], folder)
        output.send(_noted([line(message)] if lie.say is None else list(lie.say(message, state)), honest))


def _forge(forge: Callable[[Rows, float], None], manifest: Message, folder: JobFolder) -> None:
    """Forges the file of an episode, and its manifest as it is announced."""
    path = folder.episode(manifest["episode_id"])
    try:
        rows = Rows.read(path)
        forge(rows, 1.0)
        rows.write(path)
        manifest |= {"size": path.stat().st_size, "digest": file_digest(path)}
    except OSError:  # it has been deleted meanwhile, or the disk is full
        pass


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
        if message["type"] == "load_policy":
            state.last["load_policy"] = message
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
    os.nice(_MACHINE_OF_ITS_OWN)
    honest = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "CHAOS_HOSTILE": ""}
    )
    lie = (LIES | CONTENT)[name]
    try:
        if module.endswith("attach"):
            folder = JobFolder(Path(arguments[arguments.index("--folder") + 1]).expanduser())
            lie_as_program(lie, honest, Output(lie), folder)
        else:
            lie_as_courier(lie, honest, Output(Lie(name)))
    except BrokenPipeError:
        pass
    finally:
        honest.kill()
    os._exit(0)


if __name__ == "__main__":
    main()

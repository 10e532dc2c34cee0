"""What a chat server may answer to the judge, over a real connection."""

from __future__ import annotations

import json
import socket
import threading
from dataclasses import replace
from pathlib import Path
from random import Random

from digirl_dist.judge.model import ModelJudge, Verdicts
from digirl_dist.settings import JudgeSettings
from digirl_dist.storage.events import Events
from digirl_dist.tasks import Task, Ticket
from digirl_dist.trajectory import Observation, Step, Trajectory
from fuzz.mutation import mutated, mutated_json
from fuzz.target import Target

_SEEN = Observation("open it")
_EPISODE = Trajectory(
    Ticket(0, 0, Task("open", "open it"), 0, 0), "e", "w1", 0, [Step(_SEEN, 1, 0.0, 1.0, True, False)], _SEEN, True
)
_BODIES = [
    {
        "id": "c1",
        "object": "chat.completion",
        "model": "m",
        "created": 1,
        "choices": [
            {
                "index": 0,
                "finish_reason": "stop",
                "message": {"role": "assistant", "content": "It is.\nVerdict: yes"},
                "logprobs": {"content": [{"token": "a", "logprob": -0.5, "bytes": None, "top_logprobs": []}]},
            }
        ],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
    },
    {"error": {"message": "over quota", "type": "x", "code": 1}},
]
_HEAD = b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"


class ChatAnswers(Target):
    """The server answers each request with the case."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._answer = b""
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._serve, daemon=True).start()
        port = self._listener.getsockname()[1]
        settings = JudgeSettings(base_url=f"http://127.0.0.1:{port}/v1", answer_s=2.0, outage_s=0.0, readings=1)
        verdicts, events = Verdicts(folder / "judge.jsonl"), Events(folder / "events.jsonl")
        self._judge = ModelJudge(settings, "key", verdicts, events)
        self._asked = 0
        self.samples = [_whole(b"200 OK", json.dumps(_BODIES[0]).encode())]

    def case(self, random: Random) -> bytes:
        if random.random() < 0.3:
            return mutated(random, [*self.samples, _whole(b"503 Away", json.dumps(_BODIES[1]).encode())])
        status = random.choice((b"200 OK", b"200 OK", b"400 Bad", b"429 Slow", b"500 Oops", b"307 There"))
        return _whole(status, mutated_json(random, [json.dumps(body).encode() for body in _BODIES]))

    def feed(self, data: bytes) -> None:
        self._answer = data
        self._asked += 1  # no verdict is asked for twice
        ticket = replace(_EPISODE.ticket, task=Task("open", f"open number {self._asked}"))
        self._judge.verdict(replace(_EPISODE, ticket=ticket))

    def _serve(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            with connection:
                try:
                    connection.recv(1 << 16)
                    connection.sendall(self._answer)
                except OSError:
                    continue


def _whole(status: bytes, body: bytes) -> bytes:
    return _HEAD % (status, len(body)) + body

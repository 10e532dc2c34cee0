"""What comes over the wire and is fuzzed: lines of a worker program, answers of a courier, deltas of tensors."""

from __future__ import annotations

import io
import json
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import Mock

import numpy as np

from digirl_dist.errors import FileRefusedError, LinkLostError, WorkerError
from digirl_dist.fleet.session import Rim, Session
from digirl_dist.fleet.spec import Job
from digirl_dist.protocol import messages as protocol
from digirl_dist.protocol import tensor_delta
from digirl_dist.settings import LimitSettings, SshSettings
from digirl_dist.ssh.courier import CourierClient, Get
from digirl_dist.storage.digest import digest
from digirl_dist.tasks import Key, Task, Ticket
from digirl_dist.worker_program.courier import CourierServer
from fuzz.mutation import mutated_json
from fuzz.target import Target

TICKET = Ticket(1, 3, Task("open", "open it"), 7, 1)


class Lines(Target):
    """A line of a worker program, and what a session makes of it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        key = Key(1, 3)
        manifest = protocol.EpisodeManifest("r1", key, 0, 1, "e", 9, "0f", 0, 1.0, 0.5, {"step": 0.5})
        said: list[Any] = [
            protocol.Ready(protocol.PROTOCOL, "", "3.11", 77),
            protocol.Need("policy", ["0f"]),
            protocol.Working(4, "", [key]),
            protocol.Loaded(1),
            protocol.Ask(1, 1, (7, 3, 0), "open it", 3, 8, 11),
            protocol.Acting(0, key),
            protocol.EpisodeReady(manifest),
            protocol.UnknownFile("e", "of another run"),
            protocol.EpisodeFailed(0, key, "it crashed"),
            protocol.SlotChanged(0, "ready", "", 4),
            protocol.SlotSeconds({"step": 1.5}),
            protocol.Heartbeat("run", 0.1, 0.1, [protocol.SlotWait("step", 0.1, None, 3)], [key], 1, 4),
            protocol.Broken("job", "no space"),
        ]
        self.samples = [protocol.encode(one).rstrip() for one in said]

    def case(self, random: Random) -> bytes:
        return mutated_json(random, self.samples)

    def feed(self, data: bytes) -> None:
        message = protocol.decode_worker_message(data)
        job = Job("r1", None, b"e", 10, protocol.SlotLimits(), 1, 60.0)
        session = Session(Mock(Rim), _Spec(), job, LimitSettings(), None)
        session.receive(protocol.Working(4, "", [Key(1, 3)]), b"", 0.0)
        session.lease([TICKET])
        for now in (1.0, 2.0):
            with suppress(WorkerError):  # it hangs up
                session.receive(message, b"x" * 11, now)


class _Spec:
    name, slots, package = "w1", 4, ""


class Courier(Target):
    """What the other end of a courier answers: lines of JSON, and the bytes of a file."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        content = b"rows" * 100
        self._wanted = digest(content), len(content)
        answers: list[Any] = [{"error": "No space left on device: x"}, {"size": 400}]
        lines = [json.dumps(answer).encode() + b"\n" for answer in answers]
        self.samples = [lines[1] + content, lines[0], b"".join(lines)]

    def feed(self, data: bytes) -> None:
        replay: Any = _Replay(data)
        courier, local = CourierClient(replay, SshSettings()), self._folder / "fetched"
        local.with_name("fetched.part").unlink(missing_ok=True)
        [(_, problem)] = courier.get_many([Get("e", local, *self._wanted)])
        if problem is not None:
            raise problem


class _Replay:
    """A channel on which these bytes come and nothing more."""

    worker = "w1"
    packet_bytes = 1 << 15

    def __init__(self, data: bytes) -> None:
        self._left = data

    def write(self, data: Any, *_: Any) -> None:
        """Nobody listens."""

    def close(self) -> None:
        """There is nothing to close."""

    close_input = close

    def ended(self) -> Exception:
        return LinkLostError(self.worker, "the courier ended")

    def read(self, size: int, *_: Any) -> bytes:
        taken, self._left = self._left[:size], self._left[size:]
        return taken

    def readline(self, within: Any, longest: int, *_: Any) -> bytes:
        return self.read(min(longest + 1, self._left.find(b"\n") + 1 or len(self._left)))


class Delta(Target):
    """The delta of a tensor that is put beside its base; the first byte chooses one of the tensors."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        draw = np.random.default_rng(0)
        small = draw.normal(0, 0.02, 3000).astype(np.float32).view(np.uint16)  # unrelated halves are as good
        sparse, wide = np.where(draw.random(len(small)) < 0.05, small + 1, small), small.copy()
        wide[100:200] += draw.integers(1 << 15, size=100, dtype=np.uint16)
        dense, full = small + draw.integers(9, size=len(small), dtype=np.uint16), draw.permutation(small)
        self._versions = [memoryview(each.tobytes()) for each in (small, sparse, wide, dense, full)]
        self._base, self._widths = self._versions[0], [2, 2, 4, 2, 8]
        (folder / "base").write_bytes(self._base)
        pairs = enumerate(zip(self._versions, self._widths, strict=True))
        self.samples = [bytes([n]) + tensor_delta.encode(new, self._base, width) for n, (new, width) in pairs]

    def feed(self, data: bytes) -> None:
        number = data[0] % len(self._versions) if data else 0
        new, width, delta = self._versions[number], self._widths[number], data[1:]
        put = {"put": "new", "size": len(delta), "digest": digest(new), "base": "base", "width": width}
        source, sink = io.BytesIO(json.dumps(put).encode() + b"\n" + delta), io.BytesIO()
        CourierServer(str(self._folder), source, sink).serve()
        answer, new_file = json.loads(sink.getvalue()), self._folder / "new"
        is_there = new_file.exists()
        new_file.unlink(missing_ok=True)
        if "error" in answer:
            assert not is_there, "a refused delta left a file"
            raise FileRefusedError("w1", answer["error"], "")

"""One connection to one worker, from login to loss: what the worker program says becomes events."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from digirl_dist.errors import JobError, LinkLostError, TrajectoryError, WorkerError
from digirl_dist.fleet.connection import Opening
from digirl_dist.fleet.outbox import Outbox
from digirl_dist.fleet.outgoing import Blob, PublishedPolicy
from digirl_dist.fleet.spec import Job, Spec
from digirl_dist.fleet.transfers import Transfers
from digirl_dist.fleet.worker_events import (
    Acting,
    Alive,
    EpisodeFailed,
    EpisodeReady,
    Joined,
    Loaded,
    SlotChanged,
    Spent,
    Trying,
    UnknownFile,
    WorkerEvent,
)
from digirl_dist.inference.requests import InferenceReply, InferenceRequest
from digirl_dist.protocol.job_folder import PROTOCOL, EpisodeManifest, decode, encode
from digirl_dist.settings import LimitSettings
from digirl_dist.tasks import Ticket

_MOST_SLOTS = 10_000
"""No machine carries more; a worker that claims it must not be leased a whole iteration."""


_MOST_ATTACHED = 64 << 20
"""Bytes that a worker may attach to a message: more than any screenshot has."""


class InferenceService(Protocol):
    """Who answers what the workers' episodes ask."""

    def ask(self, request: InferenceRequest, tell: Callable[[InferenceReply], None]) -> None:
        """Returns at once; ``tell`` gets the answer, and must not wait."""


class ProgramSilent(LinkLostError):
    """The connection stands but the program does not answer: it must be replaced."""


class Session:
    """One line to a worker program: what is said on it, and threads that carry files."""

    def __init__(
        self,
        spec: Spec,
        job: Job,
        contact: Opening,
        limits: LimitSettings,
        post: Callable[[WorkerEvent], None],
        inference: InferenceService | None,
    ) -> None:
        self._spec = spec
        self._job = job
        self._limits = limits
        self._post = post
        self._decider = inference
        self._announced: PublishedPolicy | None = None
        self._announced_at = 0.0
        self._pushed_bytes = 0
        self._working = False
        self._has_loaded = False
        self._held: list[tuple[int, int]] = []
        self._spool: list[EpisodeManifest] = []
        self._strays: list[UnknownFile] = []
        self._error: WorkerError | None = None
        self._line = contact(self._try)
        self._outbox = Outbox(self._line, spec.name, self._fail)
        self.transfers = Transfers(self._line.files, spec.name, post, self._fail)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.transfers.close()
        self._outbox.close()
        self._line.close()

    def close(self) -> None:
        """Hang up at once, from any thread."""
        self._line.close()

    def _try(self, doing: str, limit_s: float) -> None:
        self._post(Trying(self._spec.name, doing, limit_s))

    def send(self, line: bytes) -> None:
        """Hand the line in. That it cannot be sent ends the session later."""
        self._outbox.send(line)

    def announce(self, checkpoint: PublishedPolicy) -> None:
        """Ask the worker to act with this checkpoint; it answers with what it lacks, or that it is loaded."""
        if self._working:
            self._announced, self._announced_at, self._pushed_bytes = checkpoint, time.monotonic(), 0
            self.send(encode("checkpoint", version=checkpoint.iteration, tensors=checkpoint.wire()))

    def lease(self, tickets: Sequence[Ticket]) -> None:
        """Ask the program to run these. Before it has its job they were meant for one that is lost, as will be told."""
        if self._working:
            self.send(encode("lease", tickets=[ticket.to_json() for ticket in tickets]))

    def serve(self, newest: Callable[[], PublishedPolicy | None]) -> None:
        """Greet the program and act on what it says until it ends. Raises WorkerError when that is too early."""
        self.send(encode("hello", run=self._job.run))
        try:
            for message in self.messages():
                self.obey(message, newest())
        except JobError:
            self.dismiss()
            raise

    def dismiss(self) -> None:
        """Nobody will come back to this program: let it stop its emulators now."""
        deadline = time.monotonic() + self._limits.stop_s
        try:
            self.send(encode("stop"))
            for _ in self.messages():
                if time.monotonic() > deadline:
                    return
        except WorkerError:
            pass  # it has ended, or cannot be told

    def messages(self) -> Iterator[dict[str, Any]]:
        """What the program says. Raises WorkerError when it falls silent or goes away."""
        while True:
            try:
                line = self._line.readline(timeout_s=self._patience_s)
            except WorkerError as error:
                raise self._error or self._why_silent(error) from error
            if not line:
                raise self._error or self._line.why_ended()
            try:
                message = decode(line)
            except ValueError as error:
                raise JobError(
                    self._spec.name,
                    f"something else than the worker program answers: {line[:200]!r}",
                    "let the shell's start-up files print nothing when it is not interactive",
                ) from error
            yield message | self._attachment(message)

    @property
    def _patience_s(self) -> float:
        """How long the program may be silent: while it imports a large library none of its threads runs."""
        return self._limits.silence_s if self._has_loaded else max(self._limits.silence_s, self._limits.start_s)

    def _attachment(self, message: dict[str, Any]) -> dict[str, bytes]:
        """The bytes in the place of their number."""
        size = message.get("attached", 0)
        if type(size) is not int or not 0 <= size <= _MOST_ATTACHED:
            raise LinkLostError(self._spec.name, f"the program attached {size!r} bytes to a {message['type']}")
        return {"attached": self._line.read(size, self._limits.silence_s)} if size else {}

    def obey(self, message: dict[str, Any], checkpoint: PublishedPolicy | None) -> None:
        """Act on one message of the program. Anything malformed in it is the worker's failure."""
        try:
            self._obey(message, checkpoint)
        except (KeyError, TypeError, ValueError, TrajectoryError) as error:
            raise LinkLostError(self._spec.name, f"the program sent a malformed {message['type']}: {error}") from error

    def _obey(self, message: dict[str, Any], checkpoint: PublishedPolicy | None) -> None:
        name = self._spec.name
        match message["type"]:
            case "ready":
                self._greeted(message)
            case "need":
                self._push(str(message["what"]), {str(entry) for entry in message["digests"]})
            case "working":
                self._joined(checkpoint, int(message["slots"]), str(message["reason"]))
            case "loaded":
                self._loaded(int(message["version"]))
            case "ask":
                self._ask(InferenceRequest.from_wire(message, message.get("attached", b"")))
            case "acting":
                self._post(Acting(name, int(message["slot"]), int(message["iteration"])))
            case "episode":
                self._post(EpisodeReady(name, self._own(EpisodeManifest.from_json(message["manifest"]))))
            case "failed":
                place = int(message["slot"]), int(message["iteration"]), int(message["index"])
                self._post(EpisodeFailed(name, *place, str(message["reason"])))
            case "slot":
                state, reason = str(message["state"]), str(message["reason"])
                self._post(SlotChanged(name, int(message["slot"]), state, reason, int(message["in_service"])))
            case "spent":
                self._post(Spent(name, {str(key): float(value) for key, value in message["seconds"].items()}))
            case "alive":
                self._check_progress(str(message["doing"]), float(message["for_s"]))
                self._check_that_it_hears(float(message["unheard_s"]))
                self._post(Alive(name, str(message["doing"]), float(message["for_s"]), list(message["slots"])))
            case "broken":
                raise self._broken(str(message["during"]), str(message["reason"]))

    def _ask(self, request: InferenceRequest) -> None:
        """Without an inference service it is of a job before this one, which ends as soon as ours comes there."""
        if self._decider is not None:
            self._decider.ask(request, lambda answer: self.send(encode("decided", **answer.to_wire())))

    def _greeted(self, message: dict[str, Any]) -> None:
        if (message["protocol"], message["package"]) != (PROTOCOL, self._spec.package):
            raise ProgramSilent(self._spec.name, "a program of another version serves this run; it is replaced")
        self._held = [(int(iteration), int(index)) for iteration, index in message["held"]]
        self._spool = [self._own(EpisodeManifest.from_json(manifest)) for manifest in message["spool"]]
        refused = [(str(entry["episode"]), str(entry["reason"])) for entry in message["refused"]]
        self._strays = [UnknownFile(self._spec.name, episode, reason) for episode, reason in refused]
        self.send(self._job.message(self._spec))

    def _own(self, manifest: EpisodeManifest) -> EpisodeManifest:
        """Raises TrajectoryError for the manifest of another run."""
        if manifest.run != self._job.run:
            raise TrajectoryError(f"it is of run {manifest.run}, not of {self._job.run}")
        return manifest

    def _joined(self, checkpoint: PublishedPolicy | None, slots: int, chosen: str) -> None:
        if self._working:
            return
        if not 1 <= slots <= _MOST_SLOTS:
            raise ValueError(f"{slots} slots")
        self._working = True
        self._post(Joined(self._spec.name, slots, self._held, chosen))
        for stray in self._strays:
            self._post(stray)
        for manifest in self._spool:
            self._post(EpisodeReady(self._spec.name, manifest))
        if checkpoint is not None:
            self.announce(checkpoint)

    def _loaded(self, version: int) -> None:
        self._has_loaded = True
        if self._announced is not None and self._announced.iteration == version:
            self._post(Loaded(self._spec.name, version, time.monotonic() - self._announced_at, self._pushed_bytes))

    def _push(self, what: str, digests: set[str]) -> None:
        """Send what the worker lacks for its job or for a checkpoint, then say again what it is needed for."""
        announced = self._announced
        if what == "job" or announced is None:
            blobs = [Blob.of(data) for name, data in self._job.blobs().items() if name in digests]
            self.transfers.push(blobs, lambda _: self.send(self._job.message(self._spec)))
            return

        def then(sent: int) -> None:
            self._pushed_bytes += sent
            self.send(encode("checkpoint", version=announced.iteration, tensors=announced.wire()))

        self.transfers.push(announced.blobs(digests), then)

    def _fail(self, error: WorkerError) -> None:
        """Nothing more can be sent: end the session with the first reason."""
        self._error = self._error or error
        self._line.close()

    def _check_progress(self, doing: str, for_s: float) -> None:
        """Heartbeats come from a thread of the program; its loop must get on as well."""
        if for_s > self._limits.stuck_s:
            raise ProgramSilent(self._spec.name, f"the worker program is stuck: {doing} since {for_s:.0f} s")

    def _check_that_it_hears(self, unheard_s: float) -> None:
        """A link may be dead in our direction alone. We ping the program more often than it may miss us."""
        if self._working and unheard_s > self._limits.silence_s:
            reason = f"the worker program has not heard of this host for {unheard_s:.0f} s: the link is half-open"
            raise LinkLostError(self._spec.name, reason)

    def _broken(self, during: str, reason: str) -> WorkerError:
        if during == "attach":
            return JobError(self._spec.name, reason, "set worker_temp_path to a folder the user can write")
        if during == "disk":
            return LinkLostError(self._spec.name, reason, "free some space there, or set worker_temp_path elsewhere")
        remedy = "see the traceback; `parallel=single` runs the same agent and emulator on the host"
        return JobError(self._spec.name, f"it cannot carry out '{during}': {reason}", remedy)

    def _why_silent(self, error: WorkerError) -> WorkerError:
        """Is it the program that is silent, or the connection?"""
        if isinstance(error, LinkLostError) and self._line.answers():
            return ProgramSilent(self._spec.name, f"the worker program is silent for {self._patience_s:.0f} s")
        return error

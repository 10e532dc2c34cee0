"""One worker's life on the host: connect, install, attach and stay; come back after a loss."""

from __future__ import annotations

import random
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path

from digirl_dist.errors import JobError, LinkLostError, WorkerError
from digirl_dist.fleet.connection import Contact
from digirl_dist.fleet.outgoing import PublishedPolicy
from digirl_dist.fleet.session import InferenceService, ProgramSilent, Session
from digirl_dist.fleet.spec import Job, Spec
from digirl_dist.fleet.worker_events import Lost, WorkerEvent
from digirl_dist.protocol.job_folder import EpisodeManifest, encode
from digirl_dist.settings import LimitSettings
from digirl_dist.tasks import Key, Ticket

_NEVER_THERE_S = 0.2


class RemoteWorker:
    """Keeps one worker attached in threads of its own and tells ``post`` what happens there.

    ``publish``, ``lease``, ``pull`` and ``forget`` may be called from any thread at any time and never wait; while the
    worker is away they do nothing, and what still matters is settled when it comes back.
    """

    def __init__(
        self,
        spec: Spec,
        job: Job,
        contact: Contact,
        limits: LimitSettings,
        post: Callable[[WorkerEvent], None],
        inference: InferenceService | None = None,
    ) -> None:
        self.spec = spec
        self._job = job
        self._contact = contact
        self._limits = limits
        self._post = post
        self._decider = inference
        self._checkpoint: PublishedPolicy | None = None
        self._session: Session | None = None
        self._has_been_there = False
        self._did_not_end = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._live, name=f"worker-{spec.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def publish(self, checkpoint: PublishedPolicy) -> None:
        """From now on act with this checkpoint; Loaded tells when it does."""
        self._checkpoint = checkpoint
        self._tell(lambda session: session.announce(checkpoint))

    def lease(self, tickets: list[Ticket]) -> None:
        self._tell(lambda session: session.lease(tickets))

    def drop(self, keys: list[Key], lost_to: str) -> None:
        """These tickets are no longer wanted of this worker; their seconds are booked there (see slot_time)."""
        self._tell(lambda session: session.send(encode("drop", keys=[list(key) for key in keys], lost_to=lost_to)))

    def pull(self, manifest: EpisodeManifest, ticket: Ticket, path: Path) -> None:
        """Bring the episode to ``path``; Pulled or Refused tells how it went."""
        self._tell(lambda session: session.transfers.pull(manifest, ticket, path))

    def forget(self, episode_id: str) -> None:
        """The episode is safe here, or of no use: the worker may delete it."""
        self._tell(lambda session: session.send(encode("landed", episodes=[episode_id])))

    def collected(self) -> None:
        """Nothing more is wanted of this iteration; Spent tells where the slots' time went."""
        self._tell(lambda session: session.send(encode("collected")))

    def ping(self) -> None:
        """So that the worker program knows that we are here."""
        self._tell(lambda session: session.send(encode("ping")))

    def stop(self) -> None:
        """Ask the program to stop its emulators and to end. Does not wait; see ``join`` and ``hang_up``."""
        self._stopping.set()
        self._tell(lambda session: session.send(encode("stop")))

    def join(self, limit_s: float) -> None:
        """Wait for the end of the program, at most ``limit_s``.

        Where no program was ever reached there is nothing to wait for, however long a connection may still take.
        """
        self._thread.join(limit_s if self._has_been_there else min(limit_s, _NEVER_THERE_S))

    def hang_up(self) -> None:
        """Close the connection to a program that did not end. The first time it is killed over a new one."""
        if (session := self._session) is not None:
            self._did_not_end = True
            session.close()

    def _tell(self, action: Callable[[Session], None]) -> None:
        session = self._session
        if session is not None:
            action(session)

    def _live(self) -> None:
        losses = 0
        silent = False
        while not self._stopping.is_set():
            attached_at = time.monotonic()
            error = self._stay(replace=silent)
            silent = isinstance(error, ProgramSilent)
            if self._stopping.is_set():
                break
            self._post(Lost(self.spec.name, error))
            if error.fatal:
                return
            losses = 0 if time.monotonic() - attached_at > self._limits.steady_s else losses + 1
            longest = min(self._limits.back_off_max_s, self._limits.back_off_s * 2.0**losses)
            self._stopping.wait(random.uniform(longest / 2, longest))
        if silent or self._did_not_end:  # a frozen program cannot end by itself when it is orphaned: end it now
            self._stay(replace=True)

    def _stay(self, replace: bool) -> WorkerError:
        """One connection from its beginning to its end, and why it ended."""
        try:
            contact = partial(self._contact, replace)
            with Session(self.spec, self._job, contact, self._limits, self._post, self._decider) as session:
                self._session, self._has_been_there = session, True
                if self._stopping.is_set():  # meanwhile: what was started must not wait for a host until it is orphaned
                    session.dismiss()
                else:
                    session.serve(lambda: self._checkpoint)
            return LinkLostError(self.spec.name, "the worker program ended")
        except WorkerError as error:
            return error
        except Exception:  # a fault of ours must not end this thread without a word
            return JobError(self.spec.name, f"internal error: {traceback.format_exc()}", "please report it")
        finally:
            self._session = None

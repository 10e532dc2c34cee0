"""Updates by several processes, which this one starts, watches, and ends with the run."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from digirl_dist.child_process import environment
from digirl_dist.errors import TrainingError
from digirl_dist.parallel.failure import words_of_failure
from digirl_dist.settings import TorchrunSettings, regular_file
from digirl_dist.storage import atomic_files
from digirl_dist.storage.checkpoint import Checkpoint
from digirl_dist.storage.refused_episodes import RefusedEpisode
from digirl_dist.storage.trajectory_store import Store
from digirl_dist.trainer import Update
from digirl_dist.trainer.rank_process import RankFolder, TrainerSpec
from digirl_dist.types import Json
from digirl_dist.user_code.packing import pack

_LOOK_S = 0.5


class TorchrunTrainer:
    """Trains with ``nproc_per_node`` processes of this machine; their output goes to ``log``.

    Only this process sends them anything: rank 0 connects to a Unix socket in a private folder, and the ranks meet in
    a file of another (``parallel.launch``).
    """

    def __init__(self, trainer_spec: TrainerSpec, settings: TorchrunSettings, log: Path) -> None:
        self._trainer_spec = trainer_spec
        self._settings = settings
        self._log = log
        self._log_began = log.stat().st_size if log.exists() else 0
        self._stack = ExitStack()
        self._folder = folder = RankFolder(
            Path(self._stack.enter_context(TemporaryDirectory(prefix="digirl-dist-group-")))
        )
        folder.trainer_spec.write_bytes(pack(trainer_spec))
        self._listener = self._stack.enter_context(folder.listen())
        self._rank_0: Connection | None = None
        self._refused = self._sifted()
        self._process = self._start(folder)

    def resume(self) -> Checkpoint:
        answer = self._ask(None, self._settings.start_s)
        return self._trainer_spec.checkpoints.open(answer["iteration"])

    def update(self, checkpoint: Checkpoint, store: Store) -> Update:
        """Raises TrainingError if a rank fails or the update takes longer than ``update_s``.

        Ranks that broke off cannot look for what broke them. A process alone does, and new ranks make the update
        without it; so does the next start, should this process end before.
        """
        try:
            answer = self._ask(checkpoint.iteration, self._settings.update_s)
        except TrainingError:
            store.refused.suspect(checkpoint.iteration)
            self._end_ranks()
            if not (found := self._sifted()):
                raise
            self._refused += found
            self._process = self._start(self._folder)
            answer = self._ask(checkpoint.iteration, self._settings.update_s)
        refused, self._refused = self._refused, ()
        saved = self._trainer_spec.checkpoints.open(answer["iteration"])
        figures = {**answer["figures"], "episodes_refused": float(len(refused))}
        # All processes of a machine share its monotonic clock, so rank 0's times are valid here.
        return Update(saved, figures, answer["started_at"], answer["learned_at"], refused)

    def close(self) -> None:
        self._end_ranks()
        self._stack.close()

    def _end_ranks(self) -> None:
        if self._rank_0 is not None:
            self._rank_0.close()  # tells rank 0 to end
            self._rank_0 = None
        else:
            self._process.terminate()
        try:
            self._process.wait(self._settings.stop_s)
        except subprocess.TimeoutExpired:
            self._process.terminate()  # the launcher ends its ranks before itself
            self._process.wait()

    def _sifted(self) -> tuple[RefusedEpisode, ...]:
        return self._trainer_spec.sift_if_suspect(self._log, self._settings.start_s + self._settings.update_s)

    def _start(self, folder: RankFolder) -> subprocess.Popen[bytes]:
        # Not torchrun itself, which opens ports on all addresses and unpickles what anybody sends there.
        launcher = [sys.executable, "-m", "digirl_dist.parallel.launch"]
        ranks = [f"--nproc_per_node={self._settings.nproc_per_node}"]
        member = ["-m", "digirl_dist.trainer.rank_process", str(folder.root)]
        with atomic_files.opened_to_append(self._log) as log:
            return subprocess.Popen(
                [*launcher, *ranks, *member],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C must reach only the host, which ends the group in order
                env=environment(),
            )

    def _ask(self, order: Json, limit_s: float) -> dict[str, Any]:
        """Sends an order to rank 0 and returns its answer. Raises TrainingError."""
        rank_0 = self._connected()
        answer: dict[str, Any] = {}
        try:
            rank_0.send_bytes(json.dumps(order).encode())
            self._await(lambda: rank_0.poll(_LOOK_S), limit_s, "rank 0 did not finish the update")
            answer = json.loads(rank_0.recv_bytes())
        except (EOFError, OSError):
            # The exit of rank 0 or the launcher explains more.
            self._await(lambda: False, self._settings.stop_s, "rank 0 closed its connection but did not end")
        if "error" in answer:
            raise TrainingError(f"{answer['error']} (see {self._log})")
        return answer

    def _connected(self) -> Connection:
        if self._rank_0 is None:
            self._listener.settimeout(_LOOK_S)
            self._await(self._accept, self._settings.start_s, "rank 0 did not start")
        assert self._rank_0 is not None
        return self._rank_0

    def _accept(self) -> bool:
        try:
            connection, _ = self._listener.accept()
        except TimeoutError:
            return False
        self._rank_0 = Connection(connection.detach())
        return True

    def _await(self, came: Callable[[], bool], limit_s: float, otherwise: str) -> None:
        """Waits until ``came`` returns True. Raises TrainingError if the group ends, or after ``limit_s``."""
        deadline = time.monotonic() + limit_s
        while not came():
            if self._process.poll() is not None:
                raise TrainingError(
                    f"the training processes ended with status {self._process.returncode}; "
                    f"from {self._log}:\n{self._last_words()}"
                )
            if time.monotonic() > deadline:
                raise TrainingError(f"{otherwise} within {limit_s:g} s; see {self._log}")

    def _last_words(self) -> str:
        """Returns the failed rank's output, or the end of all ranks' output if none reported a failure."""
        with regular_file.opened(self._log) as log:
            log.seek(self._log_began)
            printed = log.read().decode(errors="replace").splitlines()
        return "\n".join(words_of_failure(printed))

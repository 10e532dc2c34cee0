"""Runs cases in a child process of limited memory, which may die of one: it is named, and the rest go on."""

from __future__ import annotations

import faulthandler
import mmap
import os
import signal
import struct
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random

from digirl_dist.errors import DigirlDistError
from digirl_dist.storage.safe_torch_load import limited_memory
from fuzz.target import Target
from fuzz.targets import TARGETS

_LOOK_S = 0.2
_FOLDER = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""In memory: a disk that flushes each file that is written again costs more than the case."""
_BROKEN = "ended with status 1"
_STATE = struct.Struct("<qdq")
"""Shared with the child: the case it is at, its most expensive case in seconds, and how many were answered."""


@dataclass(frozen=True)
class Limits:
    """What one case may cost: seconds of processor, bytes of memory, and seconds until its process is given up."""

    cpu_s: float = 1.0
    memory: int = 256 << 20
    stuck_s: float = 60.0


LIMITS = Limits()


@dataclass
class Result:
    """What came of a campaign. ``failures`` has, for each kind, its first case, what that said, and how many came."""

    kind: str
    seed: int
    cases: int
    answered: int = 0
    seconds: float = 0.0
    slowest_s: float = 0.0
    failures: dict[str, tuple[int, str, int]] = field(default_factory=dict)

    def add(self, failure: str, case: int, example: str) -> None:
        first, said, times = self.failures.get(failure, (case, example, 0))
        self.failures[failure] = (first, said, times + 1)

    def __str__(self) -> str:
        lines = [
            f"{self.kind}: {self.cases} cases of seed {self.seed} in {self.seconds:.0f} s, {self.answered} accepted, "
            f"slowest {self.slowest_s:.2f} s, {len(self.failures)} kinds of failure"
        ]
        for failure, (case, said, times) in self.failures.items():
            again = f"--kinds {self.kind} --seed {self.seed} --case {case}"
            lines.append(f"  {times} times, first {again}: {failure} {said}")
        return "\n".join(lines)


def campaign(kind: str, seed: int, cases: int, limits: Limits) -> Result:
    """Runs the cases 0 … ``cases`` - 1; a case follows from kind, seed and its number alone."""
    result, began = Result(kind, seed, cases), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=_FOLDER) as folder, mmap.mmap(-1, _STATE.size) as shared:
        case = 0
        while case < cases:
            _STATE.pack_into(shared, 0, case, result.slowest_s, 0)
            failures = Path(folder) / "failures"
            failures.touch()
            child = _start(partial(_run, kind, seed, case, cases, failures, shared, limits))
            status = _await(child, shared, limits)
            if status == _BROKEN:
                raise RuntimeError(f"the target {kind} does not read its own sample; its traceback is above")
            case, result.slowest_s, answered = _STATE.unpack_from(shared)
            result.answered += answered
            for line in failures.read_text(errors="replace").splitlines():
                number, failure, example = line.split("\t", 2)
                result.add(failure, int(number), example)
            failures.unlink()
            if case < cases:
                result.add(f"the process {status}", case, "")
                case += 1
    result.seconds = time.monotonic() - began
    return result


def one_case(kind: str, seed: int, case: int) -> None:
    """Runs one case here; raises what it raises."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        target = TARGETS[kind](Path(folder))
        data = target.case(Random(f"{kind}/{seed}/{case}"))
        print(f"{len(data)} bytes: {data[:2000]!r}")
        try:
            target.feed(data)
        except DigirlDistError as error:
            print(f"refused: {type(error).__name__}: {error}")


def _start(run: Callable[[], None]) -> int:
    """Returns the child that does ``run``."""
    child = os.fork()
    if child == 0:
        faulthandler.disable()
        try:
            run()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return child


def _run(kind: str, seed: int, first: int, cases: int, failures: Path, shared: mmap.mmap, limits: Limits) -> None:
    target = TARGETS[kind](failures.parent / f"from-{first}")
    target.feed(target.samples[0])  # imports and caches are no case's fault
    answered, slowest = 0, _STATE.unpack_from(shared)[1]
    with limited_memory(limits.memory), failures.open("ab", buffering=0) as told:
        for case in range(first, cases):
            _STATE.pack_into(shared, 0, case, slowest, answered)
            data, began = target.case(Random(f"{kind}/{seed}/{case}")), time.process_time()
            failure = _failure(target, data)
            took = time.process_time() - began
            answered, slowest = answered + (failure == ""), max(slowest, took)
            if took > limits.cpu_s:
                failure = f"too slow\t{took:.1f} s"
            if failure:
                told.write(f"{case}\t{failure}\n".encode(errors="replace"))
    _STATE.pack_into(shared, 0, cases, slowest, answered)


def _failure(target: Target, data: bytes) -> str | None:
    """Returns "" for an answer, None for an error of ours, and otherwise what happened, in one line."""
    try:
        target.feed(data)
    except DigirlDistError:
        return None
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        ours = [frame for frame in traceback.extract_tb(error.__traceback__) if "digirl_dist" in frame.filename]
        at = ours[-1] if ours else place
        said = " ".join(str(error).split())[:100]
        return f"{type(error).__name__} at {Path(at.filename).name}:{at.lineno}\t{said}"
    return ""


def _await(child: int, shared: mmap.mmap, limits: Limits) -> str:
    """Returns how the child ended; one that does not get on is killed."""
    case, since = -1, time.monotonic()
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return f"ended with status {os.waitstatus_to_exitcode(status)}"
        now_at = _STATE.unpack_from(shared)[0]
        if now_at != case:
            case, since = now_at, time.monotonic()
        elif time.monotonic() - since > limits.stuck_s:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return f"hung for {limits.stuck_s:g} s"
        time.sleep(_LOOK_S)

"""Real launches of ranks on this machine, with a time limit, and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

import psutil

from chaos.processes import eventually
from digirl_dist.child_process import environment

ROOT = Path(__file__).resolve().parent.parent
LIMIT_S = 160.0


@dataclass(frozen=True)
class Ended:
    """What a launch came to; ``out`` holds both of its streams."""

    status: int
    out: str


def launch_environment() -> dict[str, str]:
    """Ours, without the variables of a launcher, and with tests/ importable."""
    ours = environment()
    ours["PYTHONPATH"] = os.pathsep.join([ours["PYTHONPATH"], str(Path(__file__).parent)])
    ours["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), ours["PATH"]])
    ours["OMP_NUM_THREADS"] = "1"
    return {name: value for name, value in ours.items() if "RANK" not in name and "WORLD_SIZE" not in name}


def example(name: str, *words: str) -> list[str]:
    """A command of examples/ as it is written there."""
    return [str(ROOT / "examples" / name), *words]


def torchrun(world_size: int, *words: str, flags: Sequence[str] = ("--standalone",)) -> list[str]:
    """``words`` are a script, or -m and a module, with its arguments."""
    return [sys.executable, "-m", "torch.distributed.run", *flags, f"--nproc_per_node={world_size}", *words]


def ranks(world_size: int, *words: str) -> list[str]:
    """As ``torchrun``, by the own launcher, which costs a thirtieth of its processor time."""
    return [sys.executable, "-m", "digirl_dist.parallel.launch", f"--nproc_per_node={world_size}", *words]


@contextmanager
def started(
    command: Sequence[str], out: IO[str] | int = subprocess.PIPE, **variables: str
) -> Iterator[subprocess.Popen[str]]:
    """A launch under way, which prints to ``out``; at the end it and its descendants are ended."""
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**launch_environment(), **variables},
        stdout=out,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        for left in [process.pid, *(child.pid for child in descendants(process.pid))]:
            try:
                os.kill(left, signal.SIGKILL)
            except ProcessLookupError:
                pass  # it ended by itself, as it should
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def launch_together(commands: Sequence[Sequence[str]], limit_s: float = LIMIT_S) -> list[Ended]:
    """Launches that run side by side, to the end of the last. Fails with what all printed if that takes longer."""
    with ExitStack() as stack:
        outs = [stack.enter_context(TemporaryFile("w+")) for _ in commands]
        nodes = [stack.enter_context(started(command, out)) for command, out in zip(commands, outs, strict=True)]
        all_ended = eventually(lambda: all(node.poll() is not None for node in nodes), limit_s)
        said = [out.seek(0) or out.read() for out in outs]
        assert all_ended, f"statuses after {limit_s:g} s: {[node.returncode for node in nodes]}; {said}"
        return [Ended(node.returncode, out) for node, out in zip(nodes, said, strict=True)]


def launch(command: Sequence[str], limit_s: float = LIMIT_S, **variables: str) -> Ended:
    """Run to its end. Fails with what was printed when that takes too long."""
    with started(command, **variables) as process:
        try:
            out, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{' '.join(command)} took longer than {limit_s} s") from None
        return Ended(process.returncode, out)


def descendants(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def rank_process(launcher: int, rank: int) -> psutil.Process | None:
    """The process of a rank below a launcher."""
    for process in descendants(launcher):
        try:
            if process.ppid() == launcher and process.environ().get("RANK") == str(rank):
                return process
        except psutil.Error:
            pass  # it ended meanwhile
    return None

"""Which TCP ports a process and its descendants have open, and what another user of the machine can do there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psutil
import pytest

NOBODY = 65534


@dataclass(frozen=True)
class Listener:
    """A listening TCP socket; ``program`` is the command line of the first process that was found with it."""

    address: str
    port: int
    program: str


def listeners(pid: int) -> list[Listener]:
    """Of a process and all its descendants; sockets that several of them have are told once."""
    found: dict[tuple[str, int], Listener] = {}
    for process in tree(pid):
        try:
            program = " ".join(process.cmdline())
            for socket in process.net_connections("tcp"):
                if socket.status == psutil.CONN_LISTEN:
                    place = (socket.laddr.ip, socket.laddr.port)
                    found.setdefault(place, Listener(*place, program))
        except psutil.Error:
            pass  # it ended meanwhile
    return list(found.values())


def tree(pid: int) -> list[psutil.Process]:
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def as_another_user(program: str, *words: str, limit_s: float = 30.0) -> subprocess.CompletedProcess[str]:
    """Run Python code as ``nobody`` to its end; skips where that cannot be."""
    with another_user(program, *words) as process:
        out, _ = process.communicate(timeout=limit_s)
    return subprocess.CompletedProcess(process.args, process.returncode, out)


@contextmanager
def another_user(program: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """The same, under way; at the end it is killed."""
    if os.geteuid() != 0:
        pytest.skip("only root can act as another user")
    # The system's Python: ours may lie where nobody else can read.
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin") or sys.executable
    command = [python, "-I", "-S", "-c", program, *words]
    process = subprocess.Popen(
        command,
        user=NOBODY,
        group=NOBODY,
        extra_groups=(),
        cwd="/",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()

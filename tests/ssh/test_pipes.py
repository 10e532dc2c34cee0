"""The pipes and processes of sessions where the machine refuses some."""

from __future__ import annotations

import os
import subprocess
import threading
from functools import cache
from typing import Any

import pytest
from process_watch import descriptors_left

from digirl_dist.ssh import processes
from digirl_dist.ssh.piped import open_pipes


def test_pipes_that_are_refused_leave_no_descriptor_open() -> None:
    for room in range(6):
        there = len(os.listdir("/proc/self/fd"))
        with descriptors_left(room), pytest.raises(OSError, match="Too many open files"):
            open_pipes()
        assert len(os.listdir("/proc/self/fd")) == there, room


@pytest.mark.component
def test_a_process_for_which_no_thread_was_to_be_had_is_not_started_later(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []
    real = subprocess.Popen

    def seen(command: Any, **options: Any) -> Any:
        started.append(command[-1])
        return real(command, **options)

    def refused(self: Any) -> None:
        raise RuntimeError("can't start new thread")

    def start(*command: str) -> subprocess.Popen[bytes]:
        null = subprocess.DEVNULL
        return processes.start_tied(command, null, null, null, dict(os.environ))

    monkeypatch.setattr(subprocess, "Popen", seen)
    monkeypatch.setattr(processes, "_starter", cache(processes._starter.__wrapped__))
    with monkeypatch.context() as machine, pytest.raises(RuntimeError):
        machine.setattr(threading.Thread, "start", refused)
        start("false")
    assert start("true").wait(120) == 0 and started == ["true"]

"""``digirl-dist why`` shows the true culprit, of a running run and of a dead one."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest
from process_watch import eventually, processes_with
from run_files import events
from test_run import MINE, ROOT, RUN

from digirl_dist.cli.main import main
from digirl_dist.errors import SettingsError, TrainingError
from digirl_dist.report.why import explain
from digirl_dist.storage.status import Status

pytestmark = [pytest.mark.system, pytest.mark.long_file(20)]


def why(folder: Path) -> str:
    """What the command prints, or nothing while there is no run."""
    try:
        return explain(folder)
    except SettingsError:
        return ""


@pytest.mark.unit
def test_a_run_without_a_status_is_called_one(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("seed: 0\n")
    with pytest.raises(SettingsError, match="has no status.json, which runs write as they go on"):
        explain(tmp_path)


@pytest.mark.nightly
def test_why_points_at_a_hung_emulator_and_tells_of_a_killed_host(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["dry_run=true", "dry_run_workers=1", f"save_path={tmp_path}", "limits.step_s=20", "limits.orphan_s=6"]
    process = subprocess.Popen(
        [*RUN, *MINE, *words, "emulator.kwargs={step_s: 30}"],
        cwd=ROOT / "tests",
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        eventually(lambda: "<-- the host waits for this" in why(tmp_path), 90, "the pointer at the hung step")
        said = why(tmp_path)
        assert f"process {process.pid} is running" in said
        assert "collect iteration 0: 0 of 8 episodes landed" in said
        hung = [line for line in said.splitlines() if "<-- the host waits for this" in line]
        assert all("slot" in line and "step of ticket" in line and "of at most 20" in line for line in hung)
        assert "worker_joined" in said
        process.kill()
        process.wait()
        assert main(["why", "--save-path", str(tmp_path)]) == 0
        said = capsys.readouterr().out
        assert "no process is running" in said and "last activity: collect iteration 0" in said
    finally:
        process.kill()
        process.wait()
    eventually(lambda: not processes_with(tmp_path), 60, "the end of the orphans")


def test_why_shows_what_a_worker_is_waited_for(tmp_path: Path) -> None:
    mute = socket.create_server(("127.0.0.1", 0))
    worker = f"{{host: 127.0.0.1, port: {mute.getsockname()[1]}, name: w1}}"
    process = subprocess.Popen(
        [*RUN, *MINE, f"worker_ips=[{worker}]", f"save_path={tmp_path}", "ssh.connect_s=2"],
        cwd=ROOT / "tests",
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        eventually(lambda: events(tmp_path, "worker_lost"), 30)
        eventually(lambda: "accepts connections but did not greet within 2 s" in why(tmp_path), 10)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(120)
        mute.close()
    assert "ago the run was interrupted; the same command resumes where it stopped" in why(tmp_path)


@pytest.mark.unit
@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (None, "the run finished; nothing is waited for"),
        (KeyboardInterrupt(), "the run was interrupted; the same command resumes"),
        (TrainingError("the loss is NaN\nTraceback"), "the run failed: the loss is NaN; the same command resumes"),
        (MemoryError(), "the run failed: MemoryError; the same command resumes"),
    ],
)
def test_how_a_run_ended_is_told_with_the_reason(tmp_path: Path, raised: BaseException | None, told: str) -> None:
    status = Status(tmp_path / "status.json")
    with suppress(BaseException), status.until_the_end_of("the run"):
        status.worker("lab-9")
        if raised is not None:
            raise raised
    [said, *_] = explain(tmp_path).splitlines()
    assert said.startswith(f"{tmp_path}: ") and f" ago {told}" in said and "lab-9" not in explain(tmp_path)


def test_why_without_a_run_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", "--save-path", str(tmp_path)]) == 2
    assert f"{tmp_path} is no run folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    "content",
    [
        *("{", "[]", "{}", '{"ended": "x", "time": "y"}', "[" * 5000),
        *(f'{{"state": "finished", "time": {time}}}' for time in ("Infinity", "1" + "0" * 400)),
    ],
)
def test_a_damaged_status_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str) -> None:
    (tmp_path / "status.json").write_text(content)
    assert main(["why", str(tmp_path)]) == 1
    assert f"error: {tmp_path}/status.json is damaged" in capsys.readouterr().err


def test_files_that_do_not_come_are_told_of_the_worker_that_has_them(tmp_path: Path) -> None:
    status = Status(tmp_path / "status.json")
    for name, since_s in (("slow", 40.0), ("quick", 0.5)):
        seen = status.worker(name)
        seen.fetching, seen.fetched_at = 3, time.monotonic() - since_s
    status.write()
    assert [line for line in explain(tmp_path).splitlines() if "fetched" in line] == [
        "  to be fetched: 3 episodes, none came for 40.0 s"
    ]


@pytest.mark.parametrize(
    "line", ["[1]", '{"time": 1e300}', '{"event": "lost"}', '{"time": "x", "event": 3}', "\x00", "{"]
)
def test_an_event_that_none_of_ours_is_hides_no_other(tmp_path: Path, line: str) -> None:
    (tmp_path / "status.json").write_text('{"time": 1.0, "state": "finished", "what": "the run", "workers": {}}')
    (tmp_path / "events.jsonl").write_bytes(
        f'{line}\n{{"time": 1.0, "event": "worker_lost"}}\n\xff\n'.encode("latin-1")
    )
    assert "worker_lost" in explain(tmp_path)

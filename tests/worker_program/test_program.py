"""The resident program: found again, replaced when it must be, gone when nobody needs it."""

from __future__ import annotations

import fcntl
import os
import queue
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import psutil
import pytest
import torch
from process_watch import command_line, descriptors_left, eventually, processes_with
from user_classes import Coin, Counter, FairCoin

from digirl_dist.child_process import environment
from digirl_dist.inference.requests import InferenceFailure, InferenceRequest, RandomStream
from digirl_dist.protocol.job_folder import JobFolder
from digirl_dist.protocol.messages import (
    SPOKEN,
    Acting,
    Action,
    Ask,
    Broken,
    EpisodeFailed,
    EpisodeManifest,
    EpisodeReady,
    Heartbeat,
    Hello,
    HostMessage,
    Landed,
    Lease,
    Loaded,
    LoadPolicy,
    Need,
    Pushed,
    Ready,
    SlotLimits,
    StartJob,
    Stop,
    TensorEntry,
    UnknownFile,
    WorkerMessage,
    Working,
    decode_worker_message,
    encode,
    encode_manifest,
)
from digirl_dist.storage.checkpoint import describe, raw_bytes
from digirl_dist.storage.digest import digest
from digirl_dist.tasks import Key, Task, Ticket
from digirl_dist.trajectory import Observation
from digirl_dist.user_code.packing import pack
from digirl_dist.worker_program.link import SocketLink
from digirl_dist.worker_program.remote_policies import RemotePolicies

pytestmark = [pytest.mark.component, pytest.mark.long]
M = TypeVar("M")
MANIFEST = EpisodeManifest("r1", Key(0, 0), 0, 0, "another", 1, "ab", 0, 1.0, 0.0, {})


class Host:
    """The host's end of an attached program, without SSH in between."""

    def __init__(self, folder: Path, orphan_s: float = 30.0, *options: str) -> None:
        command = [sys.executable, "-m", "digirl_dist.worker_program.attach", "--folder", str(folder)]
        self.folder = JobFolder(folder)
        self.process = subprocess.Popen(
            [*command, "--orphan-s", str(orphan_s), *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(),
        )
        self._said: queue.SimpleQueue[WorkerMessage | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def say(self, message: HostMessage) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(encode(message))
        self.process.stdin.flush()

    def hear(self, kind: type[M], limit_s: float = 120.0) -> M:
        """The next message of this kind; others are passed over."""
        while True:
            message = self._said.get(timeout=limit_s)
            assert message, f"the program hung up before it said {kind.__name__}"
            if isinstance(message, kind):
                return message

    def greet(self, host: str = "") -> Ready:
        """Say hello for run r1; what the program answers."""
        self.say(Hello("r1", list(SPOKEN), host))
        return self.hear(Ready)

    def has_ended(self, limit_s: float = 120.0) -> bool:
        while self._said.get(timeout=limit_s):
            pass
        return True

    def leave(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(120)

    def start_job(self, **options: Any) -> None:
        """Up to the point where it acts with version 0, which has no weights."""
        self._start_job(FairCoin, **options)
        self.say(LoadPolicy(0, {}))
        self.hear(Loaded)

    def start_job_with_weights(self) -> None:
        """The same, with the weights of version 0."""
        self._start_job(Coin)
        self.announce(0)
        self.hear(Need)
        for tensor in Coin(Counter.spec).state_dict().values():
            self.put(bytes(raw_bytes(tensor)))
        self.say(Pushed("policy"))
        self.hear(Loaded)

    def _start_job(self, kind: type[Coin | FairCoin], **options: Any) -> None:
        agent, emulator = pack(partial(kind, Counter.spec)), pack(partial(Counter, **options))
        self.say(StartJob("w", digest(agent), digest(emulator), SlotLimits(), slots=2))
        need = self.hear(Need)
        assert sorted(need.digests) == sorted({digest(agent), digest(emulator)})
        for data in (agent, emulator):
            self.put(data)
        self.say(Pushed("job"))
        self.hear(Working)

    def start_asking_job(self, answer_s: float) -> None:
        """Up to the point where it asks for the actions of version 0."""
        emulator = pack(Counter)
        self.put(emulator)
        self.say(StartJob("w", None, digest(emulator), SlotLimits(), slots=1, answer_s=answer_s))
        self.hear(Working)
        self.say(LoadPolicy(0, {}))
        self.hear(Loaded)

    def take_up_job(self) -> Working:
        """Ask for the job of ``start_job`` again, of which everything is there."""
        agent, emulator = pack(partial(FairCoin, Counter.spec)), pack(partial(Counter, step_s=0.1))
        self.put(agent)
        self.put(emulator)
        self.say(StartJob("w", digest(agent), digest(emulator), SlotLimits(), slots=2))
        return self.hear(Working)

    def announce(self, version: int, logits: float = 0.0) -> None:
        described = describe(self.weights(logits))
        entries = {name: TensorEntry(info.digest, info.dtype, list(info.shape)) for name, info in described.items()}
        self.say(LoadPolicy(version, entries))

    def weights(self, logits: float) -> dict[str, torch.Tensor]:
        return {name: tensor + logits for name, tensor in Coin(Counter.spec).state_dict().items()}

    def put(self, data: bytes) -> None:
        self.folder.blob(digest(data)).write_bytes(data)

    def _read(self) -> None:
        assert self.process.stdout is not None
        while line := self.process.stdout.readline():
            message = decode_worker_message(line)
            if isinstance(message, Ask):
                self.attached = self.process.stdout.read(message.attached)
            self._said.put(message)
        self._said.put(None)


@contextmanager
def attached(folder: Path, orphan_s: float = 30.0, *options: str) -> Iterator[Host]:
    host = Host(folder, orphan_s, *options)
    try:
        yield host
    finally:
        host.leave()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder for a program, which is stopped in the end."""
    yield tmp_path / "job"
    for process in processes_with(tmp_path):
        with suppress(psutil.NoSuchProcess):  # an emulator ends when its guard does
            process.kill()


def lease(host: Host, count: int) -> None:
    tickets = [Ticket(0, index, Task("count"), seed=index, policy_version=0) for index in range(count)]
    host.say(Lease(1, tickets))


def program(folder: Path) -> Any:
    (found,) = [one for one in processes_with(folder) if "digirl_dist.worker_program.program" in command_line(one)]
    return found


def test_of_two_hosts_of_one_run_the_later_one_keeps_the_program(folder: Path) -> None:
    with attached(folder) as first:
        first.greet("first")
        first.start_job()
        with attached(folder) as second:
            pid = second.greet("second").pid
            assert first.has_ended()
            lease(second, 1)
            with attached(folder) as again:
                again.say(Hello("r1", list(SPOKEN), "first"))
                assert again.hear(Broken).during == "host"
                again.say(Stop())
                with attached(folder) as second_again:
                    assert second_again.greet("second").pid == pid
                    assert again.has_ended()


@pytest.mark.parametrize(
    ("numpy", "during", "told"),
    [
        (
            "raise ImportError('libx.so: failed to map segment')",
            "start",
            "ended with status 1; .*failed to map segment",
        ),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "wait", "does not answer: it ended with status -9"),
        ("import time; time.sleep(60)", "wait", "does not answer; "),
    ],
)
def test_a_program_that_does_not_start_is_out_for_good_only_if_it_says_why(
    numpy: str, during: str, told: str, folder: Path
) -> None:
    (folder.parent / "numpy.py").write_text(numpy)
    code = "from digirl_dist.worker_program import attach; attach._START_LIMIT_S = 3.0; exit(attach.main())"
    command = [sys.executable, "-c", code, "--folder", str(folder), "--orphan-s", "30"]
    variables = environment()
    variables["PYTHONPATH"] += os.pathsep + str(folder.parent)
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, env=variables, timeout=120)
    broken = decode_worker_message(done.stdout)
    assert isinstance(broken, Broken) and broken.during == during and re.search(told, broken.reason, re.DOTALL)


def test_its_log_keeps_its_beginning_and_its_end(folder: Path) -> None:
    with attached(folder) as host:
        host.greet()
        with host.folder.log.open("ab") as log:
            log.write(b"first\n" + b"chatter\n" * (3 << 20))
            log.flush()
            eventually(lambda: 4 << 20 < host.folder.log.stat().st_size < 16 << 20, what="a log of bounded size")
            log.write(b"last\n")
        assert host.folder.log.read_bytes().startswith(b"first\n")
        assert host.folder.log.read_bytes().endswith(b"chatter\nlast\n")


def test_a_host_that_comes_back_finds_what_was_finished_meanwhile(folder: Path) -> None:
    with attached(folder) as host:
        host.greet()
        host.start_job(step_s=0.1)
        lease(host, 4)
        host.hear(Acting)
    first = program(folder).pid
    eventually(lambda: len(list(folder.glob("episodes/*.json"))) == 4, 60, "the end of four episodes")
    with attached(folder) as host:
        assert host.greet().pid == first
        assert host.take_up_job().held == []
        manifests = [host.hear(EpisodeReady).manifest for _ in range(4)]
        assert sorted(manifest.key.number for manifest in manifests) == [0, 1, 2, 3]
        host.say(Landed([manifest.episode_id for manifest in manifests]))
        eventually(lambda: not list(folder.glob("episodes/*")))


def test_a_killed_program_leaves_its_finished_episodes_to_the_next(folder: Path) -> None:
    with attached(folder) as host:
        host.greet()
        host.start_job(step_s=0.1)
        lease(host, 5)
        host.hear(EpisodeReady)
        host.hear(EpisodeReady)
        program(folder).kill()
        assert host.has_ended()
    with attached(folder) as host:
        host.greet()
        left = [one for one in processes_with(folder) if "digirl_dist.rollout.emulator_process" in command_line(one)]
        assert not left, "emulators outlived their program"
        host.take_up_job()
        assert {host.hear(EpisodeReady).manifest.key.number for _ in range(2)} < set(range(5))


def test_the_newest_host_wins(folder: Path) -> None:
    with attached(folder) as first:
        first.greet()
        with attached(folder) as second:
            second.greet()
            assert first.has_ended()


def test_a_folder_serves_one_run(folder: Path) -> None:
    with attached(folder) as host:
        host.greet()
        host.say(Hello("r2", list(SPOKEN)))
        assert "serves run r1, not r2" in host.hear(Broken).reason


def test_without_a_host_it_finishes_what_runs_and_ends(folder: Path) -> None:
    with attached(folder, 10.0) as host:
        host.greet()
        host.start_job(step_s=0.5)
        lease(host, 60)
        host.hear(Acting)
        os.kill(host.process.pid, 9)
    eventually(lambda: not processes_with(folder), 30, "the end of the orphan")
    finished = list(folder.glob("episodes/*.json"))
    assert 2 <= len(finished) < 60 and len(list(folder.glob("episodes/*.episode"))) == len(finished)


def test_a_program_whose_folder_was_cleaned_up_ends_when_its_host_has_left(folder: Path) -> None:
    with attached(folder, 600.0) as host:
        host.greet()
        shutil.rmtree(folder)
    eventually(lambda: not processes_with(folder), 15, "the end of the program that nobody can reach")


def test_a_frozen_program_is_replaced_when_asked_to(folder: Path) -> None:
    with attached(folder) as host:
        first = host.greet().pid
        program(folder).suspend()
        with attached(folder, 30.0, "--replace") as again:
            assert again.greet().pid != first
    assert program(folder).pid != first


def test_a_folder_whose_program_is_about_to_end_is_served_by_the_next(folder: Path) -> None:
    folder.mkdir()
    with JobFolder(folder).lock.open("a+") as ending:
        fcntl.flock(ending, fcntl.LOCK_EX)
        with attached(folder) as host:
            log = JobFolder(folder).log
            eventually(lambda: log.exists() and "another program serves" in log.read_text())
            JobFolder(folder).remove()
            host.greet()


def test_only_a_worker_program_is_ever_replaced(folder: Path) -> None:
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        folder.mkdir()
        JobFolder(folder).lock.write_text(f"{bystander.pid}\n")
        with attached(folder, 30.0, "--replace") as host:
            host.greet()
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_versions_come_and_go_until_the_host_says_stop(folder: Path) -> None:
    with attached(folder) as host:
        host.greet()
        host.start_job_with_weights()
        one_with_the_weights_of_another_is_ready_at_once_and_outlives_it(host)
        an_altered_tensor_is_asked_for_again(host)
        host.say(Stop())
        assert host.has_ended()
        eventually(lambda: not folder.exists() and not processes_with(folder), 5, "the end of the program")


def one_with_the_weights_of_another_is_ready_at_once_and_outlives_it(host: Host) -> None:
    (tensor,) = host.weights(0.0).values()
    host.folder.blob(digest(bytes(raw_bytes(tensor)))).write_bytes(b"it is not read again")
    for version, logits in ((1, 0.0), (2, 1.0), (3, 0.0), (4, 1.0)):
        if version > 1:
            host.put(bytes(raw_bytes(tensor + logits)))
        host.announce(version, logits)
        while host.hear(Loaded).version != version:
            pass


def an_altered_tensor_is_asked_for_again(host: Host) -> None:
    (tensor,) = host.weights(2.0).values()
    name = digest(bytes(raw_bytes(tensor)))
    host.folder.blob(name).write_bytes(b"\0" * 7 + b"\1")
    host.announce(5, logits=2.0)
    assert host.hear(Need).digests == [name]


def test_a_job_that_cannot_be_built_is_said_to_be_broken(folder: Path) -> None:
    with attached(folder) as host:
        host.greet()
        host.put(b"no pickle")
        name = digest(b"no pickle")
        host.say(StartJob("w", name, name, SlotLimits(), slots=1))
        broken = host.hear(Broken)
        assert broken.during == "StartJob" and "UnpicklingError" in broken.reason


def test_a_part_of_the_job_that_a_power_cut_left_empty_is_asked_for_again(folder: Path) -> None:
    with attached(folder) as host:
        host.greet()
        agent, emulator = pack(partial(FairCoin, Counter.spec)), pack(Counter)
        host.put(agent)
        host.folder.blob(digest(emulator)).touch()
        host.say(StartJob("w", digest(agent), digest(emulator), SlotLimits(), slots=1))
        assert host.hear(Need).digests == [digest(emulator)]
        host.put(emulator)
        host.say(Pushed("job"))
        host.hear(Working)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with attached(tmp_path / "file" / "job") as host:
        broken = host.hear(Broken)
        assert broken.during == "attach" and str(tmp_path / "file" / "job") in broken.reason


def test_what_a_host_did_not_answer_is_asked_of_the_next(folder: Path) -> None:
    with attached(folder) as host:
        host.greet()
        host.start_asking_job(answer_s=60.0)
        lease(host, 1)
        first = host.hear(Ask)
    with attached(folder) as host:
        host.greet()
        again = host.hear(Ask)
        assert again == first and again.stream == (0, 0, 0)
        for step in range(3):
            asked = again if step == 0 else host.hear(Ask)
            assert asked.stream == (0, 0, step) and len(host.attached) == asked.vector == 8
            host.say(Action(asked.number, 1, -0.5))
        assert host.hear(EpisodeReady).manifest.policy_version == 0


def test_an_answer_that_does_not_come_in_time_costs_the_episode(folder: Path) -> None:
    with attached(folder) as host:
        host.greet()
        host.start_asking_job(answer_s=1.0)
        lease(host, 1)
        host.hear(Ask)
        assert "did not answer within 1 s" in host.hear(EpisodeFailed).reason


@pytest.mark.nightly
def test_without_a_host_that_answers_it_ends_though_episodes_are_under_way(folder: Path) -> None:
    with attached(folder, 10.0) as host:
        host.greet()
        host.start_asking_job(answer_s=60.0)
        lease(host, 1)
        host.hear(Ask)
        os.kill(host.process.pid, 9)
    eventually(lambda: not processes_with(folder), 20, "the end of the orphan")


def test_stray_files_of_any_name_and_kind_are_reported_and_never_take_the_worker_out(folder: Path) -> None:
    """Limits and words at one end only."""
    strays = [
        b"000001 (copy).json",
        b"a\nb.json",
        b"\xff\xfe.json",
        b"x" * 250 + b".json",
        b"link.json",
        b"pipe.json",
        b"room.json",
        b"large.json",
        b"copy.json",
        b"half.json",
    ]
    with attached(folder) as host:
        host.greet()
        places = {name: os.path.join(os.fsencode(folder / "episodes"), name) for name in strays}
        for name, place in places.items():
            match name:
                case b"link.json":
                    os.symlink(b"nowhere", place)
                case b"pipe.json":
                    os.mkfifo(place)
                case b"room.json":
                    os.mkdir(place)
                case b"large.json":
                    with open(place, "wb") as file:
                        file.truncate(1 << 33)
                case b"copy.json":
                    Path(os.fsdecode(place)).write_bytes(encode_manifest(MANIFEST))
                case _:
                    Path(os.fsdecode(place)).write_text('{"run": "r')
        host.take_up_job()
        told = [host.hear(UnknownFile) for _ in strays]
        assert {one.episode for one in told} >= {"000001 (copy).json", "a\nb.json", "copy.json", "\\udcff\\udcfe.json"}
        assert [one.episode for one in told if "it stays there" in one.reason] == ["room.json"]
        assert os.listdir(folder / "episodes") == ["room.json"]
        assert host.process.poll() is None


def test_what_a_program_does_not_understand_of_its_host_is_answered(folder: Path) -> None:
    with attached(folder) as host:
        host.greet()
        assert host.process.stdin is not None
        for line in (b'{"type":"landed","episodes":["000001 (copy)"]}\n', b"no JSON\n", b"{}\n"):
            host.process.stdin.write(line)
            host.process.stdin.flush()
            broken = host.hear(Broken)
            assert broken.during == "hear" and broken.reason


def test_an_observation_with_a_text_beyond_the_limits_costs_its_episode_alone(folder: Path) -> None:
    with attached(folder) as host:
        host.greet()
        host.start_asking_job(answer_s=60.0)
        large = Ticket(0, 0, Task("count", params={"letters": 132_000}), seed=0, policy_version=0)
        host.say(Lease(1, [large, Ticket(0, 1, Task("count"), seed=1, policy_version=0)]))
        failed = host.hear(EpisodeFailed)
        assert failed.key == large.key and "a text of 132000 characters; at most 131072" in failed.reason
        assert host.hear(Ask).text == "count"


def test_an_observation_that_is_too_large_to_ask_about_fails_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    link = SocketLink(JobFolder(tmp_path))
    policies = RemotePolicies(link, 60.0)
    seen = [Observation("", None, np.zeros(9_000_000, np.float32)), Observation("count")]
    policies.ask([InferenceRequest(number, 0, RandomStream(0, 0, 0), one) for number, one in enumerate(seen)])
    (failed,) = policies.answers()
    assert isinstance(failed, InferenceFailure) and failed.number == 0
    assert "its observation" in failed.reason and "inference=worker" in failed.reason
    link.close()


def test_a_program_without_a_descriptor_to_spare_accepts_its_host_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    link = SocketLink(JobFolder(tmp_path))
    with socket.socket(socket.AF_UNIX) as host:
        with descriptors_left(0):
            link.start(lambda: Heartbeat("waiting", 0.0, 0.0, [], [], 0, 0))
            time.sleep(0.2)
        host.connect(JobFolder(tmp_path).socket)
        eventually(lambda: link._host is not None)
        link.send(Loaded(3))
        with host.makefile("rb") as said:
            assert Loaded(3) in map(decode_worker_message, said)
    link.close()


def test_a_host_that_takes_no_more_bytes_is_hung_up_and_one_that_takes_them_slowly_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("digirl_dist.worker_program.link._TAKES_S", 1.0)
    link, image = SocketLink(JobFolder(tmp_path)), b"\n" * 4_000_000
    asked = Ask(1, 0, (0, 0, 0), "", len(image), None, len(image))
    link.start(lambda: Heartbeat("waiting", 0.0, 0.0, [], [], 0, 0))
    for takes in (True, False):
        with socket.socket(socket.AF_UNIX) as host:
            host.connect(JobFolder(tmp_path).socket)
            eventually(lambda: link._host is not None)
            sending = threading.Thread(target=link.send, args=[asked, image], daemon=True)
            sending.start()
            came = 0
            while takes and came < len(image) and (data := host.recv(200_000)):
                came += data.count(b"\n")
                time.sleep(0.1)
            sending.join(60.0)
            assert not sending.is_alive() and (came >= len(image)) == takes == (link._host is not None)
        eventually(lambda: link._host is None)
    link.close()

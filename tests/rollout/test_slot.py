"""An emulator's process answers, or is ended, with everything below it."""

from __future__ import annotations

import dataclasses
import math
import os
import re
import select
import signal
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from msgspec.structs import replace
from process_watch import command_line, descriptors_left, eventually
from user_classes import Counter

from digirl_dist.child_process import environment, last_lines
from digirl_dist.emulator import DiscreteActions, EmulatorSpec
from digirl_dist.errors import ActionError, EmulatorCrashed, EmulatorError, EmulatorHung, SettingsError, TrajectoryError
from digirl_dist.protocol.messages import SlotLimits
from digirl_dist.rollout.emulator_process import _failed_start, plain, restored
from digirl_dist.rollout.slot import Slot, State
from digirl_dist.tasks import Task
from digirl_dist.trajectory import Observation, Transition
from digirl_dist.user_code.packing import pack

pytestmark = pytest.mark.component

LIMITS = SlotLimits(boot_s=20, reset_s=1, step_s=1, failures=3, back_off_s=0.05)
LARGE = Task("count", params={"unread": "x" * 4_000_000})


def ask(slot: Slot) -> Any:
    """The answer that the slot waits for."""
    return slot.wait_for_answer()[0]


def suspend_emulator() -> psutil.Process:
    """The process of the only emulator, behind its guard."""
    [guard] = [
        one for one in psutil.Process().children() if "digirl_dist.rollout.emulator_process" in command_line(one)
    ]
    [emulator] = guard.children()
    emulator.suspend()
    return emulator


def assert_ended_as_hung(slot: Slot) -> None:
    """It has been asked for a reset, and its limit ends it."""
    started = time.monotonic()
    with pytest.raises(EmulatorHung, match="did not answer its reset in time"):
        ask(slot)
    assert time.monotonic() - started < 60
    assert slot.state is State.down


def make(folder: Path, factory: Any, limits: SlotLimits = LIMITS) -> Slot:
    (folder / "factory").write_bytes(pack(factory))
    return Slot(0, folder / "factory", limits, folder / "slot.log")


@pytest.fixture
def slot(tmp_path: Path) -> Iterator[Slot]:
    slot = make(tmp_path, Counter)
    slot.start()
    ask(slot)
    yield slot
    slot.close()
    slot.wait(time.monotonic() + 5)


def test_an_episode_runs_in_another_process(slot: Slot) -> None:
    slot.reset(Task("count"), seed=8)
    assert ask(slot).vector.tolist() == [0, 1]
    for _ in range(3):
        slot.step(1)
        transition = ask(slot)
    assert transition.terminated and transition.success


def test_the_longest_limits_are_as_good_as_none(tmp_path: Path) -> None:
    slot = make(tmp_path, Counter, replace(LIMITS, boot_s=1e8, reset_s=1e8, step_s=1e8))
    slot.start()
    ask(slot)
    slot.reset(Task("count"), seed=8)
    assert ask(slot).vector.tolist() == [0, 1]
    slot.close()
    slot.wait(time.monotonic() + 5)


def test_emulators_of_a_process_with_thousands_of_open_files_run_and_end_as_others(tmp_path: Path) -> None:
    """As of a worker with hundreds of slots: ``select`` knows no file of such a number."""
    with descriptors_left(2_000):
        held = [os.dup(0) for _ in range(1_200)]
        slot = make(tmp_path, _Browser)
        slot.start()
        ask(slot)
        pids = _grandchildren(slot)
        slot.reset(Task("count"), seed=0)
        assert isinstance(ask(slot), Observation)
        slot.close()
        eventually(lambda: not any(psutil.pid_exists(pid) for pid in pids), 5, "the end of the browser")
        for one in held:
            os.close(one)


def test_a_refused_action_leaves_the_emulator_as_it_is(slot: Slot) -> None:
    slot.reset(Task("count"), seed=0)
    ask(slot)
    slot.step(5)
    with pytest.raises(ActionError, match="5 is neither 0 nor 1"):
        ask(slot)
    slot.step(1)
    assert ask(slot).reward == 1.0


@pytest.mark.parametrize("how", ["hang", "stop"])
def test_a_hung_emulator_is_ended_within_its_limit(slot: Slot, how: str) -> None:
    slot.reset(Task("count", params={"at": "reset", "suffers": how}), seed=0)
    assert_ended_as_hung(slot)


def test_an_emulator_that_freezes_with_half_its_answer_sent_is_ended_within_its_limit(tmp_path: Path) -> None:
    """The answer is larger than what a socket holds, so its sender waits for a reader in the middle of it."""
    slot = make(tmp_path, _SeesMuch)
    slot.start()
    ask(slot)
    slot.reset(Task("any"), seed=0)
    assert slot.pipe is not None and slot.answer() is None
    select.select([slot.pipe], [], [], LIMITS.reset_s)
    suspend_emulator()
    assert_ended_as_hung(slot)


def test_an_emulator_that_freezes_before_a_large_request_is_ended_within_its_limit(slot: Slot) -> None:
    """The request is larger than what a socket holds, so its sender would wait for a reader in the middle of it."""
    suspend_emulator()
    slot.reset(LARGE, seed=0)
    assert_ended_as_hung(slot)


def test_a_slot_with_half_a_request_is_closed_without_waiting(slot: Slot) -> None:
    emulator = suspend_emulator()
    slot.reset(LARGE, seed=0)
    slot.close()
    emulator.resume()
    eventually(lambda: not emulator.is_running())


def test_a_request_of_many_parts_is_put_together(slot: Slot) -> None:
    for _ in range(3):
        slot.reset(LARGE, seed=8)
        assert ask(slot).vector.tolist() == [0, 1]
        slot.step(1)
        assert ask(slot).reward == 1.0


def test_an_answer_of_many_parts_is_put_together(tmp_path: Path) -> None:
    slot = make(tmp_path, _SeesMuch)
    slot.start()
    ask(slot)
    for _ in range(3):
        slot.reset(Task("any"), seed=0)
        assert ask(slot).image == b"much" * 2_000_000
    slot.close()
    slot.wait(time.monotonic() + 5)


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("die", r"ended by signal 9 \(Killed\), as the kernel does where memory is short"),
        ("crash", r"ended by signal 11 \(Segmentation fault\)"),
    ],
)
def test_a_dead_emulator_is_noticed_before_its_limit_with_what_ended_it(slot: Slot, how: str, told: str) -> None:
    slot.reset(Task("count", params={"at": "step", "suffers": how}), seed=0)
    ask(slot)
    slot.step(0)
    # at the limit it would have been EmulatorHung
    with pytest.raises(EmulatorCrashed, match=f"ended during its step; its last lines: {told}$"):
        ask(slot)


def test_an_emulator_that_raises_says_why_and_where(slot: Slot) -> None:
    slot.reset(Task("count", params={"at": "reset", "suffers": "raise"}), seed=0)
    with pytest.raises(EmulatorError, match=r"the device is on fire \(at .*user_classes.py:\d+ in _suffer\)$"):
        ask(slot)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (None, "_Answers.reset returned None, not digirl_dist.trajectory.Observation"),
        ((Observation(), "info"), "_Answers.reset returned (Observation("),
        (Transition(Observation(), 0.0, False), "_Answers.reset returned Transition("),
        (Observation(vector=np.zeros(3)), "a vector of 3 numbers; the emulator's spec says vector_size=2"),
        (Observation(), "a vector of 0 numbers"),
        (Observation(vector=np.zeros(2)), "the image is None, not the bytes of a PNG or JPEG"),
        (Observation(image=b"GIF", vector=np.zeros(2)), "the image is b'GIF', not the bytes of a PNG or JPEG"),
    ],
)
def test_an_answer_that_is_none_is_told_before_the_agent_sees_it(answer: Any, told: str, tmp_path: Path) -> None:
    slot = make(tmp_path, partial(_Answers, answer))
    slot.start()
    ask(slot)
    slot.reset(Task("any"), seed=0)
    with pytest.raises(EmulatorError, match=re.escape(f"emulator 0 failed in its reset: {told}")):
        ask(slot)


class OverLong(Counter):
    spec = EmulatorSpec(Counter.spec.actions, vector_size=2, longest=2)


def test_an_episode_beyond_what_the_spec_says_is_told_with_the_remedy(tmp_path: Path) -> None:
    """The host called it no trajectory file."""
    slot = make(tmp_path, OverLong)
    slot.start()
    ask(slot)
    for _ in range(2):
        slot.reset(Task("count"), seed=0)
        ask(slot)
        for _ in range(2):
            slot.step(1)
            assert not ask(slot).terminated
    slot.step(1)
    told = "step 3 of an episode; the spec of OverLong says longest=2: end every episode by then, or leave longest out"
    with pytest.raises(EmulatorError, match=re.escape(f"emulator 0 failed in its step: {told}")):
        ask(slot)
    slot.close()
    slot.wait(time.monotonic() + 5)


def stepping(tmp_path: Path, parts: dict[str, Any]) -> Slot:
    """A slot that was asked for a step which has these parts."""
    slot = make(tmp_path, partial(_Steps, **parts))
    slot.start()
    ask(slot)
    slot.reset(Task("any"), seed=0)
    ask(slot)
    slot.step(0)
    return slot


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ({"reward": None}, "_Steps.step returned {'reward': None, 'terminated': False, "),
        ({"reward": 10**400}, "OverflowError: "),
        ({"achieved": True}, "'achieved': True}: TypeError: 'bool' object is not iterable (at "),
        ({"terminated": np.array([True, False])}, "_Steps.step returned {'reward': 0.0, 'terminated': array([ True"),
    ],
)
def test_a_step_with_a_part_of_another_kind_is_told_with_the_class(
    parts: dict[str, Any], told: str, tmp_path: Path
) -> None:
    slot = stepping(tmp_path, parts)
    with pytest.raises(EmulatorError, match=re.escape(told)):
        ask(slot)


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ({"reward": math.nan}, "the reward is nan, which is no finite number"),
        ({"reward": -math.inf}, "the reward is -inf"),
        ({"reward": 2e6}, "the reward is 2e+06; at most 1e+06 is allowed: scale it"),
        ({"observation": Observation(vector=np.array([1, np.nan]))}, "has NaN or infinite numbers"),
        ({"observation": Observation(text=3)}, "the text of the observation is a int"),  # type: ignore[arg-type]
        ({"observation": Observation(image="a.png")}, "a str, not the bytes of a PNG"),  # type: ignore[arg-type]
    ],
)
def test_what_no_episode_may_have_comes_from_no_slot_and_leaves_its_emulator_as_it_is(
    parts: dict[str, Any], told: str, tmp_path: Path
) -> None:
    slot = stepping(tmp_path, parts)
    with pytest.raises(TrajectoryError, match=re.escape(told)):
        ask(slot)
    assert slot.state is State.idle


def test_a_slot_starts_again_after_a_failure_and_is_closed_after_too_many(tmp_path: Path) -> None:
    slot = make(tmp_path, _fails_to_start)
    for number in range(LIMITS.failures):
        slot.start()
        with pytest.raises(EmulatorError, match="no device"):
            ask(slot)
        assert slot.state is (State.closed if number == LIMITS.failures - 1 else State.down)
    assert "no device" in slot.reason


def test_a_closed_slot_gets_another_chance_after_its_quarantine(tmp_path: Path) -> None:
    slot = make(tmp_path, _fails_to_start, replace(LIMITS, failures=1, quarantine_s=0.5))
    slot.start()
    with pytest.raises(EmulatorError, match="no device"):
        ask(slot)
    assert slot.state is State.closed and 0 < slot.deadline - time.monotonic() <= 0.5
    (tmp_path / "factory").write_bytes(pack(Counter))
    slot.start()
    assert ask(slot) is None and slot.state is State.idle


def test_a_wrong_setting_closes_the_slot_at_once(tmp_path: Path) -> None:
    slot = make(tmp_path, _is_misconfigured)
    slot.start()
    with pytest.raises(EmulatorError, match="chromium is missing"):
        ask(slot)
    assert slot.state is State.closed


def test_a_slow_start_is_ended(tmp_path: Path) -> None:
    slot = make(tmp_path, _never_starts, replace(LIMITS, boot_s=1.5))
    slot.start()
    with pytest.raises(EmulatorHung, match="did not answer its start in time"):
        ask(slot)


def test_closing_lets_the_emulator_close_in_order(tmp_path: Path) -> None:
    slot = make(tmp_path, Counter)
    slot.start()
    ask(slot)
    slot.reset(Task("count", params={"closed": str(tmp_path / "closed")}), seed=0)
    ask(slot)
    slot.close()
    slot.wait(time.monotonic() + 5)
    assert (tmp_path / "closed").read_text() == "closed\n"


def test_letting_go_ends_everything_below_the_emulator(tmp_path: Path) -> None:
    slot = make(tmp_path, _Browser)
    slot.start()
    ask(slot)
    pids = _grandchildren(slot)
    assert len(pids) == 2
    slot.let_go()
    eventually(lambda: not any(psutil.pid_exists(pid) for pid in pids), 5, "the end of the browser")


@pytest.mark.unit
def test_the_end_of_a_log_is_told_without_reading_the_rest(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        log.truncate(64 << 20)
        log.seek(0, os.SEEK_END)
        log.write(b"\nlast but one\nlast\n")
    tracemalloc.start()
    said, (_, peak) = last_lines(tmp_path / "log", 2), tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert said == "; its last lines: last but one | last" and peak < 1 << 20


@pytest.mark.nightly
def test_a_chatty_child_of_an_emulator_fills_no_disk_and_its_last_words_are_known(tmp_path: Path) -> None:
    log, slot = tmp_path / "slot.log", make(tmp_path, _Chatty)
    slot.start()
    ask(slot)
    eventually(lambda: last_lines(log, 1).endswith("and the end"), what="its last word")
    eventually(lambda: log.stat().st_size <= 16 << 20, what="a log of bounded size")
    written = log.read_bytes()
    assert written.startswith(b"the beginning\nchatter") and written.count(b"was left out") == 1
    slot.close()
    slot.wait(time.monotonic() + 5)


def test_a_start_that_is_refused_leaks_no_descriptor(tmp_path: Path) -> None:
    for room in range(6):  # those of its pipe, its lifeline, its log and its process
        slot = make(tmp_path, Counter)
        there = os.listdir("/proc/self/fd")
        with descriptors_left(room), pytest.raises(EmulatorCrashed, match="cannot be started: .*Too many open files"):
            slot.start()
        assert slot.state is State.down and len(os.listdir("/proc/self/fd")) == len(there), room


def test_killing_the_owner_ends_everything_below_the_emulator(tmp_path: Path) -> None:
    (tmp_path / "factory").write_bytes(pack(_Browser))
    program = (
        "import sys, time; from pathlib import Path\n"
        "from digirl_dist.protocol.messages import SlotLimits; from digirl_dist.rollout.slot import Slot\n"
        "folder = Path(sys.argv[1]); slot = Slot(0, folder / 'factory', SlotLimits(), folder / 'log')\n"
        "slot.start(); slot.wait_for_answer()\n"
        "slot.reset(None, 0); print(slot.wait_for_answer()[0].text, flush=True); time.sleep(60)"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, env=environment(), text=True
    )
    assert owner.stdout is not None
    pids = [int(word) for word in owner.stdout.readline().split()]
    assert len(pids) == 2 and all(psutil.pid_exists(pid) for pid in pids)
    os.kill(owner.pid, signal.SIGKILL)
    owner.wait()
    eventually(lambda: not any(psutil.pid_exists(pid) for pid in pids), 5, "the end of the browser")


def _grandchildren(slot: Slot) -> list[int]:
    slot.reset(Task("any"), 0)
    return [int(word) for word in ask(slot).text.split()]


class _Browser(Counter):
    """Starts two processes, one of which leaves its process group and ignores SIGTERM."""

    spec = EmulatorSpec(DiscreteActions(2))

    def __init__(self) -> None:
        super().__init__()
        stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
        command = [sys.executable, "-c", stubborn]
        self._children = [subprocess.Popen(command), subprocess.Popen(command, start_new_session=True)]

    def reset(self, task: Any, seed: int) -> Any:
        from digirl_dist.trajectory import Observation

        return Observation(" ".join(str(child.pid) for child in self._children))

    def close(self) -> None:
        pass


_CHATTY = """
import os, time
print("the beginning", flush=True)
for _ in range(2):
    for line in range(20):
        os.write(2, (b"chatter " * (1 << 17))[:-1] + b"\\n")
    time.sleep(6)
os.write(2, b"and the end\\n")
"""


class _Chatty(Counter):
    """Starts a process that prints 40 MiB on what it inherits."""

    spec = EmulatorSpec(DiscreteActions(2))

    def __init__(self) -> None:
        super().__init__()
        subprocess.Popen([sys.executable, "-c", _CHATTY])


class _Answers(Counter):
    spec = EmulatorSpec(DiscreteActions(2), vector_size=2, image_size=(8, 8))

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self._answer = answer

    def reset(self, task: Any, seed: int) -> Any:
        return self._answer


class _Steps(Counter):
    """Its steps have these parts."""

    spec = EmulatorSpec(DiscreteActions(2))

    def __init__(self, **parts: Any) -> None:
        super().__init__()
        self._parts = parts

    def step(self, action: Any) -> Any:
        return dataclasses.replace(Transition(Observation(), 0.0, False), **self._parts)


class _SeesMuch(Counter):
    spec = EmulatorSpec(DiscreteActions(2))

    def reset(self, task: Any, seed: int) -> Any:
        from digirl_dist.trajectory import Observation

        return Observation("", b"much" * 2_000_000)


def _fails_to_start() -> Any:
    raise OSError("no device")


def _is_misconfigured() -> Any:
    raise SettingsError("chromium is missing")


def test_a_program_that_ends_itself_in_its_start_is_told_with_its_line(tmp_path: Path) -> None:
    slot = make(tmp_path, sys.exit)
    slot.start()
    with pytest.raises(EmulatorError, match=r"SystemExit: .*\(at "):
        ask(slot)


def _never_starts() -> Any:
    time.sleep(3600)


def _without_its_package() -> None:
    try:
        import package_that_is_missing  # type: ignore[import-not-found]  # noqa: F401
    except ImportError:
        raise RuntimeError("it is not installed,\nrun pip") from None


@pytest.mark.unit
def test_a_failed_start_is_one_line_also_in_a_librarys_own_words() -> None:
    for failing, told in ((_without_its_package, "it is not installed, run pip"), (_fails_to_start, None)):
        try:
            failing()
        except Exception as error:
            kind, text = _failed_start(error)
        assert (kind, text.count("\n")) == ("fatal" if told else "error", 0)
        assert text.startswith(told or "OSError: no device (at ") and (told or text.endswith(" in _fails_to_start)"))


@pytest.mark.unit
def test_a_text_that_was_cut_within_a_character_can_be_stored() -> None:
    seen = restored(plain(Observation("\ud83d\ude00 cut \ud83d", None, None)))
    assert isinstance(seen, Observation) and seen.text == "\U0001f600 cut \ufffd"
    assert plain(Observation("é \U0001f600"))[0] == "é \U0001f600"

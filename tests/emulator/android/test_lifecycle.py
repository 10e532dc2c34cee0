"""Instances of an AVD: booted in turn, brought back by a snapshot, and what happens when something goes wrong."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path

import pytest
from emulator.android.fake_emulator import TOKEN
from emulator.android.phone_shell import PhoneShell, as_android
from emulator.android.sites import RunningPhone, make_sdk, quick
from process_watch import eventually, nothing_is_left_of

from digirl_dist.child_process import environment
from digirl_dist.emulator.android import adb, source
from digirl_dist.emulator.android.adb import AdbServer
from digirl_dist.emulator.android.emulator import AndroidEmulator
from digirl_dist.emulator.android.locks import LAST_CONSOLE, Locks, claim_ports
from digirl_dist.emulator.android.snapshot import save_snapshot
from digirl_dist.emulator.phone import phone_tasks
from digirl_dist.errors import EmulatorError, SettingsError
from digirl_dist.parallel.loopback import free_port
from digirl_dist.protocol.messages import SlotLimits
from digirl_dist.rollout.slot import Slot
from digirl_dist.settings import AndroidSettings
from digirl_dist.tasks import Task
from digirl_dist.user_code.packing import pack

pytestmark = [pytest.mark.component, pytest.mark.long_file(20)]

TASK = as_android(phone_tasks("easy", "train")[0])


@contextmanager
def running(settings: AndroidSettings) -> Iterator[AndroidEmulator]:
    emulator = AndroidEmulator(settings)
    try:
        yield emulator
    finally:
        emulator.close()


# --- the ordinary course ---------------------------------------------------------------------------------------------


def test_four_slots_boot_in_turn_on_ports_of_their_own_and_leave_nothing_behind(tmp_path: Path) -> None:
    """Each slot is a process of its own, as on a worker."""
    sdk = make_sdk(tmp_path, boot_s=0.7)
    (tmp_path / "factory").write_bytes(pack(partial(AndroidEmulator, sdk.settings(boots_at_once=2))))
    slots = [Slot(k, tmp_path / "factory", SlotLimits(boot_s=60), tmp_path / f"{k}.log") for k in range(4)]
    for slot in slots:
        slot.start()
    for slot in slots:
        slot.wait_for_answer()
    starts, booted = sdk.events("start"), sdk.events("booted")
    assert len({event["port"] for event in starts}) == len(starts) == len(booted) == 4
    assert all("-read-only" in event["argv"] for event in starts)
    ends = {event["port"]: event["time"] for event in booted}
    for event in starts:
        at_once = [one for one in starts if one["time"] <= event["time"] < ends[one["port"]]]
        assert len(at_once) <= 2, "too many boot at the same time"
    slots[0].reset(TASK, seed=1)
    assert slots[0].wait_for_answer()[0].text == TASK.instruction
    slots[1].let_go()  # without a word, as when the worker program is killed
    for slot in (slots[0], *slots[2:]):
        slot.close()
    for slot in slots:
        slot.wait(time.monotonic() + 10)
    nothing_is_left_of(tmp_path)


def test_a_reset_loads_the_snapshot_and_does_not_boot(tmp_path: Path) -> None:
    sdk = make_sdk(tmp_path)
    with running(sdk.settings()) as emulator:
        first = emulator.reset(TASK, seed=1)
        emulator.step({"type": "swipe", "x": 0.8, "y": 0.5, "to_x": 0.2, "to_y": 0.5})
        assert emulator.reset(TASK, seed=1).image == first.image
        emulator.reset(TASK, seed=2)
    assert (len(sdk.events("start")), len(sdk.events("load"))) == (1, 2), "the first reset finds it fresh"


def test_without_a_snapshot_each_reset_boots_anew(tmp_path: Path) -> None:
    sdk = make_sdk(tmp_path, snapshots=())
    with running(sdk.settings(snapshot=None)) as emulator:
        emulator.reset(TASK, seed=1)
        emulator.reset(TASK, seed=2)
    assert (len(sdk.events("start")), len(sdk.events("load"))) == (2, 0)


def test_a_snapshot_is_made_once_for_all_instances(tmp_path: Path) -> None:
    sdk = make_sdk(tmp_path, snapshots=())
    save_snapshot(sdk.settings(reset_commands=["settings put global window_animation_scale 0"]), "digirl")
    [made] = sdk.events("start")
    assert "-read-only" not in made["argv"]
    with running(sdk.settings()) as emulator:
        emulator.reset(TASK, seed=1)
    nothing_is_left_of(tmp_path)


def test_the_remedy_for_a_missing_snapshot_helps_as_it_is_written(tmp_path: Path) -> None:
    settings = make_sdk(tmp_path, snapshots=()).settings()
    with pytest.raises(SettingsError, match="no snapshot 'digirl'") as refusal:
        AndroidEmulator(settings)
    command = str(refusal.value).split("`")[1]
    subprocess.run(command, shell=True, env=environment(), timeout=60, check=True)
    with running(settings) as emulator:
        emulator.reset(TASK, seed=1)


@pytest.mark.nightly
def test_a_trial_of_the_doctor_tells_of_each_part(tmp_path: Path) -> None:
    factory = pack(partial(AndroidEmulator, make_sdk(tmp_path).settings()))
    tap = {"type": "tap", "x": 0.5, "y": 0.0}
    limits = {"boot_s": 60.0, "reset_s": 30.0, "step_s": 30.0}
    order = {"size": len(factory), "task": asdict(TASK), "action": tap, "steady": False, "limits": limits}
    words = [sys.executable, "-m", "digirl_dist.worker_program.trial"]
    asked = json.dumps(order).encode() + b"\n" + factory
    done = subprocess.run(words, input=asked, stdout=subprocess.PIPE, env=environment(), timeout=120, check=True)
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["phase"] for one in told] == ["boot", "reset", "step", "reset again"]
    assert "PNG" in told[1]["seen"]


# --- boots that fail -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fate", "message"),
    [
        ("segfault", "ended with status -11 while it booted"),
        ("crash", "ended with status 1 .*Unable to create the guest's memory"),
        ("kvm", "usermod -aG kvm"),
        ("port", "another program took its port"),
    ],
)
def test_a_boot_that_fails_says_why_and_leaves_nothing_behind(tmp_path: Path, fate: str, message: str) -> None:
    settings = make_sdk(tmp_path, boots=[fate]).settings()
    with pytest.raises(EmulatorError, match=message):
        AndroidEmulator(settings)
    nothing_is_left_of(tmp_path)
    assert Locks(settings.lock_path).take("boot-0"), "the next one has its turn"


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("fate", "message"),
    [
        ("hang", "adb does not see it"),
        ("endless", "adb reaches it, but Android has not finished booting"),
        ("offline", "adb calls it offline"),
    ],
)
def test_a_boot_that_does_not_end_is_given_up(tmp_path: Path, fate: str, message: str) -> None:
    settings = make_sdk(tmp_path, boots=["fine", fate]).settings()
    started = time.monotonic()
    AndroidEmulator(settings).close()
    settings.boot_s = 1.0 + 2 * (time.monotonic() - started)  # so that a busy machine gets as far as a quick one
    with pytest.raises(EmulatorError, match=rf"not ready after [\d.]+ s: {message}"):
        AndroidEmulator(settings)
    nothing_is_left_of(tmp_path)


@pytest.mark.parametrize("kind", ["avd", "serial"])
def test_an_unauthorized_device_is_refused_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(source, "_PATIENCE_S", 0.3)
    with RunningPhone(mode="unauthorized") as phone:
        settings = quick(tmp_path, serials=[phone.serial], boot_s=20.0)
        if kind == "avd":
            settings = make_sdk(tmp_path, boots=["unauthorized"]).settings()
        with pytest.raises(SettingsError, match="unauthorized.*accept the question"):
            AndroidEmulator(settings)


def test_who_waits_too_long_for_a_turn_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "TURN_S", 0.3)
    settings = make_sdk(tmp_path).settings(boots_at_once=1)
    others = Locks(settings.lock_path)
    with others.turn("boot", 1, 1), pytest.raises(EmulatorError, match="no turn to boot within 0.3 s"):
        AndroidEmulator(settings)


# --- ports -----------------------------------------------------------------------------------------------------------


def test_ports_that_other_programs_have_are_passed_over(tmp_path: Path) -> None:
    locks = Locks(str(tmp_path))
    wanted = claim_ports(locks, 5660)
    locks.release_all()
    with socket.create_server(("127.0.0.1", wanted.adb)):
        assert claim_ports(locks, wanted.console).console > wanted.console


def test_two_slots_never_have_the_same_ports_and_the_end_is_named(tmp_path: Path) -> None:
    one, other = Locks(str(tmp_path)), Locks(str(tmp_path))
    assert claim_ports(one, 5660) != claim_ports(other, 5660)
    with pytest.raises(EmulatorError, match=f"from emulator.first_port={LAST_CONSOLE + 2}"):
        claim_ports(one, LAST_CONSOLE + 2)


# --- resets that fail ------------------------------------------------------------------------------------------------


@pytest.mark.nightly
@pytest.mark.parametrize("fate", ["refuse", "hang", "offline"])
def test_a_snapshot_that_cannot_be_loaded_costs_a_restart(
    tmp_path: Path, fate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "LOAD_S", 2.5)
    sdk = make_sdk(tmp_path, loads=[fate, "fine"])
    with running(sdk.settings()) as emulator:
        emulator.reset(TASK, seed=1)
        emulator.step({"type": "swipe", "x": 0.8, "y": 0.5, "to_x": 0.2, "to_y": 0.5})
        emulator.reset(TASK, seed=1)
        emulator.reset(TASK, seed=1)
    assert (len(sdk.events("start")), len(sdk.events("load"))) == (2, 2)


def test_an_emulator_that_died_is_started_again_by_the_next_reset(tmp_path: Path) -> None:
    sdk = make_sdk(tmp_path)
    with running(sdk.settings()) as emulator:
        emulator.reset(TASK, seed=1)
        [start] = sdk.events("start")
        os.kill(int(str(start["pid"])), 9)
        with pytest.raises(EmulatorError, match=r"emulator-\d+ failed to run"):
            emulator.step({"type": "back"})
        emulator.reset(TASK, seed=1)
        emulator.step({"type": "back"})


def test_a_console_that_refuses_is_named_without_the_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(make_sdk(tmp_path).settings()) as emulator:
        serial, server = emulator.device.serial, emulator._server
        with pytest.raises(EmulatorError, match=rf"console of {serial}: `fly`: .*KO: unknown command fly"):
            server.console(serial, "fly", 10.0)
        monkeypatch.setenv("HOME", str(tmp_path))
        (tmp_path / TOKEN).write_text("wrong")
        with pytest.raises(EmulatorError, match="console of .*token does not match") as refusal:
            server.console(serial, "kill", 10.0)
        assert "wrong" not in str(refusal.value)


# --- what is refused before anything starts --------------------------------------------------------------------------


def refused(settings: AndroidSettings, match: str) -> None:
    with pytest.raises(SettingsError, match=match):
        AndroidEmulator(settings)


def test_what_is_missing_on_the_machine_is_named_with_the_remedy(tmp_path: Path) -> None:
    sdk = make_sdk(tmp_path, snapshots=())
    refused(sdk.settings(), r"no snapshot 'digirl'.*digirl_dist.emulator.android.snapshot demo digirl")
    settings = sdk.settings(snapshot=None)
    settings.avd = "other"
    refused(settings, r"no AVD 'other' in .*there are: demo.*avdmanager create avd -n other")
    settings.sdk_path = str(tmp_path / "nothing")
    refused(settings, "emulator is missing; install it with `sdkmanager emulator`")


def test_a_missing_adb_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    refused(make_sdk(tmp_path).settings(), "adb is not on PATH.*apt install adb")


def test_a_server_that_does_not_run_is_named(tmp_path: Path) -> None:
    refused(quick(tmp_path, serials=["x"], adb_server="127.0.0.1:9"), "no adb server answers at 127.0.0.1:9")
    refused(quick(tmp_path, serials=["x"], adb_server="5037"), "not of the form host:port")


@pytest.mark.unit
def test_a_folder_for_locks_that_belongs_to_somebody_else_is_not_trusted(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(SettingsError, match="belongs to somebody else"):
        Locks(str(tmp_path / "link"))


# --- devices by serial -----------------------------------------------------------------------------------------------


def test_each_slot_has_a_device_of_its_own(tmp_path: Path) -> None:
    with RunningPhone() as one, RunningPhone() as other:
        settings = quick(tmp_path, serials=[one.serial, other.serial])
        with running(settings) as first, running(settings) as second:
            assert {first.device.serial, second.device.serial} == {one.serial, other.serial}
            with pytest.raises(EmulatorError, match="are in use by other slots; lower bsize"):
                AndroidEmulator(settings)


def test_a_device_that_is_not_there_is_named_with_what_adb_says(tmp_path: Path) -> None:
    with pytest.raises(EmulatorError, match="127.0.0.1:9 is not ready after 2 s: adb does not see it.*refused"):
        AndroidEmulator(quick(tmp_path, serials=["127.0.0.1:9"], boot_s=2.0))


def test_a_device_that_went_offline_is_connected_anew(
    tmp_path: Path, phone: RunningPhone, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "_PATIENCE_S", 0.3)
    monkeypatch.setattr(adb, "_CONNECT_LIMIT_S", 1.0)
    with running(quick(tmp_path, serials=[phone.serial], boot_s=20.0)) as emulator:
        emulator.reset(TASK, seed=1)
        phone.adbd.mode = "offline"
        phone.do(phone.adbd.drop)
        with suppress(EmulatorError):  # whether this step still gets through is a race
            emulator.step({"type": "back"})
        threading.Timer(1.0, lambda: setattr(phone.adbd, "mode", "device")).start()
        emulator.reset(TASK, seed=1)
        assert emulator.step({"type": "back"}).observation.image is not None


def test_a_server_that_runs_already_is_used_and_left_alone(tmp_path: Path, phone: RunningPhone) -> None:
    port = free_port()
    with subprocess.Popen(["adb", "-P", str(port), "nodaemon", "server"]) as process:
        try:
            given = AdbServer(adb.adb_client().TcpAddress("127.0.0.1", port))
            eventually(given.answers)
            with running(quick(tmp_path, serials=[phone.serial], adb_server=f"127.0.0.1:{port}")) as emulator:
                emulator.reset(Task("t"), seed=0)
            assert given.answers()
        finally:
            process.kill()


def test_a_phone_that_still_boots_is_waited_for(tmp_path: Path) -> None:
    with RunningPhone(PhoneShell(booted=False)) as phone:
        threading.Timer(0.5, lambda: setattr(phone.shell, "booted", True)).start()
        with running(quick(tmp_path, serials=[phone.serial], boot_s=20.0)) as emulator:
            emulator.reset(TASK, seed=1)


def test_an_emulator_that_went_offline_is_connected_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after the load of a snapshot that left adbd dumb for a while."""
    monkeypatch.setattr(source, "_PATIENCE_S", 0.3)
    sdk = make_sdk(tmp_path, loads=["dumb", "fine"])
    with running(sdk.settings()) as emulator:
        emulator.reset(TASK, seed=1)
        emulator.reset(TASK, seed=1)
        assert (len(sdk.events("start")), len(sdk.events("load"))) == (1, 1)


def test_a_device_whose_shell_does_not_answer_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "_PROBE_LIMIT_S", 0.2)
    match = "not ready after 2 s: .* its shell does not answer"
    with RunningPhone(PhoneShell(mute=True)) as phone, pytest.raises(EmulatorError, match=match):
        AndroidEmulator(quick(tmp_path, serials=[phone.serial], boot_s=2.0))

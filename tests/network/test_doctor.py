"""Each check of the doctor fails where it should, on a real machine, and its remedy makes it pass."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from network.bare_machine import USER, BareMachine
from network.package_archive import close_market, open_market
from sdkmanager_stand_in import SDK_TOOL
from ssh_relay import relayed

from digirl_dist.doctor import link, probe
from digirl_dist.doctor.check import Check
from digirl_dist.doctor.examine import Target, examine
from digirl_dist.doctor.judgement import AndroidRequirements, MachineRequirements
from digirl_dist.doctor.setup import steps
from digirl_dist.emulator.chromium import BROWSERS
from digirl_dist.fleet.roster import WorkerConfig
from digirl_dist.settings import AndroidInstallSettings, AndroidSettings, InstallSettings, Settings, SshSettings
from digirl_dist.ssh.connect import connect

pytestmark = [pytest.mark.system, pytest.mark.nightly, pytest.mark.long_file(20)]

PLAIN = MachineRequirements("plain", 100, 0.1)
BROWSER = MachineRequirements("miniwob", 100, 0.1, browser=True)
AVD = MachineRequirements("android", 100, 0.1, android=AndroidRequirements(avd="pixel"))
SETTINGS = Settings(ssh=SshSettings(connect_s=5, login_s=5))


def worker_config(bare: BareMachine, **changes: Any) -> WorkerConfig:
    usual = WorkerConfig(bare.address, slots=1, temp_path="~/jobs", run_path="~/env", python="python3")
    return replace(usual, **changes)


def look(bare: BareMachine, needs: MachineRequirements = PLAIN, **changes: Any) -> dict[str, Check]:
    there = worker_config(bare, **changes)
    return {check.check: check for check in examine(Target(there, needs, None, ["python3"]), SETTINGS)}


@pytest.fixture
def market(bare: BareMachine, tmp_path: Path) -> Iterator[None]:
    """``apt-get`` has what remedies name."""
    packages = {
        "python3-venv": {"usr/local/share/venv": ""},
        "chromium": {"usr/local/bin/chromium": "#!/bin/sh\necho Chromium 7.0.1"},
        "adb": {"usr/local/bin/adb": "#!/bin/sh"},
    }
    open_market(bare, tmp_path / "market", packages)
    yield
    close_market(bare)


def refused(checks: dict[str, Check], name: str, *words: str) -> Check:
    """The failed check, which must say these words; nothing else may have failed but torch, which is not there."""
    check = checks[name]
    assert not check.ok and check.remedy
    for word in words:
        assert word in f"{check.detail} -> {check.remedy}"
    assert not [other for other in checks.values() if not other.ok and other.check not in (name, "torch")]
    return check


def command_in(check: Check) -> str:
    return re.findall("`([^`]+)`", check.remedy)[0]


def number_in(check: Check, key: str) -> int:
    return int(re.findall(rf"{key}=(\d+)", check.remedy)[0])


# --- the way there


def test_a_name_that_is_unknown(bare: BareMachine) -> None:
    wrong = replace(bare.address, host="no-such-host.invalid")
    refused(look(bare, address=wrong), "name", "no-such-host.invalid is unknown", "correct the worker's `host`")
    assert look(bare)["name"].ok


def test_a_port_on_which_nothing_listens(bare: BareMachine) -> None:
    wrong = replace(bare.address, port=2222)
    checks = look(bare, address=wrong)
    refused(checks, "port", f"nothing listens at {bare.address.host}:2222")
    assert checks["name"].ok and "login" not in checks
    assert look(bare)["port"].detail == "port 22"


def test_a_host_key_that_is_unknown_is_added_by_the_command_in_the_remedy(bare: BareMachine, tmp_path: Path) -> None:
    known = tmp_path / "known hosts"
    unknown = replace(bare.address, known_hosts=str(known))
    fingerprint = look(bare)["host key"].detail.split()[0]
    words = f"unknown host key {fingerprint}", "first compare the fingerprint"
    check = refused(look(bare, address=unknown), "host key", *words)
    subprocess.run(command_in(check), shell=True, check=True, capture_output=True)
    assert look(bare, address=unknown)["host key"].ok


def test_a_host_key_that_has_changed_is_forgotten_by_the_command_in_the_remedy(
    bare: BareMachine, tmp_path: Path
) -> None:
    known = tmp_path / "known_hosts"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "other"], check=True)
    known.write_text(f"{bare.address.host} {(tmp_path / 'other.pub').read_text()}")
    changed = replace(bare.address, known_hosts=str(known))
    check = refused(look(bare, address=changed), "host key", "has changed")
    subprocess.run(command_in(check), shell=True, check=True, capture_output=True)
    again = look(bare, address=changed)["host key"]
    subprocess.run(command_in(again), shell=True, check=True, capture_output=True)
    assert look(bare, address=changed)["host key"].ok


def test_a_login_that_is_refused(bare: BareMachine, tmp_path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "other"], check=True)
    wrong = replace(bare.address, key=str(tmp_path / "other"))
    check = refused(look(bare, address=wrong), "login", f"does not let user {USER} in")
    assert f"ssh-copy-id -i {tmp_path}/other {USER}@{bare.address.host}" in check.remedy
    bare.as_user("cp .ssh/authorized_keys usual")
    bare.as_a_person(command_in(check), tmp_path)
    assert look(bare, address=wrong)["login"].ok
    bare.as_user("mv usual .ssh/authorized_keys")


def test_start_up_files_that_print_something(bare: BareMachine) -> None:
    bare.as_user("mv .bashrc usual")
    bare.write(".bashrc", "echo welcome")
    check = refused(look(bare), "shell", "welcome")
    bare.write(".bashrc", f"{command_in(check)}\necho welcome")
    assert look(bare)["shell"].ok
    bare.as_user("mv usual .bashrc")


def test_a_server_that_refuses_commands(bare: BareMachine) -> None:
    usual = bare.configuration.read_text()
    for text, answer in ((f"MaxSessions 0\n{usual}", False), (usual, True)):
        bare.configuration.write_text(text)
        bare.reread_configuration()
        checks = look(bare)
        assert checks["shell"].ok is answer
        if not answer:
            refused(checks, "shell", "raise MaxSessions in its sshd_config")


@contextmanager
def slow_link(bare: BareMachine) -> Iterator[None]:
    shape = ["rate", "6mbit", "burst", "16kb", "latency", "400ms"]
    shaped = ["tc", "qdisc", "add", "dev", bare.outside, "root", "tbf", *shape]
    subprocess.run(shaped, check=True)
    try:
        yield
    finally:
        subprocess.run(["tc", "qdisc", "del", "dev", bare.outside, "root"], check=True)


def test_a_slow_link_is_a_warning(bare: BareMachine) -> None:
    with slow_link(bare):
        check = refused(look(bare), "throughput", "MB/s", "what else uses the link")
        assert not check.blocks
    assert look(bare)["throughput"].ok


def test_a_long_way_is_a_warning(bare: BareMachine, tmp_path: Path) -> None:
    with relayed(bare.address, tmp_path) as (relay, address), connect(address, SETTINGS.ssh) as connection:
        relay.delay_s = 0.3
        far = next(link.speed(connection))
        assert not far.ok and not far.blocks and "nearer" in far.remedy
        relay.delay_s = 0.0
        assert next(link.speed(connection)).ok


# --- what is there


def test_a_python_that_is_missing(bare: BareMachine) -> None:
    check = refused(look(bare, python="python3.99"), "python", "no `python3.99`", "set worker_python to another")
    assert check.blocks
    assert look(bare)["python"].ok


def test_a_python_without_venv(bare: BareMachine, market: None) -> None:
    hide = "import importlib.util as u; f = u.find_spec; u.find_spec = lambda n, *r: None if n == 'venv' else f(n, *r)"
    bare_python = f'[ -e /usr/local/share/venv ] || exec python3 -c "{hide}\n$2"\nexec python3 "$@"'
    python = bare.write("bare_python", f"#!/bin/sh\n{bare_python}")
    check = refused(look(bare, python=python), "python", "neither venv nor uv", "(or uv)")
    bare.write(".local/bin/uv", "#!/bin/sh")
    assert look(bare, python=python)["python"].ok
    bare.as_user("rm .local/bin/uv")
    bare.as_root(command_in(check))
    assert look(bare, python=python)["python"].ok


def test_a_folder_that_cannot_be_written(bare: BareMachine) -> None:
    refused(look(bare, run_path="/etc/here"), "disk run_path", f"{USER} cannot write to /etc", "set worker_run_path to")
    refused(look(bare, temp_path="/etc/here"), "disk temp_path", "set worker_temp_path to")
    checks = look(bare)
    assert checks["disk run_path"].ok and checks["disk temp_path"].ok


def test_a_disk_without_room(bare: BareMachine) -> None:
    bare.as_root("mkdir -p /home/small && mount -t tmpfs -o size=20m,mode=1777 small /home/small")
    refused(look(bare, temp_path="/home/small/jobs"), "disk temp_path", "500 MB needed", "to a larger disk")
    bare.as_root("mount -o remount,size=600m /home/small")
    assert look(bare, temp_path="/home/small/jobs")["disk temp_path"].ok


def test_more_emulators_than_memory(bare: BareMachine) -> None:
    check = refused(look(bare, slots=100_000, needs=replace(PLAIN, cores=1e-6)), "memory", "bsize=100000")
    assert look(bare, slots=number_in(check, "bsize") - 5)["memory"].ok


def test_more_emulators_than_cores_is_a_warning(bare: BareMachine) -> None:
    check = refused(look(bare, slots=200, needs=replace(PLAIN, memory_mb=1)), "cores", "bsize=200")
    assert not check.blocks
    assert look(bare, slots=number_in(check, "bsize"))["cores"].ok


def test_a_torch_that_is_damaged_or_has_more_threads_than_cores(bare: BareMachine) -> None:
    bare.as_user("mkdir -p fake; echo '__version__, get_num_threads = \"2.0\", lambda: 1' > fake/torch.py")
    python = bare.write("with_torch", '#!/bin/sh\nexec env PYTHONPATH=$HOME/fake python3 "$@"')

    def torch(threads: int) -> Check:
        found = examine(
            Target(worker_config(bare), PLAIN, None, [python]), replace(SETTINGS, worker_torch_threads=threads)
        )
        return next(check for check in found if check.check == "torch")

    check = torch(999)
    assert not check.ok and not check.blocks, "a warning"
    assert torch(number_in(check, "worker_torch_threads")).ok
    bare.as_user("echo 'raise ImportError(\"libc10.so is damaged\")' > fake/torch.py")
    assert torch(1).blocks and "libc10.so is damaged" in torch(1).detail


def test_a_clock_that_is_wrong_is_a_warning(bare: BareMachine) -> None:
    skew = "import time; now = time.time; time.time = lambda: now() - 3600"
    slow = bare.write("slow", "")
    python = bare.write("late_python", f'#!/bin/sh\n[ -e {slow} ] && exec python3 -c "{skew}\n$2"\nexec python3 "$@"')
    check = refused(look(bare, python=python), "clock", "behind")
    assert not check.blocks
    bare.write("bin/timedatectl", f'#!/bin/sh\n[ "$*" = "set-ntp true" ] && rm {slow}')  # there is no time service here
    bare.as_root(f"PATH=/home/{USER}/bin:/bin; {command_in(check).removeprefix('sudo ')}")
    assert look(bare, python=python)["clock"].ok


# --- Chromium


def test_a_browser_that_is_missing(bare: BareMachine, market: None) -> None:
    there = [browser for browser in BROWSERS if bare.has(browser)]
    for browser in there:
        bare.hide(browser)
    check = refused(look(bare, BROWSER), "chromium", "chromium is not on PATH", "`apt-get install chromium`")
    assert "chromium" not in look(bare, PLAIN), "it does not matter to other emulators"
    bare.as_root(command_in(check))
    assert look(bare, BROWSER)["chromium"].ok
    for program in there:
        bare.bring_back(program)


@pytest.mark.unit
def test_the_browsers_that_are_looked_for_are_those_that_the_emulator_starts() -> None:
    steps = (Path(__file__).resolve().parent.parent.parent / "worker" / "emulators" / "miniwob.sh").read_text()
    assert probe._BROWSERS == BROWSERS and f"browsers=({' '.join(BROWSERS)})" in steps


def test_a_browser_that_does_not_run(bare: BareMachine, market: None) -> None:
    bare.as_root(f"printf '#!/bin/sh\\necho no library >&2; exit 127' > /usr/local/bin/{BROWSERS[0]}")
    bare.as_root(f"chmod +x /usr/local/bin/{BROWSERS[0]}")
    refused(look(bare, BROWSER), "chromium", "no library", "does not run")
    bare.as_root(f"rm /usr/local/bin/{BROWSERS[0]}")
    assert look(bare, BROWSER)["chromium"].ok


# --- Android


def set_up(bare: BareMachine, emulator: AndroidSettings, as_root: bool = False) -> None:
    """What ``digirl-dist setup`` runs there before it installs the package."""
    found = steps(
        emulator,
        worker_config(bare),
        InstallSettings(android=AndroidInstallSettings(accept_licenses=True)),
        dry_run=False,
    )
    variables = {
        **found.variables,
        "HOME": f"/home/{USER}",
        "PATH": f"/home/{USER}/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
    }
    words = [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
    run = bare.as_root if as_root else bare.as_user
    run(f"env {' '.join(words)} bash {bare.write('steps', found.script)}")


@pytest.fixture
def tools(bare: BareMachine) -> Iterator[BareMachine]:
    """What an AVD needs but for the SDK, the tools for which stand for Google's."""
    for program in ("java", "unzip", "curl"):
        bare.write(f"bin/{program}", "#!/bin/sh")
    for tool in ("sdkmanager", "avdmanager"):
        bare.write(f"Android/Sdk/cmdline-tools/latest/bin/{tool}", SDK_TOOL)
    bare.as_root(f"usermod -aG kvm {USER}")
    yield bare
    bare.as_root(f"gpasswd -d {USER} kvm")
    bare.as_user("rm -rf Android .android bin")


@pytest.fixture
def android(tools: BareMachine) -> BareMachine:
    """The SDK and the AVD as well, as the setup leaves them: empty files are enough for checks that only look."""
    set_up(tools, AndroidSettings(avd="pixel"))
    return tools


@contextmanager
def without_adb(bare: BareMachine) -> Iterator[None]:
    """Other than what is in the SDK."""
    hidden = bare.has("adb")
    if hidden:
        bare.hide("adb")
    yield
    if hidden:
        bare.bring_back("adb")


def test_an_sdk_and_an_avd_that_are_missing_are_brought_by_the_setup(tools: BareMachine) -> None:
    with without_adb(tools):
        before = look(tools, AVD)
        failed = [name for name in before if not before[name].ok and "run `digirl-dist setup`" in before[name].remedy]
        assert {"adb", "emulator", "avd"} <= set(failed)
        set_up(tools, AndroidSettings(avd="pixel"))
        after = look(tools, AVD)
    assert all(after[name].ok for name in ("adb", "emulator", "avd", "kvm", "ports"))


def test_a_user_outside_the_group_of_kvm_joins_it_by_the_command_in_the_remedy(android: BareMachine) -> None:
    android.as_root(f"gpasswd -d {USER} kvm")
    check = refused(look(android, AVD), "kvm", f"user {USER} may not use it", "next login")
    android.as_root(command_in(check).removeprefix("sudo "))
    assert look(android, AVD)["kvm"].ok


def test_a_machine_without_kvm(android: BareMachine) -> None:
    android.as_root("mv /dev/kvm /dev/hidden")
    refused(look(android, AVD), "kvm", "there is no /dev/kvm", "virtualisation")
    android.as_root("mv /dev/hidden /dev/kvm")
    assert look(android, AVD)["kvm"].ok


def test_android_programs_that_are_missing(android: BareMachine) -> None:
    android.as_user("mv Android/Sdk/emulator hidden")
    refused(look(android, AVD), "emulator", "none in", "emulator.sdk_path")
    android.as_user("mkdir other; mv hidden other/emulator; cp -r Android/Sdk/platform-tools other")
    elsewhere = replace(AVD, android=AndroidRequirements(avd="pixel", sdk_path="~/other"))
    assert look(android, elsewhere)["emulator"].ok


def test_adb_that_is_missing(bare: BareMachine, market: None) -> None:
    by_serial = replace(AVD, android=AndroidRequirements())
    with without_adb(bare):
        checks = look(bare, by_serial)
        refused(checks, "adb", "run `digirl-dist setup`")
        assert not {"kvm", "emulator", "avd", "ports"} & set(checks), "they do not matter to devices by serial"
        set_up(bare, AndroidSettings(serials=["10.0.0.7:5555"]), as_root=True)
        assert look(bare, by_serial)["adb"].ok


def test_an_avd_that_is_missing_or_broken(android: BareMachine) -> None:
    other = replace(AVD, android=AndroidRequirements(avd="tablet"))
    refused(look(android, other), "avd", "there is no AVD tablet", "(there are: pixel)", "set emulator.avd")
    with_snapshot = replace(AVD, android=AndroidRequirements(avd="pixel", snapshot="home"))
    refused(look(android, with_snapshot), "avd", "home/snapshot.pb is missing", "emulator.snapshot=null")
    assert look(android, AVD)["avd"].ok, "with another AVD, and without a snapshot"
    android.as_user("rm .android/avd/pixel.avd/config.ini")
    check = refused(look(android, AVD), "avd", "config.ini is missing", "then `digirl-dist setup`")
    android.as_user(command_in(check))
    set_up(android, AndroidSettings(avd="pixel"))
    assert look(android, AVD)["avd"].ok


def test_a_port_that_is_in_use(android: BareMachine) -> None:
    program = "import socket, time; s = socket.create_server(('127.0.0.1', 5601)); print(1, flush=True); time.sleep(60)"
    listener = android.start([sys.executable, "-c", program])
    assert listener.stdout is not None and listener.stdout.readline()
    refused(look(android, AVD), "ports", "in use: 5601", "set emulator.first_port")
    assert look(android, replace(AVD, android=AndroidRequirements(avd="pixel", first_port=5700)))["ports"].ok
    listener.kill()
    listener.communicate()
    assert look(android, AVD)["ports"].ok

"""Packages and a script of the user's for the emulator, installed on a worker and tried in its own environment."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from digirl_dist.assembly.validate import refuse_contradictions
from digirl_dist.doctor.examine import Target, examine
from digirl_dist.doctor.judgement import MachineRequirements
from digirl_dist.doctor.trial import Trial, some_action
from digirl_dist.errors import SettingsError
from digirl_dist.fleet.install import Package, PipArgs, build_wheel, ensure_installed, installed_python, requirements
from digirl_dist.fleet.roster import WorkerConfig
from digirl_dist.protocol.messages import SlotLimits
from digirl_dist.settings import GymnasiumSettings, Settings, SshSettings, configuration
from digirl_dist.ssh.connect import connect
from digirl_dist.ssh.localhost_server import LocalhostServer
from digirl_dist.user_code.packing import pack

pytestmark = [pytest.mark.component, pytest.mark.long_file(15)]

MODULE = """
import gymnasium
class Tiny(gymnasium.Env):
    observation_space, action_space = gymnasium.spaces.Discrete(2), gymnasium.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        return 0, {}
    def step(self, action):
        return 1, 1.0, True, False, {}
gymnasium.register("Tiny-v0", Tiny)
"""


def wheel(folder: Path) -> Path:
    """A package of somebody's with an environment in it."""
    path = folder / "tiny_env-1.0-py3-none-any.whl"
    about = {"METADATA": "Metadata-Version: 2.1\nName: tiny-env\nVersion: 1.0\n"}
    about["WHEEL"] = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    about["RECORD"] = ""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny_env.py", MODULE)
        for name, text in about.items():
            archive.writestr(f"tiny_env-1.0.dist-info/{name}", text)
    return path


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_a_package_of_the_environments_is_installed_and_tried_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "host" / "site-packages"  # as if it were installed on the host
    here.mkdir(parents=True)
    (here / "tiny_env.py").write_text(MODULE)
    monkeypatch.syspath_prepend(here)
    (tmp_path / "setup.sh").write_text(f"python -c 'import tiny_env' && echo ready > {tmp_path}/log\n")
    without = GymnasiumSettings(id="tiny_env:Tiny-v0")
    emulator = replace(without, packages=[str(wheel(tmp_path))], setup=str(tmp_path / "setup.sh"))
    device = emulator.build()
    trial = Trial(
        pack(device.factory), emulator.tasks("", "")[0], some_action(device.spec.actions), SlotLimits(boot_s=90), False
    )
    no_index = PipArgs(("--no-index",))
    plain = Package(build_wheel(), requirements(), pip_args=no_index, reuse_packages=True, limit_s=120.0)
    with LocalhostServer("w1", tmp_path / "server") as address, connect(address, SshSettings()) as connection:
        config = WorkerConfig(address, 1, str(tmp_path / "jobs"), str(tmp_path / "env"), sys.executable)
        python = [installed_python(config.run_path)]

        def look(package: Package) -> dict[str, tuple[bool, str, str]]:
            target = Target(config, MachineRequirements("tiny", 10, 0.01), package, python, trial)
            return {check.check: (check.ok, check.detail, check.remedy) for check in examine(target, Settings())}

        assert "digirl-dist setup" in look(plain)["try"][2], "nothing is installed yet"
        ensure_installed(connection, plain, config.run_path, sys.executable)
        ok, detail, remedy = look(plain)["try"]
        assert not ok and "No module named 'tiny_env'" in detail and "emulator.packages=[NAME]" in remedy
        whole = plain.with_emulator(emulator)
        ensure_installed(connection, whole, config.run_path, sys.executable)
        assert look(whole)["try"][0] and (tmp_path / "log").read_text() == "ready\n"
    found = subprocess.check_output([*python, "-I", "-c", "import tiny_env; print(tiny_env.__file__)"], text=True)
    assert found.startswith(str(tmp_path / "env"))


@pytest.mark.unit
def test_packages_get_the_hosts_version_unless_they_name_one(tmp_path: Path) -> None:
    plain = Package(tmp_path / "any.whl", ("numpy",), ("torch==2.0",))
    whole = plain.with_emulator(GymnasiumSettings(packages=["numpy", "pillow>=1", "no-such-package-here"]))
    assert whole.requirements == ("numpy", "numpy", "pillow>=1", "no-such-package-here")
    assert [line.split("==")[0] for line in whole.constraints] == ["torch", "numpy"]
    behind_a_login = plain.with_emulator(GymnasiumSettings(packages=["env @ https://ann:hunter2-x@pip.example/e.whl"]))
    assert behind_a_login.requirements == ("numpy", "env @ https://pip.example/e.whl")
    assert behind_a_login.pip_args.netrc == "machine pip.example login ann password hunter2-x\n"


@pytest.mark.unit
@pytest.mark.parametrize(
    "name", ["", " minigrid", "--index-url=https://other.example", "-rfile", "mini\ngrid", "x @ git+https://ghp@h/x"]
)
def test_what_is_no_package_or_shows_a_secret_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"emulator\.packages: .*(is no package|would show its secret)"):
        Package(tmp_path / "any.whl").with_emulator(GymnasiumSettings(packages=["numpy", name]))


@pytest.mark.unit
@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "setup.sh cannot be read"),
        (b"\xff\xfe", "setup.sh cannot be read"),
        (b"#!/usr/bin/env python3\nimport os\n", "is run by Bash, and its first line wants another program"),
    ],
)
def test_a_script_that_bash_cannot_run_is_refused(content: bytes | None, told: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "setup.sh").write_bytes(content)
    with pytest.raises(SettingsError, match=told):
        Package(tmp_path / "any.whl").with_emulator(GymnasiumSettings(setup=str(tmp_path / "setup.sh")))


@pytest.mark.unit
@pytest.mark.parametrize("first", ["#!/bin/bash -e", "#!/usr/bin/env bash", "#!/bin/sh", "\ufeffset -e"])
def test_a_script_as_editors_save_it_is_taken(first: str, tmp_path: Path) -> None:
    (tmp_path / "setup.sh").write_bytes(f"{first}\r\ntrue\r\n".encode())
    whole = Package(tmp_path / "any.whl").with_emulator(GymnasiumSettings(setup=str(tmp_path / "setup.sh")))
    assert whole.setup.removeprefix("\ufeff") == whole.setup == f"{first}\ntrue\n".removeprefix("\ufeff")


@pytest.mark.unit
def test_packages_are_refused_where_nothing_would_install_them(tmp_path: Path) -> None:
    words = ["collector=ray", "emulator=gymnasium", "emulator.id=CartPole-v1", "emulator.packages=[minigrid]"]
    with pytest.raises(SettingsError, match="are for workers over SSH"):
        refuse_contradictions(configuration.load("config/multimachine", "host", words))

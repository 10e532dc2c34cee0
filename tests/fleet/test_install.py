"""The package installs itself on a worker: real wheels, real pip, a real SSH server, a fresh folder."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
import venv
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib import metadata
from pathlib import Path

import pytest

from digirl_dist.errors import InstallError
from digirl_dist.fleet.install import (
    Package,
    PipArgs,
    Wheel,
    build_wheel,
    ensure_installed,
    host_versions,
    installed_python,
    requirements,
    this_package,
    what_is_missing,
)
from digirl_dist.settings import InstallSettings, SshSettings
from digirl_dist.ssh.connect import connect
from digirl_dist.ssh.connection import Connection
from digirl_dist.ssh.localhost_server import LocalhostServer
from digirl_dist.worker_program.bootstrap import OWN_FOLDER

pytestmark = [pytest.mark.component, pytest.mark.long_file(50)]

_PROBE = "import digirl_dist, importlib.resources as r; print(digirl_dist.__file__); print(r.files(digirl_dist))"


@pytest.fixture(scope="module", autouse=True)
def _is_installed() -> None:
    try:
        metadata.distribution("digirl_dist")
    except metadata.PackageNotFoundError:
        if os.environ.get("CI") == "true":
            pytest.fail("pip install -e . first")
        pytest.skip("digirl_dist is not installed: pip install -e .")


@pytest.fixture(scope="module")
def link(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    folder = tmp_path_factory.mktemp("server")
    with LocalhostServer("w1", folder / "server") as address, connect(address, SshSettings()) as connection:
        yield connection


@pytest.fixture(scope="module")
def package() -> Package:
    """Without what it depends on, so that a test takes seconds and needs no network."""
    return Package(build_wheel(), limit_s=120.0)


@pytest.mark.unit
def test_the_same_source_gives_the_same_wheel_and_no_temporary_file_that_could_be_cleaned_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    one = this_package(InstallSettings(), ()).wheel
    assert one == build_wheel() and not list(tmp_path.iterdir())
    names = zipfile.ZipFile(io.BytesIO(one.content)).namelist()
    assert "digirl_dist/worker_program/bootstrap.py" in names and "digirl_dist/config/multimachine/host.yaml" in names
    assert not [name for name in names if "__pycache__" in name]


@pytest.mark.unit
def test_the_host_versions_are_public_versions_of_direct_dependencies() -> None:
    versions = dict(line.split("==") for line in host_versions())
    assert versions["torch"] == metadata.version("torch").split("+")[0]
    assert "pip" not in versions


@pytest.mark.unit
def test_requirements_are_those_of_the_package_and_of_the_wanted_extras() -> None:
    assert any(line.startswith("torch") for line in requirements()), "workers act, so they have the extra train"
    extra = set(requirements({"miniwob"})) - set(requirements())
    assert sorted(line.split(">")[0] for line in extra) == ["miniwob"]


def test_a_worker_gets_the_package_once(link: Connection, package: Package, tmp_path: Path) -> None:
    folder = tmp_path / "on worker"
    python = ensure_installed(link, package, str(folder), sys.executable)
    assert python == installed_python(str(folder))
    found = subprocess.check_output([python, "-I", "-c", _PROBE], text=True)
    assert found.startswith(f"{Path(python).parents[1]}/lib/")
    installed = {path: path.stat().st_mtime_ns for path in folder.rglob("*.py*")}
    assert ensure_installed(link, package, str(folder), sys.executable) == python
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*.py*")} == installed


@pytest.mark.nightly
def test_a_wheel_built_by_an_installed_copy_is_the_same(link: Connection, package: Package, tmp_path: Path) -> None:
    python = ensure_installed(
        link, Package(package.wheel, requirements(), reuse_packages=True), str(tmp_path / "w"), sys.executable
    )
    code = (
        "import sys; from digirl_dist.fleet.install import build_wheel; sys.stdout.buffer.write(build_wheel().content)"
    )
    made = subprocess.run([python, "-I", "-c", code], check=True, stdout=subprocess.PIPE).stdout
    again, first = zipfile.ZipFile(io.BytesIO(made)), zipfile.ZipFile(io.BytesIO(package.wheel.content))
    assert {name: again.read(name) for name in again.namelist() if not name.endswith("RECORD")} == {
        name: first.read(name) for name in first.namelist() if not name.endswith("RECORD")
    }


def test_a_changed_package_of_the_same_version_replaces_the_old_one(
    link: Connection, package: Package, tmp_path: Path
) -> None:
    python = ensure_installed(link, package, str(tmp_path / "w"), sys.executable)
    changed = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(package.wheel.content)) as old, zipfile.ZipFile(changed, "w") as new:
        for name in old.namelist():
            text = old.read(name)
            new.writestr(name, text + b"\nNEW = 1\n" if name == "digirl_dist/__init__.py" else text)
    ensure_installed(link, Package(Wheel(package.wheel.name, changed.getvalue())), str(tmp_path / "w"), sys.executable)
    code = "import digirl_dist; print(digirl_dist.NEW)"
    assert subprocess.check_output([python, "-I", "-c", code]) == b"1\n"


@pytest.mark.nightly
def test_packages_of_the_workers_python_are_reused(link: Connection, package: Package, tmp_path: Path) -> None:
    """Those as well which an environment finds by a ``.pth`` file, as editable ones."""
    venv.create(tmp_path / "outer", symlinks=True)
    (there,) = (tmp_path / "outer").glob("lib/python*/site-packages")
    (there / "elsewhere.pth").write_text(sysconfig.get_path("purelib") + "\n")
    no_index = PipArgs(("--no-index",))
    reusing = Package(package.wheel, requirements(), ("numpy==1.0.1",), no_index, reuse_packages=True)
    python = ensure_installed(link, reusing, str(tmp_path / "w"), str(tmp_path / "outer" / "bin" / "python"))
    numpy = subprocess.check_output([python, "-I", "-c", "import numpy; print(numpy.__file__)"], text=True)
    assert not numpy.startswith(str(tmp_path))


def test_installations_at_the_same_time_take_turns(link: Connection, package: Package, tmp_path: Path) -> None:
    found: list[str] = []
    threads = [
        threading.Thread(
            target=lambda: found.append(ensure_installed(link, package, str(tmp_path / "w"), sys.executable))
        )
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert found == [installed_python(f"{tmp_path}/w")] * 3
    assert subprocess.run([found[0], "-I", "-c", "import digirl_dist"]).returncode == 0


@pytest.mark.nightly
def test_an_environment_left_half_finished_is_made_anew(link: Connection, package: Package, tmp_path: Path) -> None:
    python = ensure_installed(link, package, str(tmp_path / "w"), sys.executable)
    (tmp_path / "w" / OWN_FOLDER / "installed.json").unlink()
    Path(python).unlink()
    Path(python).symlink_to("/bin/false")
    ensure_installed(link, package, str(tmp_path / "w"), sys.executable)
    assert subprocess.run([python, "-I", "-c", "import digirl_dist"]).returncode == 0


@pytest.mark.nightly
def test_an_environment_in_which_somebody_cleaned_up_is_made_anew(
    link: Connection, package: Package, tmp_path: Path
) -> None:
    python = Path(ensure_installed(link, package, str(tmp_path / "w"), sys.executable))
    packages = next(python.parent.parent.glob("lib/python*/site-packages"))
    (packages / "added.py").touch()
    assert what_is_missing(link, package, str(tmp_path / "w"), sys.executable) == ""
    record = tmp_path / "w" / OWN_FOLDER / "installed.json"
    record.write_text(
        json.dumps({key: value for key, value in json.loads(record.read_text()).items() if key != "files"})
    )
    assert "another version" in what_is_missing(link, package, str(tmp_path / "w"), sys.executable), "of an earlier one"
    ensure_installed(link, package, str(tmp_path / "w"), sys.executable)
    assert (packages / "added.py").exists()
    for path in packages.rglob("*.py"):  # what was not read for days, as in /tmp
        path.unlink()
    assert ensure_installed(link, package, str(tmp_path / "w"), sys.executable) == str(python)
    assert (packages / "digirl_dist" / "worker_program" / "attach.py").exists() and not (packages / "added.py").exists()


@pytest.mark.nightly
def test_what_the_user_has_in_the_folder_stays(link: Connection, package: Package, tmp_path: Path) -> None:
    folder = tmp_path / "scripts"
    own = [
        folder / name for name in ("venv/bin/python", "wheel/mine.whl", "installed.json", "constraints.txt", "run.py")
    ]
    for file in own:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("the user's")
    for _ in range(2):  # the second one replaces the environment
        python = ensure_installed(link, package, str(folder), sys.executable)
        (folder / OWN_FOLDER / "installed.json").unlink()
    assert [file.read_text() for file in own] == ["the user's"] * 5
    assert subprocess.run([python, "-I", "-c", "import digirl_dist"]).returncode == 0


def test_a_folder_of_our_name_that_is_not_ours_is_refused(link: Connection, package: Package, tmp_path: Path) -> None:
    own = tmp_path / "w" / OWN_FOLDER / "venv" / "sentinel"
    own.parent.mkdir(parents=True)
    own.write_text("the user's")
    for refuse in (ensure_installed, what_is_missing):
        with pytest.raises(InstallError, match=f"{OWN_FOLDER} was not made by digirl_dist.*run_path to another"):
            refuse(link, package, str(tmp_path / "w"), sys.executable)
    assert list(own.parents[1].rglob("*")) == [own.parent, own]


@pytest.mark.nightly
def test_a_setup_script_runs_once_in_the_environment(link: Connection, package: Package, tmp_path: Path) -> None:
    log = tmp_path / "log"
    package = replace(package, setup=f"python -c 'import digirl_dist, sys; print(sys.prefix)' >> {log}\n")
    for _ in range(2):
        python = ensure_installed(link, package, str(tmp_path / "w"), sys.executable)
    assert log.read_text() == f"{Path(python).parents[1]}\n"
    broken = replace(package, setup="echo the disk is on fire; false; true")
    with pytest.raises(InstallError, match="(?s)cannot run emulator.setup: .* status 1: the disk is on fire"):
        ensure_installed(link, broken, str(tmp_path / "w"), sys.executable)
    assert "not installed" in what_is_missing(link, package, str(tmp_path / "w"), sys.executable)


def test_the_worker_tells_what_its_limit_ended(link: Connection, package: Package, tmp_path: Path) -> None:
    with pytest.raises(InstallError, match="was not done within 0 s"):
        ensure_installed(link, replace(package, setup="sleep 1000", limit_s=0.0), str(tmp_path / "w"), sys.executable)


def test_a_failed_installation_is_not_taken_for_a_finished_one(
    link: Connection, package: Package, tmp_path: Path
) -> None:
    bad = Package(package.wheel, ("no-such-package",), pip_args=PipArgs(("--no-index",)), uv=False, limit_s=120.0)
    with pytest.raises(
        InstallError, match="(?s)cannot install the package: .* No matching distribution.*reaches an index"
    ):
        ensure_installed(link, bad, str(tmp_path / "w"), sys.executable)
    assert not (tmp_path / "w" / OWN_FOLDER / "installed.json").exists()
    ensure_installed(link, package, str(tmp_path / "w"), sys.executable)
    assert json.loads((tmp_path / "w" / OWN_FOLDER / "installed.json").read_text())["requirements"] == []


def test_a_missing_python_is_named_with_the_remedy(link: Connection, package: Package, tmp_path: Path) -> None:
    with pytest.raises(InstallError, match="there is no `python3.99` that can be run: .*-> `apt-get install python3"):
        ensure_installed(link, package, str(tmp_path / "w"), "python3.99")


def test_a_command_that_the_machine_replaces_is_no_python(link: Connection, package: Package, tmp_path: Path) -> None:
    with pytest.raises(InstallError, match="status 0 and said nothing") as caught:
        ensure_installed(link, package, str(tmp_path / "w"), "/bin/true")
    assert "ForceCommand" in caught.value.remedy


def test_an_old_python_is_named(link: Connection, package: Package, tmp_path: Path) -> None:
    old = tmp_path / "old_python"
    old.write_text(f'#!/bin/sh\nexec {sys.executable} -c "import sys; sys.version_info = (3, 8, 1)\n$2"\n')
    old.chmod(0o755)
    with pytest.raises(InstallError, match="too old: the package needs Python 3.10 or newer, not 3.8"):
        ensure_installed(link, package, str(tmp_path / "w"), str(old))


def test_variables_for_other_pythons_of_that_machine_do_not_matter(
    link: Connection, package: Package, tmp_path: Path
) -> None:
    others = tmp_path / "others"
    others.mkdir()
    for module in ("json", "pip", "venv"):
        (others / f"{module}.py").write_text("raise SystemExit('another module')\n")
    python = tmp_path / "python"
    variables = f"PYTHONPATH={others} PYTHONINSPECT=1 PYTHONVERBOSE=1 PYTHONWARNINGS=error"
    python.write_text(f'#!/bin/sh\nexport {variables}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    installed = ensure_installed(link, package, str(tmp_path / "w"), str(python))
    assert subprocess.run([installed, "-I", "-c", "import digirl_dist"]).returncode == 0


def test_a_python_without_venv_is_named(link: Connection, package: Package, tmp_path: Path) -> None:
    bare = tmp_path / "bare_python"
    package = replace(package, uv=False)
    hide = "import sys; sys.modules['ensurepip'] = None; import importlib.util as u; f = u.find_spec\n"
    hide += "u.find_spec = lambda name, *rest: None if name == 'ensurepip' else f(name, *rest)\n"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{hide}$2"\n')
    bare.chmod(0o755)
    with pytest.raises(InstallError, match="lacks the module venv -> apt-get install python3.*-venv"):
        ensure_installed(link, package, str(tmp_path / "w"), str(bare))


def test_uv_needs_neither_venv_nor_pip(link: Connection, package: Package, tmp_path: Path) -> None:
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if uv is None:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)("uv is missing: pip install uv")
    bare = tmp_path / "bare_python"  # a worker's Python without ensurepip, and uv on its PATH
    hide = "import importlib.util as u; f = u.find_spec\n"
    hide += "u.find_spec = lambda name, *rest: None if name == 'ensurepip' else f(name, *rest)\n"
    bare.write_text(f'#!/bin/sh\nPATH={Path(uv).parent}:$PATH exec {sys.executable} -c "{hide}$2"\n')
    bare.chmod(0o755)
    python = ensure_installed(link, package, str(tmp_path / "w"), str(bare))
    assert subprocess.run([python, "-I", "-c", "import digirl_dist"]).returncode == 0
    assert not Path(python).with_name("pip").exists()
    assert what_is_missing(link, package, str(tmp_path / "w"), str(bare)) == ""
    without = replace(package, uv=False)
    with pytest.raises(InstallError, match="lacks the module venv"):
        ensure_installed(link, without, str(tmp_path / "other"), str(bare))


def test_a_folder_that_cannot_be_used_is_named(link: Connection, package: Package, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InstallError, match=f"cannot use the folder {tmp_path}/file/w: Not a directory"):
        ensure_installed(link, package, f"{tmp_path}/file/w", sys.executable)


@pytest.mark.parametrize(
    ("limit", "folder", "remedy"),
    [
        ("ulimit -f 10", "w", "limit of the size of files"),
        ("ulimit -v 400000 -s 1000000", "w", "limits of memory and stack"),
        ("true", "w" * 300, "one with a shorter path"),
    ],
)
def test_what_a_workers_user_may_not_have_is_named(
    limit: str, folder: str, remedy: str, link: Connection, package: Package, tmp_path: Path
) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/bash\n{limit}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    with pytest.raises(InstallError) as caught:
        ensure_installed(link, package, str(tmp_path / folder), str(python))
    assert remedy in str(caught.value) and "Traceback" not in str(caught.value)


def test_a_full_disk_is_named(link: Connection, package: Package, small_disk: Path) -> None:
    with pytest.raises(InstallError, match="(?s)No space left.*delete files"):
        ensure_installed(link, replace(package, uv=False), f"{small_disk}/w", sys.executable)


def test_a_path_from_home_is_understood(link: Connection, package: Package) -> None:
    name = f".digirl_dist_test_{os.getpid()}"
    try:
        python = ensure_installed(link, package, f"~/{name}", sys.executable)
        assert python == installed_python(str(Path.home() / name))
    finally:
        shutil.rmtree(Path.home() / name, ignore_errors=True)


@pytest.mark.parametrize(
    "lines", ["user = true", "target = /else", "prefix = /else", "root = /else", "require-hashes = true", "dry-run = 1"]
)
def test_what_pip_is_told_there_of_other_installations_does_not_count(
    lines: str, link: Connection, package: Package, tmp_path: Path
) -> None:
    """Class: configuration files and variables of pip."""
    (tmp_path / "home" / ".config" / "pip").mkdir(parents=True)
    lines = lines.replace("/else", str(tmp_path / "else"))
    (tmp_path / "home" / ".config" / "pip" / "pip.conf").write_text(
        f"[global]\nrequire-virtualenv = 1\n[install]\n{lines}\n"
    )
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\nexport HOME={tmp_path}/home PIP_NO_DEPS=1 PIP_PYTHON=/none\nexec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    package = replace(package, uv=False)
    installed = ensure_installed(link, package, str(tmp_path / "w"), str(python))
    assert subprocess.run([installed, "-I", "-c", "import digirl_dist"]).returncode == 0
    assert what_is_missing(link, package, str(tmp_path / "w"), str(python)) == ""
    assert not (tmp_path / "else").exists()


@contextmanager
def index(folder: Path, *versions: str) -> Iterator[str]:
    """An index on loopback that has these versions of the package ``ours``."""
    (folder / "simple" / "ours").mkdir(parents=True)
    for version in versions:
        info = f"ours-{version}.dist-info"
        with zipfile.ZipFile(folder / "simple" / "ours" / f"ours-{version}-py3-none-any.whl", "w") as wheel:
            wheel.writestr("ours.py", "")
            wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: ours\nVersion: {version}\n")
            wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{info}/RECORD", "")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/simple"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("wanted", ["ours", "ours>=3"])
def test_the_first_index_that_has_a_fitting_version_counts_for_uv(
    wanted: str, link: Connection, package: Package, tmp_path: Path
) -> None:
    """A public package of a higher version must not win over that of a private index."""
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if uv is None:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)("uv is missing: pip install uv")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPATH={Path(uv).parent}:$PATH exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    with index(tmp_path / "private", "1.0") as private, index(tmp_path / "public", "9.0") as public:
        words = (f"--index-url={private}", "--extra-index-url", public)
        package = replace(package, requirements=(wanted,), pip_args=PipArgs(words), cpu_index="")
        installed = ensure_installed(link, package, str(tmp_path / "w"), str(python))
    found = [path.name for path in Path(installed).parents[1].glob("lib/python*/site-packages/ours-*.dist-info")]
    assert found == ["ours-1.0.dist-info" if wanted == "ours" else "ours-9.0.dist-info"]


@pytest.fixture
def cpu_index(tmp_path: Path) -> Iterator[str]:
    """An index whose only torch is the CPU build 2.2.9."""
    folder = tmp_path / "index" / "simple" / "torch"
    folder.mkdir(parents=True)
    info = "torch-2.2.9+cpu.dist-info"
    with zipfile.ZipFile(folder / "torch-2.2.9+cpu-py3-none-any.whl", "w") as wheel:
        wheel.writestr("torch.py", "")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: torch\nVersion: 2.2.9+cpu\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=tmp_path / "index"))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/simple"
    server.shutdown()
    server.server_close()


@pytest.mark.nightly
def test_a_worker_gets_the_cpu_build_of_torch_or_none(
    cpu_index: str, link: Connection, package: Package, tmp_path: Path
) -> None:
    package = replace(package, requirements=("torch>=2.2",), cpu_index=cpu_index, uv=False)
    folder, missing = str(tmp_path / "w"), replace(package, constraints=("torch==2.2.8",))
    with pytest.raises(InstallError, match=r"(?s)torch==2.2.8\+cpu.*CPU builds of torch alone: .*cpu_index=null"):
        ensure_installed(link, missing, folder, sys.executable)
    assert "not installed" in what_is_missing(link, missing, folder, sys.executable)
    python = ensure_installed(link, replace(package, constraints=("torch==2.2.9",)), folder, sys.executable)
    found = [path.name for path in Path(python).parents[1].glob("lib/python*/site-packages/*.dist-info")]
    assert "torch-2.2.9+cpu.dist-info" in found and not [name for name in found if "nvidia" in name]


@pytest.mark.unit
@pytest.mark.parametrize(
    ("pip_args", "used"),
    [([], True), (["--retries=1"], True), (["-i", "http://x"], False), (["--find-links=/x"], False), (["-f/x"], False)],
)
def test_an_index_of_the_users_own_stands_for_itself(pip_args: list[str], used: bool, tmp_path: Path) -> None:
    made = this_package(InstallSettings(pip_args=pip_args), ())
    assert made.cpu_index == (InstallSettings().cpu_index if used else "")
    assert this_package(InstallSettings(cpu_index=None), ()).cpu_index == ""

"""What all tests share."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from layers import LAYERS, UNIT, guarded, layer, may_have

from benchmarks.sshd import SBIN

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")  # what needs a GPU is script/gpu; tests count on the CPU's numbers
os.environ.setdefault("JAX_PLATFORMS", "cpu")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell has it for what it starts in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)  # else what the tests start would ignore Ctrl-C as well

collect_ignore_glob = ["*/test_*jax*.py"] if sys.version_info < (3, 11) else []
"""JAX needs Python 3.11."""

hypothesis.settings.register_profile("unhurried", deadline=None)  # else a loaded machine fails them
hypothesis.settings.load_profile("unhurried")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--layer", choices=LAYERS, help="run the tests of this layer only")
    parser.addoption("--nightly", choices=("too", "only", "never"), default="too", help="tests marked nightly")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    wanted = config.getoption("layer")
    is_module = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    return True if wanted and is_module and not may_have(collection_path, wanted) else None


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """For ``--dist loadgroup``: a file's tests run in one process unless they are long, and so do all that need Ray.

    The longest begin first, so that none is left for the end.
    """
    layer_wanted, nightly = config.getoption("layer"), config.getoption("nightly")

    def is_wanted(item: pytest.Item) -> bool:
        is_nightly = item.get_closest_marker("nightly") is not None
        return layer_wanted in (None, layer(item)) and (nightly == "too" or is_nightly == (nightly == "only"))

    config.hook.pytest_deselected(items=[item for item in items if not is_wanted(item)])
    items[:] = filter(is_wanted, items)
    if config.pluginmanager.hasplugin("xdist"):
        items.sort(key=_seconds, reverse=True)
        for item in items:
            if item.get_closest_marker("ray"):
                item.add_marker(pytest.mark.xdist_group("ray"))
            elif not item.get_closest_marker("long"):
                item.add_marker(pytest.mark.xdist_group(str(item.path.relative_to(config.rootpath))))


def pytest_collection_finish() -> None:
    """What is here by now stays: the garbage of a test is looked for without it, which is two million objects."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """A unit test's fixtures start no process and open no socket either."""
    yield from _held(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    yield from _held(item)


@pytest.hookimpl(wrapper=True)
def pytest_timeout_set_timer(settings: Any) -> Iterator[None]:
    """Ends what a test does next as well, every half minute after its time is over: its cleaning up may wait, too."""
    done = yield
    signal.setitimer(signal.ITIMER_REAL, settings.timeout, 30.0)
    return done


def _held(item: pytest.Item) -> Iterator[None]:
    if layer(item) != UNIT:
        return (yield)
    with guarded():
        return (yield)


def _seconds(item: pytest.Item) -> float:
    """About what it, or its group, takes: what its mark says, or else next to nothing."""
    if item.get_closest_marker("ray"):
        return 200.0
    mark = item.get_closest_marker("long") or item.get_closest_marker("long_file")
    return float((mark.args or (5,))[0]) if mark else 0.0


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Several processes share two cores."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import torch

    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _what_a_test_wrote_is_imported_by_no_other(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Many call their file ``mine.py``."""
    written, path, before = str(tmp_path_factory.getbasetemp()), list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - before:
        known = getattr(sys.modules[name], "__dict__", {})  # what libraries put there answers to any name
        if any(str(place).startswith(written) for place in (known.get("__file__"), *known.get("__path__", ()))):
            del sys.modules[name]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 3 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m", "digirl-dist-test", str(disk)]
    if os.getuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("only root can mount a small disk")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.fixture(scope="session")
def chromium_is_installed() -> None:
    """Skips where there is no Chromium; fails instead where CI=true."""
    _must_have("chromium")


@pytest.fixture(scope="session")
def adb_is_installed() -> None:
    """The same for adb."""
    _must_have("adb")


@pytest.fixture(scope="session")
def sshd_is_installed() -> None:
    """The same for OpenSSH's server."""
    _must_have("sshd")


def _must_have(*programs: str) -> None:
    missing = [name for name in programs if shutil.which(name, path=SBIN) is None]
    if missing:
        give_up = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        give_up(f"{' and '.join(missing)} not on PATH")

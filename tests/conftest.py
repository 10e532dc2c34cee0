"""What all tests share."""

from __future__ import annotations

import os
import shutil

import pytest


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Several processes share two cores."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def chromium_is_installed() -> None:
    """Skips where there is no Chromium; fails instead where CI=true."""
    _must_have("chromium", "chromedriver")


@pytest.fixture(scope="session")
def adb_is_installed() -> None:
    """The same for adb."""
    _must_have("adb")


def _must_have(*programs: str) -> None:
    missing = [name for name in programs if shutil.which(name) is None]
    if missing:
        give_up = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        give_up(f"{' and '.join(missing)} not on PATH")

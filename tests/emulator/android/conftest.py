"""What the tests of Android share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from emulator.android.fake_emulator import make_token
from emulator.android.sites import RunningPhone


@pytest.fixture(autouse=True)
def _adb(adb_is_installed: None) -> None:
    """All of them need it."""


@pytest.fixture(autouse=True)
def _home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keys of adb and the token of the console belong to nobody."""
    home = tmp_path_factory.mktemp("home")
    make_token(home)
    monkeypatch.setenv("HOME", str(home))
    for name in ("ANDROID_HOME", "ANDROID_SDK_ROOT", "ANDROID_AVD_HOME", "ANDROID_USER_HOME"):
        monkeypatch.delenv(name, raising=False)
    return home


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo phone's screen settles at once."""
    monkeypatch.setattr("digirl_dist.emulator.android.emulator.SETTLE_GAP_S", 0.0)


@pytest.fixture
def phone() -> Iterator[RunningPhone]:
    with RunningPhone() as running:
        yield running

"""Optional parts of the package, where one of them is missing or does not fit."""

from __future__ import annotations

from importlib import metadata

import pytest

from digirl_dist.errors import SettingsError
from digirl_dist.settings.extras import extra_needed


def test_a_package_of_another_version_is_refused_with_the_version_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    with extra_needed("bridges.openenv", "websockets", "openenv"):
        pass
    monkeypatch.setattr(metadata, "version", lambda name: "0.1")
    told = r"^bridges.openenv needs (starlette|websockets)>=[\d.]+, and 0\.1 is installed: pip install 'digirl_dist\["
    with pytest.raises(SettingsError, match=told), extra_needed("bridges.openenv", "websockets", "openenv"):
        raise AssertionError("it is refused before it is imported")


def test_a_package_that_is_missing_is_named_with_its_extra() -> None:
    told = r"x needs y: pip install 'digirl_dist\[nothing\]' \(no y\)"
    with pytest.raises(SettingsError, match=told), extra_needed("x", "y", "nothing"):
        raise ImportError("no y")

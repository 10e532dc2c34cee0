"""What the tests of emulators share."""

from __future__ import annotations

import os
import shutil

import pytest


@pytest.fixture(scope="session")
def chromium_is_installed() -> None:
    """Skips where there is no Chromium; fails instead where CI=true."""
    missing = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    if missing:
        give_up = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        give_up(f"{' and '.join(missing)} not on PATH")

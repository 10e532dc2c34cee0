"""What a browser answers when it is asked for the names of what is on a page."""

from __future__ import annotations

import pytest

from digirl_dist.emulator import Label
from digirl_dist.emulator.web_labels import labels_of
from digirl_dist.errors import SettingsError


def test_labels_are_read_from_the_answer() -> None:
    assert labels_of({"labels": [["Ok", "button", 0, 0.25, 0.5, 1]]}) == [Label("Ok", "button", 0, 0.25, 0.5, 1)]
    assert labels_of(None) == [], "the page was left meanwhile"


def test_a_browser_without_names_is_refused_with_the_remedy() -> None:
    with pytest.raises(SettingsError, match=r"install a newer one, or set agent\.labels=false"):
        labels_of({})

"""Lines of figures, those of earlier versions among them."""

from __future__ import annotations

from typing import Any

import pytest

from digirl_dist.report.metrics import measured_version


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ({"iteration": 3, "purpose": "evaluate"}, 3),
        ({"iteration": 3, "purpose": "train"}, None),
        ({"iteration": -4}, 3),
        ({"iteration": 0}, None),
    ],
)
def test_a_line_tells_whether_it_measured_a_version_while_training(line: dict[str, Any], version: int | None) -> None:
    """Lines without a purpose are of earlier versions, which counted measurements down from -1."""
    assert measured_version(line) == version

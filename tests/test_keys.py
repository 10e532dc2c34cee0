"""A trainer, the host that it asks, and workers are killed at any moment: no key is lost, and none comes twice."""

from __future__ import annotations

import pytest

from chaos.keys import strike_keys

pytestmark = [pytest.mark.system, pytest.mark.nightly, pytest.mark.timeout(900), pytest.mark.long_file(120)]
_KILLS = 5


@pytest.mark.parametrize("kind", ["serve", "fleet"])
def test_each_key_is_delivered_once_whoever_is_killed(kind: str, sshd_is_installed: None) -> None:
    found = strike_keys(kind, _KILLS, seed=3)
    assert {one.name: one.broken for one in found if one.broken} == {}
    assert "0 groups" not in {one.checked for one in found}

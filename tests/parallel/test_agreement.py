"""Ranks that were started differently are told so, by key and machine, before they start."""

from __future__ import annotations

from pathlib import Path

import pytest
from rank_launch import example, launch_together

from digirl_dist.assembly.agreement import _verdict, facts_of
from digirl_dist.assembly.parts import build_device
from digirl_dist.parallel.loopback import free_port
from digirl_dist.settings import configuration


def facts(*overrides: str) -> dict[str, str]:
    settings = configuration.load("config/multimachine", "ranks", overrides)
    return facts_of(settings, build_device(settings, settings.emulator))


def test_equal_ranks_agree_wherever_they_write() -> None:
    assert _verdict([facts(), facts("save_path=elsewhere")], ["a", "b"]) == ""


def test_each_difference_is_named_with_ranks_and_machines() -> None:
    other = facts("bsize=4", "emulator.id=Acrobot-v1")
    told = _verdict([facts(), facts(), other, {**other, "torch": "1.0"}], ["alpha", "alpha", "beta", "gamma"])
    assert "bsize is 8 on ranks 0, 1 (alpha) and 4 on ranks 2, 3 (beta, gamma)" in told
    assert "emulator.id is CartPole-v1 on ranks 0, 1 (alpha) and Acrobot-v1" in told
    assert "the actions is DiscreteActions(n=2)" in told and "the observations is 4 numbers, None" in told
    assert "and 1.0 on rank 3 (gamma)" in told
    assert "; and 12 more;" in _verdict([{str(number): "x" for number in range(20)}, {}], ["a", "b"])


@pytest.mark.nightly
@pytest.mark.system
@pytest.mark.timeout(300)
def test_b4_two_nodes_with_different_settings_do_not_start(tmp_path: Path) -> None:
    address, run = f"127.0.0.1:{free_port()}", [f"save_path={tmp_path}/run", "train_iterations=1"]
    differing = ["bsize=2"], ["bsize=1", "distributed.steps=9"]
    commands = [example("two_nodes.sh", str(node), address, *run, *more) for node, more in enumerate(differing)]
    nodes = launch_together(commands, limit_s=280)
    for out in (node.out for node in nodes):
        assert "error: the ranks were started differently: " in out and "Traceback" not in out.split("error: ")[0]
        assert "bsize is 2 on ranks 0, 1 (" in out and "distributed.steps is 128 on ranks 0, 1 (" in out
    assert all(node.status for node in nodes) and not (tmp_path / "run").exists()

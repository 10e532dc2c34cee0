"""skrl's PPO of JAX on our emulators, by our launcher: acceptance rows C2, C6, C7 and C8, with real packages."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from rank_launch import launch

from digirl_dist.bridges.skrl import wrapped_for_jax
from digirl_dist.bridges.vector import ranked_vector
from digirl_dist.errors import SettingsError
from digirl_dist.train.__main__ import main

PROGRAM = str(Path(__file__).parent / "skrl_jax_ranks.py")
LAUNCHER = [sys.executable, "-m", "digirl_dist.parallel.jax", "--nproc_per_node=2"]
NOWHERE = "http://127.0.0.1:9"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where two ranks have learned, and one process from all their rows."""
    pytest.importorskip("flax")
    folder = tmp_path_factory.mktemp("together")
    proxies = {"http_proxy": NOWHERE, "https_proxy": NOWHERE, "grpc_proxy": NOWHERE}  # which gRPC would ask
    ended = launch([*LAUNCHER, PROGRAM, str(folder)], limit_s=400, **proxies)
    assert ended.status == 0, ended.out
    ended = launch([sys.executable, PROGRAM, str(folder), "one"], limit_s=200)
    assert ended.status == 0, ended.out
    return folder


def found(folder: Path, who: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((folder / f"{who}.json").read_text())
    return told


@pytest.mark.nightly
@pytest.mark.system
@pytest.mark.timeout(700)  # two launches
def test_c2_ranks_hold_the_same_bits_and_what_one_process_learns_from_all_their_rows(folder: Path) -> None:
    first, second, one = (found(folder, who)["weights"] for who in ("rank0", "rank1", "one"))
    assert first == second
    assert first == pytest.approx(one, abs=1e-5) and len(first) > 50


@pytest.mark.nightly
@pytest.mark.system
@pytest.mark.timeout(700)
def test_c6_ranks_act_with_seeds_of_their_own(folder: Path) -> None:
    both = [found(folder, f"rank{rank}")["first"] for rank in range(2)]
    assert both[0] != both[1]


@pytest.mark.nightly
@pytest.mark.system
@pytest.mark.timeout(700)
def test_c8_rank_0_alone_writes_and_one_process_loads_it(folder: Path) -> None:
    assert len(list(folder.rglob("*.pickle"))) == 1  # one.json is from a process that loaded it


def test_c7_without_jax_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    corridor = ["emulator.id=null", "emulator.entry_point=examples.corridor:Corridor", "bsize=1"]
    with ranked_vector(corridor) as here, pytest.raises(SettingsError, match=r"pip install 'digirl_dist\[jax\]'"):
        wrapped_for_jax(here)


def test_ranks_of_the_jax_launcher_are_not_torchs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ranks = {"JAX_RANK": "0", "JAX_WORLD_SIZE": "2", "JAX_LOCAL_RANK": "0"}
    for name, value in {**ranks, "JAX_COORDINATOR_ADDR": "::1", "JAX_COORDINATOR_PORT": "5000"}.items():
        monkeypatch.setenv(name, value)
    assert main(["--distributed"]) == 2
    assert "by which skrl learns" in capsys.readouterr().err

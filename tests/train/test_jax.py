"""Training with emulators on every rank and updates by JAX: acceptance rows C6, C7 and C8, with a real launch."""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path

import pytest
from rank_launch import LIMIT_S, example, launch, launch_together, started
from run_files import metrics
from train.test_train import episodes, state, took_part

from digirl_dist.emulator import DiscreteActions, EmulatorSpec
from digirl_dist.errors import SettingsError
from digirl_dist.parallel.free_port import free_port
from digirl_dist.parallel.rank import Rank
from digirl_dist.settings import GenericAgentSettings, InProcessSettings, JaxSettings
from digirl_dist.train.__main__ import main
from digirl_dist.train.rendezvous import check_trainer

pytestmark = pytest.mark.long_file(15)

STEPS = 24


def words(folder: Path, *more: str) -> list[str]:
    return [
        "emulator.id=null",
        "emulator.entry_point=user_classes_on_ranks:Recorded",
        f"emulator.kwargs.log={folder}.log",
        f"save_path={folder}",
        "bsize=1",
        f"distributed.steps={STEPS}",
        "distributed.eval_freq=2",
        "distributed.eval_episodes=1",
        *["algorithm.ppo.anneal_iterations=6"] * (not any(each.startswith("train_algorithm=") for each in more)),
        "agent.width=8",
        "seed=5",
        *more,
    ]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two nodes of one rank each, and two iterations."""
    folder, port = tmp_path_factory.mktemp("two") / "run", free_port()
    flags = [f"--nproc_per_node=1 --nnodes=2 --node_rank={n} --coordinator_address=127.0.0.1:{port}" for n in range(2)]
    nodes = launch_together([example("jax_ranks.sh", each, *words(folder, "train_iterations=2")) for each in flags])
    assert [node.status for node in nodes] == [0, 0], nodes
    return folder


@pytest.mark.system
def test_c6_ranks_act_with_seeds_of_their_own(two: Path) -> None:
    assert [(rank["seed"], rank["device"]) for rank in took_part(two)] == [(5, "cpu:0"), (6, "cpu:0")]
    seeds = {name: [each.ticket.seed for each in episodes(two) if each.worker == name] for name in ("rank0", "rank1")}
    assert all(seeds.values()) and not set(seeds["rank0"]) & set(seeds["rank1"])


@pytest.mark.system
def test_c8_rank_0_alone_writes_and_evaluates(two: Path) -> None:
    assert [line["global_step"] for line in metrics(two)] == [2 * STEPS, 4 * STEPS]
    assert ["eval_reward_mean" in line for line in metrics(two)] == [False, True]
    made = Path(f"{two}.log").read_text().split("\n")
    assert (made.count("made 0"), made.count("made 1")) == (4, 2)


@pytest.mark.system
def test_c8_the_checkpoint_loads_in_one_process_of_torch_and_that_in_one_of_jax(two: Path, tmp_path: Path) -> None:
    policy = GenericAgentSettings(width=8).build(EmulatorSpec(DiscreteActions(2), vector_size=2))()
    policy.load_state_dict(state(two)[0])
    one = tmp_path / "one"
    shutil.copytree(two, one, symlinks=True)
    assert main(words(one, "train_iterations=3")) == 0
    assert main(words(one, "train_iterations=4", "trainer=jax")) == 0
    assert [line["global_step"] for line in metrics(one)] == [2 * STEPS, 4 * STEPS, 5 * STEPS, 6 * STEPS]
    assert metrics(one)[-1]["learning_rate"] == pytest.approx(1e-3 * 3 / 6, abs=1e-6)
    trainer = state(one)[1]["algorithm"]
    steps = trainer["optimizer"]["optimizer"]["state"][0]["step"]
    assert trainer["updates"] == 4 and float(steps) == trainer["optimizer"]["steps"] == 4 * 2


@pytest.mark.system
@pytest.mark.long
def test_c3_ranks_of_another_node_say_why_rank_0_failed(tmp_path: Path) -> None:
    """Not JAX, which aborts them with a C++ stack once its coordinator has gone."""
    port, more = free_port(), words(tmp_path / "run", "emulator.kwargs.breaks_on=0")
    flags = [f"--nproc_per_node=1 --nnodes=2 --node_rank={n} --coordinator_address=127.0.0.1:{port}" for n in range(2)]
    nodes = launch_together([example("jax_ranks.sh", each, *more) for each in flags])
    assert [node.status for node in nodes] == [1, 1]
    assert nodes[1].out.endswith("rank 1 of 2 failed: rank 0 failed: RuntimeError: the corridor has collapsed\n")


@pytest.mark.component
def test_c7_without_jax_the_extra_is_named_and_torch_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    assert main(words(tmp_path / "jax", "train_iterations=1", "trainer=jax")) == 2
    assert "pip install 'digirl_dist[jax]'" in capsys.readouterr().err
    assert not (tmp_path / "jax").exists()
    assert main(words(tmp_path / "torch", "train_iterations=1")) == 0


def test_what_jax_cannot_do_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    refused = {
        "train_algorithm=digirl": "learns by train_algorithm=ppo, not digirl",
        "trainer.device=cuda:1": "knows the devices auto, cpu and cuda, not 'cuda:1'",
    }
    for override, said in refused.items():
        assert main(words(folder, "trainer=jax", override)) == 2
        assert said in capsys.readouterr().err
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    assert main(words(folder, "trainer=jax", "--distributed")) == 2
    assert "JAX_COORDINATOR_ADDR is not set" in capsys.readouterr().err


def test_ranks_of_the_jax_launcher_are_not_torchs() -> None:
    environ = {"JAX_COORDINATOR_ADDR": "::1", "JAX_COORDINATOR_PORT": "5000"}
    with pytest.raises(SettingsError, match="add trainer=jax"):
        check_trainer(InProcessSettings(), Rank(0, 2, 0, 2), environ)
    check_trainer(JaxSettings(), Rank(0, 2, 0, 2), environ)
    check_trainer(InProcessSettings(), Rank(0, 2, 0, 2), {})


LACKING = """
import os, runpy, sys
if os.environ.get("JAX_LOCAL_RANK") == "1":
    os.environ["JAX_PLATFORMS"] = "cuda"  # as if it had one, and no GPU were left
if __name__ == "__main__":
    sys.argv[0] = "train"
    runpy.run_module("digirl_dist.train", run_name="__main__")
"""


@pytest.mark.system
def test_a_rank_for_which_jax_has_no_device_says_so_and_ends_the_others(tmp_path: Path) -> None:
    program = tmp_path / "lacking.py"
    program.write_text(LACKING)
    launcher = [sys.executable, "-m", "digirl_dist.parallel.jax", "--nproc_per_node=2", str(program)]
    began = time.monotonic()
    ended = launch([*launcher, "--distributed", *words(tmp_path / "run", "trainer=jax", "train_iterations=1")])
    assert ended.status == 1 and time.monotonic() - began < 60, ended.out
    assert "JAX has no device for this rank with trainer.device=auto" in ended.out
    assert "Traceback" not in ended.out


@pytest.mark.component
def test_jax_without_cuda_is_told_what_to_install(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "digirl_dist.train", *words(tmp_path / "run", "trainer=jax")]
    ended = launch([*command, "trainer.device=cuda"])
    assert ended.status == 2, ended.out
    assert "pip install 'jax[cuda13]'" in ended.out and "Traceback" not in ended.out


@pytest.mark.system
def test_proxies_do_not_keep_ranks_from_their_coordinator(tmp_path: Path) -> None:
    """gRPC asks the proxy of http_proxy for the coordinator, and JAX then aborts the process."""
    launcher = [sys.executable, "-m", "digirl_dist.parallel.jax", "--nproc_per_node=2"]
    program = [
        "-m",
        "digirl_dist.train",
        "--distributed",
        "trainer=jax",
        *words(tmp_path / "run", "train_iterations=1"),
    ]
    nowhere = "http://127.0.0.1:9"
    with started([*launcher, *program], http_proxy=nowhere, https_proxy=nowhere, grpc_proxy=nowhere) as process:
        out, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, out

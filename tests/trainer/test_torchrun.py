"""The host's update on several processes: acceptance rows B1, B2, B9 and B10, with real launches of run.py."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
import torch
from listening import listeners
from process_watch import command_line
from rank_launch import descendants, example, launch, rank_process, ranks, started, torchrun
from run_files import metrics
from safetensors.torch import load_file

from digirl_dist.assembly.validate import refuse_contradictions
from digirl_dist.cli.main import main
from digirl_dist.errors import SettingsError
from digirl_dist.parallel.compute_device import Visible
from digirl_dist.parallel.rank import Rank
from digirl_dist.settings import configuration
from digirl_dist.storage.checkpoint import Checkpoints
from digirl_dist.train.__main__ import main as train_with_ranks

pytestmark = [pytest.mark.system, pytest.mark.long_file(40)]

ROOT = Path(__file__).resolve().parent.parent.parent
RUN = str(ROOT / "run.py")
SHORT = ["parallel=single", "emulator=gymnasium", "emulator.id=CartPole-v1", "bsize=2", "rollout_size=9"]
MANY_UPDATES = [
    "algorithm.filtered_bc.top_share=1.0",
    "algorithm.filtered_bc.actor.epochs=3",
    "algorithm.filtered_bc.actor.batch_size=13",
    "train_iterations=2",
]
CUSTOM = ["parallel=single", "emulator=custom", "emulator.entry_point=user_classes:Counter", "agent=custom"]


def weights(folder: Path, iteration: int) -> torch.Tensor:
    state = load_file(folder / "checkpoints" / f"{iteration:06d}" / "policy.safetensors")
    return torch.cat([state[name].double().reshape(-1) for name in sorted(state)])


def moments(folder: Path, iteration: int) -> torch.Tensor:
    """Of Adam, whole and by number, as a single process would load them."""
    adam = Checkpoints(folder / "checkpoints").open(iteration).trainer_state()["algorithm"]["imitation"]["optimizer"]
    return torch.cat([adam["state"][number]["exp_avg"].double().reshape(-1) for number in sorted(adam["state"])])


@pytest.fixture(scope="module")
def in_one_process(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("one")
    assert main([*SHORT, *MANY_UPDATES, f"save_path={folder}"]) == 0
    return folder


@pytest.mark.timeout(400)  # of which busy processors take most
def test_b2_a_group_that_the_host_starts_learns_what_one_process_learns(in_one_process: Path, tmp_path: Path) -> None:
    fewer = "trainer.nproc_per_node=2"  # than the four of the example: machines that test have few cores
    ended = launch(example("host_update.sh", *SHORT, *MANY_UPDATES, f"save_path={tmp_path}", fewer))
    assert ended.status == 0, ended.out
    for iteration in (1, 2):
        ours, theirs = weights(tmp_path, iteration), weights(in_one_process, iteration)
        assert torch.allclose(ours, theirs, atol=1e-5, rtol=0)
    assert not torch.allclose(weights(tmp_path, 0), weights(tmp_path, 2), atol=1e-2, rtol=0)


@pytest.mark.nightly
def test_b2_torchrun_from_the_outside_does_the_same(in_one_process: Path, tmp_path: Path) -> None:
    ended = launch(torchrun(2, RUN, *SHORT, *MANY_UPDATES, f"save_path={tmp_path}"))
    assert ended.status == 0, ended.out
    assert torch.allclose(weights(tmp_path, 2), weights(in_one_process, 2), atol=1e-5, rtol=0)
    assert [line["iteration"] for line in metrics(tmp_path)] == [0, 1]


@pytest.mark.nightly
def test_b2_sharded_over_the_ranks_a_run_goes_on_and_its_checkpoints_are_as_ever(
    in_one_process: Path, tmp_path: Path
) -> None:
    words = [*SHORT, *MANY_UPDATES, f"save_path={tmp_path}"]
    sharded = ["trainer=torchrun", "trainer.nproc_per_node=2", "trainer.shard=true", "trainer.shard_blocks=[Linear]"]
    assert main([*words, "train_iterations=1"]) == 0
    assert main([*words, *sharded]) == 0
    assert torch.allclose(weights(tmp_path, 2), weights(in_one_process, 2), atol=1e-5, rtol=0)
    ours, theirs = (moments(folder, 2) for folder in (tmp_path, in_one_process))
    assert torch.allclose(ours, theirs, atol=1e-5, rtol=0) and ours.abs().max() > 1e-3


@pytest.mark.nightly
@pytest.mark.long
def test_b9_a_rank_that_raises_ends_the_run_with_its_rank_and_traceback(tmp_path: Path) -> None:
    raised = tmp_path / "raised"
    faulty = ["agent.entry_point=user_classes_on_ranks:Faulty", f"agent.kwargs.log={raised}", "rollout_size=4"]
    words = [RUN, *CUSTOM, *faulty, f"save_path={tmp_path / 'run'}"]
    ended = launch(ranks(2, *words))
    assert ended.status != 0 and time.time() - raised.stat().st_mtime < 30
    assert "rank 1 of 2 failed" in ended.out and "the second rank is broken" in ended.out
    assert "Traceback" in ended.out


@pytest.mark.nightly
@pytest.mark.timeout(400)  # of which busy processors take most
@pytest.mark.long
def test_b9_a_rank_that_is_killed_between_updates_ends_the_run(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    words = [
        *CUSTOM[:2],
        "emulator.entry_point=user_classes_on_ranks:Gated",
        f"emulator.kwargs.gate={gate}",
        "agent=generic",
        "rollout_size=2",
    ]
    with started([sys.executable, RUN, *words, "trainer=torchrun", f"save_path={tmp_path / 'run'}"]) as host:
        deadline = time.monotonic() + 180
        while not gate.with_suffix(".waiting").exists():
            assert time.monotonic() < deadline and host.poll() is None
            time.sleep(0.1)
        assert {one.address for one in listeners(host.pid)} == {
            "127.0.0.1"
        }  # gloo's: see tests/parallel/test_launch.py
        assert not any("rollout_size" in command_line(child) for child in descendants(host.pid)), "words may be secret"
        victim = rank_process(host.pid, 1)
        assert victim is not None
        victim.kill()
        gate.touch()
        out, _ = host.communicate(timeout=180)
    assert host.returncode == 128 + 9
    assert "rank 1 of 2 was ended by SIGKILL" in out and "interrupted; the same command resumes" in out


@pytest.mark.component
def test_b10_cuda_is_refused_where_there_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    assert main([*SHORT, "trainer.device=cuda", f"save_path={tmp_path}"]) == 2
    assert "no CUDA device is visible; use cpu" in capsys.readouterr().err


@pytest.mark.component
def test_b10_more_ranks_than_gpus_are_refused_before_they_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")  # for the host, and so for all that it starts
    monkeypatch.setattr(
        "digirl_dist.parallel.compute_device.visible_devices", lambda mask: Visible(1, masked=mask is not None)
    )
    words = [*SHORT, "trainer=torchrun", "trainer.nproc_per_node=2", f"save_path={tmp_path}"]
    assert main(words) == 2
    assert "2 ranks on this machine, but only 1 CUDA device; use" in capsys.readouterr().err


@pytest.mark.nightly
def test_what_a_rank_refuses_ends_the_launch(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = [*SHORT, "trainer=torchrun", "trainer.nproc_per_node=2", "trainer.shard=true"]
    assert main([*words, "trainer.shard_blocks=[Nowhere]", f"save_path={tmp_path}"]) == 2
    assert "trainer.shard_blocks: no module of the agent is a 'Nowhere'" in capfd.readouterr().err


@pytest.mark.unit
def test_b10_torchrun_within_a_launch_of_another_number_of_ranks_is_refused() -> None:
    settings = configuration.load("config/multimachine", "host", [*SHORT, "trainer=torchrun"])
    refuse_contradictions(settings, Rank(0, 2, 0, 2))
    with pytest.raises(SettingsError, match="leave trainer=torchrun out"):
        refuse_contradictions(settings, Rank(0, 4, 0, 4))


@pytest.mark.unit
def test_ranks_with_emulators_refuse_to_shard(capsys: pytest.CaptureFixture[str]) -> None:
    assert train_with_ranks(["trainer=torchrun", "trainer.shard=true"]) == 2
    assert "are started by torchrun themselves; leave trainer=torchrun out" in capsys.readouterr().err

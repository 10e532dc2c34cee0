"""The emulators of a rank as a vector environment, and other libraries' runners on it under torchrun."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from packaging.requirements import Requirement
from rank_launch import example, launch_together, torchrun

from digirl_dist.bridges import vector
from digirl_dist.bridges.vector import EmulatorVector, ranked_vector
from digirl_dist.emulator import DiscreteActions, EmulatorSpec
from digirl_dist.errors import SettingsError
from digirl_dist.train.launch import RankContext

ROOT = Path(__file__).resolve().parent.parent.parent
CORRIDOR = ["emulator.id=null", "emulator.entry_point=examples.corridor:Corridor", "bsize=3", "seed=7"]


def walked(seed: str, steps: int) -> list[np.ndarray]:
    with ranked_vector([*CORRIDOR, seed]) as here:
        seen = [here.envs.reset()[0]]
        return seen + [here.envs.step(np.array([0, 1, 1]))[0] for _ in range(steps)]


def test_an_episode_that_is_over_is_followed_by_the_next_and_its_end_is_told() -> None:
    with ranked_vector(CORRIDOR) as here:
        assert isinstance(here.envs, gymnasium.vector.VectorEnv) and here.envs.num_envs == 3
        first, _ = here.envs.reset(seed=3)
        assert first.shape == (3, 2) and here.envs.observation_space.contains(first)
        for _ in range(2):
            *_, terminated, truncated, infos = here.envs.step(np.array([0, 1, 0]))
            assert not (terminated | truncated).any() and not infos
        seen, rewards, terminated, _, infos = here.envs.step(np.array([0, 1, 1]))
        assert terminated.tolist() == infos["_final_obs"].tolist() == [True, True, False]
        assert [last[1] for last in infos["final_obs"][:2]] == [-1, 1] and (seen[:2, 1] == 0).all()
        assert rewards[:2].tolist() == [float(first[0, 0] == -1), float(first[1, 0] == 1)]


def test_what_is_met_follows_from_the_seed() -> None:
    one, again, other = (walked(seed, 30) for seed in ("seed=7", "seed=7", "seed=8"))
    assert all((a == b).all() for a, b in zip(one, again, strict=True))
    assert any((a != b).any() for a, b in zip(one, other, strict=True))


def test_pictures_beside_vectors_are_not_left_out_without_a_word() -> None:
    with pytest.raises(SettingsError, match=r"has pictures, too: .*emulator\.observe"):
        EmulatorVector(list, EmulatorSpec(DiscreteActions(2), vector_size=2, image_size=(8, 8)), None)


@pytest.mark.component
def test_what_a_vector_cannot_say_is_refused_before_any_emulator_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[RankContext] = []
    with monkeypatch.context() as patched, pytest.raises(SettingsError, match="as vectors"):
        patched.setattr(vector, "streams_of", begun.append)
        with ranked_vector(["emulator=phone"], config_name="host"):
            pass
    assert not begun
    pytest.importorskip("rsl_rl")
    from digirl_dist.bridges.rsl_rl import RslRlVecEnv

    with ranked_vector(CORRIDOR) as here, pytest.raises(SettingsError, match="discrete"):
        RslRlVecEnv(here.envs, "cpu", {})


@pytest.mark.parametrize(("bridge", "library"), [("skrl", "skrl"), ("rsl_rl", "rsl_rl"), ("sb3", "stable_baselines3")])
def test_a_library_that_is_missing_is_named_with_its_extra(
    bridge: str, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    for name in [name for name in sys.modules if name.startswith((f"{library}.", f"digirl_dist.bridges.{bridge}"))]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(SettingsError, match=r"pip install 'digirl_dist\[bridges\]'"):
        importlib.import_module(f"digirl_dist.bridges.{bridge}").wrapped(None)


@pytest.mark.parametrize(
    ("package", "fits", "lacks"),
    [("gymnasium", "1.1.0", "1.0.0"), ("msgspec", "0.18.6", "0.18.0"), ("huggingface_hub", "0.34.0", "0.33.5")],
)
def test_no_version_is_allowed_that_lacks_what_is_used(package: str, fits: str, lacks: str) -> None:
    """AutoresetMode for the bridges, frozen dataclasses with lists for evaluation jobs, the command ``hf``."""
    [wanted] = re.findall(rf'"({package}[^"]*)"', (ROOT / "setup.py").read_text())
    assert fits in Requirement(wanted).specifier and lacks not in Requirement(wanted).specifier


@pytest.mark.nightly
@pytest.mark.system
@pytest.mark.long
def test_runners_of_other_libraries_learn_together_on_two_ranks(tmp_path: Path) -> None:
    """The examples as they are: the ranks' environments differ, their weights do not."""
    names = ("skrl", "rsl_rl")
    words = [example(f"{name}_ppo.py", "bsize=2", f"save_path={tmp_path / name}") for name in names]
    for name, run in zip(names, launch_together([torchrun(2, *each) for each in words]), strict=True):
        out = run.out
        assert run.status == 0, out
        told = dict(re.findall(r"rank (\d) of 2: the policy's weights add up to (\S+)", out))
        assert set(told) == {"0", "1"} and told["0"] == told["1"], out
        assert list((tmp_path / name).rglob("events.out.tfevents*"))

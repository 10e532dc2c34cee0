"""Runs rsl_rl on our environments: its VecEnv, and its runner in an existing process group."""

from __future__ import annotations

from typing import Any

import torch
from gymnasium.spaces import Box

from digirl_dist.bridges.vector import EmulatorVector, RankedVector
from digirl_dist.errors import SettingsError
from digirl_dist.settings.extras import extra_needed

with extra_needed("a runner of rsl_rl", "rsl-rl-lib", "bridges"):
    from rsl_rl.env import VecEnv
    from rsl_rl.runners import OnPolicyRunner
    from tensordict import TensorDict

_ENDLESS = 2**31 - 1


class RslRlVecEnv(VecEnv):  # type: ignore[misc]
    """Wraps the vector environment for rsl_rl: tensors, and observations in the group ``policy``."""

    def __init__(self, envs: EmulatorVector, device: str, cfg: dict[str, Any]) -> None:
        """Raises SettingsError for discrete actions, which rsl_rl's models do not have."""
        if not isinstance(envs.single_action_space, Box):
            raise SettingsError("rsl_rl acts with real numbers alone; this emulator's actions are discrete")
        self.num_envs = envs.num_envs
        self.num_actions = envs.single_action_space.shape[0]
        self.max_episode_length = envs.max_steps or _ENDLESS
        self.episode_length_buf = torch.zeros(self.num_envs, dtype=torch.long, device=device)
        self.device = device
        self.cfg = cfg
        self._envs = envs
        self._seen = self._observed(envs.reset()[0])

    def get_observations(self) -> TensorDict:
        return self._seen

    def step(self, actions: torch.Tensor) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict[str, Any]]:
        seen, rewards, terminated, truncated, _ = self._envs.step(actions.cpu().numpy())
        self._seen = self._observed(seen)
        dones = torch.from_numpy(terminated | truncated).to(self.device)
        self.episode_length_buf = (self.episode_length_buf + 1) * ~dones
        cut = torch.from_numpy(truncated & ~terminated).to(self.device)
        return self._seen, torch.from_numpy(rewards).to(self.device), dones, {"time_outs": cut}

    def _observed(self, seen: Any) -> TensorDict:
        return TensorDict({"policy": torch.from_numpy(seen).to(self.device)}, batch_size=[self.num_envs])


class RankedRunner(OnPolicyRunner):  # type: ignore[misc]
    """rsl_rl's runner in our process group; by itself it would make one of NCCL, which knows no CPU."""

    def __init__(self, here: RankedVector, train_cfg: dict[str, Any]) -> None:
        """Rank 0 alone writes logs and models, to the save_path."""
        self._rank = here.rank
        env = RslRlVecEnv(here.envs, here.device, {"save_path": str(here.folder)})
        super().__init__(env, train_cfg, str(here.folder), here.device)

    def _configure_multi_gpu(self) -> None:
        rank = self._rank
        self.gpu_world_size, self.gpu_local_rank, self.gpu_global_rank = rank.world_size, rank.local_rank, rank.rank
        self.is_distributed = rank.world_size > 1
        ours = {"global_rank": rank.rank, "local_rank": rank.local_rank, "world_size": rank.world_size}
        self.cfg["multi_gpu"] = ours if self.is_distributed else None

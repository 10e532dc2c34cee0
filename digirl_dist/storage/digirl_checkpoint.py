"""What Accelerate wrote for DigiRL: ``trainer.pt``, a folder; for DistRL ``trainer_current_policy.pt/model.pt`` too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from digirl_dist.errors import CheckpointError
from digirl_dist.storage.checkpoint import reading

if TYPE_CHECKING:
    import torch

POLICY_FILE = "pytorch_model.bin"
_RANK_PREFIX = "module."
_TIED = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
"""The policy's embeddings by two more names."""


@dataclass(frozen=True)
class DigirlCheckpoint:
    """The policy of a DigiRL or DistRL run, which has Auto-UI's form. How many updates made it is not written there."""

    folder: Path

    def state(self) -> dict[str, torch.Tensor]:
        """Returns the policy's weights under the names of ``Auto-UI-Base``, loaded without running any code in them.

        Runs on several GPUs put a prefix before each name. Raises CheckpointError if the file cannot be read.
        """
        import torch

        from digirl_dist.storage.safe_torch_load import load_state

        path = self.folder / POLICY_FILE
        with reading(path):
            content = load_state(path)
        if not isinstance(content, Mapping) or not all(isinstance(each, torch.Tensor) for each in content.values()):
            raise CheckpointError(f"{path} does not hold the weights of a policy")
        named = {str(name).removeprefix(_RANK_PREFIX): tensor for name, tensor in content.items()}
        return {name: tensor for name, tensor in named.items() if name not in _TIED}

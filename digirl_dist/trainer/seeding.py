"""Random numbers of an update that do not depend on earlier updates."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def seeded(seed: int, iteration: int) -> Iterator[None]:
    """Reseeds torch's generators for one update, so that an update after a resume draws the same numbers as without.

    Looks at CUDA only where it is in use: a machine may have devices that its driver is too old for.
    """
    in_use = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    devices = list(range(torch.cuda.device_count())) if in_use else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(int(np.random.SeedSequence([seed, iteration]).generate_state(1)[0]))
        yield

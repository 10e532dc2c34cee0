"""Random numbers of updates that do not depend on what ran before them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def seeded(seed: int, iteration: int) -> Iterator[None]:
    """torch's generators begin anew for each update, so that one after a resume draws what it would have drawn."""
    devices = list(range(torch.cuda.device_count()))
    with torch.random.fork_rng(devices):
        torch.manual_seed(int(np.random.SeedSequence([seed, iteration]).generate_state(1)[0]))
        yield

"""What all tests share."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Several processes share two cores."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import torch

    torch.set_num_threads(1)

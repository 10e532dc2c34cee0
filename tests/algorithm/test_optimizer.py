"""Minibatch gradient descent: rows a few at once, clipping, decay, schedule, and what stops it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from digirl_dist.algorithm.optimizer import MinibatchOptimizer
from digirl_dist.errors import TrainingError
from digirl_dist.parallel.peers import Alone
from digirl_dist.settings import OptimizerSettings
from digirl_dist.storage.status import Status

ROWS = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))


def parameter() -> nn.Parameter:
    return nn.Parameter(torch.tensor([0.5, -1.0, 2.0]))


def fit(settings: OptimizerSettings, weight: nn.Parameter, scale: float = 1.0) -> MinibatchOptimizer:
    optimizer = MinibatchOptimizer([weight], settings, 0, "the loss")
    optimizer.fit(12, lambda batch: scale * ((ROWS[batch] @ weight) ** 2).mean())
    return optimizer


def test_rows_that_pass_a_few_at_once_make_the_step_of_all() -> None:
    large, small = parameter(), parameter()
    fit(OptimizerSettings(batch_size=12, epochs=2), large)
    fit(OptimizerSettings(batch_size=12, rows_at_once=3, epochs=2), small)
    assert torch.allclose(large, small, atol=1e-6)


def test_an_update_says_how_many_of_its_steps_are_made() -> None:
    status, weight, seen = Status(), parameter(), []
    status.host("learn")

    def loss(batch: list[int]) -> torch.Tensor:
        seen.append(status.now)
        return ((ROWS[batch] @ weight) ** 2).mean()

    settings = OptimizerSettings(batch_size=4, epochs=1)
    MinibatchOptimizer([weight], settings, 0, "the loss", Alone(status.stepped)).fit(12, loss)
    assert seen == ["learn: 0 of 3", "learn: 1 of 3", "learn: 2 of 3"]


def test_weighted_rows_that_pass_a_few_at_once_make_the_step_of_all() -> None:
    """Of 12 rows in parts of 5, 5 and 2, each row counts for its weight in the whole step."""
    weights = torch.linspace(0.1, 3, 12)
    moved = []
    for settings in (
        OptimizerSettings(batch_size=12, epochs=1),
        OptimizerSettings(batch_size=12, rows_at_once=5, epochs=1),
    ):
        weight = parameter()

        def loss_of(batch: list[int], weight: nn.Parameter = weight) -> torch.Tensor:
            return (weights[batch] * (ROWS[batch] @ weight) ** 2).sum() / weights[batch].sum()

        optimizer = MinibatchOptimizer([weight], settings, 0, "the loss")
        optimizer.fit(12, loss_of, lambda batch: float(weights[batch].sum()))
        moved.append(optimizer.state_dict()["optimizer"]["state"][0]["exp_avg"])
    expected = (weights[:, None] * 2 * ROWS * (ROWS @ parameter())[:, None]).sum(dim=0) / weights.sum()
    expected = 0.1 * (expected / expected.norm().clamp(min=1.0)).detach()
    assert torch.allclose(moved[0], expected, atol=1e-6) and torch.allclose(moved[1], expected, atol=1e-6)


@pytest.mark.parametrize("size", [12, 5, 1])
def test_a_share_of_the_minibatches_has_its_turn(size: int) -> None:
    weight, made = parameter(), []

    def loss_of(batch: list[int]) -> torch.Tensor:
        made.append(batch)
        return ((ROWS[batch] @ weight) ** 2).mean()

    optimizer = MinibatchOptimizer([weight], OptimizerSettings(batch_size=size, epochs=3), 0, "the loss")
    optimizer.fit(12, loss_of)
    of_all = len(made)
    optimizer.fit(12, loss_of, share=1 / 3)
    assert of_all == math.ceil(36 / size) and len(made) - of_all == math.ceil(of_all / 3)


def test_a_step_is_that_of_adam_on_the_clipped_gradient() -> None:
    """Kingma & Ba (arXiv 1412.6980), algorithm 1, two steps in NumPy."""
    weight, rows = parameter(), ROWS.double().numpy()
    fit(OptimizerSettings(learning_rate=0.1, batch_size=12, epochs=2, clip_norm=0.5), weight)
    expected, first, second = np.array([0.5, -1.0, 2.0]), np.zeros(3), np.zeros(3)
    for step in (1, 2):
        gradient = 2 * rows.T @ (rows @ expected) / 12
        gradient *= min(1.0, 0.5 / (np.linalg.norm(gradient) + 1e-6))
        first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
        expected = expected - 0.1 * (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)
    np.testing.assert_allclose(weight.detach().numpy(), expected, atol=1e-5)


@pytest.mark.parametrize(("scale", "said"), [(1e9, "beyond 1e\\+04"), (float("nan"), "became nan")])
def test_an_exploding_loss_stops_before_it_moves_anything(scale: float, said: str) -> None:
    weight = parameter()
    with pytest.raises(TrainingError, match=f"the loss .*{said}"):
        fit(OptimizerSettings(), weight, scale)
    assert torch.equal(weight, parameter())


def test_a_gradient_that_is_no_number_stops_before_it_moves_anything() -> None:
    weight = nn.Parameter(torch.zeros(1))
    optimizer = MinibatchOptimizer([weight], OptimizerSettings(), 0, "the loss")
    with pytest.raises(TrainingError, match="the gradient of the loss became"):
        optimizer.fit(4, lambda batch: weight.abs().sqrt().sum())
    assert weight.item() == 0.0


def test_a_step_that_is_no_number_is_skipped_and_counted_until_it_is_one_of_most() -> None:
    def skipped(broken: int, passes: int) -> int:
        weight = parameter()
        settings = OptimizerSettings(batch_size=2 * passes, epochs=2, rows_at_once=2)
        optimizer = MinibatchOptimizer([weight], settings, 0, "the loss")
        steps = 0

        def loss_of(batch: list[int]) -> torch.Tensor:
            nonlocal steps
            steps += 1
            factor = [math.nan, math.inf, 1e300][steps % 3] if steps <= broken else 1.0
            return (ROWS[batch] @ weight).mean() * factor

        fit = optimizer.fit(12, loss_of)
        assert torch.isfinite(weight).all() and math.isfinite(fit.loss) and fit.learned == set(range(12))
        return fit.skipped

    assert skipped(6, 1) == 6 and skipped(5, 2) == 3
    with pytest.raises(TrainingError, match=r"in 7 of 12 steps the loss became"):
        skipped(7, 1)


def test_a_resumed_run_may_go_on_with_another_learning_rate() -> None:
    weight = parameter()
    state = fit(OptimizerSettings(batch_size=12, epochs=1), weight).state_dict()
    before = weight.detach().clone()
    settings = OptimizerSettings(learning_rate=1e-9, batch_size=12, epochs=1)
    lower = MinibatchOptimizer([weight], settings, 0, "the loss")
    lower.load_state_dict(state)
    lower.fit(12, lambda batch: ((ROWS[batch] @ weight) ** 2).mean())
    assert (weight - before).abs().max() < 1e-6


def test_weights_decay_apart_from_the_gradient_and_the_rate_falls_to_nothing() -> None:
    """Loshchilov & Hutter (arXiv 1711.05101), with a gradient of nothing."""
    weight, frozen, rates = parameter(), parameter().requires_grad_(False), []
    settings = OptimizerSettings(learning_rate=0.1, batch_size=12, epochs=1, weight_decay=0.5, anneal_iterations=4)
    optimizer = MinibatchOptimizer([weight, frozen], settings, 0, "the loss")
    for _ in range(5):
        rates.append(optimizer.learning_rate)
        optimizer.fit(12, lambda _: 0.0 * weight.sum())
    assert rates == pytest.approx([0.1, 0.075, 0.05, 0.025, 0.0])
    left = float(np.prod([1 - 0.5 * rate for rate in rates]))
    assert torch.allclose(weight, left * parameter()) and torch.equal(frozen, parameter())
    resumed = MinibatchOptimizer([parameter(), frozen], settings, 0, "the loss")
    resumed.load_state_dict(optimizer.state_dict())
    assert resumed.learning_rate == 0.0

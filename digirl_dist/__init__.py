"""Train device-control agents with reinforcement learning on a GPU host and CPU workers reached over SSH.

    from digirl_dist import Fleet, Run

    policy = Run("runs/demo").policy()
    with Fleet(["10.0.0.2", "10.0.0.3"], bsize=8, emulator="phone") as fleet:
        print(fleet.collect(policy, episodes=64).to_pandas().groupby("task").success.mean())

The names below are the public interface; each is imported when it is first used.
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = [
    "Agent",
    "Algorithm",
    "BoxActions",
    "Decision",
    "DeviceActions",
    "DiscreteActions",
    "Emulator",
    "EmulatorSpec",
    "Endpoint",
    "Fleet",
    "Label",
    "Learned",
    "Lost",
    "MinibatchOptimizer",
    "Observation",
    "OptimizerSettings",
    "Policy",
    "ProductActions",
    "Row",
    "Run",
    "Step",
    "Task",
    "Trajectory",
    "Transition",
    "train",
]

_HOMES = {
    "Agent": "agent",
    "Algorithm": "algorithm",
    "BoxActions": "emulator",
    "Decision": "trajectory",
    "DeviceActions": "emulator",
    "DiscreteActions": "emulator",
    "Emulator": "emulator",
    "EmulatorSpec": "emulator",
    "Endpoint": "api.endpoint",
    "Fleet": "api.fleet",
    "Label": "emulator",
    "Learned": "algorithm.table",
    "Lost": "collect.leases",
    "MinibatchOptimizer": "algorithm.optimizer",
    "Observation": "trajectory",
    "OptimizerSettings": "settings.algorithms",
    "Policy": "api.policy",
    "ProductActions": "emulator",
    "Row": "algorithm.table",
    "Run": "api.run",
    "Step": "trajectory",
    "Task": "tasks",
    "Trajectory": "trajectory",
    "Transition": "trajectory",
    "train": "api.training",
}
"""The module of each name of the public interface."""

if TYPE_CHECKING:
    from digirl_dist.agent import Agent
    from digirl_dist.algorithm import Algorithm
    from digirl_dist.algorithm.optimizer import MinibatchOptimizer
    from digirl_dist.algorithm.table import Learned, Row
    from digirl_dist.api.endpoint import Endpoint
    from digirl_dist.api.fleet import Fleet
    from digirl_dist.api.policy import Policy
    from digirl_dist.api.run import Run
    from digirl_dist.api.training import train
    from digirl_dist.collect.leases import Lost
    from digirl_dist.emulator import (
        BoxActions,
        DeviceActions,
        DiscreteActions,
        Emulator,
        EmulatorSpec,
        Label,
        ProductActions,
    )
    from digirl_dist.settings.algorithms import OptimizerSettings
    from digirl_dist.tasks import Task
    from digirl_dist.trajectory import Decision, Observation, Step, Trajectory, Transition


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]

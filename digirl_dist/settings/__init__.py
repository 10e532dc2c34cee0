"""The typed configuration: every key of the YAML files under config/, with units and defaults.

Importing this package stays cheap: ``--help`` and the checks of the command line depend on it. The settings of each
emulator, agent, algorithm and collector lie in their own file (see ``plugins``). You can also import them from here, as
well as ``AlgorithmSettings``, which has a block for every algorithm.
"""

from typing import Any

from digirl_dist.settings.algorithms import (
    ActorSettings,
    AlgorithmSettingsBase,
    HindsightSettings,
    OptimizerSettings,
    ValueSettings,
    algorithm_settings,
)
from digirl_dist.settings.engines import EngineSettings, EngineWeights, OpenAIEngineSettings, TransformersEngineSettings
from digirl_dist.settings.judging import ChatSettings, JudgeSettings, Success
from digirl_dist.settings.plugins import AgentSettings, AlgorithmBlock, CollectorSettings, EmulatorSettings, exported
from digirl_dist.settings.run import (
    EvaluationSettings,
    Inference,
    OfflineSettings,
    Parallel,
    PushDtype,
    Settings,
    TaskMode,
    TaskOrder,
    TaskSplit,
    TrainMode,
    is_bsize,
)
from digirl_dist.settings.trainers import DistributedSettings, InProcessSettings, TorchrunSettings, TrainerSettings
from digirl_dist.settings.workers import (
    AndroidInstallSettings,
    InstallSettings,
    LimitSettings,
    RayActorSettings,
    SlurmSettings,
    SshSettings,
)


def __getattr__(name: str) -> Any:
    """The settings that lie in the file of an emulator, agent, algorithm or collector."""
    if name == "AlgorithmSettings":
        return algorithm_settings()
    if not name[0].isupper():  # a module of this package, or one of Python's own names
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return exported(name)

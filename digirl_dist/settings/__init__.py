"""The typed configuration: what the YAML files under config/ may say, with units and defaults.

Importing this package stays cheap: ``--help`` and the checks of the command line run on it.
"""

from digirl_dist.settings.agents import (
    AgentSettings,
    AutoUiSettings,
    CustomAgentSettings,
    DeviceAgentSettings,
    EndpointSettings,
    GenericAgentSettings,
    LoraSettings,
    ModelDtype,
    VlmSettings,
)
from digirl_dist.settings.algorithms import (
    ActorSettings,
    Advantage,
    AlgorithmSettings,
    DigirlSettings,
    FilteredBcSettings,
    GrpoActorSettings,
    GrpoSettings,
    OptimizerSettings,
    PpoSettings,
    ValueSettings,
)
from digirl_dist.settings.chat import ChatSettings
from digirl_dist.settings.collectors import CollectorSettings, RayCollectorSettings, SshCollectorSettings
from digirl_dist.settings.distributed import DistributedSettings
from digirl_dist.settings.emulators import (
    AndroidSettings,
    CustomEmulatorSettings,
    EmulatorSettings,
    GymnasiumSettings,
    MiniwobSettings,
    PhoneSettings,
    RehearsalSettings,
)
from digirl_dist.settings.fleet import AndroidInstallSettings, InstallSettings, LimitSettings, SshSettings
from digirl_dist.settings.judging import JudgeSettings, Success
from digirl_dist.settings.run import (
    Close,
    EvaluationSettings,
    Inference,
    OfflineSettings,
    Parallel,
    PushDtype,
    Settings,
    TaskMode,
    TaskOrder,
    TaskSplit,
    TrainAlgorithm,
    TrainMode,
    is_bsize,
)
from digirl_dist.settings.trainers import InProcessSettings, TorchrunSettings, TrainerSettings

__all__ = [
    "ActorSettings",
    "Advantage",
    "AgentSettings",
    "AlgorithmSettings",
    "AndroidInstallSettings",
    "AndroidSettings",
    "AutoUiSettings",
    "ChatSettings",
    "Close",
    "CollectorSettings",
    "CustomAgentSettings",
    "CustomEmulatorSettings",
    "DeviceAgentSettings",
    "DigirlSettings",
    "DistributedSettings",
    "EmulatorSettings",
    "EndpointSettings",
    "EvaluationSettings",
    "FilteredBcSettings",
    "GenericAgentSettings",
    "GrpoActorSettings",
    "GrpoSettings",
    "GymnasiumSettings",
    "InProcessSettings",
    "Inference",
    "InstallSettings",
    "JudgeSettings",
    "LimitSettings",
    "LoraSettings",
    "MiniwobSettings",
    "ModelDtype",
    "OfflineSettings",
    "OptimizerSettings",
    "Parallel",
    "PhoneSettings",
    "PpoSettings",
    "PushDtype",
    "RayCollectorSettings",
    "RehearsalSettings",
    "Settings",
    "SshCollectorSettings",
    "SshSettings",
    "Success",
    "TaskMode",
    "TaskOrder",
    "TaskSplit",
    "TorchrunSettings",
    "TrainAlgorithm",
    "TrainMode",
    "TrainerSettings",
    "ValueSettings",
    "VlmSettings",
    "is_bsize",
]

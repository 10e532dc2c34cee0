"""What can be chosen by name: every emulator, agent, algorithm and collector is a file of one folder per kind.

The file ``NAME.py`` holds the settings class behind ``emulator=NAME``, whose methods build the thing. All of these
files are imported to compose a configuration, so they import nothing heavy; their methods may.
"""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import digirl_dist
from digirl_dist.settings.expert import MISSING
from digirl_dist.settings.paths import FilePath


@dataclass
class EmulatorSettings:
    """What every emulator has."""

    name: str = MISSING
    packages: list[str] = field(default_factory=list)
    """Packages that ``pip`` installs on the workers, such as minigrid. Without a stated version, the host's version."""
    setup: FilePath | None = None
    """A Bash script on the host. It runs once on each worker, after the packages are installed, in their
    environment."""


@dataclass
class AgentSettings:
    """What every agent has."""

    name: str = MISSING


def values(settings: EmulatorSettings | AgentSettings) -> dict[str, Any]:
    """Returns the settings that one emulator or agent has by itself, as keyword arguments for it."""
    shared = {one.name for one in (*fields(EmulatorSettings), *fields(AgentSettings))}
    return {one.name: getattr(settings, one.name) for one in fields(settings) if one.name not in shared}


@dataclass
class CollectorSettings:
    """What every collector has."""

    name: str = MISSING


@dataclass
class AlgorithmBlock:
    """The block ``algorithm.NAME`` of one algorithm."""


@dataclass(frozen=True)
class Kind:
    """One kind of things to choose from."""

    name: str
    """Its key in the configuration."""
    folder: str
    """The package of its files, below this one."""
    base: type
    """What its settings classes derive from."""

    def names(self) -> list[str]:
        """Returns what can be chosen, in alphabetical order; imports nothing."""
        folder = Path(digirl_dist.__file__).parent.joinpath(*self.folder.split("."))
        return sorted(module.name for module in pkgutil.iter_modules([str(folder)]))

    def module(self, name: str) -> ModuleType:
        """Returns the file behind a name."""
        return importlib.import_module(f"digirl_dist.{self.folder}.{name}")

    def settings(self, name: str) -> type:
        """Returns the settings class behind a name. Raises TypeError for a file that does not hold exactly one."""
        module = self.module(name)
        defined = (each for each in vars(module).values() if getattr(each, "__module__", None) == module.__name__)
        found: list[Any] = [each for each in defined if isinstance(each, type) and issubclass(each, self.base)]
        if len(found) != 1:
            raise TypeError(f"{module.__file__} defines {len(found)} classes that derive from {self.base.__name__}")
        if "name" in self.base.__dict__ and found[0].name != name:
            raise TypeError(f"{module.__file__} holds the settings of {self.name}={name}, but calls it {found[0].name}")
        cls: type = found[0]
        return cls


EMULATOR = Kind("emulator", "emulator.plugins", EmulatorSettings)
AGENT = Kind("agent", "agent.plugins", AgentSettings)
ALGORITHM = Kind("algorithm", "algorithm.plugins", AlgorithmBlock)
COLLECTOR = Kind("collector", "assembly.collectors", CollectorSettings)
KINDS = (EMULATOR, AGENT, ALGORITHM, COLLECTOR)


@cache
def settings_classes(kind: Kind) -> dict[str, type]:
    """Returns the settings class of every name."""
    return {name: kind.settings(name) for name in kind.names()}


def exported(name: str) -> object:
    """Returns what a file of any kind defines under ``name``, such as its settings class. Raises AttributeError."""
    for kind in KINDS:
        for known in kind.names():
            found = vars(kind.module(known)).get(name)
            if found is not None and found.__module__ == kind.module(known).__name__:
                return found
    raise AttributeError(f"no emulator, agent, algorithm or collector has {name!r}")

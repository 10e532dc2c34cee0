"""The collectors that ``collector=NAME`` chooses for ``parallel: host``: one file each, with its settings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from digirl_dist.settings.plugins import CollectorSettings

if TYPE_CHECKING:
    from digirl_dist.assembly.collector import RunContext
    from digirl_dist.collect.pool import Pool
    from digirl_dist.settings import Settings


@dataclass
class CollectorPlugin(CollectorSettings, ABC):
    """Settings of a collector, which build it."""

    @abstractmethod
    def build(self, context: RunContext, stack: ExitStack) -> Pool:
        """Returns the collector, which the caller closes; ``stack`` closes what it was built from."""

    def check(self, settings: Settings) -> None:
        """Raises SettingsError for a configuration that it cannot run, before anything is made."""

    def reach(self, settings: Settings, is_new: bool) -> None:
        """Raises SettingsError if there is no worker; ``is_new`` tells a new run from one that is continued."""

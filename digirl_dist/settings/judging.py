"""Who says whether an episode was a success, and what a vision-language model that does may be told."""

from dataclasses import dataclass
from enum import Enum

from digirl_dist.settings.chat import ChatSettings


class Success(Enum):
    """Who judges episodes: the emulator, a function of yours (``predicate``), or a model (``judge``)."""

    environment = "environment"
    predicate = "predicate"
    judge = "judge"


@dataclass
class JudgeSettings(ChatSettings):
    """A vision-language model as the judge. It is asked by the host; an outage beyond ``outage_s`` ends the run."""

    prompt: str = ""
    """Your own question, with ``{instruction}`` and ``{actions}`` where these belong; empty: a general one."""
    screenshots: int = 2
    """How many of the last screenshots it sees."""
    parallel: int = 4
    """Requests at the same time."""
    readings: int = 2
    """An answer without a verdict is asked for this often in all, and then counts as no success."""
    usd_per_million_in: float = 0.0
    """Price of a million input tokens, for the figures of cost …"""
    usd_per_million_out: float = 0.0
    """… and of output tokens."""

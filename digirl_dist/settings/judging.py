"""Settings of success: who judges episodes, and the vision-language model that may do so."""

from dataclasses import dataclass
from enum import Enum

from digirl_dist.settings.chat import ChatSettings
from digirl_dist.settings.ranges import Amount, Few, FewOrNone, Processes


class Success(Enum):
    """The judge of episodes: the emulator, your own function (``predicate``), or a model (``judge``)."""

    environment = "environment"
    predicate = "predicate"
    judge = "judge"


@dataclass
class JudgeSettings(ChatSettings):
    """A vision-language model as the judge. The host asks it; an outage beyond ``outage_s`` ends the run."""

    prompt: str = ""
    """Your own prompt, with the placeholders ``{instruction}`` and ``{actions}``; empty: a general one."""
    screenshots: FewOrNone = 2
    """Number of last screenshots that the judge sees."""
    parallel: Processes = 4
    """Largest number of simultaneous requests."""
    readings: Few = 2
    """How often a request is made in total if answers lack a verdict; then the episode counts as no success."""
    usd_per_million_in: Amount = 0.0
    """Price of a million input tokens, for the cost in the metrics."""
    usd_per_million_out: Amount = 0.0
    """Price of a million output tokens, for the cost in the metrics."""

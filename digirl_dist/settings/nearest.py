"""The hint for a name that does not exist."""

import difflib
from collections.abc import Sequence

_MOST = 30


def nearest(name: str, known: Sequence[str]) -> str:
    """Asks for the nearest of the ``known`` names, or tells what there is where none is near."""
    return near(name, known) or f"there are {', '.join(known[:_MOST])}{', …' * (len(known) > _MOST)}"


def near(name: str, known: Sequence[str]) -> str:
    """Asks for the nearest of the ``known`` names; empty if none is near."""
    spelled = {each.lower(): each for each in known}
    close = difflib.get_close_matches(name.lower(), spelled, n=1)
    return f"did you mean {spelled[close[0]]!r}?" if close else ""

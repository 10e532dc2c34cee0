"""The hint for a name that does not exist."""

import difflib
from collections.abc import Sequence

_MOST = 30
_LEAST = 3
"""Characters from which on the beginning of a name stands for it, as ``gym`` for ``gymnasium``."""


def nearest(name: str, known: Sequence[str]) -> str:
    """Asks for the nearest of the ``known`` names, or lists them where none is near."""
    return near(name, known) or f"there are {', '.join(known[:_MOST])}{', …' * (len(known) > _MOST)}"


def near(name: str, known: Sequence[str]) -> str:
    """Asks for the nearest of the ``known`` names; empty if none is near."""
    found = closest(name, known)
    return f"did you mean {found!r}?" if found else ""


def closest(name: str, known: Sequence[str]) -> str:
    """Returns the nearest of the ``known`` names; empty if none is near."""
    spelled, word = {each.lower(): each for each in known}, name.lower()
    longer = [each for each in spelled if len(word) >= _LEAST and each.startswith(word)]
    found = difflib.get_close_matches(word, spelled, n=1) or (longer if len(longer) == 1 else [])
    return spelled[found[0]] if found else ""

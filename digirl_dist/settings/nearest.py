"""The hint for a name that does not exist."""

import difflib
from collections.abc import Sequence


def nearest(name: str, known: Sequence[str]) -> str:
    """Asks for the nearest of the ``known`` names, or tells all where none is near."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    return f"did you mean {close[0]!r}?" if close else f"there are {', '.join(known)}"

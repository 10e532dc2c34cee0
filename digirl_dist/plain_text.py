"""Text from other machines for a terminal: what would steer the terminal is shown in place of being obeyed."""

from __future__ import annotations

import unicodedata

_STEERS = ("Cc", "Cf", "Zl", "Zp", "Cs")
"""Unicode's categories of control characters, of invisible ones (some turn the direction of writing), and of breaks."""
_WANTED = "\n\t\u200d"
"""Line breaks, tabs, and what joins emoji."""


def printable(text: str) -> str:
    """``text`` with escape sequences and the like made visible, as ``\\\\x1b``; line breaks and tabs stay."""
    return "".join(
        character if character in _WANTED or unicodedata.category(character) not in _STEERS else _shown(character)
        for character in text
    )


def one_line(text: str) -> str:
    """The same, and on one line, so that what others say cannot pass for lines of ours."""
    return printable(text).replace("\n", "\\n").replace("\t", " ")


def _shown(character: str) -> str:
    return character.encode("unicode_escape").decode()

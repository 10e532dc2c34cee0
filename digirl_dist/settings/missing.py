"""How a value that must be given is marked."""

from typing import Any

MISSING: Any = "???"
"""How OmegaConf marks a value that must be given; spelled out so that workers need not import it."""

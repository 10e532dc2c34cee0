"""Types that every room shares."""

from __future__ import annotations

from typing import Any

Json = Any
"""A value that ``json`` can write: None, bool, int, float, str, list or dict of these."""

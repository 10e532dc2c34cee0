"""JSON that every library reads: no NaN and no infinite numbers, which have no place in it."""

from __future__ import annotations

import json
import math
from typing import Any

from digirl_dist.types import Json


def dumps(value: Json, **how: Any) -> str:
    """Returns ``value`` as JSON; numbers that are not finite become null. ``how`` goes to ``json.dumps``."""
    try:
        return json.dumps(value, allow_nan=False, **how)
    except ValueError:
        return json.dumps(_finite(value), allow_nan=False, **how)


def _finite(value: Json) -> Json:
    match value:
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {str(key) if isinstance(key, float) else key: _finite(entry) for key, entry in value.items()}
        case list() | tuple():
            return [_finite(entry) for entry in value]
    return value

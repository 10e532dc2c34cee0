"""Pictures as files, as emulators show them."""

from __future__ import annotations

import io
from typing import Any

from PIL import Image


def encoded(image: Image.Image, kind: str = "PNG", **how: Any) -> bytes:
    content = io.BytesIO()
    image.save(content, kind, **how)
    return content.getvalue()

"""Servers that speak OpenAI's chat completions: what their messages are made of. See ``server`` for the asking."""

from __future__ import annotations

import base64

from digirl_dist.types import Json

Messages = list[dict[str, Json]]
"""A chat as it is sent."""


def text_part(text: str) -> Json:
    """A part of a message."""
    return {"type": "text", "text": text}


def image_part(image: bytes) -> Json:
    """A part of a message: a PNG or JPEG, as it is."""
    kind = "jpeg" if image.startswith(b"\xff\xd8") else "png"
    uri = f"data:image/{kind};base64,{base64.b64encode(image).decode('ascii')}"
    return {"type": "image_url", "image_url": {"url": uri}}

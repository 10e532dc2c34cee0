"""OpenAI's chat completions: builds messages, and sends requests to servers that speak them (``client``)."""

from __future__ import annotations

import base64

from digirl_dist.types import Json, media_type

Messages = list[dict[str, Json]]
"""A chat in the form in which it is sent."""


def text_part(text: str) -> Json:
    """Returns a text as part of a message."""
    return {"type": "text", "text": text}


def image_part(image: bytes) -> Json:
    """Returns an unchanged PNG or JPEG as part of a message."""
    uri = f"data:{media_type(image) or 'image/png'};base64,{base64.b64encode(image).decode('ascii')}"
    return {"type": "image_url", "image_url": {"url": uri}}

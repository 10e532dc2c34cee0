"""ATIF as its specification says it: fields, their types, and that there are no others."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta


class _Strict(msgspec.Struct, forbid_unknown_fields=True):
    pass


class Source(_Strict):
    media_type: Literal["image/jpeg", "image/png", "image/gif", "image/webp"]
    path: str


class Part(_Strict):
    type: Literal["text", "image"]
    text: str | None = None
    source: Source | None = None

    def __post_init__(self) -> None:
        if (self.text is None, self.source is None) != ((False, True) if self.type == "text" else (True, False)):
            raise ValueError("a part has a text or a source, as its type says")


class ToolCall(_Strict):
    tool_call_id: str
    function_name: str
    arguments: dict[str, Any]


class Result(_Strict):
    source_call_id: str
    content: list[Part]
    extra: dict[str, Any] = {}


class Observation(_Strict):
    results: list[Result]


class Metrics(_Strict):
    completion_token_ids: list[int]


class Step(_Strict):
    step_id: Annotated[int, Meta(ge=1)]
    source: Literal["system", "user", "agent"]
    message: str | list[Part]
    tool_calls: list[ToolCall] = []
    observation: Observation | None = None
    metrics: Metrics | None = None
    extra: dict[str, Any] = {}


class Agent(_Strict):
    name: str
    version: str


class FinalMetrics(_Strict):
    total_steps: int
    extra: dict[str, Any] = {}


class Trajectory(_Strict):
    schema_version: Literal["ATIF-v1.7"]
    session_id: str
    trajectory_id: str
    agent: Agent
    steps: Annotated[list[Step], Meta(min_length=1)]
    final_metrics: FinalMetrics
    extra: dict[str, Any]

"""ATIF, the trajectory format of Harbor: one folder with a JSON file and its screenshots for each episode.

Agent Trajectory Interchange Format, version 1.7, https://harborframework.com/docs/trajectory-format. The task and the
first screen are a step of the user; each action is a step of the agent with one tool call, whose observation is what
followed. Reward, log-probability and where the episode came from are in ``extra``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import chain
from pathlib import Path

import digirl_dist
from digirl_dist.errors import TrajectoryError
from digirl_dist.export.source import Source
from digirl_dist.storage import strict_json
from digirl_dist.trajectory import Observation, Step, Trajectory
from digirl_dist.types import Json, media_type

_VERSION = "ATIF-v1.7"
_NOT_ARGUMENTS = ("type", "said", "tokens", "unread")


def write(source: Source, folder: Path) -> None:
    """Writes ``tITERATION.TICKET/trajectory.json`` for each training episode. Raises TrajectoryError."""
    name = str(source.chosen("agent"))
    for episode in chain.from_iterable(map(source.episodes, source.files)):
        place = folder / f"t{episode.ticket.iteration}.{episode.ticket.index}"
        (place / "images").mkdir(parents=True)
        content = {
            "schema_version": _VERSION,
            "session_id": source.run_id,
            "trajectory_id": f"{source.run_id}/{place.name}",
            "agent": {"name": name, "version": digirl_dist.__version__},
            "steps": _steps(episode, place),
            "final_metrics": {"total_steps": len(episode.steps) + 1, "extra": {"reward": episode.reward}},
            "extra": _origin(episode),
        }
        (place / "trajectory.json").write_text(strict_json.dumps(content), "utf-8")


def _steps(episode: Trajectory, place: Path) -> list[Json]:
    first = episode.steps[0].observation
    message = [_text(episode.ticket.task.instruction), *_parts(first, place, 0)]
    steps: list[Json] = [{"step_id": 1, "source": "user", "message": message, "extra": _vector(first)}]
    answered = zip(episode.steps, episode.observations[1:], strict=True)
    return steps + [_step(step, seen, number, place) for number, (step, seen) in enumerate(answered, start=1)]


def _step(step: Step, seen: Observation, number: int, place: Path) -> Json:
    action = step.action if isinstance(step.action, Mapping) else {"action": step.action}
    call = f"call_{number}"
    tokens = action.get("tokens")
    extra = {"reward": step.reward, "terminated": step.terminated, "truncated": step.truncated}
    return {
        "step_id": number + 1,
        "source": "agent",
        "message": str(action.get("said", "")),
        "tool_calls": [
            {
                "tool_call_id": call,
                "function_name": str(action.get("type", "act")),
                "arguments": {key: value for key, value in action.items() if key not in _NOT_ARGUMENTS},
            }
        ],
        "observation": {
            "results": [{"source_call_id": call, "content": _parts(seen, place, number), "extra": _vector(seen)}]
        },
        **({"metrics": {"completion_token_ids": tokens}} if isinstance(tokens, list) else {}),
        "extra": extra | ({} if math.isnan(step.log_prob) else {"log_prob": step.log_prob}),
    }


def _parts(seen: Observation, place: Path, number: int) -> list[Json]:
    parts = [_text(seen.text)] if seen.text else []
    if seen.image is not None:
        if (kind := media_type(seen.image)) is None:
            raise TrajectoryError("a screenshot is neither PNG nor JPEG")
        path = f"images/{number:04d}.{kind.removeprefix('image/')}"
        (place / path).write_bytes(seen.image)
        parts.append({"type": "image", "source": {"media_type": kind, "path": path}})
    return parts


def _text(text: str) -> Json:
    return {"type": "text", "text": text}


def _vector(seen: Observation) -> Json:
    return {} if seen.vector is None else {"vector": [float(each) for each in seen.vector]}


def _origin(episode: Trajectory) -> Json:
    ticket = episode.ticket
    return {
        "task": ticket.task.id,
        "seed": ticket.seed,
        "iteration": ticket.iteration,
        "policy_version": ticket.policy_version,
        "worker": episode.worker,
        "success": episode.success,
    }

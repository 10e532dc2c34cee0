"""An OpenEnv environment as a Gymnasium one: its JSON becomes spaces by the rules that ``OpenEnvironment`` states."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from digirl_dist.emulator.openenv_server import OpenEnvServer, ServerSpec
from digirl_dist.errors import ActionError, EmulatorError, SettingsError, on_error
from digirl_dist.tasks import Task
from digirl_dist.types import Json

Schema = Mapping[str, Any]
"""A JSON schema."""

_LONGEST_TEXT = 1 << 30
_MOST_REWARD = 10**300
"""An integer of JSON may be larger than any float."""
_MOST_VALUES = 4096
"""Whole numbers between two bounds, beyond which choosing among them makes no sense."""


class OpenEnvironment(gymnasium.Env[dict[str, Any], Any]):
    """The environment of a server of its own.

    Observations: a number or bool of the schema is part of the vector, as is an array of numbers that has the same
    shape in each observation; an array [H, W, 1 or 3] of whole numbers from 0 to 255 is an image. The rest is text: a
    string alone is the text itself, several fields are lines of ``name: value``, and other JSON is written out.

    Actions: without ``emulator.actions``, each field of the schema is decided that has finitely many values (an enum, a
    bool, a whole number between bounds) or is a number between bounds. Others keep their defaults.

    ``seed`` and the task's params go to the reset. OpenEnv knows one kind of end, ``done``, which is a termination.
    """

    def __init__(
        self, server: ServerSpec, observe: Sequence[str] = (), actions: Sequence[Mapping[str, Json]] = ()
    ) -> None:
        """``observe``: fields of an observation; empty: all but ``metadata``. ``actions``: those to choose from.

        Raises EmulatorError for a server that does not answer, SettingsError for spaces that cannot be mapped."""
        self._app = server.app
        self._server = OpenEnvServer(server)
        with on_error(self.close):
            try:
                schema = self._schema()
                known = _properties(schema.get("observation", {}))
                seen, _, _ = self._ask("reset", {"seed": 0}, server.ready_s)
                self._fields = _chosen(seen, observe, self._app)
                self._spaces = {
                    name: space
                    for name in self._fields
                    if (space := _numbers(known.get(name, {}), seen[name])) is not None
                }
                self._texts = [name for name in self._fields if name not in self._spaces]
                text = {"text": spaces.Text(_LONGEST_TEXT)} if self._texts else {}
                self.observation_space = spaces.Dict({**text, **self._spaces})
                self.action_space, self._native = _actions(self._app, actions, schema.get("action", {}))
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
                raise SettingsError(f"{self._app} describes its spaces in no schema of OpenEnv's: {error}") from error

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        seeded = {} if seed is None else {"seed": seed}
        return self._seen(self._ask("reset", {**(options or {}), **seeded})[0]), {}

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        seen, reward, done = self._ask("step", self._native(action))
        return self._seen(seen), reward, done, False, {}

    def close(self) -> None:
        self._server.close()

    def _schema(self) -> Schema:
        try:
            found = self._server.get("/schema")
        except (OSError, ValueError, RecursionError, http.client.HTTPException) as error:
            raise EmulatorError(f"{self._app} has no schema at /schema: {error}") from error
        return found if isinstance(found, dict) else {}

    def _ask(self, kind: str, data: Json, limit_s: float | None = None) -> tuple[dict[str, Json], float, bool]:
        """Returns the fields of the observation, the reward (0 where there is none) and whether the episode is done."""
        said = self._server.ask(json.dumps({"type": kind, "data": data}), limit_s)
        try:
            answer = json.loads(said)
        except (ValueError, RecursionError):
            answer = said
        match answer:
            case {"type": "error", "data": {"message": message, **more}}:
                told = f"{self._app} refuses a {kind}: {message} {more.get('errors', '')}".strip()[:1000]
                raise (ActionError if more.get("code") == "VALIDATION_ERROR" else EmulatorError)(told)
            case {
                "type": "observation",
                "data": {"observation": dict() as seen, "reward": reward, "done": bool() as done},
            }:
                if isinstance(reward, int | float | None) and abs(reward or 0) < _MOST_REWARD:
                    return seen, float(reward or 0.0), done
        raise EmulatorError(f"{self._app} answers a {kind} with no observation of OpenEnv's: {str(answer)[:200]}")

    def _seen(self, seen: Mapping[str, Json]) -> dict[str, Any]:
        missing = [name for name in self._fields if name not in seen]
        if missing:
            raise EmulatorError(f"{self._app}: {missing[0]} of its observation is missing")
        numbers = {name: seen[name] for name in self._spaces}
        return {**numbers, **({"text": _text({name: seen[name] for name in self._texts})} if self._texts else {})}


def listed_tasks(server: ServerSpec, split: str) -> list[Task]:
    """Returns the tasks of a split that the environment's own Task API lists; none if it has no such API or split.

    Raises EmulatorError for a server that does not start.
    """
    with closing(OpenEnvServer(server)) as opened:
        try:
            [name] = opened.get("/list_environments")
            splits = [each["name"] for each in opened.get(f"/{name}/splits")]
            found = opened.get(f"/{name}/tasks", {"split": split})["tasks"] if split in splits else []
            return [_task(split, index, each) for index, each in enumerate(found)]
        except (AttributeError, LookupError, OSError, TypeError, ValueError, RecursionError, http.client.HTTPException):
            return []


def _task(split: str, index: int, told: Mapping[str, Json]) -> Task:
    """Its reset is asked for the place in the split."""
    texts = [told[name] for name in ("instruction", "prompt", "question") if isinstance(told.get(name), str)]
    return Task(str(told.get("id", f"{split}-{index}")), (texts or [""])[0], {"split": split, "index": index})


def _chosen(seen: Mapping[str, Json], observe: Sequence[str], app: str) -> list[str]:
    there = [name for name in seen if name != "metadata"]
    unknown = [name for name in observe if name not in seen]
    if unknown or not there:
        told = f"has no field {unknown[0]!r}; there are {', '.join(there)}" if unknown else "has no fields"
        raise SettingsError(f"emulator.observe: an observation of {app} {told}")
    return list(observe) or there


def _numbers(schema: Schema, value: Json) -> spaces.Box | None:
    """The space of a field of numbers; None for one that is text."""
    kind = schema.get("type", "any of these")
    if kind not in ("number", "integer", "boolean", "array", "any of these") or isinstance(value, str | dict | None):
        return None
    try:
        array = np.asarray(value)
    except ValueError:
        return None
    if array.dtype.kind not in "biuf" or not array.size:
        return None
    if (
        array.ndim == 3
        and array.shape[2] in (1, 3)
        and array.dtype.kind in "iu"
        and 0 <= array.min() <= array.max() < 256
    ):
        return spaces.Box(0, 255, array.shape, np.uint8)
    return spaces.Box(-np.inf, np.inf, array.shape, np.float32)


def _text(fields: Mapping[str, Json]) -> str:
    written = {name: each if isinstance(each, str) else json.dumps(each) for name, each in fields.items()}
    if len(written) == 1:
        return next(iter(written.values()))
    return "\n".join(f"{name}: {value}" for name, value in written.items())


def _actions(
    app: str, actions: Sequence[Mapping[str, Json]], schema: Schema
) -> tuple[spaces.Space[Any], Callable[[Any], Json]]:
    """The space of actions, and what makes the JSON of a step of one. Raises SettingsError."""
    listed = [dict(action) for action in actions]
    if listed:
        return spaces.Discrete(len(listed)), lambda choice: listed[int(choice)]
    decided: dict[str, tuple[spaces.Space[Any], Callable[[Any], Json]]] = {}
    for name, field in _properties(schema).items():
        finite = _finite(field)
        if finite is not None:
            decided[name] = finite
        elif name in schema.get("required", ()):
            raise _undecidable(app, f"{name} of its actions is {_described(field)}")
    if not decided:
        raise _undecidable(app, "its actions have no field with finitely many values or bounds")
    space = spaces.Dict({name: part for name, (part, _) in decided.items()})
    return space, lambda action: {name: native(action[name]) for name, (_, native) in decided.items()}


def _finite(field: Schema) -> tuple[spaces.Space[Any], Callable[[Any], Json]] | None:
    match field:
        case {"enum": [_, *_] as values}:
            return spaces.Discrete(len(values)), lambda choice: values[int(choice)]
        case {"const": value}:
            return spaces.Discrete(1), lambda _: value
        case {"type": "boolean"}:
            return spaces.Discrete(2), bool
        case {"type": "integer"}:
            low = field.get("minimum", field.get("exclusiveMinimum", np.inf) + 1)
            high = field.get("maximum", field.get("exclusiveMaximum", -np.inf) - 1)
            if 0 <= high - low < _MOST_VALUES:
                return spaces.Discrete(int(high - low) + 1, start=int(low)), int
        case {"type": "number", "minimum": low, "maximum": high} if low < high:
            return spaces.Box(low, high, (), np.float64), float
    return None


def _properties(schema: Schema) -> dict[str, Schema]:
    """The fields of an object but ``metadata``, with references followed."""
    definitions = schema.get("$defs", {})

    def followed(field: Schema) -> Schema:
        match field:
            case {"$ref": str() as place} | {"allOf": [{"$ref": str() as place}]}:
                return dict(definitions.get(place.rpartition("/")[2], {}))
        return field

    return {name: followed(each) for name, each in schema.get("properties", {}).items() if name != "metadata"}


def _described(field: Schema) -> str:
    return "free text" if field.get("type") == "string" else f"of the type {field.get('type', 'any')} without bounds"


def _undecidable(app: str, what: str) -> SettingsError:
    return SettingsError(f"{app}: {what}, from which no agent here can choose; list the actions in emulator.actions")

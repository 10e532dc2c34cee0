"""A chat endpoint that acts for a fleet: the host asks it, and workers need no network."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from digirl_dist.agent.contract import ActsAsNamed, encoded
from digirl_dist.agent.plugins.endpoint import EndpointSettings
from digirl_dist.api import arguments
from digirl_dist.chat import Messages
from digirl_dist.settings.conversion import converted
from digirl_dist.settings.engines import refuse_address
from digirl_dist.settings.extras import extra_needed
from digirl_dist.trajectory import Decision, NoDecision, Observation
from digirl_dist.types import Json

if TYPE_CHECKING:
    import torch

_SAME = (
    *("model", "key_variable", "answer_s", "outage_s", "requests_per_minute"),
    *("system", "coordinates", "previous_actions", "screenshots", "labels"),
)
"""Fields that are settings of ``agent=endpoint`` by the same name."""
_CALLED = {
    **{name: f"Endpoint({name}=…)" for name in _SAME},
    "base_url": "Endpoint(url=…)",
    "request": "Endpoint(sampling=…)",
}
_MOST_AT_ONCE = 1024
_SAMPLING = {"temperature": 1.0, "max_tokens": 256}


@dataclass(frozen=True)
class Endpoint:
    """A model behind any server of OpenAI's chat completions, as ``act`` of a fleet: ``Endpoint(URL, "my-model")``.

    Each step is a request of its own. Steps have ``tokens``, ``token_log_probs`` and ``prompt_tokens`` where the server
    gives them, as vLLM and SGLang do. An endpoint that fails is a loss to the agent, never a reward of 0.
    """

    url: str
    """Such as http://127.0.0.1:8000/v1."""
    model: str
    sampling: Mapping[str, Json] = field(default_factory=dict)
    """Further keys of the request; without them, a temperature of 1 and 256 tokens at most."""
    system: str = ""
    """Your own rules for a model that sees screens; empty: general ones that ask for one line of JSON."""
    coordinates: str = "shares"
    """How a model that sees screens writes places: in ``shares``, ``thousandths`` or ``pixels``."""
    messages: Callable[[Observation], Messages] | None = None
    """Makes the chat of an observation; None: rules, screenshot and task."""
    read: Callable[[str], Json] | None = None
    """Makes the action of an answer, for emulators other than screens; None: a touch action."""
    key_variable: str = ""
    """NAME of the environment variable with the key; empty: the server needs none."""
    previous_actions: int = 3
    """Number of latest actions in the prompt of a model that sees screens."""
    screenshots: int = 1
    """Number of latest screenshots in its prompt, the present one included."""
    labels: bool = False
    """List what is on the screen, numbered, for emulators that name it; the model may tap a number."""
    at_once: int = 64
    """Requests that are under way at a time."""
    requests_per_minute: float = 0.0
    """Largest rate of requests, which are spread evenly; 0: no limit."""
    answer_s: float = 60.0
    """Longest wait for one answer, in seconds."""
    outage_s: float = 120.0
    """Longest time, in seconds, to retry a server that is down or busy; then the episode runs again."""
    seeded: bool = True
    """Send a seed that follows from the ticket; False for servers that refuse it."""
    tokens: bool = True
    """Ask for token ids and log-probabilities; a server that refuses that is asked without."""

    def __post_init__(self) -> None:
        """Raises SettingsError for values that cannot be used."""
        refuse_address("Endpoint(url=…)", self.url)
        arguments.name("Endpoint(model=…)", self.model)
        arguments.whole("at_once", self.at_once, 1, _MOST_AT_ONCE)
        self.settings  # noqa: B018 - it is checked

    @classmethod
    def of(cls, settings: EndpointSettings) -> Endpoint:
        """Returns the endpoint that settings of ``agent=endpoint`` describe."""
        with extra_needed("agent=endpoint", "httpx", "endpoint"):
            from digirl_dist.chat.client import url_of
        sampling = {**dict.fromkeys(_SAMPLING), **settings.request}
        tokens = bool(sampling.pop("logprobs", None))
        same: dict[str, Any] = {name: getattr(settings, name) for name in _SAME if name != "coordinates"}
        return cls(
            url_of(settings),
            sampling=sampling,
            seeded=settings.seed,
            tokens=tokens,
            coordinates=settings.coordinates.value,
            **same,
        )

    @property
    def settings(self) -> EndpointSettings:
        """The same as settings of ``agent=endpoint``."""
        return converted(
            EndpointSettings,
            {
                "base_url": self.url,
                "request": json.loads(encoded({**_SAMPLING, **self.sampling})),  # numbers of NumPy as plain ones
                "seed": self.seeded,
                **{name: getattr(self, name) for name in _SAME},
            },
        )


class Endpoints(ActsAsNamed):
    """An agent that is an endpoint of the caller's. Fulfils ``ServedAgent``."""

    def __init__(self, first: Endpoint) -> None:
        super().__init__(first)
        self.away: Callable[[Any], None] = lambda _: None
        """Called after each failed attempt."""
        self._endpoint: Endpoint | None = None
        self._newest: Any = None
        """What acts through it, since the version that came last."""
        self._of: dict[str, Any] = {}

    def act(
        self, observations: Sequence[Observation], rngs: Sequence[np.random.Generator]
    ) -> list[Decision | NoDecision]:
        return cast("list[Decision | NoDecision]", self._newest.act(observations, rngs))

    def load(self, version: int, state: Mapping[str, torch.Tensor]) -> str:
        self.came(version)
        if (named := self.acting) != self._endpoint:
            build: Any = named.settings.build(None)  # which looks at no emulator
            made = build(
                messages=named.messages,
                read=named.read,
                tokens=named.tokens,
                called=_CALLED,
            )
            made.away = lambda outage: self.away(outage)
            made.connect()
            self._newest, self._endpoint = made, named
        self._of[str(version)] = self._newest
        return str(version)

    def unload(self, adapter: str) -> None:
        gone = self._of.pop(adapter)
        if gone is not self._newest and gone not in self._of.values():
            gone.close()

    def decide(self, adapter: str, observation: Observation, rng: np.random.Generator) -> Decision:
        return cast(Decision, self._of[adapter].decide(adapter, observation, rng))

    def close(self) -> None:
        """Ends all waiting for servers."""
        for one in {self._newest, *self._of.values()} - {None}:
            one.close()

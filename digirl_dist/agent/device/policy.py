"""A small policy for touch screens: from a screenshot and an instruction to a kind of action, a place and a text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import nn

from digirl_dist.agent import ActionProbabilities
from digirl_dist.agent.device.batch import Typeable, bags_of, labels_of, points_of, texts_of
from digirl_dist.agent.device.encoder import STRIDE, Bags, CriticInputs, Encoder, Ends, Labels, Seen, Texts, contrast
from digirl_dist.agent.device.planes import Shift, Traces, shifted, traces
from digirl_dist.agent.device.reading import Read, read
from digirl_dist.agent.device.touch import Choice, Kind, Point, TouchGrid, kinds_of
from digirl_dist.agent.pixels import Pictures, fitted_size
from digirl_dist.agent.sampling import draw
from digirl_dist.emulator import DeviceActions, EmulatorSpec
from digirl_dist.trajectory import Decision, Observation
from digirl_dist.types import Json

_READ_TEXTS = 2048
"""Texts of observations that are kept as they were read: an update sees the same ones over and over. Of what is acted
on, nearly each is new, and none is kept."""
_LOOKED_FOR = {
    "tap": [2.5, 4.0, 0.5, 0.5, 0.0, 1.0, -2.0, 0.0],
    "type_at": [1.0, 0.0, 0.0, 0.5, 5.0, 0.0, -1.0, 0.0],
    "drag": [3.0, 2.0, 0.0, 1.0, -1.0, 0.0, -1.0, 0.0],
    "select": [2.5, 2.0, 0.0, 1.0, 0.0, 0.0, -1.0, 0.0],
    "swipe": [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0],
    "end": [3.5, 0.0, 0.5, 0.0, 0.0, -2.5, 0.0, 0.0],
}
"""How strongly an untrained policy prefers labels, by their flags (``LABEL_FLAGS``) and kind of place, in nats."""
_TO_NOTHING = 0.3
"""How much less than other touches a drag of an untrained policy ends where something is drawn: it may end anywhere."""
_UNQUOTED = 0.3
"""How much less often an untrained policy types where the instruction quotes nothing."""


class Looked(NamedTuple):
    """What the policy saw and scored of B observations."""

    seen: Seen
    kinds: torch.Tensor
    """Log-probabilities of the kinds of action, [B, K]."""
    places: torch.Tensor
    """Log-probabilities of the N places given each of the kinds of place, [B, P, N]."""


class DevicePolicy(nn.Module):
    """Fulfils ``Agent``.

    The probability of an action is that of its kind, where it has a place times that of the place, and where it types
    or drags times that of the text, or of the other place, given the first. Places are chosen by how well their look
    matches the instruction (attention over a touch grid), so a button is found wherever it is; with ``context`` also by
    what is seen at a few other places that the instruction asks for: which button is right may stand there. The latest
    actions, which the observation's text tells, are a second picture of traces; what was done on the very same screen
    is at first less probable, by a weight that is learned like all others. Where the emulator names what is on the
    screen, its labels are places as well, and their names are read and can be typed. Kinds have one last layer for
    instructions that quote a text and one for the others: else, what is learned of tasks without typing would soon keep
    it from typing anywhere. The picture is scaled to one size per emulator; the architecture is the same for all sizes.
    """

    def __init__(
        self,
        spec: EmulatorSpec,
        *,
        short_side: int,
        width: int,
        actions: Sequence[str],
        memory: int,
        saliency: float,
        reluctance: float,
        labels: bool,
        context: bool,
        shift: int,
    ) -> None:
        """The values are the settings of ``agent=device``."""
        super().__init__()
        assert spec.image_size is not None and isinstance(spec.actions, DeviceActions)  # as the plugin's ``suits`` says
        size = fitted_size(spec.image_size, short_side, STRIDE)
        self._reads = labels and spec.labels
        # Typing at a point is what the wrapper of an agent with memory makes of two actions.
        useful = [*spec.actions.useful, *["type_at"] * bool(memory and "type" in spec.actions.useful)]
        kinds = kinds_of(actions or useful, self._reads)
        self._grid = TouchGrid(size[0] // STRIDE, size[1] // STRIDE, kinds)
        self._pictures = Pictures(size)
        self._shift = shift
        self._placed = [index for index, kind in enumerate(kinds) if kind.placed]
        drags = any(kind.drags for kind in kinds)
        places = [kinds[index].action.type for index in self._placed] + ["end"] * drags
        self._remembered = lru_cache(_READ_TEXTS)(read)
        self._encoder = Encoder(self._grid, len(places), width, self._reads, context)
        self.feature_size = self._encoder.feature_size + 2 * len(kinds)
        self._kind_head = _kind_head(self.feature_size, width, kinds)
        if any(kind.types for kind in kinds):
            self._texts = Texts(width)
        if drags:
            self._ends = Ends(width)
        self._critic_inputs = CriticInputs(width, self._grid.cells)
        self.critic_size = self._critic_inputs.size + 2 * len(kinds)
        self._saliency = nn.Parameter(
            torch.tensor([[saliency * (_TO_NOTHING if name == "end" else 1.0)] for name in places])
        )
        self._reluctance = nn.Parameter(torch.full((len(places), 1), reluctance))
        free = torch.tensor([0.0 if kind.placed else reluctance for kind in kinds])
        self._kind_reluctance = nn.Parameter(free)
        if self._reads:
            self._naming = nn.Parameter(torch.tensor([_LOOKED_FOR[name] for name in places]))
        self.eval()

    def act(self, observations: Sequence[Observation], rngs: Sequence[np.random.Generator]) -> list[Decision]:
        images = self._pictures.decoded([observation.image for observation in observations])
        rows = self._all_read(observations, read)
        looked = self._look(images, rows)
        kinds, places = looked.kinds.double().cpu().numpy(), looked.places.double().cpu().numpy()
        chosen, sums = [], []
        for own_kinds, own_places, rng in zip(kinds, places, rngs, strict=True):
            kind = draw(own_kinds, rng)
            of_place = own_places[self._placed.index(kind)] if kind in self._placed else np.zeros(1)
            place = draw(of_place, rng)
            chosen.append(Choice(kind, place))
            sums.append(float(own_kinds[kind] + of_place[place]))
        for row, scores in self._seconds(looked.seen, rows, chosen).items():
            of_second = scores.double().cpu().numpy()
            second = draw(of_second, rngs[row])
            chosen[row] = Choice(chosen[row].kind, chosen[row].place, second)
            sums[row] += float(of_second[second])
        made = [self._grid.action(choice, each.texts, each.labels) for choice, each in zip(chosen, rows, strict=True)]
        return [Decision(action, log_prob) for action, log_prob in zip(made, sums, strict=True)]

    def log_prob(self, observations: Sequence[Observation], actions: Sequence[Json]) -> torch.Tensor:
        """In training mode those of randomly shifted pictures and of fewer words, see ``Encoder.words``.

        Raises ActionError for actions it never chooses.
        """
        pictures = self._pictures.remembered([observation.image for observation in observations])
        rows = self._all_read(observations)
        pairs = zip(rows, actions, strict=True)
        choices = [self._grid.choice(action, each.texts, each.labels) for each, action in pairs]
        shifts: list[Shift] | None = None
        if self.training and self._shift:
            points = [self._touched(choice, action) for choice, action in zip(choices, actions, strict=True)]
            pictures, shifts = shifted(pictures, points, self._shift)
            rowwise = zip(choices, actions, shifts, strict=True)
            choices = [self._moved(choice, action, shift) for choice, action, shift in rowwise]
        looked = self._look(pictures, rows, shifts)
        kind = self._tensor([choice.kind for choice in choices])
        found = looked.kinds.gather(1, kind[:, None])[:, 0]
        placed = [row for row, choice in enumerate(choices) if choice.kind in self._placed]
        of_kind = self._tensor([self._placed.index(choices[row].kind) for row in placed])
        place = self._tensor([choices[row].place for row in placed])
        found = found.index_add(0, self._tensor(placed), looked.places[self._tensor(placed), of_kind, place])
        seconds = self._seconds(looked.seen, rows, choices, shifts)
        of_second = [scores[choices[row].second] for row, scores in seconds.items()]
        return found.index_add(0, self._tensor(list(seconds)), torch.stack(of_second).to(found)) if seconds else found

    def features(self, observations: Sequence[Observation]) -> torch.Tensor:
        with torch.no_grad():
            images = self._pictures.remembered([observation.image for observation in observations])
            seen, done = self._see(images, self._all_read(observations), None)
            return _all_features(seen, done)

    def critic_inputs(self, observations: Sequence[Observation]) -> torch.Tensor:
        """Returns colours of the screen, words of the instruction, and kinds of the latest actions."""
        images = self._pictures.remembered([observation.image for observation in observations]).to(self._device)
        rows = self._all_read(observations)
        done = traces([each.memories for each in rows], self._grid).to(self._device)
        seen = self._critic_inputs(images, self._bags(rows))
        return torch.cat([seen, done.latest, done.here], dim=1)

    def probabilities(self, observations: Sequence[Observation]) -> list[ActionProbabilities]:
        """The cells are those of a tap; a label counts for the cell of its middle."""
        images = self._pictures.decoded([observation.image for observation in observations])
        rows = self._all_read(observations, read)
        looked = self._look(images, rows)
        names, found = [kind.name for kind in self._grid.kinds], []
        for each, kinds, places in zip(
            rows, looked.kinds.exp().tolist(), looked.places[:, 0].exp().tolist(), strict=True
        ):
            cells = places[: self._grid.cells]
            for label, share in zip(each.labels, places[self._grid.cells :], strict=False):
                cells[self._grid.cell(label.middle)] += share
            found.append(ActionProbabilities(dict(zip(names, kinds, strict=True)), self._grid.by_rows(cells)))
        return found

    @property
    def _device(self) -> torch.device:
        return next(self.parameters()).device

    def _tensor(self, values: Sequence[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.long, device=self._device)

    def _all_read(
        self, observations: Sequence[Observation], how: Callable[[str, bool], Read] | None = None
    ) -> list[Read]:
        return [(how or self._remembered)(observation.text, self._reads) for observation in observations]

    def _touched(self, choice: Choice, action: Json) -> list[Point]:
        """The points that must stay on the picture."""
        kind = self._grid.kinds[choice.kind]
        start = [(action["x"], action["y"])] if kind.placed else []
        return [*start, (action["to_x"], action["to_y"])] if kind.drags else start

    def _moved(self, choice: Choice, action: Json, shift: Shift) -> Choice:
        """The same choice on a picture that was moved: cells are others there, labels move along."""
        kind = self._grid.kinds[choice.kind]
        points = [(x + shift[1], y + shift[0]) for x, y in self._touched(choice, action)]
        place, second = choice.place, choice.second
        if kind.placed and place < self._grid.cells:
            place = self._grid.cell(points[0])
        if kind.drags and second < self._grid.cells:
            second = self._grid.cell(points[1])
        return Choice(choice.kind, place, second)

    def _see(self, images: torch.Tensor, rows: Sequence[Read], shifts: Sequence[Shift] | None) -> tuple[Seen, Traces]:
        """What the network makes of the observations, with all that an untrained policy prefers in the logits."""
        done = traces([each.memories for each in rows], self._grid, shifts).to(self._device)
        labels = self._to(labels_of(rows, self._grid, shifts)) if self._reads else None
        images = images.to(self._device)
        seen = self._encoder(images, self._bags(rows), done.planes, labels)
        drawn = contrast(images).flatten(1)[:, None]
        prior = self._saliency * drawn - self._reluctance * done.planes[:, 1].flatten(1)[:, None]
        if labels is not None:
            prior = torch.cat([prior, self._naming @ labels.flags.transpose(1, 2)], dim=2)
        return seen._replace(places=seen.places + prior), done

    def _look(self, images: torch.Tensor, rows: Sequence[Read], shifts: Sequence[Shift] | None = None) -> Looked:
        seen, done = self._see(images, rows, shifts)
        heads = self._kind_head(_all_features(seen, done)).unflatten(1, (2, -1))
        quotes = torch.tensor([each.quotes for each in rows], device=self._device)
        kinds = torch.where(quotes[:, None], heads[:, 1], heads[:, 0]) - self._kind_reluctance * done.here
        types = torch.tensor([kind.types for kind in self._grid.kinds], device=self._device)
        silent = torch.tensor([not each.texts for each in rows], device=self._device)
        kinds = kinds.masked_fill(silent[:, None] & types, float("-inf"))
        return Looked(seen, kinds.log_softmax(dim=1), seen.places.log_softmax(dim=2))

    def _seconds(
        self, seen: Seen, rows: Sequence[Read], choices: Sequence[Choice], shifts: Sequence[Shift] | None = None
    ) -> dict[int, torch.Tensor]:
        """The log-probabilities of texts, or of ends of drags, for each row whose kind of action has such."""
        kinds = [self._grid.kinds[choice.kind] for choice in choices]
        places = self._tensor([choice.place for choice in choices])
        tokens = seen.tokens[torch.arange(len(rows), device=self._device), places]
        placed = torch.tensor([[float(kind.placed)] for kind in kinds], device=self._device)
        typing = [row for row, kind in enumerate(kinds) if kind.types]
        dragging = [row for row, kind in enumerate(kinds) if kind.drags]
        found: dict[int, torch.Tensor] = {}
        if typing:
            texts = self._to(texts_of([rows[row] for row in typing]))
            words = self._encoder.words(texts.words).view(*texts.closed.shape, -1)
            scores = self._texts(_some(seen, typing), (placed * tokens)[typing], words, texts.flags)
            found |= zip(typing, scores.masked_fill(texts.closed, float("-inf")).log_softmax(dim=1), strict=True)
        if dragging:
            points = points_of(rows, self._grid, seen.tokens.shape[1], shifts).to(self._device)
            ways = points - points[torch.arange(len(rows)), places][:, None]
            scores = self._ends(_some(seen, dragging), tokens[dragging], ways[dragging])
            found |= zip(dragging, scores.log_softmax(dim=1), strict=True)
        return found

    def _bags(self, rows: Sequence[Read]) -> Bags:
        words, starts = bags_of([each.words for each in rows])
        return words.to(self._device), starts.to(self._device)

    def _to(self, tensors: _Tensors) -> _Tensors:
        """The same named tuple on the device of the weights; its first field is bags."""
        (words, starts), *others = tensors
        bags = words.to(self._device), starts.to(self._device)
        return type(tensors)(bags, *(each.to(self._device) for each in others))


_Tensors = TypeVar("_Tensors", Labels, Typeable)


def _some(seen: Seen, rows: list[int]) -> Seen:
    return Seen(*(part[rows] for part in seen))


def _all_features(seen: Seen, done: Traces) -> torch.Tensor:
    return torch.cat([seen.features, done.latest, done.here], dim=1)


def _kind_head(features: int, width: int, kinds: Sequence[Kind]) -> nn.Sequential:
    """Two layers that begin with the priors: the logits of all kinds without, then with a quoted text."""
    last = nn.Linear(width, 2 * len(kinds))
    nn.init.normal_(last.weight, std=0.01)
    unquoted = [kind.prior * (_UNQUOTED if kind.types else 1.0) for kind in kinds]
    last.bias.data.copy_(torch.tensor([*unquoted, *(kind.prior for kind in kinds)]).log())
    return nn.Sequential(nn.Linear(features, width), nn.ReLU(), last)

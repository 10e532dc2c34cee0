"""Which instruction an episode on a web page carried out: its own, with the labels of what was clicked instead.

Most pages that ask for a click name a label (Click on the "Ok" button.), and end with the click. One that was wrong
would have been right under the instruction that names its label.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass

from digirl_dist.types import Json

LABELS_AT = """
const [x, y] = arguments;
const hit = document.elementFromPoint(x, y);
if (!hit || hit.closest('#query')) return null;
const kind = element => element.tagName + ' ' + (element.classList[0] || '');
const label = element => (element.value || element.innerText || element.textContent || '').trim();
const same = [...document.querySelectorAll(hit.tagName)].filter(
    other => kind(other) === kind(hit) && !other.closest('#query'));
return {kind: kind(hit), label: label(hit), labels: [...new Set(same.map(label))].filter(Boolean)};
"""
"""What lies at a point: its kind, its label, and the labels of all of its kind on the page."""


@dataclass(frozen=True)
class Clicked:
    """An element that was clicked, and the ``labels`` of all elements of its ``kind``."""

    kind: str
    label: str
    labels: tuple[str, ...]


class ClickedLabels:
    """The labels that an episode has clicked."""

    def __init__(self) -> None:
        self._by_kind: dict[str, list[str]] = defaultdict(list)

    def add(self, found: dict[str, Json] | None) -> Clicked | None:
        """Notes and returns what ``LABELS_AT`` has found."""
        if found is None:
            return None
        clicked = Clicked(found["kind"], found["label"], tuple(found["labels"]))
        self._by_kind[clicked.kind].append(clicked.label)
        return clicked

    def instruction(self, asked: str, last: Clicked) -> str | None:
        """Returns ``asked`` with the labels clicked last, in order, in place of those of their kind that it names.

        None if it names none, or if as many were not clicked, or if these were the ones.
        """
        names = _names(asked, last.labels)
        count = len(names.findall(asked)) if last.labels else 0
        clicked = self._by_kind[last.kind][-count:]
        if not count or len(clicked) < count or not all(clicked):
            return None
        in_order = iter(clicked)
        said = names.sub(lambda _: next(in_order), asked)
        return said if said != asked else None


def _names(asked: str, labels: tuple[str, ...]) -> re.Pattern[str]:
    """What finds where ``asked`` names labels: within its quotes, if it has some, else as whole words."""
    names = "|".join(re.escape(label) for label in sorted(labels, key=len, reverse=True))
    before, after = ('(?<=")', '(?=")') if '"' in asked else (r"(?<!\w)", r"(?!\w)")
    return re.compile(f"{before}(?:{names}){after}")

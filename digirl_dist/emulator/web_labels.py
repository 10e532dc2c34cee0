"""Labels on web pages: the names of what is on a page, and which instruction the clicks of an episode carried out."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from digirl_dist.emulator import Label
from digirl_dist.errors import SettingsError
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


LABELS = """
const [width, height, without] = arguments;
if (!('computedRole' in Element.prototype)) return {};
const likely = 'a, button, input, option, select, summary, textarea, [onclick], [role], [tabindex]';
const widgets = new Set(['button', 'checkbox', 'combobox', 'link', 'menuitem', 'menuitemcheckbox', 'menuitemradio',
    'option', 'radio', 'searchbox', 'slider', 'spinbutton', 'switch', 'tab', 'textbox', 'treeitem']);
const graphics = 'img, canvas, svg circle, svg rect, svg ellipse, svg polygon, svg path, svg line';
const isDrawn = element => {
    if (element.children.length) return false;
    const style = getComputedStyle(element);
    return element.matches(graphics) || style.cursor === 'pointer' || style.backgroundImage !== 'none'
        || style.content !== 'normal' || style.backgroundColor !== 'rgba(0, 0, 0, 0)';
};
const roleOf = element => {
    if (!element.matches(likely)) return '';
    if (widgets.has(element.computedRole)) return element.computedRole;
    return element.matches('input, textarea') ? 'textbox' : '';
};
const written = element => element.matches('input:not([type=password]), textarea') ? element.value : '';
const takesText = new Set(['combobox', 'searchbox', 'spinbutton', 'textbox']);
const spots = [0, 1, 2, 3, 4], area = ([x, y, toX, toY]) => (toX - x) * (toY - y);
const pairs = spots.flatMap(from => spots.slice(from).map(to => [from, to + 1]));
const boxes = pairs.flatMap(([x, toX]) => pairs.map(([y, toY]) => [x, y, toX, toY])).sort((a, b) => area(b) - area(a));
const uncovered = element => {
    const box = element.getBoundingClientRect();
    const left = Math.max(box.left, 0), top = Math.max(box.top, 0);
    const across = Math.min(box.right, width) - left, down = Math.min(box.bottom, height) - top;
    if (across <= 0 || down <= 0) return null;
    const seen = spots.map(y => spots.map(x => element.contains(
        document.elementFromPoint(left + across * (x + 0.5) / 5, top + down * (y + 0.5) / 5))));
    const free = ([x, y, toX, toY]) => seen.slice(y, toY).every(row => row.slice(x, toX).every(Boolean));
    const found = boxes.find(free);
    if (!found) return null;
    const [x, y, toX, toY] = found;
    return [(left + across * x / 5) / width, (top + down * y / 5) / height,
        (left + across * toX / 5) / width, (top + down * toY / 5) / height];
};
const pieces = element => [...element.childNodes].filter(
    node => node.nodeType !== Node.COMMENT_NODE && node.textContent.trim());
const isPiece = node => node.nodeType === Node.TEXT_NODE || !node.children.length && !node.matches(likely)
    && getComputedStyle(node).display.startsWith('inline');
const isOneWord = element => !/\\s/.test(element.textContent.trim()) && pieces(element).length > 1
    && pieces(element).every(isPiece);
const elements = [...document.body.querySelectorAll('*')], words = new Set(elements.filter(isOneWord));
const labels = elements.flatMap(element => {
    if (words.has(element.parentElement)) return [];
    const texts = [...element.childNodes].filter(node => node.nodeType === Node.TEXT_NODE).map(node => node.data);
    const own = (words.has(element) ? element.textContent : texts.join(' ')).trim();
    if (!(own || element.matches(likely) || isDrawn(element)) || element.closest(without)) return [];
    const box = uncovered(element);
    if (!box) return [];
    const role = roleOf(element);
    const name = role ? element.computedName || own : own;
    if (takesText.has(role) && written(element)) return [[written(element), role, ...box]];
    if (name || role) return [[name.trim(), role, ...box]];
    return isDrawn(element) ? [['', 'graphic', ...box]] : [];
});
return {labels};
"""
"""Finds the labels in the upper left part of the page, ``width`` x ``height`` pixels, without what lies ``without``.

They are, in the order of the document: texts, controls, and what is drawn without words, whose role is graphic:
pictures, shapes, coloured boxes and what shows that it can be clicked. A field in which something is written has that
as its name. A word in several pieces, one of them bold say, is one text.
The box of a label is the largest part of it that nothing else covers, as far as 25 points tell.
"""


def labels_of(answer: Any) -> list[Label]:
    """Returns the labels that ``LABELS`` found; none of a page that was left meanwhile.

    Raises SettingsError for a browser that does not tell names.
    """
    if answer is None:
        return []
    if "labels" not in answer:
        raise SettingsError(
            "this Chromium does not tell the names of what is on a page (ComputedAccessibilityInfo): install a newer "
            "one, or set agent.labels=false"
        )
    return [Label(*found) for found in answer["labels"]]

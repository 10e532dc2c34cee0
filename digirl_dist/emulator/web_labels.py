"""What is on a web page by name: what Chromium's accessibility says of widgets, and the texts of everything else."""

from __future__ import annotations

from typing import Any

from digirl_dist.emulator import Label
from digirl_dist.errors import SettingsError

LABELS = """
const [width, height, without] = arguments;
if (!('computedRole' in Element.prototype)) return {};
const likely = 'a, button, input, option, select, summary, textarea, [onclick], [role], [tabindex]';
const widgets = new Set(['button', 'checkbox', 'combobox', 'link', 'menuitem', 'menuitemcheckbox', 'menuitemradio',
    'option', 'radio', 'searchbox', 'slider', 'spinbutton', 'switch', 'tab', 'textbox', 'treeitem']);
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
const labels = [...document.body.querySelectorAll('*')].flatMap(element => {
    const texts = [...element.childNodes].filter(node => node.nodeType === Node.TEXT_NODE).map(node => node.data);
    const own = texts.join(' ').trim();
    if (!(own || element.matches(likely)) || element.closest(without)) return [];
    const box = uncovered(element);
    if (!box) return [];
    const role = element.matches(likely) && widgets.has(element.computedRole) ? element.computedRole : '';
    const name = role ? element.computedName || own : own;
    return name || role ? [[name.trim(), role, ...box]] : [];
});
return {labels};
"""
"""Finds the labels in the upper left part of the page, ``width`` x ``height`` pixels, without what lies ``without``.

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

"""HTML as a tree of elements, so that text from workers is escaped by construction."""

from __future__ import annotations

from collections.abc import Mapping
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

Child = Element | str | None
Attributes = Mapping[str, str | float]


def element(tag: str, attributes: Attributes | None = None, *children: Child) -> Element:
    """Returns an element with text and elements inside it; skips children that are None."""
    made = Element(tag, {name: _plain(value) for name, value in (attributes or {}).items()})
    for child in children:
        if isinstance(child, Element):
            made.append(child)
        elif child is not None:
            _append_text(made, child)
    return made


def section(title: str, *content: Child) -> Element:
    """Returns a section of the page with a heading."""
    return element("section", None, element("h2", None, title), *content)


def small(text: str) -> Element | None:
    """Returns a remark in small print; None for no text."""
    return element("p", {"class": "small"}, text) if text else None


def to_html(root: Element) -> str:
    """Serialises a tree in ASCII; all other characters, even lone surrogates, become character references."""
    return str(ElementTree.tostring(root, encoding="us-ascii", method="html"), "ascii")


def shorten(text: str, most: int) -> str:
    """Returns ``text`` on one line, cut after ``most`` characters."""
    line = " ".join(text[: 4 * most].replace("\0", " ").split())
    return line if len(line) <= most else line[: most - 1] + "…"


def short_number(value: object) -> str:
    """Formats a value for tables and labels: three significant digits, a dash for None."""
    if value is None:
        return "–"
    return f"{value:.3g}" if isinstance(value, float) else shorten(str(value), 40)


def _plain(value: str | float) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _append_text(parent: Element, text: str) -> None:
    if len(parent):
        parent[-1].tail = (parent[-1].tail or "") + text
    else:
        parent.text = (parent.text or "") + text

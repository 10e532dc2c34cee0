"""Instructions that clicks carried out in place of the one that was asked for."""

from __future__ import annotations

import pytest

from digirl_dist.emulator.web_labels import ClickedLabels


def said(asked: str, labels: str, clicks: str, kinds: str = "") -> str | None:
    """What the last of ``clicks`` leads to; kinds, labels and clicks are parted by spaces."""
    clicked = ClickedLabels()
    names = clicks.split(" ")
    last = None
    for label, kind in zip(names, kinds.split() or ["BUTTON"] * len(names), strict=True):
        last = clicked.add({"kind": kind, "label": label, "labels": labels.split()})
    assert last is not None
    return clicked.instruction(asked, last)


@pytest.mark.parametrize(
    ("asked", "labels", "clicks", "expected"),
    [
        ('Click on the "Ok" button.', "Ok no", "no", 'Click on the "no" button.'),
        ('Click on the "Ok" button.', "Ok Okay on", "Okay", 'Click on the "Okay" button.'),
        ("Click button ONE.", "ONE TWO", "TWO", "Click button TWO."),
        ("Click ONE, then TWO.", "ONE TWO", "TWO ONE", "Click TWO, then ONE."),
        ("Click ONE, then TWO.", "ONE TWO", "ONE ONE TWO TWO", "Click TWO, then TWO."),
        ('Click on "a.c" now.', "a.c abc", "abc", 'Click on "abc" now.'),
    ],
)
def test_labels_that_were_clicked_take_the_place_of_those_that_are_named(
    asked: str, labels: str, clicks: str, expected: str
) -> None:
    assert said(asked, labels, clicks) == expected


@pytest.mark.parametrize(
    ("asked", "labels", "clicks", "kinds"),
    [
        ('Click on the "Ok" button.', "Ok no", "Ok", ""),
        ("Click ONE, then TWO.", "ONE TWO", "TWO", ""),
        ("Click ONE, then TWO.", "ONE TWO", "TWO ONE", "A BUTTON"),
        ("Click on the clock", "Ok lock", "lock", ""),
        ('Type "Ok" and click on Submit.', "Submit Ok?", "Submit", ""),
        ("Click on the button.", "", "", ""),
        ("Click button ONE.", "ONE", "", ""),
    ],
    ids=[
        "the right one",
        "too few",
        "of two kinds",
        "parts of words",
        "named, but not by its kind",
        "none",
        "no label",
    ],
)
def test_what_cannot_be_told_in_words_is_not(asked: str, labels: str, clicks: str, kinds: str) -> None:
    assert said(asked, labels, clicks, kinds) is None


def test_a_point_where_nothing_lies_is_no_click() -> None:
    assert ClickedLabels().add(None) is None

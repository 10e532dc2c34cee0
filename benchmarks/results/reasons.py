"""Why pages of MiniWoB++ are not expected to be learned, found by reading them."""

from __future__ import annotations

REASONS = {
    "an answer that stands nowhere and must be computed or guessed": (
        "guess-number",
        "simple-algebra",
        "simple-arithmetic",
        "visual-addition",
    ),
    "a word of what a field holds must be picked out and typed": ("scroll-text",),
    "numbers must be compared while they change": ("stock-market",),
    "two values of a table must be typed into fields that the table names": ("read-table-2",),
    "numbers that are seen one at a time must be remembered": ("find-greatest",),
    "aim finer than a cell at something without a box": (
        "bisect-angle",
        "circle-center",
        "find-midpoint",
        "form-sequence",
        "hot-cold",
        "right-angle",
        "use-slider",
        "use-slider-2",
    ),
    "a curved or free line must be drawn": ("draw-circle", "draw-line"),
    "an exact colour must be set": ("use-colorwheel", "use-colorwheel-2"),
    "scrolling that takes more steps than the page gives": ("sign-agreement",),
    "an entry that is seen only after scrolling": ("buy-ticket", "click-scroll-list"),
    "a button that has another name than in the instruction": ("login-user-popup",),
    "an icon in the instruction must be recognised": ("click-menu-2",),
    "as many taps as a number says": ("use-spinner",),
    "commands that the instruction does not spell": ("terminal",),
    "counting, or shapes that pixels alone tell apart": (
        "click-shape",
        "count-shape",
        "number-checkboxes",
        "click-shades",
    ),
    "the page ignores taps on one entry of its menu, which is the right one in a sixth of all episodes": (
        "click-pie-nodelay",
    ),
    "planning against an opponent": ("tic-tac-toe",),
    "nothing: it was learned up to 0.84, and forgotten again": ("click-tab-2-hard",),
    "a three-dimensional thing must be turned": ("drag-cube",),
    "many right steps before the first reward": (
        "book-flight",
        "book-flight-nodelay",
        "choose-date",
        "choose-date-nodelay",
        "daily-calendar",
        "drag-shapes",
        "drag-shapes-2",
        "email-inbox",
        "multi-layouts",
        "multi-orderings",
        "order-food",
        "social-media-all",
        "social-media-some",
        "text-editor",
    ),
    "meanings of words must be known": ("click-checkboxes-soft", "email-inbox-forward-nl-turk", "email-inbox-nl-turk"),
}
"""Ingredients that are missing, with the pages that lack them."""

"""Texts that have become markup, script or styles somewhere, and a hundred that are drawn of their parts."""

import random

HOSTILE = (
    "<script>alert(1)</script>",
    "\"'><img src=x onerror=alert(1)>",
    "<svg onload=alert(1)>",
    "</textarea><script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    "<!--<script>alert(1)//-->",
    "<iframe srcdoc='<script>parent.alert(1)</script>'>",
    "<a href='javascript:alert(1)'>x</a>",
    "javascript:alert(1)",
    "' onmouseover='alert(1)",
    '" autofocus onfocus="alert(1)',
    "<style>@import'//evil.example'</style>",
    "<math><mtext><table><mglyph><style><img src onerror=alert(1)>",
    "${alert(1)} {{constructor.constructor('alert(1)')()}}",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    "\u202e\u2066<b>\u2069\x00\x1b[2J",
    "__proto__",
    "constructor",
    "%3Cscript%3Ealert(1)%3C/script%3E#/../?run=x&key=y",
)

_DICE = random.Random(0)
_PARTS = "<>\"'&;/=\\`${}()javscriptonerorlhf:x \n"
GENERATED = tuple("".join(_DICE.choices(_PARTS, k=40)) for _ in range(100))

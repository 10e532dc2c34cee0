"""What workers, emulators and models say, as text that repeats itself: no expression may go over it again and again."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

from digirl_dist.agent import answers, prompts
from digirl_dist.agent.device.reading import read
from digirl_dist.emulator import Label
from digirl_dist.emulator.remembered import told
from digirl_dist.judge import model
from digirl_dist.plain_text import one_line, without_secrets_in
from digirl_dist.protocol.messages import MOST_REASON
from digirl_dist.report.progress import Repeats
from digirl_dist.ssh.openssh_log import fingerprint, last_words
from fuzz.target import Target

_CHARACTERS = "a-.=:/@\"'“\\{[<é09 \n\ud83d"
_SECRETS = ("token", "api_key", "password=", "http://a:", "Bearer ", "hf_", "sk-aaaaaaaaaaaaaaaa", "eyJaaaaaaaa")
_OTHERS = ("-----BEGIN ", "PRIVATE KEY-----", "debug1: ", "Server host key: a SHA256:b", "Verdict: ", "tap(", "type")
_PIECES = (*_CHARACTERS, *_SECRETS, *_OTHERS)


class Texts(Target):
    """The first piece is repeated up to the longest text of a message, and others follow it."""

    samples = (b"tap(0.5, 0.5)",)

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._repeats = Repeats(time.monotonic)

    def case(self, random: Random) -> bytes:
        unit = "".join(random.choices(_PIECES, k=random.choice((1, 1, 2, 3))))
        text = (unit * MOST_REASON)[: random.choice((100, 100, 100, 1000, 1000, 4000, 4000, MOST_REASON))]
        return "".join([text, *random.choices(_PIECES, k=random.randrange(4))]).encode(errors="surrogatepass")

    def feed(self, data: bytes) -> None:
        text = data.decode(errors="surrogatepass")
        for reader in _READERS:
            reader(text)
        self._repeats.is_new("slot", {"worker": "w1", "reason": text})
        answers.read(text)


def _with_labels(text: str) -> str:
    """An observation whose screen shows the text, and other things of its kind."""
    names = [text[place : place + 100] for place in range(100)]
    return told(text, labels=[Label(name, "link", 0.0, 0.0, 1.0, 1.0) for name in names])


_READERS: Sequence[Callable[[str], Any]] = (
    one_line,
    lambda text: without_secrets_in({text[:256]: ["--key", text[:256]]}),
    prompts.quoted,
    lambda text: read(_with_labels(text.encode(errors="replace").decode()), labels=True),
    model.read,
    fingerprint,
    last_words,
)

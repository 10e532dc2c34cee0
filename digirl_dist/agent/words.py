"""From instructions to what the policies read: hashed words, and the quoted text to type."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence

import torch

_WORD = re.compile(r"\w+")
_QUOTED = re.compile(r'"([^"]+)"|“([^“”]+)”')


def words_of(text: str) -> list[str]:
    """Returns the words of ``text`` in lower case."""
    return _WORD.findall(text.lower())


def hashed_words(text: str, buckets: int) -> list[int]:
    """The buckets of the words of ``text`` in lower case, the same on every machine and in every process."""
    return [zlib.crc32(word.encode()) % buckets for word in words_of(text)]


def bags(texts: Sequence[str], buckets: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Bags of words as ``torch.nn.EmbeddingBag`` takes them: all words in a row, and where each text begins."""
    hashed = [hashed_words(text, buckets) for text in texts]
    starts = [0]
    for words in hashed[:-1]:
        starts.append(starts[-1] + len(words))
    flat = [word for words in hashed for word in words]
    return torch.tensor(flat, dtype=torch.long), torch.tensor(starts, dtype=torch.long)


def quoted(text: str) -> list[str]:
    """The parts of ``text`` in double quotes, without them; each once, as no two kinds of action may type the same."""
    return list(dict.fromkeys(one or other for one, other in _QUOTED.findall(text)))

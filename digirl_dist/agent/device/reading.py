"""What the policy reads in an observation's text: the labels of the screen, and the texts that it can type.

Each is described by words, which the network embeds, and by a few numbers, by which an untrained policy chooses.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from digirl_dist.agent.prompts import quoted
from digirl_dist.emulator import Label
from digirl_dist.emulator.remembered import Memory, recalled
from digirl_dist.emulator.touch_actions import DeviceAction

WORD_BUCKETS = 2048
"""Embeddings into which words are hashed."""

_WORD = re.compile(r"(?<!\w)-\d+|\w+")
_SPAN = re.compile(r"\S+")
_NUMBER = re.compile(r"(?:(?<!\w)-)?\d{1,15}")
_LEADING_ZEROS = re.compile(r"\b0+(?=\d)")
_AROUND = " .,;:!?()[]{}\"'“”…"
_EDITABLE = frozenset({"textbox", "searchbox", "combobox", "spinbutton"})
_DRAWN = "graphic"
_OTHER_MARKS, _OTHER_CASE = 0.75, 0.5
"""How well a name is named of which the instruction quotes more or less, "et" for "et,", or in other letters, "OK" for
"ok"."""
_FAR = 9
"""Ranks and distances from here on are alike."""
_NEIGHBOURS_WORDS = 4
"""First words of a name that describe the labels beside it."""
_MOST_SPANS, _MOST_QUOTED, _MOST_LABELS = 24, 16, 64
"""Words of an instruction or of texts on the screen, quoted parts and labels that are looked at: observations come from
workers, and the more can be typed, the longer an untrained policy looks for the right one."""

LABEL_FLAGS = 8
"""Of a label: 1; how well it is named if it is the one named next, else 0; how well it is named; which share of its
words the instruction has; whether text can be entered there; whether it is a control; whether it was touched on this
very screen; whether it was touched lately on any."""
TEXT_FLAGS = 6
"""Of a text: whether it is quoted; whether it is the first quoted one; whether it is a number, has capitals or is what
a field holds; whether it stands after something named on the screen; whether it was typed already; whether a button or
the like has this name."""


class Described(NamedTuple):
    """A label or a text, as the network sees it."""

    words: list[int]
    """Hashed."""
    flags: list[float]


class Read(NamedTuple):
    """The text of an observation, taken apart."""

    instruction: str
    words: list[int]
    """Those of the instruction and which number is its first, second and so on, hashed."""
    memories: list[Memory]
    labels: list[Label]
    places: list[Described]
    """The labels, described."""
    texts: list[str]
    """What can be typed, each once: the quoted parts of the instruction first."""
    typeable: list[Described]
    """These texts, described."""

    @property
    def quotes(self) -> bool:
        """Whether the instruction quotes a text."""
        return bool(self.typeable and self.typeable[0].flags[0])


def read(text: str, labels: bool = False) -> Read:
    """Takes an observation's text apart; with ``labels``, names on the screen count, and can be typed like all words.

    Without them only what the instruction quotes can be typed.
    """
    instruction, memories, found = recalled(text)
    shown = found[:_MOST_LABELS] if labels else []
    parts = quoted(instruction)[:_MOST_QUOTED]
    named = [_place(label.name, instruction, parts) for label in shown]
    words = list(_words_of_labels(instruction, parts, shown, named))
    flags = _flags(instruction, parts, shown, named, memories)
    places = [Described(_hashed(own), values) for own, values in zip(words, flags, strict=True)]
    typed = {memory.action.text for memory in memories}
    pressed = {label.name.lower() for label in shown if label.role not in ("", _DRAWN, *_EDITABLE)}
    texts: dict[str, Described] = {}
    for candidate, own, values in _texts(instruction, parts, shown, words, labels):
        if candidate and candidate not in texts:
            texts[candidate] = Described(
                _hashed(own), [*values, float(candidate in typed), float(candidate.lower() in pressed)]
            )
    ordered = [f"number {place} is {number}" for place, number in enumerate(_numbers(instruction), 1)]
    asked = [*hashed_words(instruction), *_hashed(ordered)]
    return Read(instruction, asked, memories, shown, places, list(texts), list(texts.values()))


def words_of(text: str) -> list[str]:
    """Returns the words of ``text`` in lower case."""
    return _WORD.findall(text.lower())


def hashed_words(text: str) -> list[int]:
    """The buckets of the words of ``text`` in lower case, the same on every machine and in every process."""
    return _hashed(words_of(text))


def _hashed(words: Sequence[str]) -> list[int]:
    return [zlib.crc32(word.encode()) % WORD_BUCKETS for word in words]


_Named = tuple[int | None, float]
"""Where the instruction has the name of a label, and how alike they are."""


def _words_of_labels(
    instruction: str, parts: Sequence[str], labels: Sequence[Label], found: Sequence[_Named]
) -> Iterator[list[str]]:
    """Yields what describes each label: its role and rank, its name and numbers, and the names before and after it."""
    ranks: Counter[str] = Counter()
    named = None
    asked = _numbers(instruction)
    numbered = _values(labels, asked)
    own = [[*words_of(label.name)[:_NEIGHBOURS_WORDS], *values] for label, values in zip(labels, numbered, strict=True)]
    behind, before = list(_latest(own)), list(_latest(own[::-1]))[::-1]
    for place, label in enumerate(labels):
        ranks[label.role] += 1
        rank, distance = min(ranks[label.role], _FAR), None if named is None else min(place - named, _FAR)
        yield [
            *_of_label(label, rank, distance),
            *["rank as asked"] * (rank in asked),
            *numbered[place],
            *(f"behind {word}" for word in behind[place]),
            *(f"before {word}" for word in before[place]),
            *(f"quoted {part}" for part in _quoted_parts(label.name, parts)),
            *["quoted as it is"] * (label.name in parts),
        ]
        if label.role not in _EDITABLE:
            named = place if found[place][1] > _OTHER_CASE else named


def _latest(words: Sequence[list[str]]) -> Iterator[list[str]]:
    """Yields the latest words before each place, none before the first."""
    latest: list[str] = []
    for own in words:
        yield latest
        latest = own or latest


def _values(labels: Sequence[Label], asked: tuple[int, ...]) -> list[list[str]]:
    """What numbers in names are: odd or even, less or more than those asked for if they are as many, and their rank
    among names that differ in their numbers alone."""
    alike: defaultdict[str, list[tuple[tuple[int, ...], int]]] = defaultdict(list)
    found: list[list[str]] = [[] for _ in labels]
    for place, label in enumerate(labels):
        if numbers := _numbers(label.name):
            found[place].append("odd number" if numbers[-1] % 2 else "even number")
            if len(numbers) == len(asked) and numbers != asked:
                found[place].append("less than asked" if numbers < asked else "more than asked")
            alike[_NUMBER.sub("#", label.name)].append((numbers, place))
    for same in alike.values():
        ordered = sorted({numbers for numbers, _ in same})
        for numbers, place in same if len(ordered) > 1 else []:
            rank = ordered.index(numbers)
            found[place] += [f"{min(rank, _FAR)} are smaller", f"{min(len(ordered) - 1 - rank, _FAR)} are larger"]
    return found


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, _NUMBER.findall(text)))


def _of_label(label: Label, rank: int, distance: int | None) -> Iterator[str]:
    yield from (f"role {label.role}", f"{label.role} number {rank}", f"{'named' if label.name else 'nameless'} thing")
    yield from words_of(label.name)
    if distance is not None:
        yield f"{distance} after a named thing"


def _quoted_parts(name: str, parts: Sequence[str]) -> Iterator[int]:
    """Yields which quoted parts the name begins or ends with, counted from 1."""
    yield from (number for number, part in enumerate(parts, 1) if name.startswith(part) or name.endswith(part))


def _flags(
    instruction: str,
    parts: Sequence[str],
    labels: Sequence[Label],
    named: Sequence[_Named],
    memories: Sequence[Memory],
) -> list[list[float]]:
    words = set(words_of(instruction))
    memories = [memory for memory in memories if memory.action.type != "swipe"]  # it moves what it begins on
    ranks = [
        None
        if place is None or label.role in _EDITABLE or _touched(label, memories)
        else (place, -like, -len(label.name))
        for label, (place, like) in zip(labels, named, strict=True)
    ]
    following = min((rank for rank in ranks if rank is not None), default=())
    found = []
    for label, rank, (_, like) in zip(labels, ranks, named, strict=True):
        own = words_of(f"{label.role} {label.name}")
        shared = sum(word in words for word in own) / max(1, len(own))
        shared = max(shared, len(list(_quoted_parts(label.name, parts))) / max(1, len(parts)))
        control = label.role not in ("", _DRAWN)
        touched = [memory.here for memory in memories if _is_at(label, memory)]
        is_so = [label.role in _EDITABLE, control, any(touched), bool(touched)]
        found.append([1.0, like if rank == following else 0.0, like, shared, *map(float, is_so)])
    return found


def _touched(label: Label, memories: Sequence[Memory]) -> bool:
    """Whether something of that name was touched before, or the label itself on this very screen."""
    return any(
        memory.action.type != "type_at"
        and ((memory.on and memory.on == label.name) or (memory.here and _is_at(label, memory)))
        for memory in memories
    )


def _is_at(label: Label, memory: Memory) -> bool:
    action = memory.action
    return (
        "x" in DeviceAction.FIELDS[action.type]
        and label.left <= action.x < label.right
        and label.top <= action.y < label.bottom
    )


def _place(name: str, instruction: str, parts: Sequence[str]) -> _Named:
    """Returns where the instruction has the name as whole words, and how alike they are. It has 5 in 05/12/2016."""
    if not (bare := name.strip(_AROUND)):
        return None, 0.0
    for text in (instruction, _LEADING_ZEROS.sub("", instruction)):
        if (same := _whole(bare, text)) is not None:
            is_part = name not in parts and any(_whole(bare, part) is not None for part in parts)
            return same, _OTHER_MARKS if is_part else 1.0
    alike = _whole(bare.lower(), instruction.lower())
    return alike, 0.0 if alike is None else _OTHER_CASE


def _whole(words: str, text: str) -> int | None:
    """Returns where the text has the words first, not as a part of others."""
    place = -1
    for _ in range(_MOST_SPANS):
        place = text.find(words, place + 1)
        if place < 0:
            return None
        around = text[max(0, place - 1) : place] + text[place + len(words) : place + len(words) + 1]
        if not any(letter.isalnum() or letter == "_" for letter in around):
            return place
    return None


_Text = tuple[str, list[str], list[float]]
"""A text, the words that describe it, and all of its flags but the last two."""


def _texts(
    instruction: str, parts: Sequence[str], labels: Sequence[Label], words: Sequence[list[str]], everything: bool
) -> Iterator[_Text]:
    for number, part in enumerate(parts, 1):
        own = ["quoted", f"quoted {number}", *_before(instruction, instruction.find(part))]
        yield part, own, [1.0, float(number == 1), 0.0, 0.0]
    if not everything:
        return
    for number, part in enumerate(parts, 1):
        for case, text in (("lower", part.lower()), ("upper", part.upper())):
            yield text, ["quoted", f"quoted {number}", f"in {case} case"], [0.5, float(number == 1), 0.0, 0.0]
    yield from _spans(instruction)
    for label, own in zip(labels, words, strict=True):
        is_next = "1 after a named thing" in own
        yield label.name, ["shown", *own], [0.0, 0.0, float(label.role in _EDITABLE), float(is_next)]
    for word, own in [*_inner_words(labels, _numbers(instruction)).items()][:_MOST_SPANS]:
        yield word, own, [0.0, 0.0, 0.0, 0.0]


def _inner_words(labels: Sequence[Label], asked: tuple[int, ...]) -> dict[str, list[str]]:
    """The words of longer texts on the screen, each with its places counted from the beginning and from the end."""
    found: dict[str, list[str]] = {}
    for words in (_SPAN.findall(label.name) for label in labels if label.role not in _EDITABLE):
        for number, word in enumerate(words if len(words) > _NEIGHBOURS_WORDS else [], 1):
            own = found.setdefault(word.strip(_AROUND), ["inner"])
            own += [f"inner {number}", f"inner {number - len(words) - 1}", *["inner as asked"] * (number in asked)]
    return found


def _spans(instruction: str) -> Iterator[_Text]:
    """Yields words of the instruction, first those that follow each other and have capitals or digits: "3:45 PM"."""
    found = [(match.start(), match[0]) for match in _SPAN.finditer(instruction)][:_MOST_SPANS]
    opens = [number == 0 or found[number - 1][1][-1] in ".?!" for number in range(len(found))]
    marks = [_is_marked(word) and not first for (_, word), first in zip(found, opens, strict=True)]
    runs: list[list[int]] = []
    for number, marked in enumerate(marks):
        if marked and runs and runs[-1][-1] == number - 1 and found[number - 1][1][-1] not in ",;:":
            runs[-1].append(number)
        elif marked:
            runs.append([number])
    singles = [[number] for number in range(len(found))]
    for numbers in [*runs, *singles]:
        text = " ".join(found[number][1] for number in numbers).strip(_AROUND)
        marked = all(marks[number] for number in numbers)
        own = ["span", "marked span" if marked else "plain span", *_before(instruction, found[numbers[0]][0])]
        yield text, own, [0.0, 0.0, float(marked), 0.0]


def _is_marked(word: str) -> bool:
    bare = word.strip(_AROUND)
    return bare[:1].isupper() or any(letter.isdigit() for letter in bare)


def _before(instruction: str, place: int) -> list[str]:
    """The two words before a place, as words of their own."""
    return [f"behind {word}" for word in words_of(instruction[: max(0, place)])[-2:]]

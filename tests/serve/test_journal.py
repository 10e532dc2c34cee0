"""The journal of ``digirl-dist serve``, cut where a power cut may cut it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from digirl_dist.serve.journal import Entry, Journal
from digirl_dist.tasks import Task

TASK = Task("count")


def ended(journal: Journal, *keys: str) -> None:
    journal.end({key: Entry(TASK, 1, state="landed", about={"reward": 1.0}) for key in keys})


def test_wherever_it_is_cut_no_number_is_given_twice(tmp_path: Path) -> None:
    whole = Journal(tmp_path / "whole.jsonl")
    whole.ask({key: Entry(TASK, 1) for key in "abc"})
    begun = (tmp_path / "whole.jsonl").stat().st_size
    ended(whole, "a", "b", "c")
    content = (tmp_path / "whole.jsonl").read_bytes()
    for cut in range(begun, len(content) + 1):
        path = tmp_path / "cut.jsonl"
        path.write_bytes(content[:cut])
        journal = Journal(path)
        seen = {entry.number for entry in journal.after(0, 9).values()}
        journal.forget("abc")  # its client is done with what it was told
        again = Journal(path)
        again.ask({"d": Entry(TASK, 1)})
        ended(again, "d")
        (later,) = again.after(max(seen, default=0), 9)
        assert later == "d", f"cut at byte {cut}, a number that was seen is given again"


def test_a_rollout_that_is_asked_for_again_or_ends_is_known_at_every_moment(tmp_path: Path) -> None:
    """It was gone for an instant, in which a client was told that nobody asked for it, or it got a second number."""
    journal, seen = Journal(tmp_path / "serve.jsonl"), []
    journal.ask({"a": Entry(TASK, 1)})

    class Looking(dict[int, str]):
        """Stands where the numbers are kept, which change meanwhile."""

        def pop(self, *number: Any) -> Any:
            seen.append(journal.get("a"))
            return super().pop(*number)

        def __setitem__(self, number: int, key: str) -> None:
            seen.append(journal.get("a"))
            super().__setitem__(number, key)

    journal._over = Looking(journal._over)
    ended(journal, "a")
    journal.ask({"a": Entry(TASK, 1)})
    ended(journal, "a")
    assert len(seen) == 5 and None not in seen
    assert [(key, entry.number) for key, entry in journal.after(0, 9).items()] == [("a", 2)]

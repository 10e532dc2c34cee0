"""The journal of ``digirl-dist serve``, cut where a power cut may cut it."""

from __future__ import annotations

from pathlib import Path

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

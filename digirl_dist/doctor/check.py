"""The result of one check on one machine, and the table that shows many."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from digirl_dist.types import Json

HOST = "host"
"""The ``worker`` of checks on the host itself."""


@dataclass(frozen=True)
class Check:
    """One check. ``remedy`` says what to do if it is not ``ok``; ``blocks`` means that no run starts until it is."""

    worker: str
    check: str
    ok: bool
    detail: str
    remedy: str = ""
    blocks: bool = True

    def to_json(self) -> dict[str, Json]:
        return {
            "worker": self.worker,
            "check": self.check,
            "ok": self.ok,
            "detail": self.detail,
            "remedy": "" if self.ok else self.remedy,
        }


def would_start(checks: Sequence[Check]) -> bool:
    return all(check.ok or not check.blocks for check in checks)


def as_table(checks: Sequence[Check]) -> str:
    """Returns one line per check, the remedy below each failed one, and the verdict."""
    width = max(len(check.check) for check in checks)
    lines: list[str] = []
    for worker in dict.fromkeys(check.worker for check in checks):
        lines.append(worker)
        for check in checks:
            if check.worker == worker:
                lines += _lines(check, width)
    return "\n".join([*lines, "", _verdict(checks)])


def _lines(check: Check, width: int) -> Iterator[str]:
    mark = "ok  " if check.ok else "FAIL" if check.blocks else "warn"
    indent = " " * (width + 8)
    first, *others = check.detail.splitlines() or [""]
    yield f"  {mark}  {check.check:<{width}}  {first}".rstrip()
    yield from (f"{indent}{line}" for line in others)
    if not check.ok and check.remedy:
        yield f"{indent}-> {check.remedy}"


def _verdict(checks: Sequence[Check]) -> str:
    failed = [check for check in checks if not check.ok]
    warnings = sum(not check.blocks for check in failed)
    also = f" ({warnings} to look at)" if warnings else ""
    if would_start(checks):
        return f"a run would start{also}"
    return f"a run would not start: {len(failed) - warnings} of {len(checks)} checks failed{also}"

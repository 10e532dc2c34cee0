"""What a worker program may say on one connection: how often, how much, and nothing that no honest program says."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping

from digirl_dist.errors import ProtocolError
from digirl_dist.fleet.spec import Job
from digirl_dist.protocol.messages import (
    MOST_DIGESTS,
    MOST_SLOTS,
    Acting,
    Ask,
    EpisodeFailed,
    EpisodeReady,
    Heartbeat,
    Loaded,
    Need,
    SlotChanged,
    SlotSeconds,
    WorkerMessage,
    Working,
)
from digirl_dist.rollout.slot import ACTIVITIES

_MESSAGES = 500.0
"""Messages that may come at once, and ``_PER_SLOT`` more for each slot: at its start every slot says something."""
_PER_SLOT = 10.0
_PER_SECOND = 20.0
_PER_TICKET = 4.0
"""Messages that a leased ticket entitles to."""
_MOST_SLOTS_COUNTED = 2000
_NEEDS = 5
"""How often a program may ask for what one announcement lacks: it asks again for what came altered."""
_BEHIND = 64
"""Announcements that a program may still have to answer, which it does in order: it may be busy for iterations."""
_ANNOUNCEMENTS = 8
"""How often a program may announce one episode: as it ends, and among those that lie ready."""
_ASKED_PER_SLOT = 4
"""Requests that may be open for each slot, as a slot goes on where an episode is dropped while it waits. Before a
program works for this connection, any number of slots may have asked a former host."""
_MOST_ASKED_BYTES = 48 << 20
_BYTES_PER_SLOT = 4 << 20
"""Bytes of open requests for each slot that the configuration names."""
_BYTES_PER_ASK = 1 << 10
_HELD_SLACK = 64
"""Tickets, beside one for each slot, that may have ended between a heartbeat's making and its sending."""
_SLACK_S = 10.0


class Conduct:
    """Checks each message against what the host did. ``now`` are monotonic seconds of the host.

    Until the program works for this connection, it may still say what a former host asked for; that is bounded, and
    otherwise believed.
    """

    def __init__(self, job: Job, slots: int | None) -> None:
        self._packed = set(job.blobs())
        self._host_decides = job.agent is None
        self._expected_slots = slots
        self._slots: int | None = None
        self._worked_at = 0.0
        self._tokens = _MESSAGES
        self._counted_at: float | None = None
        self._needs = {"job": _NEEDS, "policy": _NEEDS}
        self._announced: deque[tuple[int, set[str]]] = deque(maxlen=_BEHIND)
        """The versions of which the program may still say something, and their digests."""
        self._newest = -1
        self._order = 0
        self._collected = 0
        self._told_s: float | None = None
        self._longest_s = _SLACK_S + job.limits.reset_s + job.guard.most_steps * (job.limits.step_s + job.answer_s)
        """What an episode may take, and so what a slot may tell at its end of the time before this connection."""
        self._asked: dict[int, int] = {}
        """The bytes of each open request, by its number."""
        self._asked_bytes = 0
        self._ready: Counter[str] = Counter()
        """Announcements of episodes that the host has not told the program to delete."""

    def announced(self, version: int, digests: set[str]) -> None:
        self._newest = max(self._newest, version)
        before = min(self._needs["policy"], _NEEDS * (_BEHIND - 1)) if self._announced else 0
        self._announced.append((version, digests))
        self._needs["policy"] = before + _NEEDS + len(digests) // MOST_DIGESTS
        self._earn(_PER_TICKET)

    def leased(self, count: int, order: int) -> None:
        """Notes ``count`` leased tickets (none for a drop) and the number of the order."""
        self._order = order
        self._earn(_PER_TICKET * max(1, count))

    def collected(self) -> None:
        self._collected += 1
        self._earn(1)

    def is_asked(self, number: int) -> bool:
        """Returns whether a request of this number waits for its answer."""
        return number in self._asked

    def answered(self, number: int) -> None:
        self._asked_bytes -= self._asked.pop(number, 0)

    def refused(self) -> None:
        """Notes a request that was refused at once: the worker, not the host, sets the pace of such requests."""
        self._tokens -= 1.0

    def forgot(self, episode_id: str) -> None:
        self._ready.pop(episode_id, None)

    def check(self, message: WorkerMessage, attached: int, held: int, now: float) -> None:
        """Raises ProtocolError for what no honest program says; ``held`` tickets at most should be with it."""
        self._count(message, now)
        match message:
            case Need():
                self._check_need(message)
            case Ask():
                self._check_ask(message, attached)
            case EpisodeReady(manifest):
                self._ready[manifest.episode_id] += 1
                times = self._ready[manifest.episode_id]
                _require(times <= _ANNOUNCEMENTS, f"it announces {manifest.episode_id} again and again")
            case _ if self._slots is not None:
                self._check_at_work(message, self._slots, held, now)

    def _count(self, message: WorkerMessage, now: float) -> None:
        """Answered requests cost nothing: the host itself sets their pace. One that waits already is none of these."""
        self._earn(_PER_SECOND * (now - self._counted_at) if self._counted_at is not None else 0.0)
        self._counted_at = now
        if not (isinstance(message, Ask) and not self.is_asked(message.number)):
            self._tokens -= 1.0
        _require(self._tokens >= 0, "it floods the host with messages that nobody asked for")

    def _earn(self, tokens: float) -> None:
        most = _MESSAGES + _PER_SLOT * min(self._slots or 0, _MOST_SLOTS_COUNTED)
        self._tokens = min(most, self._tokens + tokens)

    def works(self, working: Working, now: float) -> None:
        """The program works for this connection. Raises ProtocolError if not with the slots that it was to have."""
        wanted = self._expected_slots
        _require(wanted in (None, working.slots), f"it has {working.slots} slots, and was to have {wanted}")
        self._slots, self._worked_at = working.slots, now
        self._earn(_PER_SLOT * working.slots)

    def _check_need(self, need: Need) -> None:
        self._needs[need.what] -= 1
        _require(self._needs[need.what] >= 0, f"it asks for its {need.what} again and again")
        if need.what == "policy" and self._slots is None:
            return
        known = self._packed if need.what == "job" else set().union(*(digests for _, digests in self._announced))
        if unknown := set(need.digests) - known:
            raise ProtocolError(f"it needs {sorted(unknown)[0]}, which nobody announced")

    def _check_ask(self, ask: Ask, attached: int) -> None:
        if self._slots is not None:
            _require(self._host_decides, "it asks for an action, and has the policy itself")
            _require(ask.version <= self._newest, f"it asks policy version {ask.version}; the newest is {self._newest}")
        if not self._host_decides or self.is_asked(ask.number):
            return
        self._asked[ask.number] = _BYTES_PER_ASK + len(ask.text) + attached
        self._asked_bytes += self._asked[ask.number]
        most_bytes = max(_MOST_ASKED_BYTES, _BYTES_PER_SLOT * (self._expected_slots or 0))
        most = MOST_SLOTS if self._slots is None else _ASKED_PER_SLOT * self._slots
        if len(self._asked) > most or self._asked_bytes > most_bytes:
            raise ProtocolError(f"it waits for {len(self._asked)} actions at once, with {self._slots or '?'} slots")

    def _check_at_work(self, message: WorkerMessage, slots: int, held: int, now: float) -> None:
        match message:
            case Heartbeat():
                most = held + slots + _HELD_SLACK
                _require(len(message.held) <= most, f"it holds {len(message.held)} tickets; {most} at most can be")
                _require(len(message.slots) <= slots, f"it tells of {len(message.slots)} slots of {slots}")
                _require(message.in_service <= slots, f"{message.in_service} of {slots} slots are in service")
                _require(message.order <= self._order, f"it knows of order {message.order} of {self._order}")
            case SlotChanged(slot, _, _, in_service):
                _require(max(slot + 1, in_service) <= slots, f"slot {slot}, {in_service} in service, of {slots}")
            case Acting(slot) | EpisodeFailed(slot):
                _require(slot < slots, f"slot {slot} of {slots}")
            case Loaded(version):
                _require(version <= self._newest, f"it loaded version {version}; the newest is {self._newest}")
                while self._announced[0][0] < version <= self._announced[-1][0]:
                    self._announced.popleft()
                most = sum(_NEEDS + len(digests) // MOST_DIGESTS for _, digests in self._announced)
                self._needs["policy"] = min(self._needs["policy"], most)
            case SlotSeconds(seconds):
                self._check_seconds(seconds, slots, now)

    def _check_seconds(self, seconds: Mapping[str, float], slots: int, now: float) -> None:
        """The first tally may reach back to before the connection, and later ones with an episode that began then."""
        self._collected -= 1
        _require(self._collected >= 0, "nobody asked for its seconds")
        _require(seconds.keys() <= set(ACTIVITIES), "it spends its seconds on what there is not")
        if self._told_s is not None:
            self._told_s += sum(seconds.values())
            whole = slots * (now - self._worked_at + self._longest_s)
            _require(self._told_s <= whole, f"it spent {self._told_s:.0f} slot-seconds of {whole:.0f}")
        self._told_s = self._told_s or 0.0


def _require(condition: bool, otherwise: str) -> None:
    if not condition:
        raise ProtocolError(otherwise)

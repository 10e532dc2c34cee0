"""Counted where bytes or time are meant: what one worker says costs the host a bounded amount, whoever reads it."""

from __future__ import annotations

import json
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from types import SimpleNamespace
from typing import Any, get_args

import msgspec
import pytest
from fleet.test_session import LIMITS, TICKETS, beat, hung_up, of, told, working
from process_watch import eventually

from digirl_dist.errors import LinkLostError, MisconductError
from digirl_dist.fleet.fleet import Fleet
from digirl_dist.fleet.ledger import MOST_KEPT, Ledger
from digirl_dist.fleet.outgoing import Named
from digirl_dist.fleet.session import ProgramSilent
from digirl_dist.fleet.spec import Job
from digirl_dist.fleet.worker import RemoteWorker
from digirl_dist.fleet.worker_events import ClaimsRefused, Connecting, EventQueue, Lost, Said, Throttled
from digirl_dist.inference.requests import InferenceReply, InferenceRequest, InferenceResult
from digirl_dist.protocol import messages
from digirl_dist.protocol.messages import MOST_HELD, MOST_REASON, MOST_SLOTS, PROTOCOL, SlotLimits, SlotWait, encode
from digirl_dist.settings import LimitSettings
from digirl_dist.tasks import Key
from digirl_dist.trajectory import Decision

MOST_MEMORY = 64 << 20
"""Of one worker, whatever it says."""
REASON = "\N{GRINNING FACE}" * MOST_REASON
LONGEST_KEY = Key(2**53, 2**53, "evaluate")
MANIFEST = messages.EpisodeManifest("r1", LONGEST_KEY, 0, 0, "e" * 160, 1, "ab", 0, 1.0, 0.0, {"x" * 60: 1.0})
WIDEST: list[messages.WorkerMessage] = [
    messages.Ready(PROTOCOL, "p" * 256, "3" * 256, 1, messages.MachineFacts("c" * 256, 1, 1, "s" * 256, "3")),
    messages.Need("job", ["0" * 128] * messages.MOST_DIGESTS),
    messages.Working(MOST_SLOTS, REASON, [LONGEST_KEY] * MOST_HELD),
    messages.Loaded(3),
    messages.Ask(1, 3, (0, 0, 0), "x" * (1 << 17), None, None),
    messages.Acting(0, LONGEST_KEY),
    messages.EpisodeReady(MANIFEST),
    messages.UnknownFile("x" * 256, REASON),
    messages.EpisodeFailed(0, LONGEST_KEY, REASON),
    messages.SlotChanged(0, "closed", REASON, 1),
    messages.SlotSeconds({f"{number:>64}": 1e9 for number in range(16)}),
    messages.Heartbeat("d" * 256, 1.0, 1.0, [SlotWait("x" * 64, 1.0, 1.0, 2**53)] * MOST_SLOTS,
                       [LONGEST_KEY] * MOST_HELD, 0, 1),
    messages.Broken("disk", REASON),
]  # fmt: skip
GREETING = [encode(messages.Ready(PROTOCOL, "package", "3.11", 1)), encode(messages.Working(2, "", []))]


class Talker:
    """The way to a program that greets and then says one line without end, as fast as it is read."""

    files: Any = None

    def __init__(self, says: bytes | None) -> None:
        self._says = says
        self._greeting = list(GREETING)
        self.read_lines = 0
        self.is_closed = False

    def write(self, line: bytes) -> None:
        """Nobody answers."""

    def readline(self, timeout_s: float) -> bytes:
        while not self._greeting and self._says is None and not self.is_closed:
            time.sleep(0.01)
        if self.is_closed:
            return b""
        self.read_lines += 1
        return self._greeting.pop(0) if self._greeting else self._says or b""

    def read(self, size: int) -> bytes:
        return bytes(size)

    def answers(self) -> bool:
        return True

    def why_ended(self) -> LinkLostError:
        return LinkLostError("liar", "it was closed")

    def close(self) -> None:
        self.is_closed = True


@contextmanager
def fleet(
    says: bytes | None, limits: LimitSettings = LIMITS, took_s: float = 0.0
) -> Iterator[tuple[Fleet[Any], list[Talker]]]:
    """A real fleet of one worker whose messages ``took_s`` before, and its connections as they are made."""
    made: list[Talker] = []

    def connect(spec: Any, job: Job, replace: bool, progress: Callable[..., None]) -> Talker:
        progress("connect and log in", 10.0)
        made.append(Talker(says))
        return made[-1]

    spec: Any = SimpleNamespace(name="liar", slots=2, package="package")
    job = Job("r1", b"agent", b"emulator", 10, SlotLimits(), 1, 60.0)
    connector: Any = SimpleNamespace(connect=connect)
    here: Fleet[Any] = Fleet([(spec, job)], connector, limits)
    here.workers["liar"].ledger.took(0, took_s, time.monotonic())
    here.start()
    try:
        yield here, made
    finally:
        here.close()


class Asker(Talker):
    """The way to a program that asks without end, reads no answer, and so takes no line once its link is full."""

    def __init__(self) -> None:
        super().__init__(None)
        self._numbers = count()

    def write(self, line: bytes) -> None:
        while json.loads(line)["type"] == "action" and not self.is_closed:
            time.sleep(0.01)

    def readline(self, timeout_s: float) -> bytes:
        self._says = encode(messages.Ask(next(self._numbers), 0, (0, 0, 0), "x", None, None))
        return super().readline(timeout_s)


class AtOnce:
    """An inference service that decides each request as it comes."""

    def __init__(self) -> None:
        self.decided = 0

    def ask(self, request: InferenceRequest, tell: Callable[[InferenceReply], None]) -> None:
        self.decided += 1
        assert self.decided < 1000, "it may ask for ever, and not read the answers"
        tell(InferenceResult(request.number, Decision(1, -1.0)))


@pytest.mark.component
def test_a_program_that_asks_and_reads_no_answers_is_cut_off() -> None:
    spec: Any = SimpleNamespace(name="liar", slots=2, package="package")
    job, policy, events = Job("r1", None, b"emulator", 10, SlotLimits(), 1, 60.0), AtOnce(), list[Any]()
    connector: Any = SimpleNamespace(connect=lambda *_: Asker())
    worker = RemoteWorker(spec, job, connector, LIMITS, lambda event, *_: events.append(event), policy)
    worker.publish(Named(0))
    worker.start()
    eventually(lambda: any(isinstance(event, Lost) for event in events), 60.0)
    worker.stop()
    worker.hang_up()
    (lost,) = (event for event in events if isinstance(event, Lost))
    assert isinstance(lost.error, MisconductError) and "actions at once" in lost.error.reason
    assert policy.decided < 20


def unread(here: Fleet[Any]) -> int:
    return here.workers["liar"].ledger._kept["unread"]


def test_the_widest_messages_are_of_every_type() -> None:
    assert {type(message) for message in WIDEST} == set(get_args(messages.WorkerMessage))


@pytest.mark.component
@pytest.mark.parametrize("message", WIDEST, ids=lambda message: type(message).__name__)
def test_a_flood_of_the_widest_messages_fills_no_memory_while_nobody_reads(message: messages.WorkerMessage) -> None:
    limits = LimitSettings(silence_s=8.0, start_s=20.0, back_off_s=0.01, back_off_max_s=0.01, quarantine_s=300.0)
    tracemalloc.start()
    try:
        with fleet(encode(message), limits) as (here, made):
            for _ in range(20):  # a flood slower than what a worker may take of the host goes on
                if len(made) >= 3 or not _goes_on(made):
                    break
            assert unread(here) <= MOST_KEPT["unread"] + (1 << 21)
            assert tracemalloc.get_traced_memory()[0] < MOST_MEMORY
    finally:
        tracemalloc.stop()


def _goes_on(made: list[Talker]) -> bool:
    before = sum(one.read_lines for one in made)
    time.sleep(1.0)
    return sum(one.read_lines for one in made) > before


def test_heartbeats_of_a_megabyte_end_the_connection_and_take_the_worker_out_of_service() -> None:
    """868 kB that repeat one ticket 62,000 times: 5 MB each, once they are decoded."""
    fields = json.loads(encode(beat([], 0))) | {"held": [[0, 0, "train"]] * 62_000}
    limits = LimitSettings(back_off_s=0.01, back_off_max_s=0.01, quarantine_s=300.0, worker_offences=3)
    with fleet(json.dumps(fields).encode() + b"\n", limits) as (here, made):
        lost = []
        while len(lost) < 3:
            event = here.next_event(60.0)
            assert event is not None
            lost += [event] if isinstance(event, Lost) else []
        assert all(isinstance(one.error, MisconductError) for one in lost) and len(made) == 3
        assert [one.out_s for one in lost] == [None, None, 300.0]


@pytest.mark.parametrize("repeated", [True, False])
def test_a_heartbeat_names_no_more_tickets_than_a_program_can_hold(repeated: bool) -> None:
    here = working()
    here.lease(TICKETS)
    claims = [TICKETS[0].key] * 100 if repeated else [Key(9, number) for number in range(100)]
    error = hung_up(here.receive(beat(claims, 1), b"", 0.0))
    assert isinstance(error, MisconductError) and "holds 100 tickets" in error.reason


@pytest.mark.component
def test_of_heartbeats_that_nobody_reads_the_newest_is_kept() -> None:
    """100 honest workers for eight hours."""
    events, ledgers = EventQueue(), [Ledger() for _ in range(100)]
    for beat_number in range(8 * 3600 // 2):
        for worker in range(100) if beat_number % 100 == 0 else range(1):
            said = msgspec.structs.replace(beat([], beat_number), for_s=float(beat_number))
            events.put(Said(f"w{worker}", said), 2000, ledgers[worker])
    events.put(Lost("w0", LinkLostError("w0", "broke")))
    assert len(events) == 101 and all(each._kept["unread"] < 4000 for each in ledgers)
    newest = events.get(0.0)
    assert isinstance(newest, Said) and isinstance(newest.message, messages.Heartbeat)
    assert newest.message.order == 8 * 3600 // 2 - 1
    while events.get(0.0) is not None:
        pass
    assert not any(each._kept["unread"] for each in ledgers) and not len(events)


def test_attempts_to_connect_that_nobody_reads_leave_the_newest_behind_the_loss() -> None:
    events, ledger = EventQueue(), Ledger()
    lost = Lost("w", LinkLostError("w", "broke"))
    for event in (Connecting("w", "a", 1.0), lost, Connecting("w", "b", 1.0), Connecting("w", "c", 1.0)):
        events.put(event, 0, ledger)
    assert list(events) == [lost, Connecting("w", "c", 1.0)]


def test_what_has_been_read_counts_no_more() -> None:
    events, ledger = EventQueue(), Ledger()
    slot, lost = Said("w", messages.SlotChanged(0, "down", "", 1)), Lost("w", LinkLostError("w", "broke"))
    for event in (slot, lost):
        events.put(event, 100, ledger)
    counted = ledger._kept["unread"]
    assert events.get(0.0) == slot and ledger._kept["unread"] == counted // 2
    assert [events.get(0.0), events.get(0.0)] == [lost, None] and not ledger._kept["unread"]


@pytest.mark.nightly
@pytest.mark.component
def test_a_worker_whose_messages_take_too_much_of_the_processor_waits_and_is_named() -> None:
    """All of them are valid, and none is a flood by number: it has the slots for it."""
    wide = messages.SlotChanged(0, "ready", "", 1)
    with fleet(encode(wide), took_s=60.0) as (here, made):
        named = None
        while not isinstance(named, Throttled):
            assert not isinstance(named, Lost)
            named = here.next_event(30.0)
        assert named.worker == "liar" and sum(one.read_lines for one in made) < 500


@pytest.mark.component
def test_what_a_worker_prints_beside_its_messages_counts_as_these_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read and dropped, at up to half a core."""
    monkeypatch.setattr(Talker, "read_lines", property(lambda _: sum(range(10**7)), lambda *_: None), raising=False)
    with fleet(encode(messages.SlotChanged(0, "ready", "", 1))) as (here, _):
        eventually(lambda: here.workers["liar"].ledger.debt_s(time.monotonic()) > 0, 20.0)


def test_leases_and_time_entitle_to_seconds() -> None:
    ledger = Ledger()
    ledger.took(0, 3.0, 0.0)
    assert ledger.debt_s(0.0) == pytest.approx(2.0 / 0.03)
    ledger.earn(100)
    assert ledger.debt_s(0.0) == pytest.approx(1.0 / 0.03)
    assert ledger.debt_s(40.0) == 0.0
    ledger.earn(10**6)
    ledger.took(0, 1.5, 40.0)
    assert ledger.debt_s(40.0) > 0, "what was earned long ago is no store"


def test_a_file_on_its_own_always_has_room() -> None:
    ledger = Ledger()
    assert ledger.has_room("unchecked", 10**12)
    ledger.keep("unchecked", 1)
    assert not ledger.has_room("unchecked", MOST_KEPT["unchecked"])
    ledger.keep("unchecked", -1)
    assert ledger.has_room("unchecked", MOST_KEPT["unchecked"])


def test_the_order_that_a_program_knows_never_goes_back() -> None:
    """Else one that always says order 0 is forgiven for every ticket that it was told to drop."""
    here = working()
    here.lease(TICKETS)
    here.receive(beat([ticket.key for ticket in TICKETS], 1), b"", 0.0)
    here.drop([TICKETS[0].key], "faults")
    here.receive(beat([], 2), b"", 1.0)
    events = [event for _ in range(2) for event in told(here.receive(beat([TICKETS[0].key], 0), b"", 2.0))]
    assert ClaimsRefused("w1", [TICKETS[0].key]) in events


def test_one_episode_of_a_dropped_ticket_is_forgiven_and_no_second_one() -> None:
    here = working()
    here.lease(TICKETS)
    here.receive(beat([], 1), b"", 0.0)
    here.drop([TICKETS[0].key], "speculation")

    def ready(name: str) -> messages.EpisodeReady:
        return messages.EpisodeReady(msgspec.structs.replace(MANIFEST, key=TICKETS[0].key, episode_id=name))

    assert not any(hasattr(effect, "error") for effect in here.receive(ready("a"), b"", 0.0))
    assert isinstance(hung_up(here.receive(ready("b"), b"", 0.0)), MisconductError)


def test_a_program_that_takes_in_no_order_is_replaced_after_twice_what_it_may_be_busy() -> None:
    here = working()
    here.lease(TICKETS)
    now, errors = 0.0, list[Any]()
    while not errors and now < 10 * LIMITS.stuck_s:
        here.ping(now)
        errors += of("hang_up", here.receive(beat([], 0), b"", now))
        now += 2.0
    assert isinstance(errors[0], ProgramSilent) and 2 * LIMITS.stuck_s < now < 3 * LIMITS.stuck_s

"""One connection as a state machine: what the program says and what the host wants go in, calls of a rim come out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from digirl_dist.errors import (
    HostKeyError,
    InstallError,
    JobError,
    LinkLostError,
    LoginError,
    MisconductError,
    UnreachableError,
    WorkerError,
)
from digirl_dist.fleet.outgoing import Blob, Named
from digirl_dist.fleet.reconnecting import Reconnecting
from digirl_dist.fleet.session import PING_S, ProgramSilent, Session
from digirl_dist.fleet.spec import Job
from digirl_dist.fleet.worker_events import ClaimsRefused, LeasesLost, PolicyLoaded, Said, WorkerEvent
from digirl_dist.inference.requests import InferenceRequest
from digirl_dist.protocol import messages
from digirl_dist.protocol.messages import PROTOCOL, EpisodeManifest, SlotLimits
from digirl_dist.settings import LimitSettings
from digirl_dist.storage.digest import digest
from digirl_dist.tasks import Key, Task, Ticket

LIMITS = LimitSettings(silence_s=8.0, start_s=20.0, stuck_s=30.0, back_off_s=1.0, back_off_max_s=8.0, steady_s=60.0)
READY = messages.Ready(PROTOCOL, "package", "3.11", 1)
WORKING = messages.Working(4, "", [])
TICKETS = [Ticket(0, index, Task("t"), index, 3) for index in range(3)]


class Recorded:
    """A session and its rim: what returns nothing of a session returns here the names and arguments of its calls.

    An error that ends the connection is the argument of a call "hang_up".
    """

    def __init__(self, policy: Named | None, agent: bytes | None) -> None:
        spec: Any = SimpleNamespace(name="w1", slots=4, package="package")
        job = Job("r1", agent, b"emulator", 10, SlotLimits(), 1, 60.0)
        self._session = Session(self, spec, job, LIMITS, policy)
        self._calls: list[tuple[Any, ...]] = []
        self.is_stuck = False
        """Whether what is sent stays here."""

    def send(self, message: messages.HostMessage) -> None:
        messages.encode(message)
        self._calls.append(("send", message))
        if isinstance(message, messages.Action | messages.NoAction) and not self.is_stuck:
            self._session.answered(message.number)

    def push(self, need: messages.Need, blobs: Sequence[Blob]) -> None:
        self._calls.append(("push", need, blobs))

    def decide(self, request: InferenceRequest) -> None:
        self._calls.append(("decide", request))

    def tell(self, event: WorkerEvent) -> None:
        self._calls.append(("tell", event))

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._session, name)

        def called(*arguments: Any) -> Any:
            self._calls = []
            try:
                returned = found(*arguments)
            except WorkerError as error:
                returned = self._calls.append(("hang_up", error))
            return self._calls if returned is None else returned

        return called if callable(found) else found


def session(policy: Named | None = None, agent: bytes | None = b"agent") -> Recorded:
    return Recorded(policy, agent)


def working(policy: Named | None = None, agent: bytes | None = b"agent") -> Recorded:
    here = session(policy, agent)
    here.receive(READY, b"", 0.0)
    here.receive(WORKING, b"", 0.0)
    return here


def of(name: str, calls: Any) -> list[Any]:
    return [call[-1] for call in calls if call[0] == name]


def sent(calls: Any) -> list[messages.HostMessage]:
    return of("send", calls)


def told(calls: Any) -> list[Any]:
    return of("tell", calls)


def hung_up(calls: Any) -> Any:
    (error,) = of("hang_up", calls)
    return error


def ping(here: Recorded, begin: float, end: float) -> None:
    """Pings as often as a fleet does, from ``begin`` up to ``end``."""
    for now in [*np.arange(begin, end, PING_S).tolist(), end]:
        here.ping(now)


def beat(held: list[Key], order: int, **more: Any) -> messages.Heartbeat:
    fields: dict[str, Any] = {"doing": "run", "for_s": 0.1, "unheard_s": 0.1, "slots": [], "in_service": 4, **more}
    return messages.Heartbeat(held=held, order=order, **fields)


def test_a_greeting_leads_to_the_job_and_the_newest_policy() -> None:
    here = session(Named(3))
    assert sent(here.greet(0.0)) == [messages.Hello("r1", [PROTOCOL])]
    (job,) = sent(here.receive(READY, b"", 0.0))
    assert isinstance(job, messages.StartJob) and job.name == "w1" and job.slots == 4
    calls = here.receive(WORKING, b"", 0.0)
    assert told(calls) == [Said("w1", WORKING)] and sent(calls) == [messages.LoadPolicy(3, {})]


def test_what_is_needed_is_pushed_and_then_only_said_to_be_there() -> None:
    here = session()
    here.receive(READY, b"", 0.0)
    (blobs,) = of("push", here.receive(messages.Need("job", [digest(b"agent")]), b"", 0.0))
    assert [bytes(blob.content()) for blob in blobs] == [b"agent"]
    assert sent(here.pushed("job", 5)) == [messages.Pushed("job")]


def test_a_loaded_policy_says_what_its_push_took() -> None:
    here = working()
    here.announce(Named(3), 10.0)
    assert sent(here.pushed("policy", 700)) == [messages.Pushed("policy")]
    assert told(here.receive(messages.Loaded(3), b"", 12.5)) == [PolicyLoaded("w1", 3, 2.5, 700)]
    assert not here.receive(messages.Loaded(2), b"", 13.0), "an older version that was loaded meanwhile"


@pytest.mark.parametrize(
    "ready", [messages.Ready(PROTOCOL + 1, "package", "", 1), messages.Ready(PROTOCOL, "old", "", 1)]
)
def test_a_program_of_another_version_is_replaced(ready: messages.Ready) -> None:
    assert isinstance(hung_up(session().receive(ready, b"", 0.0)), ProgramSilent)


def test_a_program_that_does_not_understand_the_greeting_is_replaced() -> None:
    """As one of an earlier version says it."""
    broken = messages.Broken("hello", "TypeError: _greet() got an unexpected keyword argument")
    assert isinstance(hung_up(session().receive(broken, b"", 0.0)), ProgramSilent)


@pytest.mark.parametrize(
    ("reason", "foreseen", "said"),
    [
        ("9 emulators take 9 GB -> set bsize=1", True, "worker w1: 9 emulators take 9 GB -> set bsize=1"),
        ("… line 9, in long\nValueError: no", False, "it cannot carry out 'Pushed': … line 9"),
    ],
)
def test_what_a_program_foresaw_stands_for_itself(reason: str, foreseen: bool, said: str) -> None:
    assert said in str(hung_up(session().receive(messages.Broken("Pushed", reason, foreseen), b"", 0.0)))


@pytest.mark.parametrize(
    ("during", "kind"),
    [
        ("disk", LinkLostError),
        ("attach", JobError),
        ("StartJob", JobError),
        ("run", JobError),
        ("host", JobError),
        ("start", JobError),
        ("wait", LinkLostError),
    ],
)
def test_what_is_broken_decides_whether_the_worker_comes_back(during: str, kind: type) -> None:
    error = hung_up(working().receive(messages.Broken(during, "why"), b"", 0.0))
    assert isinstance(error, kind) and "why" in str(error) and error.fatal == (kind is JobError)


def test_nothing_is_leased_before_the_job_is_accepted() -> None:
    here = session()
    assert not here.lease(TICKETS) and not here.drop([TICKETS[0].key], "faults")
    here.receive(READY, b"", 0.0)
    here.receive(WORKING, b"", 0.0)
    assert sent(here.lease(TICKETS)) == [messages.Lease(1, TICKETS)]


def test_an_episode_of_another_run_ends_the_connection() -> None:
    foreign = EpisodeManifest("r2", Key(0, 0), 0, 0, "e", 1, "ab", 0, 1.0, 0.0, {})
    assert "r2" in str(hung_up(working().receive(messages.EpisodeReady(foreign), b"", 0.0)))


def test_an_episode_of_a_ticket_that_was_not_leased_is_an_offence_once_what_lay_ready_is_told() -> None:
    def ready(key: Key) -> messages.EpisodeReady:
        return messages.EpisodeReady(EpisodeManifest("r1", key, 0, 3, f"e{key}", 1, "ab", 0, 1.0, 0.0, {}))

    here = working()
    held, dropped, foreign = TICKETS[0].key, TICKETS[1].key, Key(0, 1_000_000)
    assert told(here.receive(ready(Key(0, 9)), b"", 0.0)), "from before this connection"
    here.lease(TICKETS)
    here.drop([dropped], "speculation")
    here.receive(beat([held, dropped, TICKETS[2].key], 1), b"", 0.0)
    assert all(told(here.receive(ready(key), b"", 0.0)) for key in (held, dropped))
    error = hung_up(here.receive(ready(foreign), b"", 0.0))
    assert isinstance(error, MisconductError) and "t0.1000000 was not leased to it" in str(error)


def test_a_request_goes_to_the_hosts_policy_and_a_malformed_one_ends_the_connection() -> None:
    asked = messages.Ask(1, 3, (0, 0, 0), "seen", None, 4, 4)
    (request,) = of("decide", working(Named(3), agent=None).receive(asked, np.float32(2).tobytes(), 0.0))
    assert request.observation.vector == np.float32(2)
    assert isinstance(hung_up(working(Named(3), agent=None).receive(asked, b"abcde", 0.0)), MisconductError)


def test_heartbeats_show_a_program_that_is_stuck_and_a_link_that_is_half_open() -> None:
    stuck = hung_up(working().receive(beat([], 0, for_s=31.0), b"", 0.0))
    assert isinstance(stuck, ProgramSilent) and "stuck" in str(stuck)
    here = working()
    ping(here, 100.0, 109.0)
    half_open = hung_up(here.receive(beat([], 0, unheard_s=9.0), b"", 109.0))
    assert "half-open" in str(half_open) and not isinstance(half_open, ProgramSilent)


@pytest.mark.parametrize("make", [session, working], ids=["before the job runs", "while it runs"])
def test_a_half_open_link_is_noticed_and_a_program_without_a_host_is_not_blamed(make: Callable[[], Recorded]) -> None:
    here = make()
    assert told(here.receive(beat([], 0, unheard_s=500.0), b"", 100.0)), "no host had come for long"
    ping(here, 100.0, 110.0)
    assert told(here.receive(beat([], 0, unheard_s=7.9), b"", 107.9))
    assert "half-open" in str(hung_up(here.receive(beat([], 0, unheard_s=10.0), b"", 110.0)))


def test_a_host_that_was_suspended_blames_no_link() -> None:
    here = working()
    ping(here, 100.0, 121.0)
    for unheard_s in (9.0, 20.0):  # what was said meanwhile comes at once, before the next ping and after it
        assert told(here.receive(beat([], 0, unheard_s=unheard_s), b"", 145.0))
        ping(here, 145.0, 145.0)
    ping(here, 148.0, 154.0)
    assert "half-open" in str(hung_up(here.receive(beat([], 0, unheard_s=33.0), b"", 154.0)))


def test_a_lost_lease_counts_once_two_heartbeats_that_know_of_it_say_so() -> None:
    here = working()
    here.lease(TICKETS)
    keys = [ticket.key for ticket in TICKETS]
    before_the_lease = [told(here.receive(beat([], 0), b"", 0.0)) for _ in range(3)]
    assert not [event for events in before_the_lease for event in events if isinstance(event, LeasesLost)]
    assert LeasesLost("w1", keys[:1]) not in told(here.receive(beat(keys[1:], 1), b"", 0.0))
    assert LeasesLost("w1", keys[:1]) in told(here.receive(beat(keys[1:], 1), b"", 0.0))
    assert not any(isinstance(event, LeasesLost) for event in told(here.receive(beat(keys[1:], 1), b"", 0.0)))


def test_an_episode_that_ended_between_two_heartbeats_is_neither_lost_nor_claimed() -> None:
    here = working()
    here.lease(TICKETS)
    keys = [ticket.key for ticket in TICKETS]
    here.receive(beat(keys[1:], 1), b"", 0.0)  # it ended, and its message comes behind
    here.receive(messages.EpisodeFailed(0, keys[0], "hung"), b"", 0.0)
    here.receive(beat(keys, 1), b"", 0.0)  # made before it ended
    events = [event for _ in range(2) for event in told(here.receive(beat(keys[1:], 1), b"", 0.0))]
    assert not any(isinstance(event, LeasesLost | ClaimsRefused) for event in events)


def test_a_claim_without_a_lease_is_refused_and_dropped() -> None:
    here = working()
    claim = Key(7, 7)
    assert not sent(here.receive(beat([claim], 0), b"", 0.0))
    calls = here.receive(beat([claim], 0), b"", 0.0)
    assert ClaimsRefused("w1", [claim]) in told(calls)
    assert sent(calls) == [messages.Drop(1, [claim], "faults")]
    dropped = [one for _ in range(3) for one in here.receive(beat([claim], 0), b"", 0.0)]
    assert not sent(dropped), "the program does not know of the drop yet"


def test_only_what_the_program_should_hold_is_taken_back() -> None:
    here = working()
    here.lease(TICKETS)
    here.receive(messages.EpisodeFailed(0, TICKETS[0].key, "r"), b"", 1.0)
    assert not here.drop([TICKETS[0].key], "faults")
    (drop,) = sent(here.drop([ticket.key for ticket in TICKETS[:2]], "faults"))
    assert isinstance(drop, messages.Drop) and drop.keys == [TICKETS[1].key]


def test_a_program_may_be_silent_for_longer_until_it_has_a_policy() -> None:
    here = working(Named(0))
    assert here.patience_s == LIMITS.start_s
    here.receive(messages.Loaded(0), b"", 0.0)
    assert here.patience_s == LIMITS.silence_s
    lost = LinkLostError("w1", "nothing came")
    assert isinstance(here.silent(True, lost), ProgramSilent) and here.silent(False, lost) is lost


def test_pauses_between_connections_double_until_one_was_steady() -> None:
    back = Reconnecting(LIMITS, lambda low, high: high)
    pauses = []
    for _ in range(5):
        back.connecting(0.0)
        pauses.append(back.lost(LinkLostError("w1", "cut"), 1.0))
    assert pauses == [2.0, 4.0, 8.0, 8.0, 8.0]
    back.connecting(0.0)
    assert back.lost(LinkLostError("w1", "cut"), 61.0) == 1.0
    assert back.lost(JobError("w1", "no", "nothing"), 61.0) is None
    back.lost(ProgramSilent("w1", "silent"), 61.0)
    assert back.replace


def test_a_worker_that_is_away_for_days_is_still_tried_again() -> None:
    back = Reconnecting(LIMITS, lambda low, high: high)
    for _ in range(5000):
        back.connecting(0.0)
        assert 0.0 < (back.lost(UnreachableError("w1", "nothing listens"), 1.0) or 0.0) <= LIMITS.back_off_max_s


@pytest.mark.parametrize("kind", [HostKeyError, InstallError, LoginError])
def test_a_machine_that_refuses_what_it_granted_before_is_tried_again(kind: type) -> None:
    back = Reconnecting(LIMITS, lambda low, high: high)
    assert back.lost(kind("w1", "no", "nothing"), 1.0) is None
    back.attached()
    back.connecting(2.0)
    assert back.lost(kind("w1", "no", "nothing"), 2.0) == LIMITS.back_off_max_s and not back.is_out_of_service
    back.attached()
    assert back.lost(JobError("w1", "no", "nothing"), 3.0) is None, "the agent or the emulator is wrong everywhere"


@pytest.mark.parametrize("kind", [JobError, HostKeyError, InstallError, LoginError])
def test_a_worker_that_has_brought_an_episode_is_given_up_for_no_error(kind: type) -> None:
    """Limits and words at one end only: whether a worker is given up is decided by its history."""
    back = Reconnecting(LIMITS, lambda low, high: high)
    back.attached()
    back.brought()
    for at in (1.0, 864_000.0):
        assert back.lost(kind("w1", "memory ran out", "nothing"), at) == LIMITS.back_off_max_s

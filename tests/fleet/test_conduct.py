"""What no honest program says ends its connection, and what comes again and again takes the worker out of service."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

import msgspec
import numpy as np
import pytest
from fleet.test_session import LIMITS, READY, TICKETS, Recorded, beat, hung_up, of, sent, session, told, working
from image_files import encoded
from PIL import Image

from digirl_dist.errors import LinkLostError, MisconductError, ProtocolError, TooSlowError, WorkerError
from digirl_dist.fleet.conduct import Conduct
from digirl_dist.fleet.outgoing import Named
from digirl_dist.fleet.reconnecting import Reconnecting
from digirl_dist.fleet.session import ProgramSilent
from digirl_dist.fleet.spec import Job
from digirl_dist.inference.requests import InferenceFailure
from digirl_dist.protocol import messages
from digirl_dist.protocol.messages import SlotLimits
from digirl_dist.settings import LimitSettings
from digirl_dist.tasks import Key

SLOTS = 4
MANIFEST = messages.EpisodeManifest("r1", Key(0, 0), 0, 0, "e", 1, "ab", 0, 1.0, 0.0, {})
SPENT = messages.SlotSeconds({"step": 1.0})


def png(width: int, height: int) -> bytes:
    """A picture of one colour."""
    return encoded(Image.new("L", (width, height)))


def ask(number: int, version: int = 3) -> messages.Ask:
    return messages.Ask(number, version, (0, 0, 0), "seen", None, None)


def slot(number: int = 0, in_service: int = 1) -> messages.SlotChanged:
    return messages.SlotChanged(number, "ready", "", in_service)


@pytest.mark.parametrize(
    "lie",
    [
        beat([], 0, slots=[messages.SlotWait("step", 0.0, None, None)] * (SLOTS + 1)),
        beat([], 0, in_service=SLOTS + 1),
        beat([], 1),
        slot(SLOTS),
        slot(in_service=SLOTS + 1),
        messages.Loaded(4),
        messages.Need("policy", ["0a"]),
        messages.Need("job", ["0a"]),
        messages.SlotSeconds({"step": 1.0}),
        messages.EpisodeReady(msgspec.structs.replace(MANIFEST, run="r2")),
        ask(1),
    ],
)
def test_a_claim_that_no_honest_program_makes_ends_the_connection(lie: messages.WorkerMessage) -> None:
    error = hung_up(working(Named(3)).receive(lie, b"", 1.0))
    assert isinstance(error, MisconductError) and type(lie).__name__ in error.reason and not error.fatal


@pytest.mark.parametrize("slots", [1, SLOTS + 1, 10_000])
def test_a_worker_has_the_slots_that_the_configuration_gives_it(slots: int) -> None:
    here = session()
    here.receive(READY, b"", 0.0)
    assert "was to have 4" in str(hung_up(here.receive(messages.Working(slots, "", []), b"", 0.0)))


@pytest.mark.parametrize("line", [b"Welcome!\n", b"\0\xff{}\n"])
def test_what_is_no_message_is_a_shells_greeting_only_until_the_program_has_said_something(line: bytes) -> None:
    here, error = session(), ProtocolError("no JSON")
    assert here.malformed(line, error).fatal and "start-up files" in here.malformed(line, error).remedy
    assert isinstance(here.malformed(b"{}\n", error), MisconductError)
    here.receive(READY, b"", 0.0)
    assert isinstance(here.malformed(line, error), MisconductError) and not here.malformed(line, error).fatal


def flood(here: Recorded, message: messages.WorkerMessage, count: int, every_s: float = 0.0) -> WorkerError | None:
    """Returns the reason for which the session hung up, if it did."""
    for number in range(count):
        if errors := of("hang_up", here.receive(message, b"", number * every_s)):
            error: WorkerError = errors[0]
            return error
    return None


@pytest.mark.parametrize(
    "message",
    [beat([], 0), slot(), messages.UnknownFile("x", ""), messages.Loaded(3), messages.Acting(0, Key(0, 0)),
     messages.EpisodeFailed(0, Key(0, 0), ""), messages.Working(SLOTS, "", [])],
)  # fmt: skip
def test_a_flood_of_any_message_ends_the_connection(message: messages.WorkerMessage) -> None:
    error = flood(working(Named(3)), message, 2000)
    assert isinstance(error, MisconductError) and "floods" in error.reason


@pytest.mark.component
def test_an_honest_program_never_floods() -> None:
    """A thousand episodes a second for as long as they are leased, heartbeats, and slots that fail now and then."""
    here = working(Named(3))
    for second in range(60):
        for number in range(1000):
            here.lease([TICKETS[0]])
            here.forget(MANIFEST.episode_id)
            for message in (messages.Acting(0, TICKETS[0].key), messages.EpisodeReady(MANIFEST)):
                assert not of("hang_up", here.receive(message, b"", second + number / 1000))
    later = working(Named(3))
    assert flood(later, beat([], 0), 600, every_s=2.0) is None


def test_a_program_may_ask_again_for_what_it_needs_but_not_without_end() -> None:
    here = working(Named(3))
    error = flood(here, messages.Need("policy", []), 10)
    assert isinstance(error, MisconductError) and "again and again" in error.reason


def test_a_program_that_was_busy_for_several_iterations_may_ask_for_what_each_of_them_announced() -> None:
    here = Conduct(Job("r1", b"agent", b"e", 10, SlotLimits(), 1, 60.0), SLOTS)
    here.works(messages.Working(SLOTS, "", []), 0.0)
    for version in range(20):
        here.announced(version, {f"{version:02x}"})
    for version in range(20):
        here.check(messages.Need("policy", [f"{version:02x}"]), 0, 0, 1.0)
    here.check(messages.Loaded(19), 0, 0, 2.0)
    here.check(messages.Need("policy", ["13"]), 0, 0, 3.0)
    with pytest.raises(ProtocolError, match="needs 12, which nobody announced"):
        here.check(messages.Need("policy", ["12"]), 0, 0, 4.0)


def test_an_episode_is_announced_again_but_not_without_end() -> None:
    here = working(Named(3))
    ready = messages.EpisodeReady(MANIFEST)
    for _ in range(5):
        assert flood(here, ready, 5) is None
        here.forget(MANIFEST.episode_id)
    error = flood(here, ready, 10)
    assert isinstance(error, MisconductError) and "again and again" in error.reason


def test_no_more_actions_are_asked_for_at_once_than_slots_may_wait_for() -> None:
    here = working(Named(3), agent=None)
    errors = [flood(here, ask(number), 1) for number in range(100)]
    assert errors[:SLOTS] == [None] * SLOTS and any(isinstance(error, MisconductError) for error in errors)


def test_answered_requests_cost_nothing() -> None:
    here = working(Named(3), agent=None)
    for number in range(5000):
        assert not of("hang_up", here.receive(ask(number), b"", 0.0))
        assert sent(here.decided(InferenceFailure(number, "no")))


@pytest.mark.parametrize("make", [session, working])
def test_a_request_is_open_until_its_answer_has_gone(make: Callable[..., Recorded]) -> None:
    here = make(Named(3), agent=None)
    here.is_stuck = True
    errors = list[Any]()
    for number in range(messages.MOST_SLOTS + 1):
        errors += of("hang_up", here.receive(ask(number), b"", 0.0))
        here.decided(InferenceFailure(number, "no"))
    assert isinstance(errors[0], MisconductError) and "actions at once" in errors[0].reason


@pytest.mark.parametrize("at_work", [False, True])
@pytest.mark.parametrize("what", ["other", "same", "text"])
def test_requests_that_nobody_could_answer_so_fast_do_not_fill_the_host(at_work: bool, what: str) -> None:
    here = working(Named(3), agent=None) if at_work else session(Named(3), agent=None)
    text, image = ("x" * (1 << 17), None) if what == "text" else ("seen", png(4, 4) + bytes(4 << 20))
    attached = image or b""
    kept = 0
    for number in range(3000):
        size = None if image is None else len(image)
        asked = messages.Ask(1 if what == "same" else number, 3, (0, 0, 0), text, size, None, len(attached))
        calls = here.receive(asked, attached, 0.0)
        kept += (len(text) + len(attached)) * len(of("decide", calls))
        if of("hang_up", calls):
            break
    else:
        pytest.fail("it may ask for ever")
    assert kept <= 64 << 20


@pytest.mark.parametrize(
    ("image", "vector", "told"),
    [
        (png(5000, 5000), b"", "an image of 5000 x 5000 pixels"),
        (b"no picture", b"", "cannot be decoded"),
        (None, np.float32(math.nan).tobytes(), "NaN or infinite"),
    ],
    ids=["bomb", "no picture", "nan"],
)
def test_a_question_that_would_hold_up_the_policy_of_all_gets_no_action(
    image: bytes | None, vector: bytes, told: str
) -> None:
    here, attached = working(Named(3), agent=None), (image or b"") + vector
    asked = messages.Ask(
        *(1, 3, (0, 0, 0), "seen"), None if image is None else len(image), len(vector) or None, len(attached)
    )
    (answer,) = sent(here.receive(asked, attached, 0.0))
    assert isinstance(answer, messages.NoAction) and answer.number == 1 and told in answer.reason
    for _ in range(2000):
        if of("hang_up", here.receive(asked, attached, 0.0)):
            return
    pytest.fail("it may ask so for ever, and not read the answers")


def test_a_request_that_is_sent_again_is_decided_once() -> None:
    here = working(Named(3), agent=None)
    assert len(here.receive(ask(1), b"", 0.0)) == 1 and not here.receive(ask(1), b"", 0.0)
    here.decided(InferenceFailure(1, "lost"))
    assert len(here.receive(ask(1), b"", 0.0)) == 1


def test_seconds_of_slots_cannot_exceed_what_there_was() -> None:
    here = working(Named(3))
    for _ in range(3):
        here.collected()
    assert told(here.receive(SPENT, b"", 1.0)), "the first tally may reach back"
    assert told(here.receive(SPENT, b"", 2.0))
    years = messages.SlotSeconds({"step": 1e9})
    assert "slot-seconds" in str(hung_up(here.receive(years, b"", 3.0)))


def test_an_episode_that_began_before_the_connection_is_no_lie_when_its_seconds_are_told_at_its_end() -> None:
    here = working(Named(3))
    for now, seconds in ((10.0, {}), (60.0, {"reset": 5.0 * SLOTS, "step": 300.0 * SLOTS})):
        here.collected()
        assert told(here.receive(messages.SlotSeconds(seconds), b"", now))


def test_what_a_former_host_asked_for_is_no_lie() -> None:
    here = session(Named(3))
    needed = messages.Need("policy", ["0a"])
    leaked = [needed, messages.Loaded(9), slot(77), SPENT, messages.Working(9, "", []), beat([], 99), ask(1, 99)]
    for message in leaked:
        assert not of("hang_up", here.receive(message, b"", 0.0)), message
    assert sent(here.receive(READY, b"", 0.0)) and not sent(here.receive(READY, b"", 0.0))


def test_a_program_that_claims_again_what_it_was_told_to_drop_is_out_of_service() -> None:
    here = working()
    claim = Key(7, 7)
    for _ in range(2):
        here.receive(beat([claim], 0), b"", 0.0)
    errors = [hung_up(calls) for _ in range(3) if len(calls := here.receive(beat([claim], 1), b"", 0.0)) > 1]
    assert errors and errors[0].proven


def offences(*errors: WorkerError, every_s: float, limits: LimitSettings = LIMITS) -> list[tuple[bool, float | None]]:
    back = Reconnecting(limits, lambda low, high: high)
    found: list[tuple[bool, float | None]] = []
    for number, error in enumerate(errors):
        back.connecting(number * every_s)
        pause_s = back.lost(error, number * every_s)
        found.append((back.is_out_of_service, pause_s))
    return found


@pytest.mark.parametrize("kind", [MisconductError, ProgramSilent, TooSlowError])
def test_the_third_offence_takes_a_worker_out_of_service_and_each_one_soon_after(kind: Any) -> None:
    first, second, third, fourth = offences(*[kind("w1", "lies")] * 4, every_s=5.0)
    assert not first[0] and not second[0]
    assert third == fourth == (True, LIMITS.quarantine_s)


def test_proof_takes_it_out_at_once_and_a_cut_link_never_does() -> None:
    assert offences(MisconductError("w1", "lies", proven=True), every_s=1.0) == [(True, LIMITS.quarantine_s)]
    assert not any(out for out, _ in offences(*[LinkLostError("w1", "cut")] * 20, every_s=1.0))
    assert not any(out for out, _ in offences(*[MisconductError("w1", "lies")] * 9, every_s=300.0))


def test_silence_is_an_offence_however_long_a_program_may_take_to_start() -> None:
    """Three silences of ten minutes, for a large model, are not forgotten before the third one is noticed."""
    patient = replace(LIMITS, start_s=600.0)
    errors = [ProgramSilent("w1", "silent")] * 3
    assert [out for out, _ in offences(*errors, every_s=650.0, limits=patient)] == [False, False, True]


def test_every_message_of_a_worker_is_looked_at() -> None:
    """A message that is added must be thought of: it is answered here, or bounded by the flood limit alone."""
    thought_of = {
        messages.Ready, messages.Need, messages.Working, messages.Loaded, messages.Ask, messages.Acting,
        messages.EpisodeReady, messages.UnknownFile, messages.EpisodeFailed, messages.SlotChanged,
        messages.SlotSeconds, messages.Heartbeat, messages.Broken,
    }  # fmt: skip
    assert set(get_args(messages.WorkerMessage)) == thought_of

"""Runs episodes: asks, in one batch, for the actions of all emulators that wait for one."""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from typing import Any, Literal, Protocol

from digirl_dist.emulator.episode_limits import MOST_STEPS, check_step, check_sums, pixels
from digirl_dist.errors import ActionError, EmulatorError, TrajectoryError
from digirl_dist.inference.requests import (
    InferenceFailure,
    InferenceReply,
    InferenceRequest,
    InferenceResult,
    RandomStream,
)
from digirl_dist.protocol.messages import Acting, EpisodeFailed, SlotChanged, SlotState, SlotWait, shortened
from digirl_dist.rollout.slot import Slot, SlotTime, State
from digirl_dist.tasks import Key, Ticket
from digirl_dist.trajectory import Decision, Observation, Step, Trajectory, Transition, recorded


class Policies(Protocol):
    """The policies that decide: those of this machine at once, or those of the host later."""

    waiting: str
    """What ``waits`` says of a slot that waits for an action."""

    @property
    def limit_s(self) -> float | None:
        """The longest wait for an action, in seconds; None: it comes at once."""

    def __contains__(self, version: object) -> bool:
        """Returns whether requests to this policy version can be answered by now."""

    def expect(self, stream: RandomStream) -> None:
        """Announces the stream of an episode's next request, while nobody waits for its action."""

    def ask(self, requests: Sequence[InferenceRequest]) -> None:
        """Hands in requests to versions that are there."""

    def answers(self) -> Sequence[InferenceReply]:
        """Returns the replies since the last call; each request gets one."""


@dataclass(frozen=True)
class Finished:
    """An episode came to its end. Times are monotonic seconds of this machine."""

    trajectory: Trajectory
    started_at: float
    ended_at: float
    spent: dict[str, float]
    """Seconds in ``reset``, ``step``, ``policy``."""


_MANY = 100
"""Steps of an episode from which on people are told their number."""
_LONG = 1000
_MOST_FAILED = 1000
"""Lost tickets whose next reset is excused: older ones have come back long ago, or never will."""
_ENDLESS = "if it never ends, set max_steps, or give the environment a TimeLimit"

Happening = Finished | EpisodeFailed | Acting | SlotChanged
"""What happens on slots, in the words of the protocol; an episode that came to its end is not written yet."""


@dataclass
class _Episode:
    ticket: Ticket
    started_at: float
    stream: RandomStream
    """The randomness of the next decision."""
    observation: Observation | None = None
    asked: int | None = None
    """The number of the request that is open."""
    asked_at: float = 0.0
    """When it was made, in monotonic seconds."""
    decision: Decision | None = None
    steps: list[Step] = field(default_factory=list)
    screens: dict[bytes, int] = field(default_factory=dict)
    """Its different screenshots, with their pixels."""
    spent: dict[str, float] = field(default_factory=lambda: {"reset": 0.0, "step": 0.0, "policy": 0.0})
    dropped: str | None = None
    """The activity under which its seconds are booked, once it is no longer wanted."""


class Rollout:
    """Episodes on the slots of one machine.

    Lease it tickets, then call ``turn`` again and again; it never waits longer than asked. ``max_steps`` ends an
    episode with ``truncated`` (None: the emulator decides). With ``shrink``, a slot whose emulator never booted is
    given up for good once another slot's did.
    """

    def __init__(
        self,
        name: str,
        slots: Sequence[Slot],
        policies: Policies,
        max_steps: int | None,
        shrink: bool = False,
    ) -> None:
        self.name = name
        self.slots = slots
        self.tickets: deque[Ticket] = deque()
        self._policies = policies
        self._max_steps = max_steps
        self._shrink = shrink
        self._idle_because = "push"
        self._times = {slot.index: SlotTime() for slot in slots}
        self._episodes: dict[int, _Episode] = {}
        self._failed: deque[Key] = deque(maxlen=_MOST_FAILED)
        """Tickets at which an emulator failed here: another failure is theirs, and not the slot's."""
        self._happened: list[Happening] = []
        self._questions = 0

    def lease(self, tickets: Sequence[Ticket]) -> None:
        self.tickets.extend(tickets)

    def held(self) -> list[Ticket]:
        """Returns the tickets that are queued or running."""
        return [*self.tickets, *(episode.ticket for episode in self._episodes.values() if episode.dropped is None)]

    def drop(self, keys: set[Key], lost_to: str = "faults") -> None:
        """Forgets tickets; a running episode ends without a result, and its seconds are booked under ``lost_to``.

        An emulator that has been asked for something answers first.
        """
        self.tickets = deque(ticket for ticket in self.tickets if ticket.key not in keys)
        for slot in self.slots:
            episode = self._episodes.get(slot.index)
            if episode is not None and episode.ticket.key in keys:
                episode.dropped = lost_to
                if slot.state is State.idle:
                    self._abandon(slot, episode)

    def waits(self) -> list[SlotWait]:
        """Returns what every slot does, for people to see; may be called from another thread."""
        now = time.monotonic()
        found = []
        for slot in self.slots:
            episode = self._episodes.get(slot.index)
            ticket = None if episode is None else episode.ticket.index
            if episode is not None and episode.asked is not None:
                activity, since, limit_s = self._policies.waiting, episode.asked_at, self._policies.limit_s
            else:
                activity, since, limit_s = self._activity(slot), slot.since, slot.deadline - slot.since
            if episode is not None and len(episode.steps) >= _MANY:
                activity = f"{activity} after {len(episode.steps)} steps"
            limit_s = None if limit_s is None or limit_s == math.inf else max(0.0, limit_s)
            found.append(SlotWait(activity, max(0.0, now - since), limit_s, ticket))  # it may change meanwhile
        return found

    def in_service(self) -> int:
        """Returns the number of slots that are not closed."""
        return sum(slot.state is not State.closed for slot in self.slots)

    def idle(self, because: str) -> None:
        """Books slots without a ticket under this activity (see slot_time)."""
        self._idle_because = because
        self._book()

    def spent(self) -> dict[str, float]:
        """Returns the slot-seconds by activity since the last call, of all slots together."""
        total: Counter[str] = Counter()
        for slot in self.slots:
            total.update(self._times[slot.index].take())
        return dict(total)

    def turn(self, timeout_s: float, others: Sequence[Any] = ()) -> list[Happening]:
        """Waits for a slot, one of ``others`` (anything with ``fileno``) or a deadline; attends to it and acts."""
        self._begin()
        self._act()
        self._book()
        until = min((slot.deadline for slot in self.slots), default=float("inf"))
        wait_s = min(timeout_s, max(0.0, until - time.monotonic()))
        pipes: list[Any] = [slot.pipe for slot in self.slots if slot.pipe is not None]
        came: list[Any] = wait([*pipes, *others], wait_s)
        for slot in self.slots:
            self._attend(slot, slot.pipe in came)
        self._book()
        self._act()
        self._begin()
        self._book()
        happened, self._happened = self._happened, []
        return happened

    def close(self, limit_s: float = 10.0) -> None:
        """Closes every emulator and waits for their processes, at most ``limit_s``."""
        deadline = time.monotonic() + limit_s
        for slot in self.slots:
            slot.close()
        for slot in self.slots:
            slot.wait(deadline)

    def _attend(self, slot: Slot, answered: bool) -> None:
        """Starts a slot whose back-off is over; takes the answer of one that answered or is overdue."""
        overdue = time.monotonic() >= slot.deadline
        if slot.state in (State.down, State.closed):
            if overdue:
                self._start(slot)
        elif answered or overdue:
            self._take_answer(slot)

    def _start(self, slot: Slot) -> None:
        try:
            slot.start()
        except EmulatorError as error:
            self._tell_failure(slot, error)

    def _take_answer(self, slot: Slot) -> None:
        booting = slot.state is State.booting
        try:
            answer = slot.answer()
            if booting and answer is not None:
                self._tell(slot, "ready", "")
            elif answer is not None:
                self._advance(slot, self._episodes[slot.index], *answer)
        except ActionError as error:
            self._lose(slot, f"the emulator refused the agent's action: {error}", "agent")
        except EmulatorError as error:
            if slot.index in self._episodes:
                self._failed.append(self._episodes[slot.index].ticket.key)
            self._lose(slot, str(error))
            self._tell_failure(slot, error)
        except TrajectoryError as error:  # the host would refuse an episode of that
            episode = self._episodes[slot.index]
            place = f"task {episode.ticket.task.id}, step {len(episode.steps)}"
            self._lose(slot, f"{place}: the emulator or the agent exceeds the limits of an episode: {error}")

    def _tell_failure(self, slot: Slot, error: EmulatorError) -> None:
        state: SlotState = "closed" if slot.state is State.closed else "down"
        self._tell(slot, state, str(error) + self._given_up(slot))

    def _tell(self, slot: Slot, state: SlotState, reason: str) -> None:
        self._happened.append(SlotChanged(slot.index, state, shortened(reason), self.in_service()))

    def _given_up(self, slot: Slot) -> str:
        """Gives up a slot for which this machine seems too small; returns what to say of it, else nothing."""
        if (
            not self._shrink
            or slot.state is not State.closed
            or slot.has_booted
            or not any(other.has_booted for other in self.slots)
        ):
            return ""
        slot.give_up()
        return f"; bsize: auto goes on without this slot, with {self.in_service()}"

    def _lose(self, slot: Slot, reason: str, by: Literal["environment", "agent"] = "environment") -> None:
        episode = self._episodes.pop(slot.index, None)
        self._times[slot.index].settle("faults" if episode is None else episode.dropped or "faults")
        if episode is not None and episode.dropped is None:
            self._happened.append(EpisodeFailed(slot.index, episode.ticket.key, shortened(reason), by))

    def _advance(self, slot: Slot, episode: _Episode, value: Any, seconds: float) -> None:
        if episode.dropped is not None:
            self._abandon(slot, episode)
        elif isinstance(value, Transition):
            episode.spent["step"] += seconds
            self._record(slot, episode, value)
        else:
            episode.spent["reset"] += seconds
            self._see(episode, value)

    def _abandon(self, slot: Slot, episode: _Episode) -> None:
        del self._episodes[slot.index]
        self._times[slot.index].settle(episode.dropped)

    def _record(self, slot: Slot, episode: _Episode, transition: Transition) -> None:
        assert episode.observation is not None and episode.decision is not None
        is_cut = self._max_steps is not None and len(episode.steps) + 1 >= self._max_steps
        step = recorded(episode.observation, episode.decision, transition, is_cut)
        self._see(episode, transition.observation)
        check_step(step)
        episode.steps.append(step)
        if step.ended:
            self._finish(slot, episode, transition)
        elif self._max_steps is None:
            self._watch(slot, episode)

    def _see(self, episode: _Episode, seen: Observation) -> None:
        if seen.image is not None and seen.image not in episode.screens:
            episode.screens[seen.image] = pixels(seen.image)
        episode.observation = seen

    def _watch(self, slot: Slot, episode: _Episode) -> None:
        """Tells of an episode that only the emulator could end, each time that its length has doubled; then ends it."""
        steps, ticket = len(episode.steps), f"ticket {episode.ticket.index}, task {episode.ticket.task.id}"
        if steps >= MOST_STEPS:
            self._lose(slot, f"{ticket}: no end after {steps} steps; {_ENDLESS}")
        elif steps % _LONG == 0 and (steps // _LONG).bit_count() == 1:
            self._tell(slot, "long", f"{ticket}: {steps} steps, and no end yet; {_ENDLESS}")

    def _finish(self, slot: Slot, episode: _Episode, transition: Transition) -> None:
        ticket = episode.ticket
        trajectory = Trajectory(
            ticket=ticket,
            episode_id=episode_id(ticket, self.name, slot.index),
            worker=self.name,
            slot=slot.index,
            steps=episode.steps,
            final_observation=transition.observation,
            success=transition.success,
        )
        check_sums(trajectory, episode.screens)
        self._episodes.pop(slot.index)
        self._times[slot.index].settle()
        slot.succeeded()
        self._happened.append(Finished(trajectory, episode.started_at, time.monotonic(), episode.spent))

    def _act(self) -> None:
        """Asks, in one batch, for every slot that waits for its action, and carries out what has been decided.

        Episodes whose policy is still to come have been reset meanwhile, and wait.
        """
        waiting = self._waiting()
        asking = [episode for _, episode in waiting if episode.asked is None]
        requests = [self._question(one) for one in asking if one.ticket.policy_version in self._policies]
        if requests:
            self._policies.ask(requests)
        asked = {episode.asked: (slot, episode) for slot, episode in waiting}
        for answer in self._policies.answers():
            if answer.number in asked:  # else its episode was dropped or lost meanwhile
                self._heed(*asked[answer.number], answer)

    def _waiting(self) -> list[tuple[Slot, _Episode]]:
        """Returns the slots whose emulator waits for an action."""
        idle = [slot for slot in self.slots if slot.state is State.idle]
        return [(slot, self._episodes[slot.index]) for slot in idle if slot.index in self._episodes]

    def _question(self, episode: _Episode) -> InferenceRequest:
        assert episode.observation is not None
        self._questions += 1
        episode.asked, episode.asked_at = self._questions, time.monotonic()
        return InferenceRequest(self._questions, episode.ticket.policy_version, episode.stream, episode.observation)

    def _heed(self, slot: Slot, episode: _Episode, answer: InferenceReply) -> None:
        episode.asked = None
        episode.spent["policy"] += time.monotonic() - episode.asked_at
        match answer:
            case InferenceFailure(_, reason):
                self._lose(slot, reason, "agent")
            case InferenceResult(_, decision):
                if not episode.steps:
                    self._happened.append(Acting(slot.index, episode.ticket.key))
                episode.decision = decision
                slot.step(decision.action)
                episode.stream = self._stream(episode.ticket, len(episode.steps) + 1)

    def _book(self) -> None:
        """Books every slot under what it does now."""
        for slot in self.slots:
            self._times[slot.index].enter(self._activity(slot))

    def _activity(self, slot: Slot) -> str:
        match slot.state:
            case State.closed:
                return "closed"
            case State.down | State.booting:
                return "boot"
            case State.asked:
                return slot.asked
            case _:
                return "policy" if slot.index in self._episodes else self._idle_because

    def _begin(self) -> None:
        """Puts queued tickets on idle slots."""
        for slot in self.slots:
            if not self.tickets:
                return
            if slot.state is State.idle and slot.index not in self._episodes:
                ticket = self.tickets.popleft()
                started_at = time.monotonic()
                slot.reset(ticket.task, ticket.seed, is_excused=ticket.key in self._failed)
                self._episodes[slot.index] = _Episode(ticket, started_at, self._stream(ticket, 0))

    def _stream(self, ticket: Ticket, step: int) -> RandomStream:
        """Returns the stream of the decision that follows the emulator's next answer."""
        stream = RandomStream(ticket.seed, ticket.index, step)
        self._policies.expect(stream)
        return stream


def episode_id(ticket: Ticket, worker: str, slot: int) -> str:
    """Returns the name of an attempt's episode; no two attempts share one."""
    of = f"{ticket.policy_version}" if ticket.purpose == "measure" else ""
    measured = "" if ticket.purpose == "train" else f"-{ticket.purpose}{of}"  # training has the same numbers
    return f"{ticket.iteration:06d}-{ticket.index:05d}-{ticket.attempt}-{worker}-{slot}{measured}"

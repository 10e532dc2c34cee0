"""The slots of a simulated machine: what ``rollout`` does with emulators, on virtual time."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence

from digirl_dist.plan.forecast import Phase
from digirl_dist.protocol.messages import Acting, EpisodeFailed, SlotChanged, SlotLimits
from digirl_dist.rollout.rollout import Finished, Happening, episode_id
from digirl_dist.rollout.slot import SlotTime
from digirl_dist.tasks import Key, Ticket
from digirl_dist.trajectory import Observation, Step, Trajectory
from simulate.behaviour import Behaviour, Fate
from simulate.world import World

SEEN = Observation("seen", None, None)
finished_step = Step(SEEN, 0, -1.0, 1.0, terminated=True, truncated=False)


class _Slot:
    def __init__(self, index: int, time: SlotTime) -> None:
        self.index, self.time = index, time
        self.up = self.closed = False
        self.failures = 0
        self.ticket: Ticket | None = None
        self.turn = 0
        """Counts what the slot began, so that what was ended no longer happens."""
        self.began_at = 0.0
        self.left: deque[Phase] = deque()
        self.spent: dict[str, float] = {}
        self.waits = False
        """Whether its episode waits for its policy version."""
        self.fate: Fate = "ends"


class SimulatedSlots:
    """Runs leased tickets in ``count`` slots; ``tell`` gets what happens. ``versions`` are those that can act."""

    def __init__(
        self,
        world: World,
        name: str,
        count: int,
        behaviour: Behaviour,
        limits: SlotLimits,
        tell: Callable[[Happening], None],
    ) -> None:
        self.world, self.name, self.behaviour, self.limits, self._tell = world, name, behaviour, limits, tell
        self.versions: set[int] = set()
        self.queue: deque[Ticket] = deque()
        self.started_at = self.counted_at = world.now
        """When the slots were started, and counted last."""
        self.under_way_s = 0.0
        """Seconds of running episodes that the last count left out."""
        self._idle_because = "push"
        self._slots = [_Slot(index, SlotTime("boot", world.clock)) for index in range(count)]
        self._over = False
        for slot in self._slots:
            self._boot(slot)

    @property
    def in_service(self) -> int:
        return sum(not slot.closed for slot in self._slots)

    def held(self) -> list[Ticket]:
        """Returns the tickets that are queued or running."""
        return [*self.queue, *(slot.ticket for slot in self._slots if slot.ticket is not None)]

    def lease(self, tickets: Sequence[Ticket]) -> None:
        self.queue.extend(tickets)
        self.begin()

    def drop(self, keys: Collection[Key], lost_to: str) -> None:
        self.queue = deque(ticket for ticket in self.queue if ticket.key not in keys)
        for slot in self._slots:
            if slot.ticket is not None and slot.ticket.key in keys:
                self._free(slot, lost_to)
        self.begin()

    def idle(self, because: str) -> None:
        """Books slots without a ticket under this activity (see slot_time)."""
        self._idle_because = because
        for slot in self._slots:
            if slot.up and slot.ticket is None:
                slot.time.enter(because)

    def counted(self) -> dict[str, float]:
        """Returns the slot-seconds by activity since the last call."""
        total: Counter[str] = Counter()
        for slot in self._slots:
            total.update(slot.time.take())
        self.counted_at = self.world.now
        self.under_way_s = sum(self.world.now - slot.began_at for slot in self._slots if slot.ticket is not None)
        return dict(total)

    def act_with(self, versions: set[int]) -> None:
        """From now on these policy versions can act."""
        self.versions = versions
        for slot in self._slots:
            if slot.waits:
                self._go_on(slot)

    def begin(self) -> None:
        """Puts queued tickets on free slots."""
        for slot in self._slots:
            if not self.queue:
                return
            if slot.up and slot.ticket is None:
                self._start(slot, self.queue.popleft())

    def close(self) -> None:
        self._over = True

    def _boot(self, slot: _Slot, after_s: float = 0.0) -> None:
        slot.up = False
        slot.time.enter("boot")
        self._then(slot, after_s + self.behaviour.boot_s, self._came_up)

    def _came_up(self, slot: _Slot) -> None:
        slot.up, slot.closed = True, False
        slot.time.enter(self._idle_because)
        self._tell(SlotChanged(slot.index, "ready", "", self.in_service))
        self.begin()

    def _start(self, slot: _Slot, ticket: Ticket) -> None:
        slot.ticket, slot.began_at, slot.spent = ticket, self.world.now, {}
        slot.left = deque(self.behaviour.phases_of(ticket))
        slot.fate = self.behaviour.fate(ticket)
        self._next(slot)

    def _next(self, slot: _Slot) -> None:
        """Begins the next phase; what comes after the reset waits for the policy version."""
        ticket = slot.ticket
        assert ticket is not None
        if not slot.left:
            self._end(slot, ticket)
        elif slot.left[0][0] != "reset" and ticket.policy_version not in self.versions:
            slot.waits = True
            slot.time.enter("policy")
        else:
            self._go_on(slot)

    def _go_on(self, slot: _Slot) -> None:
        ticket = slot.ticket
        assert ticket is not None
        activity, seconds = slot.left[0]
        if activity != "reset" and ticket.policy_version not in self.versions:
            return
        slot.waits = False
        if activity != "reset" and not slot.spent.get("step") and not slot.spent.get("policy"):
            self._tell(Acting(slot.index, ticket.key))
        slot.left.popleft()
        slot.spent[activity] = slot.spent.get(activity, 0.0) + seconds
        slot.time.enter(activity)
        hangs = slot.fate == "hangs" and activity != "reset"
        self._then(slot, self.limits.step_s if hangs else seconds, self._next)

    def _end(self, slot: _Slot, ticket: Ticket) -> None:
        if slot.fate == "ends":
            slot.failures = 0
            self._free(slot, None)
            if not self.behaviour.forgets(ticket):
                self._tell(self._finished(slot, ticket))
        else:
            self._free(slot, "faults")
            self._tell(EpisodeFailed(slot.index, ticket.key, f"the emulator {slot.fate}"))
            self._fail(slot)
        self.begin()

    def _finished(self, slot: _Slot, ticket: Ticket) -> Finished:
        name = episode_id(ticket, self.name, slot.index)
        episode = Trajectory(ticket, name, self.name, slot.index, [finished_step], SEEN, success=True)
        return Finished(episode, slot.began_at, self.world.now, slot.spent)

    def _fail(self, slot: _Slot) -> None:
        slot.up = False
        slot.failures += 1
        slot.closed = slot.failures >= self.limits.failures
        self._tell(SlotChanged(slot.index, "closed" if slot.closed else "down", "its emulator ended", self.in_service))
        if slot.closed:
            slot.time.enter("closed")
            self._then(slot, self.limits.quarantine_s, self._boot)
        else:
            self._boot(slot, self.limits.back_off_s)

    def _free(self, slot: _Slot, lost_to: str | None) -> None:
        slot.turn += 1
        slot.ticket, slot.waits = None, False
        slot.time.settle(lost_to)
        slot.time.enter(self._idle_because)

    def _then(self, slot: _Slot, seconds: float, action: Callable[[_Slot], None]) -> None:
        slot.turn += 1
        turn = slot.turn
        self.world.later(seconds, lambda: None if self._over or slot.turn != turn else action(slot))

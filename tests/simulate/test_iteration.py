"""Whole iterations on a virtual clock, in one thread: what the host promises, whatever links and programs do.

The collector, the sessions and the programs' cores are the real ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest

from digirl_dist.plan.forecast import Phase
from digirl_dist.protocol import messages
from digirl_dist.protocol.messages import EpisodeManifest
from digirl_dist.settings import LimitSettings
from digirl_dist.tasks import Key, Task, Ticket
from simulate.behaviour import Behaviour
from simulate.collection import Simulation, tickets
from simulate.link import Way
from simulate.program import RUN

LIMITS = LimitSettings(silence_s=8.0, start_s=8.0, back_off_s=0.5, steady_s=5.0, boot_s=5.0, stuck_s=30.0)


def assert_complete(result: Any, count: int, iteration: int = 0) -> None:
    assert [one.ticket.key for one in result.trajectories] == [Key(iteration, index) for index in range(count)]


def manifest(key: Key, episode_id: str, run: str = RUN) -> EpisodeManifest:
    return EpisodeManifest(run, key, 0, 0, episode_id, 100, "ab", 0, 1.0, 0.0, {})


def test_an_iteration_of_eight_workers_survives_losses_stale_answers_a_half_open_link_and_a_slow_tail() -> None:
    """160 tickets on eight workers of four slots: w0's program dies, w1's link breaks, w2 hears nothing, w3 repeats."""
    behaviours = {f"w{number}": Behaviour(slots=4, episode_s=1.0) for number in range(7)}
    behaviours["slow"] = Behaviour(slots=4, episode_s=30.0)
    here = Simulation.of(behaviours, LIMITS)
    worker = here.machines

    def cut() -> None:
        worker["w1"].link.to_host = worker["w1"].link.to_program = Way.STALLED

    def half_open() -> None:
        worker["w2"].link.to_program = Way.SWALLOWS

    def stale() -> None:
        old = manifest(Key(7, 3), "of-another-iteration")
        worker["w3"].program.ready[old.episode_id] = old, tickets(1)[0]
        worker["w3"].program.say(messages.EpisodeReady(old))
        worker["w3"].program.say(messages.EpisodeReady(old))

    here.world.later(1.5, worker["w0"].program.kill)
    here.world.later(1.6, cut)
    here.world.later(12.0, worker["w1"].link.mend)
    here.world.later(1.7, half_open)
    here.world.later(30.0, worker["w2"].link.mend)
    here.world.later(1.2, stale)
    result = here.collect(tickets(160))

    assert_complete(result, 160)
    assert not here.store.came_twice, "an episode came to the store twice"
    losses = [(one["worker"], one["reason"]) for one in here.events.of("worker_lost")]
    assert any(name == "w2" and "half-open" in reason for name, reason in losses)
    assert {"w0", "w1", "w2"} == {name for name, _ in losses}
    assert {one["episode"] for one in here.events.of("episode_dropped")} >= {"of-another-iteration"}
    doubled = {(one["ticket"], one["held_by"]) for one in here.events.of("episode_doubled")}
    assert any(held_by == "slow" for _, held_by in doubled), "nobody ran what the slow worker held up"
    assert here.world.now < 30.0, "the iteration waited for its slowest worker"
    assert here.world.happened < 6000


def test_a_lease_that_a_program_drops_without_a_word_is_leased_again() -> None:
    dropped: list[int] = []

    def mishears(ticket: Any) -> bool:
        first = ticket.index in (2, 5) and ticket.index not in dropped
        dropped.extend([ticket.index] if first else [])
        return first

    here = Simulation.of({"w0": Behaviour(mishears=mishears)}, LIMITS)
    assert_complete(here.collect(tickets(12)), 12)
    retried = {one["ticket"]: one["reason"] for one in here.events.of("episode_retried")}
    assert set(retried) == {2, 5} and all("lost the ticket without a word" in reason for reason in retried.values())


def test_a_program_that_always_loses_its_leases_does_not_end_the_run_of_the_others() -> None:
    behaviours = {"deaf": Behaviour(mishears=lambda ticket: True), "honest": Behaviour(slots=2)}
    here = Simulation.of(behaviours, LIMITS, speculate=False)
    assert_complete(here.collect(tickets(24)), 24)
    assert {one["worker"] for one in here.events.of("episode_retried")} == {"deaf"}


def test_an_episode_that_a_program_forgets_is_run_again() -> None:
    forgotten: list[int] = []

    def forgets(ticket: Any) -> bool:
        first = ticket.index == 3 and not forgotten
        forgotten.extend([3] if first else [])
        return first

    here = Simulation.of({"w0": Behaviour(forgets=forgets)}, LIMITS)
    assert_complete(here.collect(tickets(8)), 8)
    (again,) = here.events.of("episode_retried")
    assert again["ticket"] == 3 and "without a word" in again["reason"]


def test_a_program_that_claims_what_it_never_got_is_told_to_drop_it() -> None:
    claims = [Key(0, 77), Key(5, 1), Key(0, 4, "evaluate")]
    here = Simulation.of({"liar": Behaviour(claims=claims, episode_s=3.0), "w1": Behaviour()}, LIMITS)
    assert_complete(here.collect(tickets(40)), 40)
    refused = here.events.of("claims_refused")
    assert refused and {one["worker"] for one in refused} == {"liar"}
    assert {name for one in refused for name in one["tickets"]} == {key.name for key in claims}


def test_a_program_that_announces_many_episodes_of_one_ticket_is_out_of_service() -> None:
    here = Simulation.of({"liar": Behaviour(slots=2), "w1": Behaviour()}, LIMITS)
    program = here.machines["liar"].program

    def forge() -> None:
        here.world.later(0.05, forge)
        for manifest in [manifest for manifest, _ in program.ready.values()] if program.say else []:
            for number in range(50):
                forged = msgspec.structs.replace(manifest, episode_id=f"{manifest.episode_id}-{number}")
                program.say(messages.EpisodeReady(forged))

    forge()
    assert_complete(here.collect(tickets(400)), 400)
    assert not here.store.came_twice
    refused = here.events.of("episode_refused")
    assert {one["worker"] for one in refused} == {"liar"} and "others of its ticket" in refused[0]["reason"]
    assert {one["worker"] for one in here.events.of("worker_out_of_service")} == {"liar"}


def test_a_lease_without_end_goes_elsewhere() -> None:
    behaviours = {"stuck": Behaviour(episode_s=10_000.0), "w1": Behaviour(slots=1)}
    here = Simulation.of(behaviours, LimitSettings(lease_s=20.0, silence_s=8.0, start_s=8.0), speculate=False)
    assert_complete(here.collect(tickets(8)), 8)
    assert any("lease_s" in one["reason"] for one in here.events.of("episode_retried"))
    assert here.world.now < 60.0


def test_a_worker_that_lost_its_program_keeps_what_was_spooled() -> None:
    here = Simulation.of({"w0": Behaviour(slots=2, episode_s=1.0)}, LIMITS)
    worker = here.machines["w0"]

    def die_between_episode_and_pull() -> None:
        worker.link.to_host = Way.SWALLOWS
        here.world.later(0.5, worker.program.kill)
        here.world.later(1.0, worker.link.mend)

    here.world.later(1.03, die_between_episode_and_pull)
    assert_complete(here.collect(tickets(6)), 6)
    assert not here.store.came_twice


@pytest.mark.parametrize("iterations", [3])
def test_iterations_follow_each_other_on_the_same_fleet(iterations: int) -> None:
    here = Simulation.of({f"w{number}": Behaviour() for number in range(3)}, LIMITS)
    for number in range(iterations):
        assert_complete(here.collect(tickets(30, number)), 30, number)
    for kind in ("episode_retried", "claims_refused", "worker_lost", "episode_dropped"):
        assert not here.events.of(kind)


@pytest.mark.component
def test_an_iteration_survives_a_program_that_is_killed_at_any_moment() -> None:
    for moment in range(40):
        here = Simulation.of({"w0": Behaviour(), "w1": Behaviour()}, LIMITS)
        here.world.later(0.02 + 0.1 * moment, here.machines["w0"].program.kill)
        assert_complete(here.collect(tickets(24)), 24)
        assert not here.store.came_twice, "an episode came to the store twice"


def test_of_two_episodes_of_one_lease_one_is_fetched() -> None:
    """The second is forged: were it written to the first one's file, it could land unchecked."""
    here = Simulation.of({"w0": Behaviour(slots=1)}, LIMITS)
    program = here.machines["w0"].program

    def forge_behind_the_first() -> None:
        if not program.ready:
            here.world.later(0.001, forge_behind_the_first)
            return
        forged = manifest(Key(0, 0), "forged")
        program.ready[forged.episode_id] = forged, tickets(1)[0]
        program.say(messages.EpisodeReady(forged))

    here.world.later(0.001, forge_behind_the_first)
    assert_complete(here.collect(tickets(3)), 3)
    assert len(here.store.pulled_to) == len(set(here.store.pulled_to)) == 3


def test_the_busy_share_counts_the_slots_of_a_worker_that_was_lost() -> None:
    here = Simulation.of({"w0": Behaviour(slots=2), "w1": Behaviour(slots=2)}, LIMITS, speculate=False)
    lost = here.machines["w1"]

    def lose() -> None:
        lost.link.to_host = lost.link.to_program = Way.STALLED

    here.world.later(8.5, lose)
    result = here.collect(tickets(40))
    assert sum(one.slots for one in result.worker_results) == 4
    assert result.busy is not None and 0.5 < result.busy <= 1.0


def test_nothing_is_leased_to_a_program_that_tells_of_its_slots_before_it_works() -> None:
    """Those of a former host may just have come up. What was leased was never sent, and nobody noticed."""
    here = Simulation.of({"w0": Behaviour(slots=2)}, LIMITS)
    program = here.machines["w0"].program
    here.world.later(0.025, lambda: program.say(messages.SlotChanged(0, "ready", "", 2)))
    assert_complete(here.collect(tickets(4)), 4)
    assert here.world.now < 10.0


def test_once_lengths_are_known_a_slow_worker_costs_little_as_the_longest_begin_first() -> None:
    """One worker of four is four times slower; tasks are known to be long or short once each has ended some times."""
    rng = np.random.default_rng(1)
    means = 20 * np.exp(rng.normal(0, 0.6, 24))
    drawn = [[Ticket(number, k, Task(str(t)), k, number) for k, t in enumerate(rng.integers(0, 24, 96))]
             for number in range(5)]  # fmt: skip

    def work(ticket: Ticket) -> float:
        varies = np.random.default_rng([ticket.iteration, ticket.index]).normal(0, 0.15)
        return float(means[int(ticket.task.id)] * np.exp(varies))

    def phases(slowness: float) -> Callable[[Ticket], Sequence[Phase]]:
        return lambda ticket: [("reset", 0.0), ("step", slowness * work(ticket))]

    behaviours = {name: Behaviour(slots=4, phases=phases(1.0)) for name in ("w0", "w1", "w2")}
    here = Simulation.of({**behaviours, "slow": Behaviour(slots=4, phases=phases(4.0))}, LimitSettings(step_s=1e5))
    over_ideal = []
    for wanted in drawn:
        began = here.world.now
        result = here.collect(wanted)
        here.store.append(result)
        over_ideal.append((result.last_ended_at - began) / (sum(map(work, wanted)) / (12 + 4 / 4)))
    assert sum(over_ideal[2:]) / 3 < 1.1, over_ideal

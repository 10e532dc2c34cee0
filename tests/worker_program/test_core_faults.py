"""The worker program's core on virtual time: what it does when its host, its slots, its disk or itself fails."""

from __future__ import annotations

from dataclasses import replace

import pytest
from simulate.collection import tickets
from simulate.program import RUN, SimulatedProgram
from simulate.scripted_host import ASKING_JOB, JOB, Host, policy

from digirl_dist.errors import CheckpointError
from digirl_dist.protocol.messages import (
    SPOKEN,
    Action,
    Broken,
    EpisodeReady,
    Hello,
    HostMessage,
    Lease,
    Loaded,
    Ping,
    Pushed,
    Stop,
    Working,
)
from digirl_dist.tasks import Key, Ticket


def test_an_orphan_with_policies_of_its_own_finishes_what_runs_and_ends() -> None:
    host = Host(episode_s=15.0)
    host.work()
    host.say(Lease(1, tickets(5)))
    host.wait(14.0)
    assert host.beat().held == [Key(0, 0), Key(0, 1)] and host.program.stopped_by_host is None
    host.wait(2.0)
    assert host.program.stopped_by_host is False and len(host.program.ready) == 2


def test_an_orphan_whose_host_decides_gives_up_what_runs_and_ends() -> None:
    host = Host(episode_s=15.0)
    host.work(ASKING_JOB)
    host.say(Lease(1, tickets(5)))
    host.wait(13.0)
    assert host.program.stopped_by_host is False and not host.program.ready


def test_an_orphan_gives_up_what_waits_for_a_policy_that_did_not_come() -> None:
    host = Host(episode_s=1.0)
    host.work()
    host.say(Lease(1, [replace(ticket, policy_version=1) for ticket in tickets(2)]))
    host.say(policy(1, "0b"))
    host.wait(5.0)
    assert host.beat().held == [Key(0, 0), Key(0, 1)]
    host.wait(7.0)
    assert host.program.stopped_by_host is False


def test_a_host_that_comes_back_may_lease_anew_what_waits_for_a_policy() -> None:
    host = Host()
    host.work()
    first, second = tickets(2)
    host.say(Lease(1, [first, replace(second, policy_version=1)]))
    host.say(Hello(RUN, list(SPOKEN)))
    assert host.say(JOB) == [Working(2, "", [Key(0, 0)])]
    host.say(Lease(1, [second]))
    assert host.beat().held == [Key(0, 0), Key(0, 1)]


def test_a_program_without_a_job_ends_when_no_host_comes_and_a_ping_keeps_it() -> None:
    host = Host()
    for _ in range(4):
        host.wait(6.0)
        host.say(Ping())
    assert host.program.stopped_by_host is None
    host.wait(13.0)
    assert host.program.stopped_by_host is False


def test_stop_ends_the_program_for_good() -> None:
    host = Host()
    host.work()
    host.say(Stop())
    assert host.program.stopped_by_host is True


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (Pushed("job"), "no job was described"),
        (Pushed("policy"), "no policy was announced"),
        (policy(0), "no job runs"),
        (Lease(1, tickets(1)), "no job runs"),
        (Action(1, 0, 0.0), "no job runs"),
    ],
)
def test_what_comes_before_its_time_is_refused(message: HostMessage, reason: str) -> None:
    (broken,) = Host().say(message)
    assert isinstance(broken, Broken) and broken.during == type(message).__name__ and reason in broken.reason


def test_what_a_call_raises_is_told_and_the_rest_is_left_undone() -> None:
    host = Host()
    host.work()
    host.program.raises["load"] = ValueError("a tensor of another shape")
    host.say(policy(1, "0b"))
    (broken,) = host.say(Pushed("policy"))
    assert isinstance(broken, Broken) and broken.during == "Pushed"
    assert "ValueError: a tensor of another shape" in broken.reason
    assert host.say(Pushed("policy")) == [Loaded(1)]


def test_an_error_that_is_meant_for_people_comes_without_a_traceback() -> None:
    host = Host()
    host.work()
    host.program.raises["write"] = CheckpointError("an action that no JSON can hold")
    host.say(Lease(1, tickets(1)))
    host.wait(1.4)
    assert host.heard[-1] == Broken("episode", "an action that no JSON can hold", foreseen=True)


def test_a_job_that_cannot_be_built_is_said_to_be_broken_and_may_be_told_again() -> None:
    host = Host()
    host.program.raises["start_slots"] = ImportError("no such agent")
    host.say(Hello(RUN, list(SPOKEN)))
    host.say(JOB)
    (broken,) = host.say(Pushed("job"))
    assert isinstance(broken, Broken) and "ImportError: no such agent" in broken.reason
    assert host.say(JOB) == [Working(2, "", [])]


def test_an_agent_that_raises_ends_the_job() -> None:
    host = Host()
    host.work()
    host.say(Lease(1, tickets(3)))
    host.program.core.act_failed(RuntimeError("CUDA is out of memory"))
    broken = host.heard[-1]
    assert isinstance(broken, Broken) and broken.during == "act" and "CUDA is out of memory" in broken.reason
    assert host.did("close_slots") and host.beat().held == [] and host.program.slots is None
    assert host.say(JOB) == [Working(2, "", [])]


def test_a_full_disk_is_said_to_be_broken_and_the_ticket_is_not_claimed() -> None:
    host = Host()
    host.work()
    host.program.disk_is_full = True
    host.say(Lease(1, tickets(1)))
    host.wait(1.4)
    assert host.heard[-1] == Broken("disk", "No space left on device")
    assert host.beat().held == []


def wanted_after(program: SimulatedProgram, count: int) -> list[Ticket]:
    have = {key for _, (found, _) in program.ready.items() for key in [found.key]}
    return [ticket for ticket in tickets(count) if ticket.key not in have]


def test_a_program_that_is_killed_at_any_moment_loses_nothing_that_it_announced() -> None:
    moments = 0
    while True:
        host = Host(episode_s=1.3)
        killed = _run_until_killed(host, moments)
        announced = {one.manifest.key for one in host.of(EpisodeReady)}
        assert announced == {found.key for found, _ in host.program.ready.values()}
        if not killed:
            break
        moments += 1
        host.program.kill()
        host.program.say = host.heard.append
        host.work()
        host.say(Lease(1, wanted_after(host.program, 6)))
        host.wait(9.0)
        assert {found.key for found, _ in host.program.ready.values()} == {Key(0, index) for index in range(6)}
        assert {one.manifest.key for one in host.of(EpisodeReady)} == {Key(0, index) for index in range(6)}
    assert moments > 10


def _run_until_killed(host: Host, moment: int) -> bool:
    """Stops before the happening of that number; False if all was over before."""
    host.work()
    host.say(Lease(1, tickets(6)))
    return all(host.world.advance(6.0) for _ in range(moment))

"""The worker program's core on virtual time: what it answers, holds, tells and forgets, whatever fails around it."""

from __future__ import annotations

from typing import Any, TypeVar

import pytest
from simulation.fleet import RUN, Behaviour, World, tickets
from simulation.program import SimulatedProgram

from digirl_dist.capacity import Choice
from digirl_dist.errors import TrajectoryError
from digirl_dist.protocol.messages import (
    PROTOCOL,
    SPOKEN,
    Acting,
    Action,
    Broken,
    Collected,
    Drop,
    EpisodeFailed,
    EpisodeManifest,
    EpisodeReady,
    Heartbeat,
    Hello,
    HostMessage,
    Landed,
    Lease,
    Loaded,
    LoadPolicy,
    Need,
    NoAction,
    Ping,
    Pushed,
    Ready,
    SlotLimits,
    SlotSeconds,
    StartJob,
    Stop,
    TensorEntry,
    UnknownFile,
    WorkerMessage,
    Working,
)
from digirl_dist.tasks import Key, Ticket
from digirl_dist.worker_program import effects
from digirl_dist.worker_program.core import ProgramCore

M = TypeVar("M")
JOB = StartJob("w", "a1", "e1", SlotLimits(), slots=2)
ASKING_JOB = StartJob("w", None, "e1", SlotLimits(), slots=2)


class Host:
    """What a host does with one program, which answers at once."""

    def __init__(self, **behaviour: Any) -> None:
        self.world = World()
        self.program = SimulatedProgram(self.world, "w", Behaviour(slots=2, **behaviour), orphan_s=10.0)
        self.heard: list[WorkerMessage] = []
        self.program.say = self.heard.append

    def say(self, message: HostMessage) -> list[WorkerMessage]:
        """Returns what the program says to it before anything else happens."""
        before = len(self.heard)
        self.program.receive(message)
        return self.heard[before:]

    def of(self, kind: type[M]) -> list[M]:
        return [message for message in self.heard if isinstance(message, kind)]

    def work(self, job: StartJob = JOB) -> None:
        """Up to the point where the program acts with version 0."""
        self.say(Hello(RUN, list(SPOKEN)))
        self.say(job)
        self.say(Pushed("job"))
        self.say(policy(0))
        self.say(Pushed("policy"))
        assert isinstance(self.heard[-1], Loaded)

    def beat(self) -> Heartbeat:
        self.program.beat()
        found = self.heard[-1]
        assert isinstance(found, Heartbeat)
        return found

    def wait(self, seconds: float) -> None:
        until = self.world.now + seconds
        while self.world.advance(until):
            pass

    def did(self, kind: type[M]) -> list[M]:
        return [effect for effect in self.program.done if isinstance(effect, kind)]


def policy(version: int, digest: str = "0a") -> LoadPolicy:
    return LoadPolicy(version, {"logits": TensorEntry(digest, "float32", [2])})


def manifest(episode_id: str, run: str = RUN) -> EpisodeManifest:
    return EpisodeManifest(run, Key(0, 7), 0, 0, episode_id, 100, "ab", 0, 1.0, 0.0, {})


def test_a_greeting_is_answered_with_what_the_program_is() -> None:
    core = ProgramCore(60.0, "a package", "3.12.1", pid=7)
    assert core.receive(Hello(RUN, [*SPOKEN, 999]), now=0.0) == [
        effects.Send(Ready(PROTOCOL, "a package", "3.12.1", 7))
    ]


def test_a_host_of_an_unknown_protocol_is_refused() -> None:
    (broken,) = Host().say(Hello(RUN, [998, 999]))
    assert isinstance(broken, Broken) and broken.during == "hello" and "[998, 999]" in broken.reason


def test_a_program_serves_one_run() -> None:
    host = Host()
    host.say(Hello(RUN, list(SPOKEN)))
    assert host.say(Hello("r2", list(SPOKEN))) == [Broken("run", f"this folder serves run {RUN}, not r2")]


def test_a_job_starts_once_all_its_blobs_are_there() -> None:
    host = Host()
    host.say(Hello(RUN, list(SPOKEN)))
    assert host.say(JOB) == [Need("job", ["a1", "e1"])]
    host.program.pushes_arrive = False
    host.program.blobs.add("a1")
    assert host.say(Pushed("job")) == [Need("job", ["e1"])]
    host.program.blobs.add("e1")
    assert host.say(Pushed("job")) == [Working(2, "", [])]
    assert host.did(effects.StartSlots) == [effects.StartSlots(JOB)]


def test_the_job_that_runs_goes_on_and_its_tickets_are_named_to_a_host_that_comes_back() -> None:
    host = Host()
    host.work()
    host.say(Lease(1, tickets(3)))
    host.say(Hello(RUN, list(SPOKEN)))
    assert host.say(JOB) == [Working(2, "", [Key(0, 0), Key(0, 1), Key(0, 2)])]
    assert len(host.did(effects.StartSlots)) == 1


def test_another_job_takes_the_place_of_the_one_that_runs() -> None:
    host = Host()
    host.work()
    host.say(Lease(1, tickets(3)))
    assert host.say(ASKING_JOB) == [Working(2, "", [])]
    assert host.program.done.count(effects.CloseSlots()) == 2, "before each start"
    assert host.beat().held == []


def test_a_policy_is_loaded_once_its_tensors_are_there() -> None:
    host = Host()
    host.work()
    assert host.say(policy(1, "0b")) == [Need("policy", ["0b"])]
    assert host.say(Pushed("policy")) == [Loaded(1)]
    assert host.program.versions == {1}
    assert host.program.blobs == {"0b", "a1", "e1"}
    booked = [effect.activity for effect in host.did(effects.IdleBecause)]
    assert booked[-3:] == ["push", "push", "barrier"]


def test_a_version_that_a_ticket_still_needs_outlives_the_next() -> None:
    host = Host()
    host.work()
    host.say(Lease(1, tickets(1)))
    host.say(policy(1, "0b"))
    host.say(Pushed("policy"))
    assert host.program.versions == {0, 1}
    host.wait(2.0)
    host.say(policy(2, "0b"))
    assert host.program.versions == {2} and host.did(effects.ShareTensors) == [effects.ShareTensors(2, 1)]


def test_a_version_that_is_ready_is_ready_at_once() -> None:
    host = Host()
    host.work()
    assert host.say(policy(0)) == [Loaded(0)] and len(host.did(effects.LoadTensors)) == 1


def test_an_altered_tensor_is_asked_for_again() -> None:
    host = Host()
    host.work()
    host.program.blobs.add("0b")
    host.program.altered.add("0b")
    assert host.say(policy(1, "0b")) == [Need("policy", ["0b"])]
    assert host.say(Pushed("policy")) == [Loaded(1)]


def test_heartbeats_tell_which_orders_their_tickets_take_into_account() -> None:
    host = Host()
    host.work()
    assert (host.beat().held, host.beat().order) == ([], 0)
    host.say(Lease(1, tickets(3)))
    assert (host.beat().held, host.beat().order) == ([Key(0, 0), Key(0, 1), Key(0, 2)], 1)
    host.say(Drop(2, [Key(0, 1)], "speculation"))
    assert (host.beat().held, host.beat().order) == ([Key(0, 0), Key(0, 2)], 2)
    assert host.did(effects.DropTickets) == [effects.DropTickets([Key(0, 1)], "speculation")]
    host.say(Hello(RUN, list(SPOKEN)))
    assert host.beat().order == 0, "a host counts the orders of its own connection"


def test_a_ticket_is_queued_once_however_often_it_is_leased() -> None:
    host = Host()
    host.work()
    host.say(Lease(1, tickets(2)))
    host.say(Lease(2, tickets(3)))
    assert [len(effect.tickets) for effect in host.did(effects.LeaseTickets)] == [2, 1]


def test_a_ticket_is_held_until_the_host_was_told_how_it_ended() -> None:
    core = ProgramCore(60.0, "", "3.12", 1)
    for message in (Hello(RUN, list(SPOKEN)), JOB):
        core.receive(message, 0.0)
    core.found_missing("job", [])
    core.started(JOB, Choice(2, ""))
    core.receive(Lease(1, tickets(2)), 0.0)
    core.settle()
    told = core.happened(EpisodeFailed(0, Key(0, 0), "hung"))
    assert core.heartbeat(1.0, 1.0, [], 2).held == [Key(0, 0), Key(0, 1)]
    assert told == [effects.Send(EpisodeFailed(0, Key(0, 0), "hung"))]
    core.settle()
    assert core.heartbeat(1.0, 1.0, [], 2).held == [Key(0, 1)]


def test_heartbeats_tell_what_the_program_is_doing_and_how_long_it_heard_nobody() -> None:
    core = ProgramCore(60.0, "", "3.12", 1)
    core.wait(10.0)
    beat = core.heartbeat(11.5, 7.0, [], 0)
    assert (beat.doing, beat.for_s, beat.unheard_s) == ("waiting", 1.5, 4.5)
    core.receive(Ping(), 12.0)
    assert core.heartbeat(12.0, 12.0, [], 0).doing == "Ping"


def test_what_the_slots_lost_is_no_longer_claimed() -> None:
    host = Host(forgets=lambda ticket: ticket.index == 1)
    host.work()
    host.say(Lease(1, tickets(2)))
    host.wait(2.0)
    assert [one.manifest.key for one in host.of(EpisodeReady)] == [Key(0, 0)]
    assert host.beat().held == []


def test_an_episode_is_written_and_then_announced_and_deleted_when_it_has_landed() -> None:
    host = Host()
    host.work()
    host.say(Lease(1, tickets(1)))
    host.wait(2.0)
    kinds = [type(message) for message in host.heard]
    assert kinds[-2:] == [Acting, EpisodeReady]
    (found,) = host.of(EpisodeReady)
    assert found.manifest.run == RUN and found.manifest.seconds == pytest.approx(1.0)
    host.say(Landed([found.manifest.episode_id]))
    assert not host.program.ready


def test_what_lies_ready_from_before_is_announced_after_the_job_is_accepted() -> None:
    host = Host()
    host.program.ready = {name: (manifest(name), tickets(1)[0]) for name in ("one", "two")}
    host.program.ready["three"] = manifest("three", run="r9"), tickets(1)[0]
    host.program.strays["four"] = "four.json is not a manifest: truncated"
    host.say(Hello(RUN, list(SPOKEN)))
    host.say(JOB)
    assert not host.of(EpisodeReady)
    assert host.say(Pushed("job")) == [
        Working(2, "", []),
        EpisodeReady(manifest("one")),
        EpisodeReady(manifest("two")),
        UnknownFile("three", f"three is of run r9, not of {RUN}"),
        UnknownFile("four", "four.json is not a manifest: truncated"),
    ]
    host.say(Landed(["one", "two", "three", "four"]))
    assert host.say(JOB) == [Working(2, "", [])]


def test_an_orphan_with_policies_of_its_own_finishes_what_runs_and_ends() -> None:
    host = Host(episode_s=15.0)
    host.work()
    host.say(Lease(1, tickets(5)))
    host.wait(14.0)
    assert host.beat().held == [Key(0, 0), Key(0, 1)] and host.program.ended is None
    host.wait(2.0)
    assert host.program.ended == effects.End(stopped=False) and len(host.program.ready) == 2


def test_an_orphan_whose_host_decides_gives_up_what_runs_and_ends() -> None:
    host = Host(episode_s=15.0)
    host.work(ASKING_JOB)
    host.say(Lease(1, tickets(5)))
    host.wait(11.0)
    assert host.program.ended == effects.End(stopped=False) and not host.program.ready


def test_a_program_without_a_job_ends_when_no_host_comes_and_a_ping_keeps_it() -> None:
    host = Host()
    for _ in range(4):
        host.wait(6.0)
        host.say(Ping())
    assert host.program.ended is None
    host.wait(11.0)
    assert host.program.ended == effects.End(stopped=False)


def test_stop_ends_the_program_for_good() -> None:
    host = Host()
    host.work()
    host.say(Stop())
    assert host.program.ended == effects.End(stopped=True)


def test_accounts_are_told_when_the_host_has_all_it_wanted() -> None:
    host = Host()
    assert host.say(Collected()) == []
    host.work()
    assert host.say(Collected()) == [SlotSeconds({"step": 1.0})]
    assert host.did(effects.IdleBecause)[-1].activity == "update"


def test_answers_reach_the_episodes_and_a_new_host_is_asked_again() -> None:
    host = Host()
    host.work(ASKING_JOB)
    host.say(Action(1, 0, -0.5))
    host.say(NoAction(2, "no policy"))
    assert host.program.answers == [Action(1, 0, -0.5), NoAction(2, "no policy")]
    assert not host.did(effects.AskAgain)
    host.say(Hello(RUN, list(SPOKEN)))
    assert isinstance(host.program.done[-1], effects.AskAgain)


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


def test_what_an_effect_raises_is_told_and_the_rest_of_its_effects_is_left_undone() -> None:
    host = Host()
    host.work()
    host.program.raises[effects.LoadTensors] = ValueError("a tensor of another shape")
    host.say(policy(1, "0b"))
    (broken,) = host.say(Pushed("policy"))
    assert isinstance(broken, Broken) and broken.during == "Pushed"
    assert "ValueError: a tensor of another shape" in broken.reason
    assert host.say(Pushed("policy")) == [Loaded(1)]


def test_an_error_that_is_meant_for_people_comes_without_a_traceback() -> None:
    host = Host()
    host.work()
    host.program.raises[effects.WriteEpisode] = TrajectoryError("an action that no JSON can hold")
    host.say(Lease(1, tickets(1)))
    host.wait(1.4)
    assert host.heard[-1] == Broken("Finished", "an action that no JSON can hold")


def test_a_job_that_cannot_be_built_is_said_to_be_broken_and_may_be_told_again() -> None:
    host = Host()
    host.program.raises[effects.StartSlots] = ImportError("no such agent")
    host.say(Hello(RUN, list(SPOKEN)))
    host.say(JOB)
    (broken,) = host.say(Pushed("job"))
    assert isinstance(broken, Broken) and "ImportError: no such agent" in broken.reason
    assert host.say(JOB) == [Working(2, "", [])]


def test_an_agent_that_raises_ends_the_job() -> None:
    host = Host()
    host.work()
    host.say(Lease(1, tickets(3)))
    host.program.act_fails(RuntimeError("CUDA is out of memory"))
    broken = host.heard[-1]
    assert isinstance(broken, Broken) and broken.during == "act" and "CUDA is out of memory" in broken.reason
    assert host.did(effects.CloseSlots) and host.beat().held == [] and host.program.slots == 0
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

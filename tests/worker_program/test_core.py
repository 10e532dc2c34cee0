"""The worker program's core on virtual time: what it answers, holds, tells and forgets."""

from __future__ import annotations

from unittest.mock import Mock, call

import pytest
from simulate.collection import tickets
from simulate.program import RUN
from simulate.scripted_host import ASKING_JOB, JOB, Host, manifest, policy

from digirl_dist.capacity import PoolSize
from digirl_dist.protocol.messages import (
    PROTOCOL,
    SPOKEN,
    Acting,
    Action,
    Broken,
    Collected,
    Drop,
    EpisodeFailed,
    EpisodeReady,
    Hello,
    Landed,
    Lease,
    Loaded,
    Need,
    NoAction,
    Ping,
    Pushed,
    Ready,
    SlotSeconds,
    Stop,
    UnknownFile,
    Working,
)
from digirl_dist.tasks import Key
from digirl_dist.worker_program.core import ProgramCore, Rim


def test_a_greeting_is_answered_with_what_the_program_is() -> None:
    rim = Mock(Rim)
    ProgramCore(rim, 60.0, "a package", "3.12.1", pid=7).receive(Hello(RUN, [*SPOKEN, 999]), now=0.0)
    assert rim.mock_calls == [call.send(Ready(PROTOCOL, "a package", "3.12.1", 7))]


def test_a_host_of_an_unknown_protocol_is_refused() -> None:
    (broken,) = Host().say(Hello(RUN, [998, 999]))
    assert isinstance(broken, Broken) and broken.during == "hello" and "[998, 999]" in broken.reason


def test_a_program_serves_one_run() -> None:
    host = Host()
    host.say(Hello(RUN, list(SPOKEN)))
    assert host.say(Hello("r2", list(SPOKEN))) == [Broken("run", f"this folder serves run {RUN}, not r2")]


def test_of_two_hosts_of_one_run_the_later_one_keeps_the_program() -> None:
    host = Host()
    host.work()
    host.say(Hello(RUN, list(SPOKEN), "first"))
    host.say(Hello(RUN, list(SPOKEN), "second"))
    host.say(Lease(1, tickets(2)))
    reason = "another host of the same run, second, has taken its program over"
    assert host.say(Hello(RUN, list(SPOKEN), "first")) == [Broken("host", reason)]
    for message in (JOB, policy(1), Lease(1, tickets(1)), Drop(2, [Key(0, 0)], "faults"), Stop()):
        assert host.say(message) == []
    assert len(host.did("start_slots")) == 1 and not host.did("end")
    host.say(Hello(RUN, list(SPOKEN), "second"))
    assert host.say(JOB) == [Working(2, "", [Key(0, 0), Key(0, 1)])]


def test_a_job_starts_once_all_its_blobs_are_there() -> None:
    host = Host()
    host.say(Hello(RUN, list(SPOKEN)))
    assert host.say(JOB) == [Need("job", ["a1", "e1"])]
    host.program.pushes_arrive = False
    host.program.blobs.add("a1")
    assert host.say(Pushed("job")) == [Need("job", ["e1"])]
    host.program.blobs.add("e1")
    assert host.say(Pushed("job")) == [Working(2, "", [])]
    assert host.did("start_slots") == [[JOB]]


def test_the_job_that_runs_goes_on_and_its_tickets_are_named_to_a_host_that_comes_back() -> None:
    host = Host()
    host.work()
    host.say(Lease(1, tickets(3)))
    host.say(Hello(RUN, list(SPOKEN)))
    assert host.say(JOB) == [Working(2, "", [Key(0, 0), Key(0, 1), Key(0, 2)])]
    assert len(host.did("start_slots")) == 1


def test_another_job_takes_the_place_of_the_one_that_runs() -> None:
    host = Host()
    host.work()
    host.say(Lease(1, tickets(3)))
    assert host.say(ASKING_JOB) == [Working(2, "", [])]
    assert len(host.did("close_slots")) == 2, "before each start"
    assert host.beat().held == []


def test_a_policy_is_loaded_once_its_tensors_are_there() -> None:
    host = Host()
    host.work()
    assert host.say(policy(1, "0b")) == [Need("policy", ["0b"], bases=["0a"])]
    assert host.say(Pushed("policy")) == [Loaded(1)]
    assert host.program.slots.versions == {1}
    booked = [activity for (activity,) in host.did("idle")]
    assert booked[-3:] == ["push", "push", "barrier"]


def test_tensors_go_when_the_next_policy_but_one_is_announced() -> None:
    host = Host()
    host.work()
    host.say(policy(1, "0b"))
    host.say(Pushed("policy"))
    assert host.program.blobs == {"0a", "0b", "a1", "e1"}
    assert host.say(policy(2, "0c")) == [Need("policy", ["0c"], bases=["0b"])]
    assert host.program.blobs == {"0b", "a1", "e1"}, "version 2 may come as a delta against version 1"
    again = host.say(policy(2, "0c"))
    assert again == [Need("policy", ["0c"], bases=["0b"])], "a host that comes back announces it anew"
    assert host.program.blobs == {"0b", "a1", "e1"}
    host.say(Pushed("policy"))
    assert host.say(policy(3, "0d")) == [Need("policy", ["0d"], bases=["0c"])]
    assert host.program.blobs == {"0c", "a1", "e1"}


def test_a_version_that_a_ticket_still_needs_outlives_the_next() -> None:
    host = Host()
    host.work()
    host.say(Lease(1, tickets(1)))
    host.say(policy(1, "0b"))
    host.say(Pushed("policy"))
    assert host.program.slots.versions == {0, 1}
    host.wait(2.0)
    host.say(policy(2, "0b"))
    assert host.program.slots.versions == {2} and host.did("share") == [[2, 1]]


def test_a_version_that_is_ready_is_ready_at_once() -> None:
    host = Host()
    host.work()
    assert host.say(policy(0)) == [Loaded(0)] and len(host.did("load")) == 1


def test_other_weights_under_the_number_of_a_version_that_is_ready_are_loaded() -> None:
    host = Host()
    host.work()
    host.program.blobs.add("0b")
    assert host.say(policy(0, "0b")) == [Loaded(0)]
    assert host.did("load") == [[policy(0)], [policy(0, "0b")]]


def test_an_altered_tensor_is_asked_for_again() -> None:
    host = Host()
    host.work()
    host.program.blobs.add("0b")
    host.program.altered.add("0b")
    assert host.say(policy(1, "0b")) == [Need("policy", ["0b"], bases=["0a"])]
    assert host.say(Pushed("policy")) == [Loaded(1)]


def test_heartbeats_tell_which_orders_their_tickets_take_into_account() -> None:
    host = Host()
    host.work()
    assert (host.beat().held, host.beat().order) == ([], 0)
    host.say(Lease(1, tickets(3)))
    assert (host.beat().held, host.beat().order) == ([Key(0, 0), Key(0, 1), Key(0, 2)], 1)
    host.say(Drop(2, [Key(0, 1)], "speculation"))
    assert (host.beat().held, host.beat().order) == ([Key(0, 0), Key(0, 2)], 2)
    assert host.did("drop") == [[[Key(0, 1)], "speculation"]]
    host.say(Hello(RUN, list(SPOKEN)))
    assert host.beat().order == 0, "a host counts the orders of its own connection"


def test_a_ticket_is_queued_once_however_often_it_is_leased() -> None:
    host = Host()
    host.work()
    host.say(Lease(1, tickets(2)))
    host.say(Lease(2, tickets(3)))
    assert [len(queued) for (queued,) in host.did("lease")] == [2, 1]


def test_a_ticket_is_held_until_the_host_was_told_how_it_ended() -> None:
    rim = Mock(Rim)
    rim.missing.return_value, rim.start_slots.return_value, rim.spooled.return_value = [], PoolSize(2, ""), []
    core = ProgramCore(rim, 60.0, "", "3.12", 1)
    for message in (Hello(RUN, list(SPOKEN)), JOB, Lease(1, tickets(2))):
        core.receive(message, 0.0)
    held_while_told = []
    rim.send.side_effect = lambda message: held_while_told.extend(core.heartbeat(1.0, 1.0, [], 2).held)
    core.happened(EpisodeFailed(0, Key(0, 0), "hung"))
    assert rim.send.call_args == call(EpisodeFailed(0, Key(0, 0), "hung"))
    assert held_while_told == [Key(0, 0), Key(0, 1)]
    assert core.heartbeat(1.0, 1.0, [], 2).held == [Key(0, 1)]


def test_heartbeats_tell_what_the_program_is_doing_and_how_long_it_heard_nobody() -> None:
    core = ProgramCore(Mock(Rim), 60.0, "", "3.12", 1)
    core.wait(10.0)
    beat = core.heartbeat(11.5, 7.0, [], 0)
    assert (beat.doing, beat.for_s, beat.unheard_s) == ("waiting", 1.5, 4.5)
    core.receive(Ping(), 12.0)
    assert core.heartbeat(12.0, 12.0, [], 0).doing == "act on what the host says"
    core.receive(Landed([]), 13.0)
    assert core.heartbeat(13.0, 13.0, [], 0).doing == "delete episodes that have landed"


def test_an_idle_program_ends_a_moment_after_it_has_been_without_a_host_for_too_long() -> None:
    rim = Mock(Rim)
    core = ProgramCore(rim, 60.0, "", "3.12", 1)
    for now in (69.0, 70.5, 72.0):
        core.tick(now, 10.0, [], [])
    assert not rim.mock_calls
    core.tick(73.0, 10.0, [], [])
    assert rim.mock_calls == [call.end(stopped=False)]


def test_a_program_that_was_stopped_itself_first_reads_what_the_host_has_said() -> None:
    rim = Mock(Rim)
    core = ProgramCore(rim, 60.0, "", "3.12", 1)
    core.tick(10.0, 10.0, [], [])
    core.tick(500.0, 10.0, [], [])  # it goes on after minutes, and has read nothing yet
    core.tick(503.0, 501.0, [], [])
    core.tick(562.0, 501.0, [], [])  # the host has gone
    assert not rim.mock_calls


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
        UnknownFile("four", "four.json is not a manifest: truncated"),
        UnknownFile("three", f"it is of run r9, not of {RUN}"),
    ]
    host.say(Landed(["one", "two"]))
    assert host.say(JOB) == [Working(2, "", [])]


def test_accounts_are_told_when_the_host_has_all_it_wanted() -> None:
    host = Host()
    assert host.say(Collected()) == []
    host.work()
    host.wait(3.0)
    assert host.say(Collected()) == [SlotSeconds({"boot": 0.0, "barrier": 6.0})]
    assert host.did("idle")[-1] == ["update"]


def test_answers_reach_the_episodes_and_a_new_host_is_asked_again() -> None:
    host = Host()
    host.work(ASKING_JOB)
    host.say(Action(1, 0, -0.5))
    host.say(NoAction(2, "no policy"))
    assert host.program.answers == [Action(1, 0, -0.5), NoAction(2, "no policy")]
    assert not host.did("ask_again")
    host.say(Hello(RUN, list(SPOKEN)))
    assert host.program.done[-1] == ("ask_again",)

"""Collection on a real Ray cluster whose actors and nodes are killed, and clusters that cannot be used."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import psutil
import pytest
from collector_site import Kind, Site, in_the_middle, keys, site, tickets
from process_watch import command_line, eventually, nothing_is_left_of, processes_with
from ray_test_cluster import add_node, shared_cluster
from run_files import events, metrics
from user_classes import Coin, Counter

from digirl_dist.cli.main import main
from digirl_dist.errors import ClusterError, CollectionError, LinkLostError
from digirl_dist.protocol.job_folder import JobFolder
from digirl_dist.ray_cluster.connect import connect
from digirl_dist.settings import RayCollectorSettings
from digirl_dist.tasks import Key

pytestmark = [pytest.mark.system, pytest.mark.ray]


def actors_of(folder: Path) -> list[psutil.Process]:
    """The processes of the worker actors: those that guard emulators with files below ``folder``."""
    guards = [one for one in processes_with(folder) if "digirl_dist.rollout.emulator_process" in command_line(one)]
    parents = {one.parent() for one in guards}
    return [one for one in parents if one is not None and "WorkerActor" in command_line(one)]


def check(here: Site, count: int, result: Any) -> None:
    """No ticket is lost or counted twice."""
    assert keys(result) == [Key(0, index) for index in range(count)]
    landed = [content["ticket"] for kind, content in here.events if kind == "episode"]
    assert sorted(landed) == list(range(count))


@pytest.mark.unit
def test_a_tensor_that_comes_while_others_are_let_go_stays(tmp_path: Path) -> None:
    """A push of the version before goes on in another thread."""
    from digirl_dist.ray_cluster.actor import ObjectBlobs

    blobs = ObjectBlobs(JobFolder(tmp_path))

    class Wanted(list[str]):
        def __iter__(self) -> Iterator[str]:
            blobs.add("comes", b"")
            return super().__iter__()

    for name in "abc":
        blobs.add(name, b"")
    blobs.keep(Wanted(["a", "comes"]), [])
    assert blobs.missing(["a", "b", "c", "comes"]) == ["b", "c"]


@pytest.mark.unit
def test_an_actor_that_does_not_answer_costs_the_connection_and_not_an_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray.exceptions import GetTimeoutError

    from digirl_dist.ray_cluster.connection import ObjectFiles, ObjectShelf

    monkeypatch.setattr("ray.get", Mock(side_effect=GetTimeoutError("some object(s) not ready")))
    with pytest.raises(LinkLostError, match="its actor did not answer within 1 s"):
        list(ObjectFiles("ray-0", Mock(), "node", ObjectShelf(), 1.0).fetch({Path("landing"): Mock()}))


@pytest.mark.nightly
def test_a_killed_actor_costs_retries_only(tmp_path: Path) -> None:
    with site(tmp_path, Kind.ray, step_s=0.1) as here:
        killer = in_the_middle(here, lambda: actors_of(tmp_path)[0].kill())
        check(here, 60, here.collect(tickets(60)))
        killer.join()
        assert here.count("worker_lost") == 1
        eventually(lambda: here.count("worker_joined") >= 2, 1)
    nothing_is_left_of(tmp_path)


@pytest.mark.nightly
def test_a_killed_node_costs_retries_only(tmp_path: Path) -> None:
    cluster = shared_cluster()
    nodes = [add_node(cluster, num_cpus=1, resources={"apart": 1.0}) for _ in range(2)]
    settings = RayCollectorSettings(workers=2, resources={"apart": 0.6}, start_s=40)
    with site(tmp_path, Kind.ray, step_s=0.1, collector=settings) as here:
        killer = in_the_middle(here, lambda: cluster.remove_node(nodes[0], allow_graceful=False), after=12)
        result = here.collect(tickets(100))
        killer.join()
        check(here, 100, result)
        assert (
            here.count("worker_lost") >= 1
            and sum(len(worker_result.losses) > 0 for worker_result in result.worker_results) == 1
        )
    cluster.remove_node(nodes[1])
    nothing_is_left_of(tmp_path)


@pytest.mark.nightly
def test_a_cluster_without_room_says_what_was_asked_for(tmp_path: Path) -> None:
    settings = RayCollectorSettings(workers=1, resources={"androids": 2.0}, start_s=1)
    told = r"androids 2, did not start within 1 s.* androids 0 \(free 0\)"
    with (
        site(tmp_path, Kind.ray, collector=settings, no_worker_s=3) as here,
        pytest.raises(CollectionError, match=told),
    ):
        here.collect(tickets(2))


@pytest.mark.nightly
def test_a_checkpoint_goes_to_each_node_once(tmp_path: Path) -> None:
    cluster = shared_cluster()
    node = add_node(cluster, num_cpus=2, resources={"sole": 1.0})
    settings = RayCollectorSettings(workers=2, num_cpus=0.5, resources={"sole": 0.001})
    with site(tmp_path, Kind.ray, collector=settings, agent=Coin, step_s=0.2) as here:
        result = here.collect(tickets(24))
        pushed = [content["bytes"] for kind, content in here.events if kind == "pushed"]
        assert (
            sorted(pushed) == [0, 4 * Counter.spec.actions.n] and sum(o.push_bytes for o in result.worker_results) == 8
        )
    cluster.remove_node(node)


@pytest.mark.nightly
def test_the_command_line_chooses_ray_and_may_collect_ahead_there(tmp_path: Path) -> None:
    shared_cluster()  # else the dry run would start one
    slow = "emulator.kwargs={step_s: 1}"  # so that both workers have begun before all is collected
    words = ["emulator=custom", "emulator.entry_point=user_classes:Counter", slow, "agent=custom"]
    words += ["agent.entry_point=user_classes:Coin", "bsize=1", "rollout_size=6"]
    words += ["collector=ray", "dry_run=true", "ahead=1", "train_iterations=3", f"save_path={tmp_path / 'run'}"]
    assert main([*words, f"worker_temp_path={tmp_path / 'jobs'}"]) == 0
    assert [line["episodes"] for line in metrics(tmp_path / "run")] == [6, 6, 6]
    assert {event["worker"] for event in events(tmp_path / "run", "worker_joined")} == {"ray-0", "ray-1"}


def test_where_no_cluster_answers_the_address_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(ClusterError, match="127.0.0.1:1"):
        connect("127.0.0.1:1", 5)

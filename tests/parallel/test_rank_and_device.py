"""Rank facts and device resolution: acceptance rows D3 and B10, as pure functions."""

from __future__ import annotations

import pytest

from digirl_dist.errors import DeviceError
from digirl_dist.parallel.compute_device import DeviceRequest, Visible, resolve_device
from digirl_dist.parallel.rank import Coordinator, Rank, launched_rank, own_rank, variables_past_proxies

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
JAX = {f"JAX_{name}": value for name, value in TORCHRUN.items()}
SECOND_OF_TWO = Rank(1, 2, 1, 2)


def test_without_a_launcher_there_is_one_rank() -> None:
    assert launched_rank({}) is None
    assert own_rank({}) == Rank(0, 1, 0, 1)


@pytest.mark.parametrize("variables", [TORCHRUN, JAX, {**TORCHRUN, **JAX}])
def test_either_launcher_tells_the_rank(variables: dict[str, str]) -> None:
    assert launched_rank(variables) == Rank(3, 4, 1, 2)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"RANK": "4"}, "RANK=4"),
        ({"RANK": "-1"}, "RANK=-1"),
        ({"RANK": "x"}, "RANK='x'"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE=0"),
        ({"LOCAL_RANK": "2"}, "LOCAL_RANK=2"),
        ({"LOCAL_WORLD_SIZE": "5"}, "LOCAL_WORLD_SIZE=5"),
        ({"RANK": "0"}, "LOCAL_RANK=1 cannot be above RANK=0"),
        ({"JAX_RANK": "0", "JAX_WORLD_SIZE": "2", "JAX_LOCAL_RANK": "0"}, "JAX_RANK"),
    ],
)
def test_inconsistent_variables_are_a_value_error_that_names_one(change: dict[str, str], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        launched_rank({**TORCHRUN, **change})


@pytest.mark.parametrize("missing", ["RANK", "WORLD_SIZE", "LOCAL_RANK"])
def test_a_missing_variable_is_named(missing: str) -> None:
    variables = {name: value for name, value in TORCHRUN.items() if name != missing}
    with pytest.raises(ValueError, match=f"{missing} is not set.* start with torchrun, .*to run alone, `unset [A-Z]"):
        launched_rank(variables)


@pytest.mark.parametrize(
    "variables",
    [
        {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"},
        {"WORLD_SIZE": "1"},
        {"RANK": "", "WORLD_SIZE": "", "LOCAL_RANK": ""},
        {"JAX_RANK": "0", "JAX_WORLD_SIZE": "1"},
        {"SLURM_PROCID": "1", "SLURM_NTASKS": "4", "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"},
    ],
)
def test_launchers_variables_of_a_pod_or_a_job_step_that_is_alone_are_no_launch(variables: dict[str, str]) -> None:
    assert launched_rank(variables) is None


def test_launchers_variables_of_a_pod_among_several_are_refused_with_what_to_unset() -> None:
    with pytest.raises(ValueError, match="LOCAL_RANK is not set beside RANK and WORLD_SIZE; .*`unset RANK WORLD_SIZE`"):
        launched_rank({"RANK": "1", "WORLD_SIZE": "4"})
    with pytest.raises(ValueError, match="WORLD_SIZE is not set beside RANK; .*`unset RANK`"):
        launched_rank({"RANK": "0"})


@pytest.mark.parametrize(
    ("known", "wanted"),
    [
        ({}, "10.0.0.1"),
        ({"http_proxy": "http://p:1", "no_proxy": "a.example,b"}, "a.example,b,10.0.0.1"),
        ({"no_grpc_proxy": "c", "no_proxy": "b"}, "c,10.0.0.1"),
    ],
)
def test_proxies_are_passed_by_on_the_way_to_the_coordinator(known: dict[str, str], wanted: str) -> None:
    assert variables_past_proxies(known, Coordinator("10.0.0.1", 5000)) == {"no_grpc_proxy": wanted}


@pytest.mark.parametrize(
    ("wanted", "rank", "visible", "device"),
    [
        (DeviceRequest("cuda"), SECOND_OF_TWO, Visible(2), "cuda:1"),
        (DeviceRequest("cuda"), SECOND_OF_TWO, Visible(1, masked=True), "cuda:0"),
        (DeviceRequest("cuda:0", number=0), SECOND_OF_TWO, Visible(2), "cuda:1"),
        (DeviceRequest("cuda:0", number=1), None, Visible(2), "cuda:1"),
        (DeviceRequest("cuda:0", name="cuda:1"), None, Visible(2), "cuda:1"),
        (DeviceRequest("cuda:0", name="cpu"), None, Visible(2), "cpu"),
        (DeviceRequest("cuda:0", name="cpu"), SECOND_OF_TWO, Visible(2), "cpu"),
        (DeviceRequest("cuda:1"), None, Visible(2), "cuda:1"),
        (DeviceRequest("cuda"), None, Visible(2), "cuda:0"),
        (DeviceRequest("cpu"), SECOND_OF_TWO, Visible(2), "cpu"),
        (DeviceRequest(), None, Visible(0), "cpu"),
        (DeviceRequest(), SECOND_OF_TWO, Visible(0), "cpu"),
        (DeviceRequest(), None, Visible(1), "cuda:0"),
    ],
)
def test_d3_the_device_follows_from_rank_number_name_and_configuration(
    wanted: DeviceRequest, rank: Rank | None, visible: Visible, device: str
) -> None:
    assert resolve_device(wanted, rank, visible) == device


@pytest.mark.parametrize(
    ("wanted", "rank", "visible", "said"),
    [
        (DeviceRequest("cuda"), None, Visible(0), "no CUDA device is visible; use cpu"),
        (DeviceRequest("cpu", number=1), None, Visible(0), "no CUDA device"),
        (DeviceRequest(name="cuda:2"), None, Visible(2), "only 2"),
        (DeviceRequest("tpu"), None, Visible(2), "'tpu' is not known"),
        (DeviceRequest("cuda:x"), None, Visible(2), "not known"),
    ],
)
def test_d3_what_is_not_there_is_refused(wanted: DeviceRequest, rank: Rank | None, visible: Visible, said: str) -> None:
    with pytest.raises(DeviceError, match=said):
        resolve_device(wanted, rank, visible)


@pytest.mark.parametrize("visible", [Visible(1), Visible(2), Visible(3, masked=True)])
def test_b10_more_ranks_than_devices_are_refused_with_the_right_number(visible: Visible) -> None:
    with pytest.raises(DeviceError, match=f"--nproc_per_node={visible.count}"):
        resolve_device(DeviceRequest("cuda"), Rank(0, 4, 0, 4), visible)

"""Rank facts and device resolution: acceptance rows D3 and B10, as pure functions."""

from __future__ import annotations

import pytest

from digirl_dist.errors import DeviceError
from digirl_dist.parallel.compute_device import DeviceRequest, Visible, resolve_device
from digirl_dist.parallel.rank import Rank, launched_rank, own_rank

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
    with pytest.raises(ValueError, match=f"{missing} is not set"):
        launched_rank(variables)


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

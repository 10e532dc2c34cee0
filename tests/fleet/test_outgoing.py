"""What of a checkpoint travels, and in which form."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from digirl_dist.errors import CheckpointError
from digirl_dist.fleet.outgoing import Outgoing, Sample, Weights
from digirl_dist.protocol import tensor_delta
from digirl_dist.settings import PushDtype
from digirl_dist.storage.checkpoint import Checkpoints, TensorInfo, raw_bytes, tensor_from
from digirl_dist.storage.digest import digest

State = dict[str, torch.Tensor]


def weights(folder: Path, iteration: int, state: State, dtype: PushDtype, before: Weights | None = None) -> Weights:
    return Weights(Checkpoints(folder, keep_every=10).save(iteration, state, {}, {}), dtype, before)


def reader(data: bytes | memoryview) -> tensor_delta.Read:
    def read(count: int) -> bytes:
        nonlocal data
        taken, data = bytes(data[:count]), data[count:]
        return taken

    return read


def test_blobs_are_the_tensors_that_were_asked_for_once_each(tmp_path: Path) -> None:
    same = torch.ones(4)
    state = {"a": same, "b": same.clone(), "c": torch.zeros(2)}
    outgoing = Outgoing(weights(tmp_path, 0, state, PushDtype.float32), None)
    [blob] = outgoing.blobs({digest(raw_bytes(same))})
    assert (blob.size, bytes(blob.content()), blob.delta) == (16, bytes(raw_bytes(same)), None)


def test_in_bfloat16_half_the_bytes_travel_and_the_manifest_names_both_dtypes(tmp_path: Path) -> None:
    state = {"w": torch.randn(100, 7), "count": torch.arange(3)}
    outgoing = Outgoing(weights(tmp_path, 0, state, PushDtype.bfloat16), None)
    manifest = outgoing.tensor_entries()
    sent, whole = manifest["w"], manifest["count"]
    assert (sent.dtype, sent.own_dtype) == ("bfloat16", "float32")
    assert (whole.dtype, whole.own_dtype, whole.shape) == ("int64", None, [3])
    [blob] = outgoing.blobs({sent.digest})
    assert blob.size == 1400
    arrived = tensor_from(bytearray(blob.content()), TensorInfo(sent.digest, "bfloat16", tuple(sent.shape)))
    assert torch.equal(arrived, state["w"].bfloat16())


@pytest.mark.parametrize("dtype", list(PushDtype))
def test_an_unchanged_tensor_has_an_unchanged_name(tmp_path: Path, dtype: PushDtype) -> None:
    frozen = torch.randn(1000)
    first = weights(tmp_path, 0, {"frozen": frozen, "head": torch.zeros(3)}, dtype)
    second = weights(tmp_path, 1, {"frozen": frozen, "head": torch.ones(3)}, dtype, first)
    assert Outgoing(first, None).tensor_entries()["frozen"] == Outgoing(second, first).tensor_entries()["frozen"]
    assert first.tensors["head"] != second.tensors["head"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int8])
@pytest.mark.parametrize("numbers", [1, 3, 1000, tensor_delta.BLOCK // 2 + 5])
def test_a_delta_brings_back_the_very_bytes(dtype: torch.dtype, numbers: int) -> None:
    old = (torch.randn(numbers) * 50).to(dtype)
    new = (old.double() * 1.01).to(dtype)
    width = dtype.itemsize
    made = tensor_delta.encode(raw_bytes(new), raw_bytes(old), width)
    found = b"".join(tensor_delta.decode(reader(made), reader(raw_bytes(old)), new.nbytes, width))
    assert found == bytes(raw_bytes(new))


@pytest.fixture
def made() -> bytes:
    old = torch.randn(10_000)
    return tensor_delta.encode(raw_bytes(old + 0.001), raw_bytes(old), 4)


def damaged(made: bytes) -> Iterator[bytes]:
    yield b""
    yield made[: len(made) // 2]
    yield b"\xff" * 4 + made[4:]
    yield made[:4] + bytes(len(made) - 4)


def test_a_damaged_delta_is_refused(made: bytes) -> None:
    for data in damaged(made):
        with pytest.raises(ValueError, match="block|frame"):
            list(tensor_delta.decode(reader(data), reader(bytes(40_000)), 40_000, 4))


def test_one_step_of_adam_in_bfloat16_is_told_in_a_quarter_of_the_bytes() -> None:
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(1_000_000) * 0.02)
    before = weight.detach().bfloat16()
    weight.grad = torch.randn_like(weight)
    torch.optim.Adam([weight], lr=1e-5).step()
    after = weight.detach().bfloat16()
    assert not torch.equal(before, after)
    assert len(tensor_delta.encode(raw_bytes(after), raw_bytes(before), 2)) <= 0.25 * after.nbytes


def test_a_delta_pays_on_slow_links_only() -> None:
    assert Sample(ratio=0.15, codec_rate=400e6).pays(link_rate=25e6)
    assert not Sample(ratio=0.15, codec_rate=400e6).pays(link_rate=300e6)
    assert not Sample(ratio=1.0, codec_rate=400e6).pays(link_rate=1e3)


def test_the_version_before_is_kept_even_when_its_files_are_deleted(tmp_path: Path) -> None:
    old, new = torch.randn(50_000), torch.randn(50_000)
    first = weights(tmp_path, 1, {"w": old}, PushDtype.float32)
    second = weights(tmp_path, 2, {"w": new}, PushDtype.float32, first)
    shutil.rmtree(first.checkpoint.folder, ignore_errors=True)
    [blob] = Outgoing(second, first).blobs({digest(raw_bytes(new))})
    assert blob.delta is not None and blob.delta.base == digest(raw_bytes(old))
    told = b"".join(tensor_delta.decode(reader(blob.delta.content()), reader(raw_bytes(old)), 200_000, 4))
    assert told == bytes(raw_bytes(new))


def test_a_checkpoint_without_weights_is_named(tmp_path: Path) -> None:
    checkpoint = Checkpoints(tmp_path).save(0, {"w": torch.zeros(1)}, {}, {})
    (checkpoint.folder / "policy.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"policy\.safetensors cannot be read"):
        Weights(checkpoint, PushDtype.float32)

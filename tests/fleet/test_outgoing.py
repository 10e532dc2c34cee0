"""What of a checkpoint travels, and in which form."""

from __future__ import annotations

import io
import shutil
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
    delta, base = io.BytesIO(blob.delta.content()), io.BytesIO(raw_bytes(old))
    told = b"".join(tensor_delta.decode(delta.read, base.read, 200_000, 4))
    assert told == bytes(raw_bytes(new))


def test_a_checkpoint_without_weights_is_named(tmp_path: Path) -> None:
    checkpoint = Checkpoints(tmp_path).save(0, {"w": torch.zeros(1)}, {}, {})
    (checkpoint.folder / "policy.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"policy\.safetensors cannot be read"):
        Weights(checkpoint, PushDtype.float32)

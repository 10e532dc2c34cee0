"""What a model's processor made of screenshots, kept while learning, which passes the same ones again and again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from PIL.Image import Image
from PIL.Image import new as new_picture
from transformers.image_processing_utils import BatchFeature
from transformers.image_utils import make_flat_list_of_images

from digirl_dist.agent.pixels import opened
from digirl_dist.storage.digest import digest

_MOST_BYTES = 2 << 30
_MOST_SIZES = 16
_DIGEST = "digest"

Parts = Mapping[str, torch.Tensor]
"""What is made of one picture: tensors that are put one after the other along their first dimension."""


def screenshot(image: bytes | None) -> Image:
    """Returns a picture that ``RememberedPictures`` knows again. Raises TrajectoryError."""
    picture = opened(image)
    picture.info[_DIGEST] = digest(image or b"")
    return picture


class RememberedPictures:
    """Stands in for the image processor of a model's processor, and asks it for each screenshot once.

    While acting (in inference mode) it passes everything on, for screens seldom come again. The same goes for pictures
    whose sizes differ so that only the image processor can put them together.
    """

    def __init__(self, image_processor: Any) -> None:
        self._image_processor = image_processor
        self._known: OrderedDict[str, Parts] = OrderedDict()
        self._bytes = 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_image_processor":  # while it is copied
            raise AttributeError(name)
        return getattr(self._image_processor, name)

    def __call__(self, images: Any, *arguments: Any, **named: Any) -> Any:
        pictures = make_flat_list_of_images(images)
        known = (picture for picture in pictures if isinstance(picture, Image) and _DIGEST in picture.info)
        digests: list[str] = [picture.info[_DIGEST] for picture in known]
        if torch.is_inference_mode_enabled() or len(digests) < len(pictures):
            return self._image_processor(images, *arguments, **named)
        is_nested = isinstance(images[0], list | tuple)
        found = []
        for name, picture in zip(digests, pictures, strict=True):
            if name not in self._known:
                asked: Any = [[picture]] if is_nested else [picture]
                self._keep(name, self._image_processor(asked, *arguments, **named))
            self._known.move_to_end(name)
            found.append(self._known[name])
        joined = _joined(found)
        self._forget()
        return self._image_processor(images, *arguments, **named) if joined is None else BatchFeature(joined)

    def _keep(self, name: str, made: Parts) -> None:
        self._known[name] = dict(made)
        self._bytes += _size(made)

    def _forget(self) -> None:
        while self._bytes > _MOST_BYTES and self._known:
            self._bytes -= _size(self._known.popitem(last=False)[1])


class Scaled:
    """Returns the height and width that a picture has when the image processor has scaled it, where that shows.

    Qwen's processors make a grid of patches of pictures, ``image_grid_thw``; models of other kinds write no pixels.
    """

    def __init__(self, image_processor: Any) -> None:
        self._image_processor = image_processor
        self._known: dict[tuple[int, int], tuple[int, int]] = {}

    def __call__(self, size: tuple[int, int]) -> tuple[int, int]:
        if size not in self._known:
            if len(self._known) > _MOST_SIZES:
                self._known.clear()
            made = self._image_processor(images=[new_picture("RGB", size[::-1])], return_tensors="pt")
            grid, patch = made.get("image_grid_thw"), getattr(self._image_processor, "patch_size", None)
            if grid is None or not isinstance(patch, int):
                self._known[size] = size
            else:
                self._known[size] = int(grid[0, 1]) * patch, int(grid[0, 2]) * patch
        return self._known[size]


def _size(made: Parts) -> int:
    return sum(tensor.nbytes for tensor in made.values() if isinstance(tensor, torch.Tensor))


def _joined(parts: Sequence[Parts]) -> dict[str, torch.Tensor] | None:
    """Returns None for parts that do not fit together."""
    names = parts[0].keys()
    whole = {name: [part[name] for part in parts if name in part] for name in names}
    for tensors in whole.values():
        shapes = {tuple(tensor.shape[1:]) for tensor in tensors if isinstance(tensor, torch.Tensor)}
        if len(tensors) < len(parts) or len(shapes) != 1 or not all(isinstance(each, torch.Tensor) for each in tensors):
            return None
    return {name: torch.cat(tensors) for name, tensors in whole.items()}

"""From encoded screenshots to the small pictures that the policies look at."""

from __future__ import annotations

import io
from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from PIL import Image

from digirl_dist.errors import TrajectoryError
from digirl_dist.storage.digest import digest

_CACHED_BYTES = 256 * 2**20
_RECENT = 64


class Pictures:
    """Decodes PNG and JPEG to uint8 tensors of shape [B, 3, height, width], whatever size the screenshots have.

    Training sees the same screenshots over and over: ``remembered`` keeps the newest decoded ones. Acting sees many
    that nothing has changed: ``decoded`` keeps some.
    """

    def __init__(self, size: tuple[int, int]) -> None:
        self._recent = _Newest(_RECENT, size)
        self._many = _Newest(_CACHED_BYTES // (3 * size[0] * size[1]), size)

    def decoded(self, images: Sequence[bytes | None]) -> torch.Tensor:
        """Raises TrajectoryError for what is missing or no picture."""
        return self._recent.of(images)

    def remembered(self, images: Sequence[bytes | None]) -> torch.Tensor:
        """The same, from memory where possible."""
        return self._many.of(images)


class _Newest:
    """The pictures decoded last, in one block of memory.

    Each in one of its own would lie between larger ones that soon go, and the process would hold several times their
    bytes.
    """

    def __init__(self, capacity: int, size: tuple[int, int]) -> None:
        self._capacity, self._size = capacity, size
        self._rows: OrderedDict[str, int] = OrderedDict()  # a plain one takes ever longer to find its first key

    def of(self, images: Sequence[bytes | None]) -> torch.Tensor:
        pictures = np.empty((len(images), 3, *self._size), np.uint8)
        for place, image in enumerate(images):
            pictures[place] = self._block[self._row(image)]
        return torch.from_numpy(pictures)

    @cached_property
    def _block(self) -> np.ndarray:
        """Pages of it take memory once they are written."""
        return np.empty((self._capacity, 3, *self._size), np.uint8)

    def _row(self, image: bytes | None) -> int:
        key = digest(image or b"")  # and not the screenshot, which may be far larger than what is kept of it
        if (row := self._rows.get(key)) is None:
            picture, known = _decode(image, self._size), len(self._rows)
            row = known if known < self._capacity else self._rows.popitem(last=False)[1]
            self._block[row], self._rows[key] = picture, row
        return row


def _decode(image: bytes | None, size: tuple[int, int]) -> np.ndarray:
    """One picture averaged down to (height, width) = ``size``: uint8, shape [3, height, width].

    Raises TrajectoryError.
    """
    return np.moveaxis(np.array(opened(image).resize((size[1], size[0]), Image.Resampling.BOX)), 2, 0)


def opened(image: bytes | None) -> Image.Image:
    """One picture in RGB.

    Screenshots come from workers: only PNG and JPEG are decoded. Raises TrajectoryError.
    """
    if image is None:
        raise TrajectoryError("an observation has no screenshot, which this agent needs")
    try:
        with Image.open(io.BytesIO(image), formats=("PNG", "JPEG")) as picture:
            rgb: Image.Image = picture.convert("RGB")
            return rgb
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise TrajectoryError(f"a screenshot of {len(image)} bytes cannot be decoded: {error}") from error


def fitted_size(size: tuple[int, int], short_side: int, multiple: int) -> tuple[int, int]:
    """(height, width) of a picture scaled so that its short side is ``short_side``, in steps of ``multiple`` pixels."""
    scale = short_side / min(size)
    height, width = (max(1, round(edge * scale / multiple)) * multiple for edge in size)
    return height, width

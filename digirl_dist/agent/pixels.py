"""From encoded screenshots to the small pictures that the policies look at."""

from __future__ import annotations

import io
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image

from digirl_dist.errors import TrajectoryError
from digirl_dist.storage.digest import digest

_CACHED_BYTES = 256 * 2**20
_RECENT = 64
_TOGETHER = 64
"""Pictures that share a block of memory. One by one they would lie among arrays that soon go, and the gaps that both
leave to each other would grow for hours."""


class Pictures:
    """Decodes PNG and JPEG to uint8 tensors of shape [B, 3, height, width], averaged down from whatever size they have.

    Training sees the same screenshots over and over: ``remembered`` keeps the newest decoded ones. Acting sees many
    that nothing has changed: ``decoded`` keeps some.
    """

    def __init__(self, size: tuple[int, int]) -> None:
        self.size = size
        self._capacity = _CACHED_BYTES // (3 * size[0] * size[1])
        self._decoded: OrderedDict[str, np.ndarray] = OrderedDict()
        self._recent: OrderedDict[str, np.ndarray] = OrderedDict()
        self._free: list[np.ndarray] = []
        """Room for pictures."""

    def decoded(self, images: Sequence[bytes | None]) -> torch.Tensor:
        """Raises TrajectoryError for what is missing or no picture."""
        return self._stacked([self._recall(image, self._recent, _RECENT) for image in images])

    def remembered(self, images: Sequence[bytes | None]) -> torch.Tensor:
        """The same, from memory where possible."""
        return self._stacked([self._recall(image, self._decoded, self._capacity) for image in images])

    def _stacked(self, pictures: list[np.ndarray]) -> torch.Tensor:
        return torch.from_numpy(np.reshape(np.array(pictures, np.uint8), (len(pictures), 3, *self.size)))

    def _recall(self, image: bytes | None, known: OrderedDict[str, np.ndarray], capacity: int) -> np.ndarray:
        key = digest(image or b"")  # and not the screenshot, which may be far larger than what is kept of it
        if (found := known.get(key)) is None:
            small = opened(image).resize(self.size[::-1], Image.Resampling.BOX)
            if len(known) == capacity:
                self._free.append(known.popitem(last=False)[1])
            if not self._free:
                self._free.extend(np.empty((_TOGETHER, 3, *self.size), np.uint8))
            found = known[key] = self._free.pop()
            found[:] = np.asarray(small).transpose(2, 0, 1)
        return np.copy(found)  # another may come in its place before it is looked at


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

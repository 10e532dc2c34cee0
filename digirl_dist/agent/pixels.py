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


class Pictures:
    """Decodes PNG and JPEG to uint8 tensors of shape [B, 3, height, width], whatever size the screenshots have.

    Training sees the same screenshots over and over: ``remembered`` keeps the newest decoded ones. Acting sees many
    that nothing has changed: ``decoded`` keeps some.
    """

    def __init__(self, size: tuple[int, int]) -> None:
        self.size = size
        self._capacity = _CACHED_BYTES // (3 * size[0] * size[1])
        self._decoded: OrderedDict[str, torch.Tensor] = OrderedDict()
        self._recent: OrderedDict[str, torch.Tensor] = OrderedDict()

    def decoded(self, images: Sequence[bytes | None]) -> torch.Tensor:
        """Raises TrajectoryError for what is missing or no picture."""
        return self._stacked([self._recall(image, self._recent, _RECENT) for image in images])

    def remembered(self, images: Sequence[bytes | None]) -> torch.Tensor:
        """The same, from memory where possible."""
        return self._stacked([self._recall(image, self._decoded, self._capacity) for image in images])

    def _stacked(self, pictures: list[torch.Tensor]) -> torch.Tensor:
        return torch.stack(pictures) if pictures else torch.empty(0, 3, *self.size, dtype=torch.uint8)

    def _recall(self, image: bytes | None, known: OrderedDict[str, torch.Tensor], capacity: int) -> torch.Tensor:
        key = digest(image or b"")  # and not the screenshot, which may be far larger than what is kept of it
        if (found := known.get(key)) is None:
            found = known[key] = decode(image, self.size)
            if len(known) > capacity:
                known.popitem(last=False)
        return found


def decode(image: bytes | None, size: tuple[int, int]) -> torch.Tensor:
    """One picture averaged down to (height, width) = ``size``: uint8, shape [3, height, width].

    Raises TrajectoryError.
    """
    small = opened(image).resize((size[1], size[0]), Image.Resampling.BOX)
    return torch.from_numpy(np.asarray(small).transpose(2, 0, 1).copy())


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

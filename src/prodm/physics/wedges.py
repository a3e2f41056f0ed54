"""A Fourier plane cut into wedges: partial-angle images, each of one moment of a scan.

A view measures one line of the plane (``prodm.physics.phase``), so that neighbouring lines were
measured one after the other.
"""

from functools import lru_cache

import array_api_compat
import numpy as np

from prodm.errors import ProdmError
from prodm.physics.phase import (
    Array,
    Floats,
    inverse,
    like,
    padded_length,
    polar_frequencies,
    transform,
)


def partial_angle_images(
    image: Array,
    num_wedges: int,
    *,
    start_rad: float = 0.0,
    padding: int | None = None,
    wraps: bool = True,
) -> Array:
    """Split images [..., Y, X] into [..., K, Y, X], each from one wedge of the Fourier plane.

    Wedge k is centred at start_rad + (k + 1/2) pi / K: it holds the views of the k-th moment of
    a scan over 180 degrees. Neighbours overlap with weights cos^2 and sin^2, which sum to one,
    so the parts sum to the image. The first and the last are neighbours too, unless ``wraps`` is
    false: then they end where the scan starts and ends.
    """
    if num_wedges < 2:
        raise ProdmError(f"an image is split into at least two wedges, got {num_wedges}")
    xp = array_api_compat.array_namespace(image)
    rows, columns = image.shape[-2:]
    shape = (padded_length(rows, padding), padded_length(columns, padding))
    windows = like(xp, _wedges(shape, num_wedges, float(start_rad), wraps), image)
    parts = transform(xp, image, shape)[..., None, :, :] * windows
    return inverse(xp, parts, (rows, columns), shape)


@lru_cache(maxsize=16)
def _wedges(shape: tuple[int, int], num_wedges: int, start_rad: float, wraps: bool) -> Floats:
    _, theta = polar_frequencies(shape)
    width = np.pi / num_wedges
    centres = start_rad + (np.arange(num_wedges) + 0.5) * width
    away = (theta - centres[:, None, None] + np.pi / 2) % np.pi - np.pi / 2
    windows: Floats = np.where(np.abs(away) < width, np.cos(away / width * np.pi / 2) ** 2, 0.0)
    if not wraps:
        position = ((theta - start_rad) % np.pi) / width - 0.5
        for wedge, beyond in ((0, position < 0), (-1, position > num_wedges - 1)):
            windows[:, beyond] = 0
            windows[wedge][beyond] = 1
    windows[:, 0, 0] = 1 / num_wedges  # the mean has no direction
    return windows

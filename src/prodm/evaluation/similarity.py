"""Structural similarity (SSIM) of images, as in the paper's Figure 3.

Wang et al., IEEE Trans Image Process 13:600, 2004: in a Gaussian window of 11 x 11 pixels with
sigma 1.5, with means u, variances v and covariance c of two images in [0, 1],

    SSIM = (2 u1 u2 + C1) (2 c + C2) / ((u1^2 + u2^2 + C1) (v1 + v2 + C2))

averaged over all windows that lie inside the slice, and over the slices. Images are HU clipped
to the network's range of [-200, 800]. A filter along one axis is a product with a banded
matrix, which for slices this small is the quickest way.
"""

from functools import cache

import numpy as np
from numpy.typing import NDArray

from prodm.errors import ProdmError
from prodm.model import normalise

SIGMA_PIXELS = 1.5
RADIUS_PIXELS = 5
C1, C2 = 0.01**2, 0.03**2

Images = NDArray[np.int16 | np.float32]


def ssim(first_hu: Images, second_hu: Images) -> NDArray[np.float64]:
    """Return the mean SSIM over the slices of images [..., Z, Y, X], as [...]."""
    if first_hu.shape != second_hu.shape:
        raise ProdmError(
            f"SSIM compares images of one size, got {first_hu.shape} and {second_hu.shape}"
        )
    if min(first_hu.shape[-2:]) <= 2 * RADIUS_PIXELS:
        raise ProdmError(f"SSIM needs slices of 11 x 11 pixels or more, got {first_hu.shape[-2:]}")
    shape = first_hu.shape[-3:]
    pairs = zip(first_hu.reshape(-1, *shape), second_hu.reshape(-1, *shape), strict=True)
    values = np.array([_mean_similarity(a, b) for a, b in pairs])  # each fits into the cache
    return values.reshape(first_hu.shape[:-3])


def _mean_similarity(first_hu: Images, second_hu: Images) -> float:
    a = normalise(first_hu.astype(np.float32, copy=False))
    b = normalise(second_hu.astype(np.float32, copy=False))
    mean_a, mean_b = _blurred(a), _blurred(b)
    product, squares = mean_a * mean_b, mean_a**2 + mean_b**2
    covariance = _blurred(a * b) - product
    variances = _blurred(a**2 + b**2) - squares
    luminance = (2 * product + C1) / (squares + C1)
    structure = (2 * covariance + C2) / (variances + C2)
    return float((luminance * structure).mean(dtype=np.float64))


def _blurred(images: NDArray[np.float32]) -> NDArray[np.float32]:
    height, width = images.shape[-2:]
    blurred: NDArray[np.float32] = _band(height) @ (images @ _band(width).T)
    return blurred


@cache
def _band(length: int) -> NDArray[np.float32]:
    """Rows of Gaussian weights for each window inside ``length`` pixels."""
    offsets = np.arange(-RADIUS_PIXELS, RADIUS_PIXELS + 1)
    weights = np.exp(-(offsets**2) / (2 * SIGMA_PIXELS**2))
    weights /= weights.sum()
    matrix = np.zeros((length - 2 * RADIUS_PIXELS, length), dtype=np.float32)
    for row in range(len(matrix)):
        matrix[row, row : row + len(weights)] = weights
    return matrix

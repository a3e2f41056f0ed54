"""Metrics of a corrected patch, and their summary over many.

The paper's four: mean absolute error of the Agatston score, share of patches with the right risk
grade, Dice loss of the calcium masks, and Pearson's r of the scores. Ours besides: the Dice loss
after the best in-plane translation, since part of a displacement shows in no image.

Means come with their standard error, sd / sqrt(n), and n.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import fft, ndimage

from prodm.agatston import score
from prodm.calcium import CALCIUM_THRESHOLD_HU, grade
from prodm.volume import Grid, Vector, Volume

Mask = NDArray[np.bool_]
BRIGHT_REACH_PIXELS = 2


def scored_region(background_hu: NDArray[np.int16]) -> Mask:
    """Return where calcium counts: everywhere but near what is bright without any calcium.

    ``background_hu`` [Z, Y, X] is the still block with its calcium inpainted. What still
    reaches 130 HU there is bone, or calcium that nobody labelled as coronary.
    """
    bright = background_hu >= CALCIUM_THRESHOLD_HU
    in_plane = np.ones((1, 2 * BRIGHT_REACH_PIXELS + 1, 2 * BRIGHT_REACH_PIXELS + 1), dtype=bool)
    region: Mask = ~ndimage.binary_dilation(bright, in_plane)
    return region


def agatston(hu: NDArray[np.float32], region: Mask, spacing_mm: Vector) -> float:
    """Return the clinical Agatston score of one block [Z, Y, X]."""
    z, y, x = hu.shape
    volume = Volume(hu.astype(np.float32, copy=False), Grid((z, y, x), spacing_mm))
    return score(volume, region).agatston


def calcium_mask(hu: NDArray[np.float32], region: Mask) -> Mask:
    """Return the voxels of the region that reach 130 HU."""
    mask: Mask = (hu >= CALCIUM_THRESHOLD_HU) & region
    return mask


def dice_loss(predicted: Mask, true: Mask) -> float:
    """Return 1 - Dice of two masks; 0 where both are empty.

    >>> dice_loss(np.array([1, 1, 0, 0], bool), np.array([0, 1, 1, 0], bool))
    0.5
    """
    total = int(predicted.sum()) + int(true.sum())
    return 1 - 2 * int((predicted & true).sum()) / total if total else 0.0


def shifted_dice_loss(predicted: Mask, true: Mask) -> float:
    """Return 1 - Dice after the best translation within the plane, the same for all slices."""
    total = int(predicted.sum()) + int(true.sum())
    if not total:
        return 0.0
    shape = [fft.next_fast_len(2 * n - 1) for n in predicted.shape[1:]]
    spectrum = fft.rfft2(predicted.astype(np.float32), shape)
    overlaps = fft.irfft2(spectrum.conj() * fft.rfft2(true.astype(np.float32), shape), shape)
    return 1 - 2 * round(float(overlaps.sum(axis=0).max())) / total


@dataclass(frozen=True)
class PatchResult:
    """How one method did on one patch."""

    agatston_true: float
    agatston_predicted: float
    dice_loss: float
    shifted_dice_loss: float

    @property
    def grade_is_right(self) -> bool:
        """Whether the predicted score falls in the true risk grade."""
        return grade(self.agatston_true) == grade(self.agatston_predicted)


def judge(
    predicted_hu: NDArray[np.float32],
    still_hu: NDArray[np.int16],
    background_hu: NDArray[np.int16],
    spacing_mm: Vector,
) -> PatchResult:
    """Compare one corrected block [Z, Y, X] with the still one."""
    region = scored_region(background_hu)
    still = still_hu.astype(np.float32)
    predicted_mask, true_mask = calcium_mask(predicted_hu, region), calcium_mask(still, region)
    return PatchResult(
        agatston_true=agatston(still, region, spacing_mm),
        agatston_predicted=agatston(predicted_hu, region, spacing_mm),
        dice_loss=dice_loss(predicted_mask, true_mask),
        shifted_dice_loss=shifted_dice_loss(predicted_mask, true_mask),
    )


@dataclass(frozen=True)
class Mean:
    """A mean with its standard error over n values."""

    value: float
    error: float
    n: int


def mean_of(values: Sequence[float]) -> Mean:
    """Return mean and standard error; the error of fewer than two values is 0.

    >>> mean_of([1.0, 3.0])
    Mean(value=2.0, error=1.0, n=2)
    """
    n = len(values)
    error = float(np.std(values, ddof=1) / np.sqrt(n)) if n > 1 else 0.0
    return Mean(float(np.mean(values)), error, n)


def pearson_r(first: Sequence[float], second: Sequence[float]) -> float:
    """Return Pearson's correlation; 0 where one of the two does not vary."""
    a, b = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
    a, b = a - a.mean(), b - b.mean()
    norm = float(np.sqrt((a**2).sum() * (b**2).sum()))
    return float((a * b).sum()) / norm if norm > 0 else 0.0


@dataclass(frozen=True)
class Summary:
    """One row of the paper's Table 2, and what we add to it."""

    agatston_mae: Mean
    grade_accuracy: Mean  # a fraction
    dice_loss: Mean
    shifted_dice_loss: Mean
    pearson_r: float


def summarise(results: Sequence[PatchResult]) -> Summary:
    """Summarise the results of one method over patches."""
    return Summary(
        agatston_mae=mean_of([abs(r.agatston_predicted - r.agatston_true) for r in results]),
        grade_accuracy=mean_of([float(r.grade_is_right) for r in results]),
        dice_loss=mean_of([r.dice_loss for r in results]),
        shifted_dice_loss=mean_of([r.shifted_dice_loss for r in results]),
        pearson_r=pearson_r(
            [r.agatston_true for r in results], [r.agatston_predicted for r in results]
        ),
    )

"""Metrics of one corrected image against the still one, and their summary over many.

The paper's four: mean absolute error of the Agatston score, share of images with the right risk
grade, Dice loss of the calcium masks, and Pearson's r of the scores. Ours besides:

    Dice loss after translation   the least over all in-plane shifts of up to 16 pixels, the same
                                  for all slices, since a shift as such shows in no image
    calcium mass kept             sum of (corrected - background) over sum of (still - background),
                                  where the background is the still image without its calcium;
                                  within 16 pixels and 2 slices of the calcium, because elsewhere
                                  a bias of a fraction of an HU in each voxel would drown it
    SSIM                          see ``prodm.evaluation.similarity``

Means come with their standard error, sd / sqrt(n), and n. An image is a patch, or a scan put
together from its patches; ``Truth`` holds what is measured once of the still image, and
``judge`` compares any number of corrections with it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from prodm import agatston as scoring
from prodm.calcium import CALCIUM_THRESHOLD_HU, GRADE_EDGES, grade
from prodm.volume import Grid, Index, Vector, Volume, Window

Mask = NDArray[np.bool_]
BRIGHT_REACH_PIXELS = 2
IN_PLANE = np.zeros((3, 3, 3), dtype=bool)  # pixels of a slice that touch, by corners too
IN_PLANE[1] = True
NEAR: Index = (2, 16, 16)
MAX_SHIFT_PIXELS = 16  # beyond the largest simulated motion, lesions would match their neighbours


@dataclass(frozen=True, eq=False)
class Truth:
    """What is measured once of a still image [Z, Y, X]."""

    spacing_mm: Vector
    background: NDArray[np.int16]
    region: Mask
    mask: Mask
    agatston: float
    largest_lesion_mm2: float  # in one slice; 0 where nothing is scored
    peak_hu: float  # of the densest lesion; 0 where nothing is scored
    near: Mask  # where the mass of the calcium is measured
    excess_hu: float  # sum over the background there


@dataclass(frozen=True)
class Outcome:
    """How one method did on one image."""

    agatston_true: float
    agatston_predicted: float
    dice_loss: float
    shifted_dice_loss: float
    excess_true_hu: float
    excess_predicted_hu: float
    ssim: float | None = None

    @property
    def grade_is_right(self) -> bool:
        """Whether the predicted score falls in the true risk grade."""
        return grade(self.agatston_true) == grade(self.agatston_predicted)

    @property
    def absolute_error(self) -> float:
        """Of the Agatston score."""
        return abs(self.agatston_predicted - self.agatston_true)


def scored_region(background_hu: NDArray[np.int16]) -> Mask:
    """Return where calcium counts: everywhere but near what is bright without any calcium.

    ``background_hu`` [Z, Y, X] is the still image with its calcium inpainted. What still
    reaches 130 HU there is bone, or calcium that nobody labelled as coronary.
    """
    bright = background_hu >= CALCIUM_THRESHOLD_HU
    if not bright.any():
        return np.ones_like(bright)
    for axis in (1, 2):
        grown = bright.copy()
        along, onto = np.moveaxis(bright, axis, 0), np.moveaxis(grown, axis, 0)
        for step in range(1, BRIGHT_REACH_PIXELS + 1):
            onto[step:] |= along[:-step]
            onto[:-step] |= along[step:]
        bright = grown
    return ~bright


def measure(
    still_hu: NDArray[np.int16], background_hu: NDArray[np.int16], spacing_mm: Vector
) -> Truth:
    """Measure a still image [Z, Y, X]."""
    region = scored_region(background_hu)
    mask = calcium_mask(still_hu, region)
    score = _score(still_hu, mask, spacing_mm)
    lesions = score.lesions if score else ()
    near = _grown(mask, NEAR)
    return Truth(
        spacing_mm=spacing_mm,
        background=background_hu,
        region=region,
        mask=mask,
        agatston=score.agatston if score else 0.0,
        largest_lesion_mm2=max((lesion.area_mm2 for lesion in lesions), default=0.0),
        peak_hu=max((lesion.peak_hu for lesion in lesions), default=0.0),
        near=near,
        excess_hu=excess(still_hu, background_hu, near),
    )


def judge(predicted_hu: NDArray[np.float32], truth: Truth, *, ssim: float | None = None) -> Outcome:
    """Compare one corrected image [Z, Y, X] with the still one."""
    mask = calcium_mask(predicted_hu, truth.region)
    score = _score(predicted_hu, mask, truth.spacing_mm)
    return Outcome(
        agatston_true=truth.agatston,
        agatston_predicted=score.agatston if score else 0.0,
        dice_loss=dice_loss(mask, truth.mask),
        shifted_dice_loss=shifted_dice_loss(mask, truth.mask),
        excess_true_hu=truth.excess_hu,
        excess_predicted_hu=excess(predicted_hu, truth.background, truth.near),
        ssim=ssim,
    )


def agatston(predicted_hu: NDArray[np.float32], truth: Truth) -> float:
    """Return the clinical Agatston score of one corrected image [Z, Y, X]."""
    mask = calcium_mask(predicted_hu, truth.region)
    score = _score(predicted_hu, mask, truth.spacing_mm)
    return score.agatston if score else 0.0


def invented_lesions(
    predicted_hu: NDArray[np.float32], input_hu: NDArray[np.float32], truth: Truth
) -> int:
    """Count the lesions of 1 mm2 or more, slice by slice, that were not in the input at all.

    A lesion that shares a pixel of 130 HU or more with the input was not invented.
    """
    lesions = scoring.lesion_labels(_volume(predicted_hu, truth.spacing_mm), truth.region) > 0
    numbered, count = ndimage.label(lesions, structure=IN_PLANE)
    known = np.unique(numbered[input_hu >= CALCIUM_THRESHOLD_HU])
    return int(count - np.count_nonzero(known))


def calcium_mask(hu: NDArray[np.int16 | np.float32], region: Mask) -> Mask:
    """Return the voxels of the region that reach 130 HU."""
    mask: Mask = (hu >= CALCIUM_THRESHOLD_HU) & region
    return mask


def excess(
    hu: NDArray[np.int16 | np.float32], background_hu: NDArray[np.int16], near: Mask
) -> float:
    """Return the sum of HU over the background, the mass of the calcium but for a factor."""
    return float(np.sum(hu[near], dtype=np.float64) - np.sum(background_hu[near], dtype=np.float64))


def dice_loss(predicted: Mask, true: Mask) -> float:
    """Return 1 - Dice of two masks; 0 where both are empty.

    >>> dice_loss(np.array([1, 1, 0, 0], bool), np.array([0, 1, 1, 0], bool))
    0.5
    """
    total = int(np.count_nonzero(predicted)) + int(np.count_nonzero(true))
    return 1 - 2 * int(np.count_nonzero(predicted & true)) / total if total else 0.0


def shifted_dice_loss(predicted: Mask, true: Mask) -> float:
    """Return 1 - Dice after the best translation within the plane, the same for all slices.

    Each pair of a true and a predicted voxel in one slice overlaps under one shift, so counting
    the pairs by their distance gives the overlap for every shift at once.
    """
    total = int(np.count_nonzero(predicted)) + int(np.count_nonzero(true))
    if not total:
        return 0.0
    reach = MAX_SHIFT_PIXELS
    width = 2 * reach + 1
    overlaps = np.zeros(width * width, dtype=np.int64)
    for z in np.flatnonzero(true.any(axis=(1, 2))):
        true_y, true_x = np.nonzero(true[z])
        top, left = max(true_y.min() - reach, 0), max(true_x.min() - reach, 0)
        near = predicted[z, top : true_y.max() + reach + 1, left : true_x.max() + reach + 1]
        y, x = np.nonzero(near)
        down = (y + top)[:, None] - true_y + reach
        right = (x + left)[:, None] - true_x + reach
        within = (down >= 0) & (down < width) & (right >= 0) & (right < width)
        overlaps += np.bincount((down * width + right)[within], minlength=width * width)
    return 1 - 2 * int(overlaps.max()) / total


@dataclass(frozen=True)
class Mean:
    """A mean with its standard error over n values."""

    value: float
    error: float
    n: int


def mean_of(values: Sequence[float] | NDArray[Any]) -> Mean:
    """Return mean and standard error; the error of fewer than two values is 0.

    >>> mean_of([1.0, 3.0])
    Mean(value=2.0, error=1.0, n=2)
    """
    n = len(values)
    error = float(np.std(values, ddof=1) / np.sqrt(n)) if n > 1 else 0.0
    return Mean(float(np.mean(values)), error, n)


def pearson_r(
    first: Sequence[float] | NDArray[Any], second: Sequence[float] | NDArray[Any]
) -> float | None:
    """Return Pearson's correlation; None where one of the two does not vary.

    >>> pearson_r([1, 2, 3], [2, 4, 6])
    1.0
    """
    a, b = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
    a, b = a - a.mean(), b - b.mean()
    norm = float(np.sqrt((a**2).sum() * (b**2).sum()))
    return float((a * b).sum()) / norm if norm > 0 else None


def grade_indices(scores: Sequence[float] | NDArray[Any]) -> NDArray[np.intp]:
    """Return the number of each score's risk grade, from 0 (none) to 4 (severe).

    >>> grade_indices([0, 0.5, 10, 10.5, 400, 401]).tolist()
    [0, 1, 1, 2, 3, 4]
    """
    return np.searchsorted(GRADE_EDGES, scores, side="left")


@dataclass(frozen=True)
class Summary:
    """One row of the paper's Table 2, and what we add to it."""

    agatston_mae: Mean
    grade_accuracy: Mean  # a fraction
    dice_loss: Mean
    shifted_dice_loss: Mean
    pearson_r: float | None
    ssim: Mean | None
    mass_kept: float | None  # a fraction, over all images together


def summarise(outcomes: Sequence[Outcome]) -> Summary:
    """Summarise how one method did on many images."""
    similarities = [outcome.ssim for outcome in outcomes if outcome.ssim is not None]
    excess_true = sum(outcome.excess_true_hu for outcome in outcomes)
    excess_predicted = sum(outcome.excess_predicted_hu for outcome in outcomes)
    return Summary(
        agatston_mae=mean_of([outcome.absolute_error for outcome in outcomes]),
        grade_accuracy=mean_of([float(outcome.grade_is_right) for outcome in outcomes]),
        dice_loss=mean_of([outcome.dice_loss for outcome in outcomes]),
        shifted_dice_loss=mean_of([outcome.shifted_dice_loss for outcome in outcomes]),
        pearson_r=pearson_r(
            [outcome.agatston_true for outcome in outcomes],
            [outcome.agatston_predicted for outcome in outcomes],
        ),
        ssim=mean_of(similarities) if len(similarities) == len(outcomes) else None,
        mass_kept=excess_predicted / excess_true if excess_true > 0 else None,
    )


def _score(
    hu: NDArray[np.int16 | np.float32], mask: Mask, spacing_mm: Vector
) -> scoring.Score | None:
    """Score the voxels of a calcium mask by the clinical rule; None where there are none.

    Only the box around them is looked at, which is a small part of the image.
    """
    window = _box(mask)
    if window[0].start == window[0].stop:
        return None
    return scoring.score(_volume(hu[window], spacing_mm), mask[window])


def _volume(hu: NDArray[np.int16 | np.float32], spacing_mm: Vector) -> Volume:
    z, y, x = hu.shape
    return Volume(hu, Grid((z, y, x), spacing_mm))


def _box(mask: Mask) -> Window:
    """Return the box around a mask; empty for an empty mask."""
    spans = []
    for axes in ((1, 2), (0, 2), (0, 1)):
        used = np.flatnonzero(mask.any(axis=axes))
        if not used.size:
            return slice(0, 0), slice(0, 0), slice(0, 0)
        spans.append(slice(int(used[0]), int(used[-1]) + 1))
    return spans[0], spans[1], spans[2]


def _grown(mask: Mask, reach: Index) -> Mask:
    """Return what lies within ``reach`` of a mask along each axis."""
    grown = mask.view(np.uint8)
    for axis, distance in enumerate(reach):
        grown = ndimage.maximum_filter1d(grown, 2 * distance + 1, axis, mode="constant")
    return grown.view(np.bool_)

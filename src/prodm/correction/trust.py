"""How far a corrected score can be trusted, in numbers and in words.

The interval runs from the 5th to the 95th percentile of the samples' scores, at Weibull's
plotting positions: with fewer than 19 samples it is their whole range, never less. Grade
probabilities are the samples' shares. Both speak of what the model leaves open, not of errors that
all of its samples share; a calibration (``prodm.correction.calibration``) adds those.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from prodm.agatston import Score
from prodm.calcium import GRADES, grade
from prodm.correction.calibration import Calibration
from prodm.correction.explanation import UNEXPLAINED, Explanation
from prodm.volume import Grid

WIDE_SHARE = 0.5  # of the score, and at least WIDE_LEAST
WIDE_LEAST = 10.0
UNSURE_GRADE = 0.7  # the likeliest grade has less than this
LARGE_SHARE = 0.5
LARGE_LEAST = 50.0
ADDED_SHARE = 0.5  # of the calcium volume before, and at least ADDED_LEAST_MM3
ADDED_LEAST_MM3 = 15.0
NEW_LESION_MM = 8.0  # from the nearest candidate


@dataclass(frozen=True)
class Spread:
    """What several samples say of the score."""

    scores: tuple[float, ...]
    interval_90: tuple[float, float]
    grade_probabilities: dict[str, float]


def spread_of(scores: Sequence[float], calibration: Calibration | None = None) -> Spread | None:
    """Return interval and grade probabilities, or None for a single sample.

    With a calibration, calibrated scores take the place of the samples.

    >>> spread_of([8.0, 12.0, 9.0, 11.0]).interval_90
    (8.0, 12.0)
    """
    if len(scores) < 2:
        return None
    likely = scores if calibration is None else calibration.scores(scores)
    low, high = np.quantile(likely, (0.05, 0.95), method="weibull")
    grades = [grade(score) for score in likely]
    return Spread(
        tuple(float(score) for score in scores),
        (float(low), float(high)),
        {name: grades.count(name) / len(grades) for name in GRADES},
    )


def trust_warnings(
    before: Score,
    after: Score,
    spread: Spread | None,
    candidates: NDArray[np.bool_],
    grid: Grid,
) -> tuple[str, ...]:
    """Say in words what should make a reader look twice."""
    warnings = []
    if spread is None:
        warnings.append("there is one sample only, so the score has no interval")
    else:
        warnings += _spread_warnings(after, spread)
    change = after.agatston - before.agatston
    larger = max(after.agatston, before.agatston)
    if abs(change) > max(LARGE_LEAST, LARGE_SHARE * larger):
        direction = "up" if change > 0 else "down"
        warnings.append(
            f"the correction changes the score much, {direction} from {before.agatston:.0f} to "
            f"{after.agatston:.0f}; compare the images"
        )
    added_mm3 = after.volume_mm3 - before.volume_mm3
    if added_mm3 > max(ADDED_LEAST_MM3, ADDED_SHARE * before.volume_mm3):
        warnings.append(
            f"the correction adds much calcium, {added_mm3:.0f} mm³ to {before.volume_mm3:.0f}; "
            "motion moves calcium but makes none"
        )
    warnings += left_alone_warnings(before, candidates, grid)
    new = _new_lesions(before, after, candidates, grid)
    if new:
        warnings.append(
            f"{new} corrected {'lesion lies' if new == 1 else 'lesions lie'} more than "
            f"{NEW_LESION_MM:g} mm from anything calcium-like in the input"
        )
    return tuple(warnings)


def unexplained_warnings(explanations: Sequence[Explanation | None]) -> tuple[str, ...]:
    """Name the blocks, counted from 1, whose input no motion explains from the correction."""
    return tuple(
        f"no motion explains the change of block {number}: the best one leaves "
        f"{found.residual:.0%} of its calcium unexplained; do not rely on the correction there"
        for number, found in enumerate(explanations, start=1)
        if found is not None and found.residual > UNEXPLAINED
    )


def _spread_warnings(after: Score, spread: Spread) -> list[str]:
    warnings = []
    low, high = spread.interval_90
    if high - low > max(WIDE_LEAST, WIDE_SHARE * after.agatston):
        warnings.append(f"the interval is wide: the score may lie from {low:.0f} to {high:.0f}")
    name, share = max(spread.grade_probabilities.items(), key=lambda item: item[1])
    if share < UNSURE_GRADE:
        warnings.append(f"the grade is uncertain: {name} has a probability of {share:.0%} only")
    return warnings


def left_alone_warnings(
    before: Score, candidates: NDArray[np.bool_], grid: Grid
) -> tuple[str, ...]:
    """Say how much of the score lies where nothing looked like calcium to the correction."""
    voxels = np.argwhere(candidates)
    distances_mm = np.full(len(before.lesions), np.inf)
    if len(voxels) and before.lesions:
        places = np.asarray([grid.index_zyx(x.position_xyz_mm) for x in before.lesions])
        distances_mm, _ = cKDTree(voxels * grid.spacing_mm).query(places * grid.spacing_mm)
    far = distances_mm > NEW_LESION_MM
    left = sum(x.agatston for x, is_far in zip(before.lesions, far, strict=True) if is_far)
    if left == 0:
        return ()
    return (
        f"{left:.0f} of the score comes from wide, faint bands, as the beating wall of the heart "
        "leaves them; they were not corrected, and count before and after",
    )


def _new_lesions(before: Score, after: Score, candidates: NDArray[np.bool_], grid: Grid) -> int:
    """Count corrected lesions far from every candidate and every lesion of the input."""
    old = [grid.index_zyx(lesion.position_xyz_mm) for lesion in before.lesions]
    new = [grid.index_zyx(lesion.position_xyz_mm) for lesion in after.lesions]
    known = np.concatenate([np.argwhere(candidates), np.reshape(old, (-1, 3))])
    if not new or not len(known):
        return len(new)
    tree = cKDTree(known * grid.spacing_mm)
    distances_mm, _ = tree.query(np.asarray(new) * grid.spacing_mm)
    return int(np.count_nonzero(distances_mm > NEW_LESION_MM))

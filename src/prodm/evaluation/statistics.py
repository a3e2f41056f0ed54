"""What many outcomes say: intervals of differences, grades, agreement, coverage.

Paired bootstrap. Patches of one patient are not independent, so whole patients are drawn with
replacement, and two methods are compared on the same draw. Every metric is a function of sums
over patches (of errors, of hits, of scores and their products), so a draw is a weight per
patient, and all draws together are one matrix product.

Weighted kappa. 1 - observed / expected disagreement of two gradings, where a disagreement
counts its distance in grades (linear weights; Cohen, Psychol Bull 70:213, 1968).

Bland-Altman. Mean of the differences, and the limits mean ± 1.96 sd within which 95 % of them
lie if they are normal (Lancet 327:307, 1986).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from prodm.calcium import GRADES
from prodm.evaluation.metrics import Outcome, grade_indices

METRICS = (
    "agatston_mae",
    "grade_accuracy",
    "dice_loss",
    "shifted_dice_loss",
    "ssim",
    "pearson_r",
)
NUM_DRAWS = 2000
CONFIDENCE = 0.95
NORMAL_95 = 1.96
COVERAGE_LEVEL = 0.90


@dataclass(frozen=True)
class Difference:
    """A method minus the reference, with its 95 % interval; None where it is undefined."""

    value: float | None
    low: float | None
    high: float | None


def paired_differences(
    outcomes: Sequence[Outcome],
    reference: Sequence[Outcome],
    patients: Sequence[str],
    *,
    seed: int = 0,
    num_draws: int = NUM_DRAWS,
) -> dict[str, Difference]:
    """Return the difference of each metric to a reference method on the same images.

    With fewer than two patients there is no interval.
    """
    names, member = np.unique(np.asarray(patients), return_inverse=True)
    counts = np.bincount(member).astype(float)
    own, other = (_sums_by_member(_moments(part), member) for part in (outcomes, reference))
    everyone = np.ones((1, len(names)))
    weights = np.random.default_rng(seed).multinomial(
        len(names), np.full(len(names), 1 / len(names)), size=num_draws
    )
    values = _metrics(everyone, own, counts) - _metrics(everyone, other, counts)
    draws = _metrics(weights, own, counts) - _metrics(weights, other, counts)
    differences = {}
    for name, value, drawn in zip(METRICS, values[0], draws.T, strict=True):
        drawn = drawn[np.isfinite(drawn)]
        if not np.isfinite(value):
            differences[name] = Difference(None, None, None)
        elif len(names) < 2 or drawn.size < num_draws // 2:
            differences[name] = Difference(float(value), None, None)
        else:
            tail = (1 - CONFIDENCE) / 2
            low, high = np.quantile(drawn, [tail, 1 - tail])
            differences[name] = Difference(float(value), float(low), float(high))
    return differences


def _sums_by_member(moments: NDArray[np.float64], member: NDArray[np.intp]) -> NDArray[np.float64]:
    """Add up the rows [n, 10] of each patient."""
    sums = np.zeros((int(member.max()) + 1, moments.shape[1]))
    np.add.at(sums, member, moments)
    return sums


def _moments(outcomes: Sequence[Outcome]) -> NDArray[np.float64]:
    """Return per image [n, 10] what all metrics are made of."""
    rows = []
    for outcome in outcomes:
        x, y = outcome.agatston_true, outcome.agatston_predicted
        rows.append(
            (
                outcome.absolute_error,
                float(outcome.grade_is_right),
                outcome.dice_loss,
                outcome.shifted_dice_loss,
                np.nan if outcome.ssim is None else outcome.ssim,
                *(x, y, x * x, y * y, x * y),
            )
        )
    return np.array(rows, dtype=float)


def _metrics(
    weights: NDArray[Any], sums: NDArray[np.float64], counts: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the metrics [draws, 6] for weights [draws, patients]."""
    means = (weights @ sums) / (weights @ counts)[:, None]
    x, y, xx, yy, xy = means[:, 5:].T
    spread = np.clip(xx - x * x, 0, None) * np.clip(yy - y * y, 0, None)
    with np.errstate(invalid="ignore", divide="ignore"):
        r = np.where(spread > 0, (xy - x * y) / np.sqrt(spread), np.nan)
    return np.column_stack([means[:, :5], r])


def confusion(true: ArrayLike, predicted: ArrayLike) -> NDArray[np.int64]:
    """Count [true grade, predicted grade] of scores, over all five grades."""
    size = len(GRADES)
    rows, columns = grade_indices(np.asarray(true)), grade_indices(np.asarray(predicted))
    counts = np.bincount(rows * size + columns, minlength=size * size)
    return counts.reshape(size, size).astype(np.int64)


def row_percent(counts: NDArray[np.int64]) -> list[list[float | None]]:
    """Return a confusion matrix in per cent of each true grade; None where there is none."""
    return [
        [100 * int(value) / int(row.sum()) if row.sum() else None for value in row]
        for row in counts
    ]


@dataclass(frozen=True)
class GradeScores:
    """How one grade is recognised; None where it is undefined."""

    grade: str
    n: int
    precision: float | None
    recall: float | None
    f1: float | None


def by_grade(counts: NDArray[np.int64]) -> list[GradeScores]:
    """Return precision, recall and F1 of each grade from a confusion matrix."""
    scores = []
    for number, name in enumerate(GRADES):
        hits, true, predicted = (
            int(counts[number, number]),
            int(counts[number].sum()),
            int(counts[:, number].sum()),
        )
        scores.append(
            GradeScores(
                name,
                true,
                hits / predicted if predicted else None,
                hits / true if true else None,
                2 * hits / (true + predicted) if true + predicted else None,
            )
        )
    return scores


def linear_kappa(counts: NDArray[np.int64]) -> float | None:
    """Return the linearly weighted kappa of a confusion matrix; None where it is undefined.

    >>> linear_kappa(np.array([[2, 0], [0, 3]]))
    1.0
    """
    total = counts.sum()
    steps = np.arange(len(counts))
    distance = np.abs(steps[:, None] - steps)
    expected = float((distance * np.outer(counts.sum(axis=1), counts.sum(axis=0))).sum())
    if expected == 0:
        return None
    return 1 - float((distance * counts).sum() * total) / expected


@dataclass(frozen=True)
class Agreement:
    """Bland-Altman: mean difference and the limits of agreement."""

    bias: float
    low: float
    high: float


def bland_altman(true: ArrayLike, predicted: ArrayLike) -> Agreement:
    """Return the agreement of scores with the true ones.

    >>> bland_altman([1.0, 2.0], [2.0, 3.0])
    Agreement(bias=1.0, low=1.0, high=1.0)
    """
    difference = np.asarray(predicted, dtype=float) - np.asarray(true, dtype=float)
    spread = NORMAL_95 * float(np.std(difference, ddof=1)) if difference.size > 1 else 0.0
    bias = float(difference.mean())
    return Agreement(bias, bias - spread, bias + spread)


@dataclass(frozen=True)
class Coverage:
    """How often the interval of several samples holds the true score, and how wide it is."""

    level: float
    num_samples: int
    share: float
    mean_width: float
    n: int


def coverage(true: ArrayLike, samples: ArrayLike, level: float = COVERAGE_LEVEL) -> Coverage:
    """Return the coverage of the central interval of samples [n, S] of the score.

    >>> coverage([1.0, 9.0], [[0.0, 2.0], [0.0, 2.0]]).share
    0.5
    """
    values, target = np.asarray(samples, dtype=float), np.asarray(true, dtype=float)
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2], axis=1)
    inside = (low <= target) & (target <= high)
    return Coverage(
        level, values.shape[1], float(inside.mean()), float((high - low).mean()), target.size
    )

"""The numbers of a reader study.

Wilcoxon signed-rank: do two methods differ, pair by pair? Pairs without a difference are left
out (Wilcoxon's own rule). Up to 50 pairs the p-value is exact, also with ties, where scipy would
try signs one by one; above, scipy's normal approximation with both corrections.

Holm: of m p-values in ascending order, the k-th (from 0) is multiplied by m - k, and none may
fall below the one before it. The chance of any false finding among the m stays below alpha.

Weighted kappa: 1 - observed / expected disagreement of two raters, where a disagreement counts
the square of its distance, so 1 against 5 weighs sixteen times 1 against 2.

Intraclass correlation: two-way random effects, absolute agreement (Shrout and Fleiss, Psychol
Bull 86:420, 1979). With n targets, k raters and mean squares of targets (MST), raters (MSR)
and residual (MSE):

    ICC(2,1) = (MST - MSE) / (MST + (k - 1) MSE + k (MSR - MSE) / n)      one rater
    ICC(2,k) = (MST - MSE) / (MST + (MSR - MSE) / n)                      the mean of all

Interval of ICC(2,1): McGraw and Wong, Psychol Methods 1:30, 1996.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

EXACT_UP_TO = 50
SAME_WITHIN = 9  # decimals: means of scores that differ only by rounding are ties
CONFIDENCE = 0.95


@dataclass(frozen=True)
class SignedRankTest:
    """A paired test; ``statistic`` is the smaller of the two rank sums."""

    num_pairs: int
    num_different: int
    mean_difference: float
    statistic: float
    p_value: float


@dataclass(frozen=True)
class IntraclassCorrelation:
    """Agreement of raters, for one of them and for their mean, with a 95 % interval."""

    num_targets: int
    num_raters: int
    single: float
    single_low: float
    single_high: float
    average: float


def signed_rank_test(differences: ArrayLike) -> SignedRankTest:
    """Test whether paired differences are centred on zero, two-sided.

    >>> signed_rank_test([1, 2, 3, 4, 5]).p_value
    0.0625
    """
    values = np.round(np.asarray(differences, dtype=float), SAME_WITHIN)
    different = values[values != 0]
    mean = float(values.mean()) if values.size else 0.0
    if not different.size:
        return SignedRankTest(values.size, 0, mean, 0.0, 1.0)
    from scipy import stats

    ranks = stats.rankdata(np.abs(different))
    positive, negative = float(ranks[different > 0].sum()), float(ranks[different < 0].sum())
    statistic = min(positive, negative)
    if different.size <= EXACT_UP_TO:
        p_value = min(1.0, 2 * _chance_of_at_most(statistic, ranks))
    else:
        result = stats.wilcoxon(different, correction=True, method="asymptotic")
        p_value = float(result.pvalue)
    return SignedRankTest(values.size, different.size, mean, statistic, p_value)


def _chance_of_at_most(statistic: float, ranks: NDArray[np.float64]) -> float:
    """Chance that ranks, each kept or left by the toss of a coin, sum to no more.

    Mean ranks of ties are halves, so twice a rank is whole, and the chances of all sums follow
    from one rank to the next.
    """
    doubled = np.rint(2 * ranks).astype(int)
    chances = np.zeros(doubled.sum() + 1)
    chances[0] = 1.0
    for rank in doubled:
        kept = np.concatenate([np.zeros(rank), chances[: len(chances) - rank]])
        chances = (chances + kept) / 2
    return float(chances[: round(2 * statistic) + 1].sum())


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p-values for their number.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(p_values)), key=lambda n: p_values[n])
    corrected = [0.0] * len(p_values)
    highest = 0.0
    for k, n in enumerate(order):
        highest = max(highest, min(1.0, (len(order) - k) * p_values[n]))
        corrected[n] = highest
    return corrected


def weighted_kappa(first: ArrayLike, second: ArrayLike) -> float | None:
    """Quadratic weighted kappa of two raters; None where all gave one and the same score.

    >>> weighted_kappa([1, 2, 3], [1, 2, 3])
    1.0
    """
    a, b = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
    if a.shape != b.shape or a.size == 0:
        return None
    observed = float(np.mean((a - b) ** 2))
    expected = float(np.mean((a[:, None] - b[None, :]) ** 2))
    return 1 - observed / expected if expected > 0 else None


def intraclass_correlation(scores: ArrayLike) -> IntraclassCorrelation | None:
    """ICC(2,1) and ICC(2,k) of scores [targets, raters]; None where they do not vary."""
    table = np.asarray(scores, dtype=float)
    n, k = table.shape if table.ndim == 2 else (0, 0)
    if n < 2 or k < 2:
        return None
    grand = table.mean()
    rows, columns = table.mean(axis=1), table.mean(axis=0)
    residual = table - rows[:, None] - columns[None, :] + grand
    ms_targets = k * float(np.sum((rows - grand) ** 2)) / (n - 1)
    ms_raters = n * float(np.sum((columns - grand) ** 2)) / (k - 1)
    ms_error = float(np.sum(residual**2)) / ((n - 1) * (k - 1))
    below = ms_targets + (k - 1) * ms_error + k * (ms_raters - ms_error) / n
    below_average = ms_targets + (ms_raters - ms_error) / n
    if below <= 1e-12 or below_average <= 1e-12:
        return None
    single = (ms_targets - ms_error) / below
    if abs(single) < 1e-12 and ms_error <= 1e-12:
        return None  # every rater gave all targets one score
    low, high = _icc_interval(n, k, (ms_targets, ms_raters, ms_error), single)
    return IntraclassCorrelation(n, k, single, low, high, (ms_targets - ms_error) / below_average)


def _icc_interval(
    n: int, k: int, mean_squares: tuple[float, float, float], single: float
) -> tuple[float, float]:
    ms_targets, ms_raters, ms_error = mean_squares
    if ms_error <= 1e-12 and ms_raters <= 1e-12:
        return single, single
    from scipy import stats

    a = k * single / (n * (1 - single))
    b = 1 + k * single * (n - 1) / (n * (1 - single))
    freedom = (a * ms_raters + b * ms_error) ** 2 / (
        (a * ms_raters) ** 2 / (k - 1) + (b * ms_error) ** 2 / ((n - 1) * (k - 1))
    )
    tail = 1 - (1 - CONFIDENCE) / 2
    above = float(stats.f.ppf(tail, n - 1, freedom))
    below = float(stats.f.ppf(tail, freedom, n - 1))
    spread = k * ms_raters + (k * n - k - n) * ms_error
    low = n * (ms_targets - above * ms_error) / (above * spread + n * ms_targets)
    high = n * (below * ms_targets - ms_error) / (spread + n * below * ms_targets)
    return low, high


def friedman_test(table: ArrayLike) -> tuple[float, float] | None:
    """Chi-square and p of ranks [cases, methods]; None for fewer than 3 methods or 2 cases."""
    ranks = np.round(np.asarray(table, dtype=float), SAME_WITHIN)
    if ranks.ndim != 2 or ranks.shape[0] < 2 or ranks.shape[1] < 3:
        return None
    if np.all(ranks == ranks[:, :1]):
        return 0.0, 1.0
    from scipy import stats

    result = stats.friedmanchisquare(*ranks.T)
    return float(result.statistic), float(result.pvalue)

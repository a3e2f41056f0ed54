"""Statistics against published examples, pencil and paper, and slow twins."""

from itertools import product

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import cohen_kappa_score

from prodm.study.statistics import (
    friedman_test,
    holm,
    intraclass_correlation,
    signed_rank_test,
    weighted_kappa,
)

# Shrout and Fleiss (1979), table 2: six targets, four judges.
SHROUT_FLEISS = [
    [9, 2, 5, 8],
    [6, 1, 3, 2],
    [8, 4, 6, 8],
    [7, 1, 2, 6],
    [10, 5, 6, 9],
    [6, 2, 4, 7],
]


def test_signed_ranks_worked_by_hand() -> None:
    # |d| = 1, 1, 2, 3 have the ranks 1.5, 1.5, 3, 4; only -1 is negative, so W = 1.5.
    # Of the 16 sign patterns, the rank sum is at most 1.5 for three: none, and either 1.5.
    test = signed_rank_test([1, -1, 2, 3, 0])
    assert (test.num_pairs, test.num_different, test.statistic) == (5, 4, 1.5)
    assert test.p_value == pytest.approx(2 * 3 / 16)
    assert test.mean_difference == 1.0


def test_exact_p_values_agree_with_scipy() -> None:
    differences = np.random.default_rng(5).normal(0.3, 1, 40)
    expected = stats.wilcoxon(differences, method="exact")
    test = signed_rank_test(differences)
    assert test.p_value == pytest.approx(float(expected.pvalue))
    assert test.statistic == expected.statistic


@pytest.mark.parametrize("seed", range(8))
def test_small_studies_get_exact_p_values(seed: int) -> None:
    rng = np.random.default_rng(seed)
    differences = rng.integers(-2, 4, size=9).astype(float)
    assert signed_rank_test(differences).p_value == pytest.approx(all_signs_p_value(differences))


def all_signs_p_value(differences: np.ndarray) -> float:
    """Slow twin: try every pattern of signs."""
    different = differences[differences != 0]
    size = np.abs(different)
    ranks = np.array([np.sum(size < s) + (np.sum(size == s) + 1) / 2 for s in size])
    middle = ranks.sum() / 2
    observed = abs(ranks[different > 0].sum() - middle)
    patterns = [np.dot(signs, ranks) for signs in product((0, 1), repeat=len(ranks))]
    return float(np.mean([abs(total - middle) >= observed - 1e-9 for total in patterns]))


def test_large_studies_agree_with_the_normal_formula() -> None:
    rng = np.random.default_rng(3)
    differences = rng.integers(-3, 5, size=90).astype(float)
    different = differences[differences != 0]
    n = len(different)
    ranks = stats.rankdata(np.abs(different))
    positive = ranks[different > 0].sum()
    _, ties = np.unique(np.abs(different), return_counts=True)
    variance = n * (n + 1) * (2 * n + 1) / 24 - np.sum(ties**3 - ties) / 48
    z = (abs(positive - n * (n + 1) / 4) - 0.5) / np.sqrt(variance)
    assert signed_rank_test(differences).p_value == pytest.approx(2 * stats.norm.sf(z))


def test_the_large_formula_agrees_with_scipy() -> None:
    differences = np.random.default_rng(5).normal(0.3, 1, 80)
    expected = stats.wilcoxon(differences, correction=True, method="asymptotic").pvalue
    assert signed_rank_test(differences).p_value == pytest.approx(expected)


def test_swapping_the_methods_changes_the_sign_only() -> None:
    differences = np.random.default_rng(0).integers(-2, 4, 25)
    one, two = signed_rank_test(differences), signed_rank_test(-differences)
    assert one.p_value == two.p_value
    assert one.statistic == two.statistic
    assert one.mean_difference == -two.mean_difference


def test_thirds_that_differ_by_rounding_are_ties() -> None:
    thirds = [(1 + 1 + 2) / 3 - 1, 1 / 3, 2 - 5 / 3, -1 / 3, 0.1 + 0.2 - 0.3]
    test = signed_rank_test(thirds)
    assert test.num_different == 4
    assert test.statistic == 2.5


@pytest.mark.parametrize("differences", [[], [0, 0, 0]])
def test_no_difference_is_no_finding(differences: list[float]) -> None:
    assert signed_rank_test(differences).p_value == 1.0


def test_holm_worked_by_hand() -> None:
    # sorted 0.005 x 4, 0.01 x 3, 0.03 x 2, 0.04 x 1 = 0.02, 0.03, 0.06, 0.04 -> not below 0.06
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


def test_holm_agrees_with_stepping_down() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        p_values = rng.uniform(0, 0.2, 7).tolist()
        for alpha in (0.01, 0.05, 0.2):
            found = [p <= alpha for p in holm(p_values)]
            assert found == step_down(p_values, alpha)


def step_down(p_values: list[float], alpha: float) -> list[bool]:
    """Slow twin: reject the smallest while it is small enough, then stop."""
    rejected = [False] * len(p_values)
    left = sorted(range(len(p_values)), key=p_values.__getitem__)
    while left and p_values[left[0]] * len(left) <= alpha:
        rejected[left.pop(0)] = True
    return rejected


def test_kappa_worked_by_hand() -> None:
    # Observed (0 + 0 + 1 + 1) / 4 = 0.5. Expected over all 16 pairs of {1,2,3,4} and {1,2,4,3}:
    # distances 0, 1, 2, 3 occur 4, 6, 4, 2 times, so (6 + 16 + 18) / 16 = 2.5.
    assert weighted_kappa([1, 2, 3, 4], [1, 2, 4, 3]) == pytest.approx(1 - 0.5 / 2.5)
    assert weighted_kappa([1, 5], [5, 1]) == pytest.approx(-1.0)


@pytest.mark.parametrize("seed", range(5))
def test_kappa_agrees_with_scikit_learn(seed: int) -> None:
    rng = np.random.default_rng(seed)
    a = rng.integers(1, 6, 60)
    b = np.clip(a + rng.integers(-1, 2, 60), 1, 5)
    expected = cohen_kappa_score(a, b, weights="quadratic", labels=[1, 2, 3, 4, 5])
    assert weighted_kappa(a, b) == pytest.approx(expected)


def test_kappa_of_one_score_is_undefined() -> None:
    assert weighted_kappa([3, 3, 3], [3, 3, 3]) is None
    assert weighted_kappa([], []) is None


def test_icc_agrees_with_shrout_and_fleiss() -> None:
    icc = intraclass_correlation(SHROUT_FLEISS)
    assert icc
    assert icc.single == pytest.approx(0.29, abs=0.005)
    assert icc.average == pytest.approx(0.62, abs=0.005)
    assert (icc.single_low, icc.single_high) == pytest.approx((0.02, 0.76), abs=0.005)


def test_icc_agrees_with_its_variance_components() -> None:
    rng = np.random.default_rng(0)
    n, k = 4000, 3
    table = rng.normal(0, 2, (n, 1)) + np.array([0, 1, -1]) + rng.normal(0, 1, (n, k))
    icc = intraclass_correlation(table)
    assert icc
    assert icc.single == pytest.approx(4 / (4 + 1 + 1), abs=0.02)  # raters' variance is 1
    assert icc.single_low < icc.single < icc.single_high


def test_icc_of_full_agreement_is_one() -> None:
    icc = intraclass_correlation([[1, 1], [3, 3], [5, 5]])
    assert icc
    assert (icc.single, icc.average, icc.single_low) == pytest.approx((1, 1, 1))


@pytest.mark.parametrize("table", [[[3, 3], [3, 3]], [[1, 2]], [[1], [2]], [], [[2, 1], [2, 1]]])
def test_icc_without_variation_is_undefined(table: list[list[int]]) -> None:
    assert intraclass_correlation(table) is None


def test_friedman_worked_by_hand() -> None:
    # Four cases, all ranked 1, 2, 3: rank sums 4, 8, 12;
    # 12 / (4 * 3 * 4) * (16 + 64 + 144) - 3 * 4 * 4 = 8
    result = friedman_test([[1, 2, 3]] * 4)
    assert result
    assert result[0] == pytest.approx(8)
    assert result[1] == pytest.approx(float(stats.chi2.sf(8, 2)))


def test_friedman_needs_three_methods_and_a_difference() -> None:
    assert friedman_test([[1, 2], [1, 2]]) is None
    assert friedman_test([[1, 2, 3]]) is None
    assert friedman_test([]) is None
    assert friedman_test([[2, 2, 2], [2, 2, 2]]) == (0.0, 1.0)

"""Intervals, grades, agreement and coverage against hand-worked cases and twins."""

from dataclasses import astuple

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import cohen_kappa_score, confusion_matrix, precision_recall_fscore_support

from prodm.calcium import GRADES
from prodm.evaluation.metrics import Outcome, grade_indices, summarise
from prodm.evaluation.statistics import (
    METRICS,
    bland_altman,
    by_grade,
    confusion,
    coverage,
    linear_kappa,
    paired_differences,
    row_percent,
)


def outcomes_of(true: np.ndarray, found: np.ndarray, loss: np.ndarray) -> list[Outcome]:
    return [
        Outcome(float(t), float(f), float(d), float(d) / 2, 1.0, 1.0, 1 - float(d))
        for t, f, d in zip(true, found, loss, strict=True)
    ]


@pytest.fixture
def two_methods() -> tuple[list[Outcome], list[Outcome]]:
    rng = np.random.default_rng(0)
    true = rng.gamma(0.6, 120, 80)
    first = outcomes_of(true, true * rng.normal(1, 0.1, 80).clip(0), rng.random(80))
    second = outcomes_of(true, true * rng.normal(0.8, 0.3, 80).clip(0), rng.random(80))
    return first, second


def test_differences_are_those_of_the_summaries(
    two_methods: tuple[list[Outcome], list[Outcome]],
) -> None:
    first, second = two_methods
    differences = paired_differences(second, first, [str(n // 4) for n in range(80)])
    one, other = summarise(second), summarise(first)
    assert set(differences) == set(METRICS)
    for name in ("agatston_mae", "grade_accuracy", "dice_loss", "shifted_dice_loss", "ssim"):
        expected = getattr(one, name).value - getattr(other, name).value
        assert differences[name].value == pytest.approx(expected)
    assert one.pearson_r is not None
    assert other.pearson_r is not None
    assert differences["pearson_r"].value == pytest.approx(one.pearson_r - other.pearson_r)


def test_the_interval_equals_that_of_scipy(
    two_methods: tuple[list[Outcome], list[Outcome]],
) -> None:
    first, second = two_methods
    patients = [str(n) for n in range(80)]
    found = paired_differences(second, first, patients, num_draws=8000)
    errors = [np.array([o.absolute_error for o in part]) for part in (second, first)]
    twin = stats.bootstrap(
        tuple(errors),
        lambda a, b, axis: a.mean(axis) - b.mean(axis),
        paired=True,
        vectorized=True,
        n_resamples=8000,
        method="percentile",
        rng=np.random.default_rng(1),
    ).confidence_interval
    width = twin.high - twin.low
    assert found["agatston_mae"].low == pytest.approx(twin.low, abs=0.05 * width)
    assert found["agatston_mae"].high == pytest.approx(twin.high, abs=0.05 * width)


def test_patches_of_one_patient_are_drawn_together(
    two_methods: tuple[list[Outcome], list[Outcome]],
) -> None:
    first, second = two_methods
    apart = paired_differences(second, first, [str(n) for n in range(80)])
    copies = paired_differences(
        second * 9, first * 9, [str(n) for _ in range(9) for n in range(80)]
    )
    for name in METRICS:  # copies of the same patches are no new evidence
        assert astuple(copies[name]) == pytest.approx(astuple(apart[name]))


def test_a_method_does_not_differ_from_itself(
    two_methods: tuple[list[Outcome], list[Outcome]],
) -> None:
    differences = paired_differences(two_methods[0], two_methods[0], ["a", "b"] * 40)
    for difference in differences.values():
        assert (difference.value, difference.low, difference.high) == (0, 0, 0)


def test_one_patient_gives_no_interval(two_methods: tuple[list[Outcome], list[Outcome]]) -> None:
    difference = paired_differences(*two_methods, ["a"] * 80)["dice_loss"]
    assert difference.value is not None
    assert difference.low is None


def test_grades_equal_those_of_scikit_learn() -> None:
    rng = np.random.default_rng(5)
    true, found = rng.gamma(0.5, 200, 200), rng.gamma(0.5, 200, 200)
    true[:20] = 0
    found[10:40] = 0
    counts = confusion(true, found)
    labels = range(len(GRADES))
    a, b = grade_indices(true), grade_indices(found)
    np.testing.assert_array_equal(counts, confusion_matrix(a, b, labels=labels))
    precision, recall, f1, support = precision_recall_fscore_support(a, b, labels=labels)
    for n, scores in enumerate(by_grade(counts)):
        assert scores.precision == pytest.approx(precision[n])
        assert scores.recall == pytest.approx(recall[n])
        assert scores.f1 == pytest.approx(f1[n])
        assert scores.n == support[n]
    assert linear_kappa(counts) == pytest.approx(cohen_kappa_score(a, b, weights="linear"))


def test_grades_worked_by_hand() -> None:
    counts = confusion([5, 5, 50, 50], [5, 50, 50, 50])
    minimal, mild = by_grade(counts)[1:3]
    assert (minimal.precision, minimal.recall) == (1, 0.5)
    assert minimal.f1 == pytest.approx(2 / 3)
    assert mild.precision == pytest.approx(2 / 3)
    assert mild.recall == 1
    assert row_percent(counts)[1] == [0, 50, 50, 0, 0]
    assert row_percent(counts)[0] == [None] * 5
    severe = by_grade(counts)[4]
    assert (severe.precision, severe.recall, severe.f1) == (None, None, None)


def test_kappa_is_undefined_where_all_have_one_grade() -> None:
    assert linear_kappa(confusion([5, 5], [5, 5])) is None
    # Half agree, half are one grade apart; by chance 3/8 + 1/8 of a grade: worked by hand.
    counts = np.array([[1, 1], [0, 2]])
    assert linear_kappa(counts) == pytest.approx(1 - (1 / 4) / ((2 * 3 + 2 * 1) / 16))


def test_limits_of_agreement_by_hand() -> None:
    agreement = bland_altman([10, 20, 30], [11, 22, 33])  # differences 1, 2, 3: sd 1
    assert agreement.bias == 2
    assert agreement.low == pytest.approx(2 - 1.96)
    assert agreement.high == pytest.approx(2 + 1.96)


def test_honest_intervals_cover_ninety_per_cent() -> None:
    rng = np.random.default_rng(6)
    centre = rng.normal(100, 30, 4000)
    samples = centre[:, None] + rng.normal(0, 10, (4000, 200))
    found = coverage(centre + rng.normal(0, 10, 4000), samples)
    assert found.share == pytest.approx(0.9, abs=0.02)
    assert found.mean_width == pytest.approx(2 * 1.645 * 10, rel=0.03)
    assert (found.num_samples, found.n) == (200, 4000)
    overconfident = coverage(centre + rng.normal(0, 10, 4000), centre[:, None] + samples * 0)
    assert overconfident.share < 0.01

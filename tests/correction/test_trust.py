"""The interval holds the samples it should, and doubts are put in words."""

from dataclasses import replace

import numpy as np
import pytest

from prodm.agatston import CLINICAL, Lesion, Score
from prodm.correction.calibration import Calibration
from prodm.correction.explanation import UNEXPLAINED, Explanation
from prodm.correction.trust import (
    left_alone_warnings,
    spread_of,
    trust_warnings,
    unexplained_warnings,
)
from prodm.volume import Grid

GRID = Grid((10, 60, 60), (3.0, 0.5, 0.5))
CANDIDATES = np.zeros(GRID.shape, bool)
CANDIDATES[5, 30, 30] = True
AT_CANDIDATE = GRID.position_xyz_mm((5, 30, 30))


def scored(agatston: float, place: tuple[float, float, float] = AT_CANDIDATE) -> Score:
    lesion = Lesion(5, place, 5.0, 300.0, 3, "UNSPECIFIED", agatston)
    return Score(agatston, agatston / 2, None, CLINICAL, "given", 9, {}, (lesion,))


def warn(before: Score, after: Score, scores: list[float]) -> str:
    return " | ".join(trust_warnings(before, after, spread_of(scores), CANDIDATES, GRID))


def test_the_interval_of_few_samples_is_their_range() -> None:
    spread = spread_of([5.0, 20.0, 11.0, 9.0, 12.0, 10.0, 10.0, 8.0])
    assert spread is not None
    assert spread.interval_90 == (5.0, 20.0)
    assert spread.grade_probabilities == {
        "none": 0.0,
        "minimal": 0.625,
        "mild": 0.375,
        "moderate": 0.0,
        "severe": 0.0,
    }


def test_the_interval_of_many_samples_holds_nine_in_ten() -> None:
    scores = np.random.default_rng(0).normal(100, 10, 20_000)
    spread = spread_of(scores.tolist())
    assert spread is not None
    assert spread.interval_90 == pytest.approx((100 - 16.45, 100 + 16.45), abs=0.6)


def test_one_sample_has_no_interval_and_says_so() -> None:
    assert spread_of([7.0]) is None
    assert "no interval" in warn(scored(50), scored(50), [50.0])


def test_a_calm_correction_raises_no_doubt() -> None:
    assert warn(scored(50), scored(55), [54.0, 55.0, 57.0]) == ""


def test_a_wide_interval_is_named() -> None:
    assert "interval is wide: the score may lie from 20 to 90" in warn(
        scored(50), scored(55), [20.0, 55.0, 90.0]
    )


def test_an_uncertain_grade_is_named() -> None:
    assert "the grade is uncertain: mild has a probability of 50%" in warn(
        scored(98), scored(100), [99.0, 100.0, 101.0, 102.0]
    )


def test_a_large_change_is_named_either_way() -> None:
    assert "up from 50 to 250" in warn(scored(50), scored(250), [250.0, 250.0])
    assert "down from 250 to 50" in warn(scored(250), scored(50), [50.0, 50.0])


def test_added_calcium_is_named() -> None:
    after = replace(scored(60), volume_mm3=90.0)
    assert "adds much calcium, 65 mm³ to 25" in warn(scored(50), after, [60.0, 60.0])


def test_calcium_out_of_nowhere_is_named() -> None:
    far = scored(52, GRID.position_xyz_mm((5, 30, 50)))
    assert "1 corrected lesion lies more than 8 mm" in warn(scored(50), far, [52.0, 52.0])
    assert warn(far, far, [52.0, 52.0]).count("lesion lies") == 0


def test_a_score_that_was_not_corrected_is_named() -> None:
    far = scored(52, GRID.position_xyz_mm((5, 30, 50)))
    assert left_alone_warnings(scored(50), CANDIDATES, GRID) == ()
    assert "52 of the score comes from" in left_alone_warnings(far, CANDIDATES, GRID)[0]
    nowhere = np.zeros(GRID.shape, bool)
    assert "50 of the score comes from" in left_alone_warnings(scored(50), nowhere, GRID)[0]


def test_a_change_that_no_motion_explains_is_named() -> None:
    found = Explanation(0.62, (0.0, 90.0), (1.0, -1.0))
    fine = replace(found, residual=UNEXPLAINED)
    (warning,) = unexplained_warnings([None, fine, found])
    assert "no motion explains the change of block 3: the best one leaves 62%" in warning


def test_a_calibration_widens_the_interval() -> None:
    quantiles = tuple(float(q) for q in np.linspace(-4, 4, 39))
    alone = spread_of([100.0, 110.0])
    wide = spread_of([100.0, 110.0], Calibration(quantiles))
    assert alone is not None
    assert wide is not None
    assert wide.interval_90[0] < alone.interval_90[0] < alone.interval_90[1] < wide.interval_90[1]
    assert sum(wide.grade_probabilities.values()) == pytest.approx(1)
    assert wide.scores == alone.scores

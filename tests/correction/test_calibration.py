"""A calibrated interval must hold its share of new cases, whatever the samples' own spread."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prodm.correction.calibration import (
    FLOOR,
    PROBABILITIES,
    Calibration,
    fit_calibration,
    read_calibration,
)
from prodm.errors import ProdmError


def cases(seed: int, count: int) -> tuple[list[list[float]], list[float]]:
    """Samples that spread by a quarter of their error, and 10 % too low."""
    rng = np.random.default_rng(seed)
    logs = rng.uniform(1, 6, count)
    error = rng.normal(0.1, 0.4, count)
    samples = logs[:, None] + rng.normal(0, 0.1, (count, 8))
    return np.expm1(samples).clip(0).tolist(), np.expm1(logs + error).clip(0).tolist()


def coverage(calibration: Calibration, seed: int) -> float:
    samples, truths = cases(seed, 2000)
    hits = []
    for drawn, truth in zip(samples, truths, strict=True):
        low, high = np.quantile(calibration.scores(drawn), (0.05, 0.95), method="weibull")
        hits.append(low <= truth <= high)
    return float(np.mean(hits))


def test_the_interval_of_new_cases_holds_nine_tenths() -> None:
    assert coverage(fit_calibration(*cases(0, 400)), seed=1) == pytest.approx(0.9, abs=0.03)


def test_the_samples_alone_do_not() -> None:
    samples, truths = cases(1, 2000)
    inside = [min(s) <= t <= max(s) for s, t in zip(samples, truths, strict=True)]
    assert np.mean(inside) < 0.6


def test_a_hand_worked_error() -> None:
    # log(1 + score) of the samples: 1 and 3, so the middle is 2 and the mean deviation 1.
    samples = [[np.expm1(1.0), np.expm1(3.0)]] * 20
    calibration = fit_calibration(samples, [np.expm1(4.0)] * 20)
    assert calibration.quantiles == pytest.approx([2 / (1 + FLOOR)] * len(PROBABILITIES))
    assert calibration.scores(samples[0]) == pytest.approx([np.expm1(4.0)] * len(PROBABILITIES))


def test_cases_of_one_patient_count_as_one() -> None:
    """Said twice, nothing is known better, and a patient with many cases outvotes nobody."""
    samples, truths = cases(0, 40)
    alone = fit_calibration(samples, truths)
    names = [f"patient {n}" for n in range(40)]
    twice = fit_calibration(samples * 2, truths * 2, names * 2)
    middle = slice(4, -4)
    assert twice.quantiles[middle] == pytest.approx(alone.quantiles[middle], rel=0.2, abs=0.3)
    assert fit_calibration(samples, truths, names) == alone
    often = fit_calibration(
        samples + samples[:1] * 400, truths + truths[:1] * 400, names + names[:1] * 400
    )
    assert often.quantiles[middle] == pytest.approx(alone.quantiles[middle], rel=0.2, abs=0.3)


def test_patients_that_differ_make_the_interval_wider() -> None:
    """Twenty cases of each of 15 patients, who err alike: nine tenths of new patients' cases."""
    shares: dict[bool, list[float]] = {True: [], False: []}
    sample = [float(np.expm1(5.0))]
    for seed in range(40):
        rng = np.random.default_rng(seed)
        who = np.repeat(np.arange(15), 20)
        errors = rng.normal(0, 0.5, 15)[who] + rng.normal(0, 0.1, len(who))
        truths = np.expm1(5 + errors).tolist()
        new = np.expm1(5 + rng.normal(0, 0.5, 2000) + rng.normal(0, 0.1, 2000))
        for knows_patients, held in shares.items():
            patients = [str(n) for n in who] if knows_patients else None
            fitted = fit_calibration([sample] * len(who), truths, patients)
            low, high = np.quantile(fitted.scores(sample), (0.05, 0.95), method="weibull")
            held.append(float(np.mean((low <= new) & (new <= high))))
    assert np.mean(shares[True]) == pytest.approx(0.9, abs=0.025)
    assert np.mean(shares[False]) < np.mean(shares[True]) - 0.01


@given(st.lists(st.floats(0, 5000), min_size=1, max_size=8))
def test_calibrated_scores_rise_and_are_never_negative(samples: list[float]) -> None:
    scores = fit_calibration(*cases(0, 60)).scores(samples)
    assert len(scores) == len(PROBABILITIES)
    assert min(scores) >= 0
    assert list(scores) == sorted(scores)


def test_too_few_cases_and_strange_content_are_refused() -> None:
    with pytest.raises(ProdmError, match="at least 20 cases"):
        fit_calibration([[1.0]] * 3, [1.0] * 3)
    with pytest.raises(ProdmError, match="39 finite quantiles"):
        Calibration((0.0, 1.0))
    with pytest.raises(ProdmError, match="must not fall"):
        Calibration(tuple(-float(n) for n in range(39)))
    with pytest.raises(ProdmError, match="without one for each scan"):
        read_calibration({"calibration": {"patch": [0.0] * 39}}, "scan", "a.safetensors")
    assert read_calibration({}, "scan", "a.safetensors") is None

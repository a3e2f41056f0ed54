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

"""Intervals that hold what they promise, learnt from patients with a known truth.

The samples of a model spread too little: they do not know of errors that they share. So on
held-out patients, never those of a test, the error of the samples' median is measured in units of
their own spread, both of log(1 + score):

    r = (log(1 + truth) - m) / (d + FLOOR)     m, d: median and mean deviation of log(1 + samples)

The quantiles of r, every patient counting the same, are kept with the weights. For a new scan they
are put back around its own m and d, and these calibrated scores take the place of the samples:
their 5th and 95th percentile are the interval, their shares the probabilities of the grades.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prodm.errors import ProdmError

FLOOR = 0.05  # of the spread: even samples that agree may be 5 % off
PROBABILITIES = np.arange(1, 40) / 40  # 0.025 to 0.975
LEAST_CASES = 20


@dataclass(frozen=True)
class Calibration:
    """Quantiles of the standardised error, at ``PROBABILITIES``."""

    quantiles: tuple[float, ...]

    def __post_init__(self) -> None:
        values = np.asarray(self.quantiles)
        if len(values) != len(PROBABILITIES) or not np.isfinite(values).all():
            raise ProdmError(f"a calibration has {len(PROBABILITIES)} finite quantiles")
        if (np.diff(values) < 0).any():
            raise ProdmError("the quantiles of a calibration must not fall")

    def scores(self, samples: Sequence[float]) -> tuple[float, ...]:
        """Return calibrated scores in the place of a model's samples.

        >>> Calibration((0.0,) * 39).scores([10.0, 10.0])[0]
        10.0
        """
        middle, spread = _middle_and_spread(np.asarray([samples], dtype=float))
        logs = middle + spread * np.asarray(self.quantiles)
        return tuple(float(score) for score in np.round(np.expm1(logs).clip(min=0), 9))


def fit_calibration(
    samples: Sequence[Sequence[float]],
    truths: Sequence[float],
    patients: Sequence[str] | None = None,
) -> Calibration:
    """Learn a calibration from the samples of many cases and their true scores.

    The quantiles are those of a new case of a new patient: with one case of each of n patients,
    probability p is taken at the (n + 1) p-th smallest error, as in conformal prediction. Cases of
    one patient err alike, so that all of them together count as one. Without ``patients``, every
    case is another one's.
    """
    if len(samples) != len(truths) or len(truths) < LEAST_CASES:
        raise ProdmError(
            f"a calibration needs samples and truth of at least {LEAST_CASES} cases, got "
            f"{len(samples)} and {len(truths)}"
        )
    middle, spread = _middle_and_spread(np.asarray(samples, dtype=float))
    errors = (np.log1p(np.asarray(truths, dtype=float)) - middle) / spread
    who = np.arange(len(errors)) if patients is None else np.asarray(patients)
    names, of_case, num_cases = np.unique(who, return_inverse=True, return_counts=True)
    order = np.argsort(errors, kind="stable")
    weight = 1 / num_cases[of_case[order]]  # a patient's cases together have 1
    ranks = np.cumsum(weight) - weight / 2 + 0.5
    quantiles = np.interp(PROBABILITIES, ranks / (len(names) + 1), errors[order])
    return Calibration(tuple(float(value) for value in quantiles))


def read_calibration(info: dict[str, Any], level: str, file_name: str) -> Calibration | None:
    """Return the calibration that a weights file holds for patches or scans, if any."""
    stored = info.get("calibration")
    if stored is None:
        return None
    try:
        return Calibration(tuple(float(value) for value in stored[level]))
    except (KeyError, TypeError, ValueError):
        raise ProdmError(f"{file_name} holds a calibration without one for each {level}") from None


def _middle_and_spread(
    samples: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    logs = np.log1p(samples)
    middle = np.median(logs, axis=1)
    return middle, np.abs(logs - middle[:, None]).mean(axis=1) + FLOOR

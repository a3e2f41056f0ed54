"""Candidates are faint calcium inside the region, and nothing else."""

from typing import Any

import numpy as np
import pytest
from scipy import ndimage

from prodm.correction.candidates import find_candidates
from prodm.volume import Grid, Volume

SPACING_MM = (3.0, 0.6, 0.6)
SHAPE = (4, 80, 80)


def scan(hu: Any) -> Volume:  # noqa: ANN401
    return Volume(np.asarray(hu, dtype=np.float32), Grid(SHAPE, SPACING_MM))


def tissue(noise_hu: float = 10.0) -> Any:  # noqa: ANN401
    return np.random.default_rng(3).normal(40, noise_hu, SHAPE)


def blob(peak_hu: float, width_px: float) -> Any:  # noqa: ANN401
    image = np.zeros(SHAPE)
    image[2, 40, 40] = 1.0
    image = ndimage.gaussian_filter(image, (0, width_px, width_px))
    return image / image.max() * peak_hu


EVERYWHERE = np.ones(SHAPE, dtype=bool)


def test_calcium_that_motion_has_lowered_below_130_is_found() -> None:
    found = find_candidates(scan(tissue(5.0) + blob(80.0, 3.0)), EVERYWHERE)
    assert found.count == 1
    assert found.mask[2, 40, 40]
    assert scan(tissue(5.0) + blob(80.0, 3.0)).hu.max() < 130


def test_noise_alone_is_no_candidate() -> None:
    assert find_candidates(scan(tissue(20.0)), EVERYWHERE).count == 0


def test_noise_is_measured() -> None:
    assert find_candidates(scan(tissue(20.0)), EVERYWHERE).noise_hu == pytest.approx(20, rel=0.05)


def test_nothing_outside_the_region_is_a_candidate() -> None:
    hu = tissue()
    hu[:, :10] = 900  # a rib
    hu += blob(300, 1.5)
    region = np.zeros(SHAPE, bool)
    region[:, 20:60, 20:39] = True
    found = find_candidates(scan(hu), region)
    assert found.mask.any()
    assert not (found.mask & ~region).any()


def test_a_wide_faint_band_is_no_candidate_but_a_wide_dense_plaque_is() -> None:
    assert find_candidates(scan(tissue() + blob(150, 9.0)), EVERYWHERE).count == 0
    assert find_candidates(scan(tissue() + blob(600, 9.0)), EVERYWHERE).count == 1


def test_what_is_scored_is_a_candidate() -> None:
    hu = tissue(1.0)
    hu[1, 30:32, 30:32] = 135  # 1.44 mm2: a lesion, though smoothing takes it below 100
    assert find_candidates(scan(hu), EVERYWHERE).mask[1, 30:32, 30:32].all()


def test_without_a_region_there_is_none() -> None:
    found = find_candidates(scan(tissue() + blob(500, 2)), np.zeros(SHAPE, bool))
    assert found.count == 0
    assert not found.mask.any()


def test_every_lesion_of_a_moving_scan_is_found(moved: Any) -> None:  # noqa: ANN401
    assert find_candidates(moved.moving, moved.heart).count == 3

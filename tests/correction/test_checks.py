"""Each reason not to correct a scan has its sentence, and sound scans have none."""

import numpy as np
import pytest

from prodm.correction.checks import blood_concerns, blood_hu, region_warnings, scan_concerns
from prodm.volume import Grid, Volume

HEART = np.zeros((20, 60, 60), bool)
HEART[3:17, 8:52, 8:52] = True


def scan(blood: float = 40.0, spacing_mm: tuple[float, float, float] = (3.0, 0.9, 0.9)) -> Volume:
    hu = np.full(HEART.shape, -900, np.int16)
    hu[HEART] = round(blood)
    return Volume(hu, Grid(HEART.shape, spacing_mm))


def test_a_plain_chest_scan_raises_no_concern() -> None:
    assert scan_concerns(scan(), num_slices=3) == ()
    assert blood_concerns(scan(), HEART, None) == ()
    assert blood_concerns(scan(), HEART, "IOHEXOL") == ()
    assert blood_hu(scan(), HEART) == 40.0


@pytest.mark.parametrize(
    ("spacing_mm", "sentence"),
    [
        ((8.0, 0.9, 0.9), "slices must be 0.4 to 6 mm apart, got 8 mm"),
        ((0.3, 0.9, 0.9), "slices must be 0.4 to 6 mm apart, got 0.3 mm"),
        ((3.0, 1.9, 1.9), "pixels must measure 0.15 to 1.5 mm, got 1.9 x 1.9 mm"),
        ((3.0, 0.9, 0.6), "pixels must be square, got 0.9 x 0.6 mm"),
    ],
)
def test_spacing_out_of_range_is_named(
    spacing_mm: tuple[float, float, float], sentence: str
) -> None:
    (found,) = scan_concerns(scan(spacing_mm=spacing_mm), num_slices=3)
    assert sentence in found


def test_too_few_slices_are_named() -> None:
    volume = scan().crop((slice(0, 2), slice(None), slice(None)))
    (found,) = scan_concerns(volume, num_slices=3)
    assert "looks at 3 slices together, and this scan has 2" in found


def test_numbers_that_are_no_hu_are_named() -> None:
    stored = Volume(scan().hu + np.int16(1024), scan().grid)
    (found,) = scan_concerns(stored, num_slices=3)
    assert "lowest value here is 124; convert the scan to HU" in found
    shifted = Volume(scan().hu + np.int16(650), scan().grid)
    (found,) = blood_concerns(shifted, HEART, None)
    assert "median is 690; check that the values are HU" in found


@pytest.mark.parametrize(
    ("blood", "agent", "refused"),
    [(99, None, False), (101, None, True), (79, "IOHEXOL", False), (90, "IOHEXOL", True)],
)
def test_enhanced_blood_is_named(blood: float, agent: str | None, refused: bool) -> None:
    found = blood_concerns(scan(blood), HEART, agent)
    assert bool(found) == refused
    if refused:
        assert f"contrast-enhanced (median {blood:.0f} HU" in found[0]


def test_a_thin_region_cannot_be_judged() -> None:
    thin = np.zeros_like(HEART)
    thin[8:10, 30:33, 30:33] = True
    assert blood_hu(scan(), thin) is None
    assert blood_concerns(scan(300), thin, None) == ()
    assert "a contrast agent is noted" in blood_concerns(scan(), thin, "IOHEXOL")[0]
    assert "the region is thin" in region_warnings(scan(), thin)[0]
    assert region_warnings(scan(), HEART) == ()

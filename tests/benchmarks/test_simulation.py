"""The pictures that ``prodm bench simulate`` compares, in small."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import ndimage
from skimage.transform import radon

from prodm.benchmarks.literal_algorithm import Interpolation, move_literally, rotate_and_sum
from prodm.benchmarks.pictures import Picture, compare_pictures
from prodm.benchmarks.simulation import FAMILIES
from prodm.motion.profiles import draw
from prodm.motion.trajectory import Fixed, Trajectory
from prodm.pairs import simulate
from prodm.pairs.simulate import StillScan, prepare
from prodm.volume import Grid, Volume

Displacement = NDArray[np.float64]

SPACING_MM = (3.0, 0.5, 0.5)
NUM_ANGLES = 60


@pytest.fixture(scope="module")
def still() -> StillScan:
    """Tissue with grain and three plaques, one at the border; from 2 to 5 pixels wide."""
    shape = (5, 56, 48)
    grain = ndimage.gaussian_filter(np.random.default_rng(0).normal(size=shape), (0, 0.9, 0.9))
    calcium = np.zeros(shape)
    calcium[2, 24:29, 20:27] = 700
    calcium[2:4, 36:38, 30:33] = 1100
    calcium[1, 25:27, 1:4] = 1100
    blurred = ndimage.gaussian_filter(calcium, (0, 1.0, 1.0))
    hu = 40 + 10 * grain / grain.std() + blurred
    volume = Volume(np.rint(hu).astype(np.int16), Grid(shape, SPACING_MM))
    return prepare(volume, (blurred > 90).astype(np.uint8), np.random.default_rng(0))


def trajectories() -> list[Trajectory]:
    drawn = [
        draw(name, np.random.default_rng(1), pixel_spacing_mm=0.5, num_angles=NUM_ANGLES)
        for name in FAMILIES
    ]
    return [Trajectory("at rest", Fixed(), num_angles=NUM_ANGLES), *drawn]


def agrees(picture: Picture) -> bool:
    ratio = picture.agatston_fast / picture.agatston_literal
    return picture.correlation_of_calcium >= 0.998 and abs(ratio - 1) <= 0.03


def test_the_pictures_agree_at_rest_and_in_all_families(still: StillScan) -> None:
    pictures = list(compare_pictures(still, trajectories(), oversampling=1))
    assert [picture.profile for picture in pictures] == ["at rest", *FAMILIES]
    assert all(agrees(picture) for picture in pictures), pictures
    assert all(picture.correlation >= 0.998 for picture in pictures)
    assert pictures[0].agatston_fast == pytest.approx(pictures[0].agatston_still, rel=0.02)
    assert all(picture.agatston_background == 0 for picture in pictures)


def wrong_side(displacement: Displacement) -> Displacement:
    return -displacement


def swapped_axes(displacement: Displacement) -> Displacement:
    return displacement[:, [1, 0, 2]]


def one_view_to_the_wrong_side(displacement: Displacement) -> Displacement:
    return np.where(np.arange(len(displacement))[:, None] == 40, -displacement, displacement)


@pytest.mark.parametrize("broken", [wrong_side, swapped_axes, one_view_to_the_wrong_side])
def test_a_broken_simulation_is_seen(
    still: StillScan,
    broken: Callable[[Displacement], Displacement],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = simulate.displacement_px
    monkeypatch.setattr(simulate, "displacement_px", lambda *given: broken(right(*given)))
    (picture,) = compare_pictures(still, trajectories()[-1:], oversampling=1)
    assert not agrees(picture)


@pytest.mark.parametrize("shape", [(40, 40), (41, 41), (37, 52)])
@pytest.mark.parametrize("theta_deg", [0.0, -33.0, 90.0, -171.5])
def test_rotating_and_adding_up_is_what_radon_does(
    shape: tuple[int, int], theta_deg: float
) -> None:
    image = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    expected = radon(image, [theta_deg], circle=False)[:, 0]
    assert np.array_equal(rotate_and_sum(image, theta_deg, order=1), expected)


def peak_at_rest(interpolation: Interpolation, oversampling: int) -> float:
    """Of a lesion with a peak of 500 HU away from the centre of rotation."""
    rows, columns = np.mgrid[:41, :41] - np.array([11, 26])[:, None, None]
    lesion = (500 * np.exp(-(rows**2 + columns**2) / (2 * 1.4**2)))[None].astype(np.float32)
    moving = move_literally(
        np.full(lesion.shape, -1024.0, np.float32),
        lesion,
        np.deg2rad(np.arange(NUM_ANGLES) * 180 / NUM_ANGLES),
        np.zeros((NUM_ANGLES, 3)),
        interpolation=interpolation,
        oversampling=oversampling,
    )
    return float(moving.max()) + 1024


def test_the_printed_algorithm_keeps_a_small_lesion_on_halves_of_a_pixel() -> None:
    assert peak_at_rest("linear", 1) < 0.88 * 500
    assert peak_at_rest("cubic", 1) == pytest.approx(500, rel=0.03)
    assert peak_at_rest("cubic", 2) == pytest.approx(500, rel=0.003)

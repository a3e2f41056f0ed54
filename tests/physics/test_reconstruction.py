"""Laws of the back-projection engine, and its agreement with the phase."""

import numpy as np
import pytest
from numpy.typing import NDArray

from prodm.errors import ProdmError
from prodm.physics import phase
from prodm.physics.projection import FILTER_WINDOWS, filtered_projections
from prodm.physics.reconstruction import back_project, covering_radius_px

SIZE = 64
Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]


def spot(y: float, x: float, sigma_px: float = 1.2, num_slices: int = 5) -> Floats:
    rows, columns = np.mgrid[:SIZE, :SIZE]
    image = 400 * np.exp(-((rows - y) ** 2 + (columns - x) ** 2) / (2 * sigma_px**2))
    block = np.zeros((num_slices, SIZE, SIZE), np.float32)
    block[1:-1] = image
    return block


def winding_path(num_views: int) -> Doubles:
    t = np.arange(num_views) / num_views
    return np.stack([8 * t, 3 * np.cos(6 * t), 1.2 * t - 0.4], -1)


def seen(
    image: Floats,
    displacement: Doubles,
    *,
    span_deg: float = 180.0,
    start_rad: float = 0.0,
    margin: int = 0,
    filter_window: str = "ramp",
) -> Floats:
    angles = phase.view_angles_rad(len(displacement), start_rad=start_rad, span_deg=span_deg)
    rows = columns = (-margin, SIZE + margin)
    radius_px = covering_radius_px((SIZE, SIZE), rows, columns, displacement)
    profiles = filtered_projections(image, angles, radius_px=radius_px, filter_window=filter_window)
    return back_project(profiles, displacement, slices=(0, len(image)), rows=rows, columns=columns)


@pytest.mark.parametrize("sigma_px", [0.7, 1.0, 2.0])
@pytest.mark.parametrize("num_views", [180, 720])
def test_the_still_lesion_comes_back(sigma_px: float, num_views: int) -> None:
    """Down to lesions narrower than a pixel's neighbourhood: peak within half a per cent."""
    image = spot(30.3, 35.2, sigma_px)
    again = seen(image, np.zeros((num_views, 3)))
    assert again.max() == pytest.approx(image.max(), rel=0.005)
    assert np.linalg.norm(again - image) < 0.01 * np.linalg.norm(image)


def test_random_pixels_come_back() -> None:
    """No smoothness helps here: single pixels, the hardest still image there is."""
    image = np.zeros((1, SIZE, SIZE), np.float32)
    image[0, 20:40:5, 20:40:5] = 300
    again = seen(image, np.zeros((720, 3)))
    assert again[image > 0] == pytest.approx(image[image > 0], rel=0.02)


@pytest.mark.parametrize("span_deg", [180, 360])
@pytest.mark.parametrize("start_rad", [0.0, 2.0])
def test_a_constant_displacement_shifts_the_calcium(span_deg: float, start_rad: float) -> None:
    path = np.tile([3.0, -2.0, 1.0], (360, 1))
    image = spot(30, 35)
    moved = seen(image, path, span_deg=span_deg, start_rad=start_rad)
    assert moved == pytest.approx(np.roll(image, (1, -2, 3), (0, 1, 2)), abs=2)


def test_half_a_pixel_blurs_nothing() -> None:
    moved = seen(spot(30, 35), np.tile([0.5, 0.0, 0.0], (360, 1)))
    assert moved == pytest.approx(spot(30, 35.5), abs=6)


def test_moving_the_object_is_moving_the_scanner_back() -> None:
    """The lesion displaced in a still frame looks as the still lesion from a displaced frame."""
    path = winding_path(360)
    path[:, 2] = 0
    moved = seen(spot(30, 35), path)
    elsewhere = seen(spot(34, 33), path - [-2.0, 4.0, 0.0])
    assert elsewhere == pytest.approx(moved, abs=4)


def test_energy_is_conserved() -> None:
    image = spot(30, 35)
    path = winding_path(720)
    path[:, 2] = 0
    moved = seen(image, path, margin=200)
    assert moved.sum() == pytest.approx(image.sum(), rel=0.005)
    assert moved.max() < 0.8 * image.max()


def test_lesions_superpose_and_scale() -> None:
    first, second, path = spot(30, 35), spot(20, 20), winding_path(180)
    together = seen(first + 2 * second, path)
    assert together == pytest.approx(seen(first, path) + 2 * seen(second, path), abs=0.05)


def test_starting_half_a_turn_later_sees_the_same_lines() -> None:
    path = winding_path(180)
    here = seen(spot(30, 35), path, start_rad=0.5)
    there = seen(spot(30, 35), path, start_rad=0.5 + np.pi)
    assert there == pytest.approx(here, abs=0.05)


@pytest.mark.parametrize("span_deg", [180, 360])
@pytest.mark.parametrize("start_rad", [0.0, 1.3])
def test_both_engines_agree(span_deg: float, start_rad: float) -> None:
    image, path = spot(30, 35), winding_path(720)
    by_views = seen(image, path, span_deg=span_deg, start_rad=start_rad)
    by_phase = phase.move(
        image, path.astype(np.float32), start_rad=start_rad, span_deg=span_deg, padding=512
    )
    correlation = np.corrcoef(by_views.ravel(), by_phase.ravel())[0, 1]
    assert correlation > 0.9995


def test_a_window_is_cut_from_the_same_picture() -> None:
    image, path = spot(30, 35), winding_path(180)
    angles = phase.view_angles_rad(180)
    profiles = filtered_projections(image, angles, radius_px=120)
    whole = back_project(profiles, path, slices=(0, 5), rows=(0, 64), columns=(0, 64))
    part = back_project(profiles, path, slices=(2, 4), rows=(11, 50), columns=(-3, 40))
    assert part[:, :, 3:] == pytest.approx(whole[2:4, 11:50, :40], abs=1.0)


def test_windows_smooth_in_their_known_order() -> None:
    image = spot(30.3, 35.2, 0.8)
    still = np.zeros((360, 3))
    peaks = {name: seen(image, still, filter_window=name).max() for name in FILTER_WINDOWS}
    assert peaks["ramp"] > peaks["shepp-logan"] > peaks["cosine"] > peaks["hamming"] > peaks["hann"]


def test_an_unknown_window_is_refused() -> None:
    with pytest.raises(ProdmError, match="no filter window 'box'; choose from ramp"):
        seen(spot(30, 35), np.zeros((8, 3)), filter_window="box")


def test_what_leaves_along_z_is_gone() -> None:
    moved = seen(spot(30, 35), np.tile([0.0, 0.0, 9.0], (90, 1)))
    assert np.abs(moved).max() == 0

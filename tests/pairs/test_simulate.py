"""Still scan and trajectory in, moving scan out: laws, edges, and the printed algorithm."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import ndimage

from prodm import agatston
from prodm.benchmarks.anglewise import move_anglewise
from prodm.benchmarks.literal_algorithm import move_literally
from prodm.errors import ProdmError
from prodm.motion.profiles import PROFILES, draw
from prodm.motion.trajectory import Fixed, Trajectory
from prodm.pairs.simulate import (
    ENGINES,
    Engine,
    StillScan,
    displacement_px,
    move,
    neighbourhood,
    prepare,
    simulate,
)
from prodm.volume import Grid, Volume

SPACING_MM = (3.0, 0.5, 0.5)
STILL = Trajectory("still", Fixed(), num_angles=180)


def scan(
    places: tuple[tuple[int, int, int], ...] = ((3, 40, 44),),
    shape: tuple[int, int, int] = (8, 80, 80),
    noise_hu: float = 10.0,
) -> tuple[Volume, NDArray[np.uint8]]:
    """Tissue of 40 HU with grain, and a blurred plaque of a few mm at each place."""
    white = np.random.default_rng(0).normal(size=shape)
    grain = ndimage.gaussian_filter(white, (0, 0.9, 0.9))
    calcium = np.zeros(shape)
    for z, y, x in places:
        calcium[z : z + 2, max(0, y - 2) : y + 3, max(0, x - 4) : x + 5] = 600
    blurred = ndimage.gaussian_filter(calcium, (0, 1.1, 1.1))
    hu = 40 + noise_hu * grain / grain.std() + blurred
    mask = (blurred > 90).astype(np.uint8)
    return Volume(np.rint(hu).astype(np.int16), Grid(shape, SPACING_MM)), mask


def prepared(**options: object) -> StillScan:
    volume, mask = scan(**options)  # type: ignore[arg-type]
    return prepare(volume, mask, np.random.default_rng(0))


def drawn(profile: str, num_angles: int = 180, seed: int = 1) -> Trajectory:
    rng = np.random.default_rng(seed)
    return draw(profile, rng, pixel_spacing_mm=SPACING_MM[1], num_angles=num_angles)


@pytest.mark.parametrize("engine", ENGINES)
def test_without_motion_the_still_scan_comes_back(engine: Engine) -> None:
    still = prepared()
    moving = move(still, STILL, engine=engine).moving
    assert moving.hu.max() == pytest.approx(float(still.volume.hu.max()), rel=0.01)
    assert np.abs(moving.hu - still.volume.hu).max() < 6  # of 500 HU


@pytest.mark.parametrize("engine", ENGINES)
def test_a_constant_displacement_shifts_the_calcium(engine: Engine) -> None:
    still = prepared()
    there = replace(STILL, motion=Fixed((2.0, -1.5, 3.0)))  # mm: 4 and -3 pixels, 1 slice
    moved = move(still, there, engine=engine)
    expected = np.roll(move(still, STILL, engine=engine).excess, (1, -3, 4), (0, 1, 2))
    assert moved.excess == pytest.approx(expected, abs=6)
    assert moved.moving.hu == pytest.approx(moved.background.hu + moved.excess)


def test_the_background_stays_where_it_was() -> None:
    still = prepared()
    moved = move(still, drawn("translation-x-large"))
    assert np.array_equal(moved.background.hu, still.background.hu)
    assert np.array_equal(moved.moving.hu[0], still.volume.hu[0])  # no calcium came here


def test_motion_keeps_the_calcium_and_lowers_its_peak() -> None:
    still = prepared(shape=(10, 128, 128), places=((4, 64, 64),))
    for profile in ("translation-x-large", "oscillation-y-medium", "jitter-large"):
        moved = move(still, drawn(profile, 360))
        assert moved.excess.sum() == pytest.approx(still.excess.sum(), rel=0.02)
        assert moved.excess.max() < 0.9 * still.excess.max()


def test_two_lesions_superpose() -> None:
    trajectory = drawn("piecewise-y-medium")
    both, first, second = (
        move(prepared(places=places, noise_hu=0.0), trajectory).excess
        for places in (((3, 24, 24), (3, 56, 60)), ((3, 24, 24),), ((3, 56, 60),))
    )
    assert both == pytest.approx(first + second, abs=2)


@pytest.mark.parametrize("profile", PROFILES)
def test_the_engines_agree_on_every_profile(profile: str) -> None:
    still = prepared()
    trajectory = drawn(profile, 360)
    window = neighbourhood(still, margin_px=16)
    by_views, by_phase = (
        move(still, trajectory, engine=engine, window=window).excess for engine in ENGINES
    )
    assert np.corrcoef(by_views.ravel(), by_phase.ravel())[0, 1] > 0.995


def test_a_window_shows_part_of_the_same_picture() -> None:
    still, trajectory = prepared(), drawn("jitter-large")
    window = (slice(2, 6), slice(20, 70), slice(10, 77))
    part = move(still, trajectory, window=window)
    whole = move(still, trajectory)
    assert part.moving.hu == pytest.approx(whole.moving.hu[window], abs=1)
    assert part.moving.grid == still.volume.grid.crop(window)


@pytest.mark.parametrize(
    "profile", ["translation-x-medium", "oscillation-y-small", "piecewise-x-small", "jitter-medium"]
)
def test_the_fast_picture_is_that_of_the_printed_algorithm(profile: str) -> None:
    compare_with_printed_algorithm(profile, size=49, num_angles=60)


@pytest.mark.slow
@pytest.mark.parametrize(
    "profile", ["translation-y-large", "oscillation-x-medium", "piecewise-x-large", "jitter-large"]
)
def test_with_more_views_and_wider_motion_as_well(profile: str) -> None:
    compare_with_printed_algorithm(profile, size=81, num_angles=360)


def compare_with_printed_algorithm(profile: str, size: int, num_angles: int) -> None:
    still = prepared(shape=(5, size, size), places=((1, size // 2, size // 2),))
    trajectory = drawn(profile, num_angles)
    displacement = displacement_px(trajectory, SPACING_MM)
    moved = move(still, trajectory)
    excess = np.zeros(still.volume.shape, np.float32)
    excess[still.window] = still.excess
    air = np.full(excess.shape, -1024.0, np.float32)
    slow = move_literally(air, excess, trajectory.angles_rad, displacement, interpolation="cubic")
    literal = still.background.hu + slow + 1024
    near = ndimage.binary_dilation(excess > 0, np.ones((3, 3, 3)), iterations=8)
    assert np.corrcoef(moved.moving.hu[near], literal[near])[0, 1] > 0.998
    scores = [
        agatston.score(still.volume.with_hu(hu), near).agatston for hu in (literal, moved.moving.hu)
    ]
    assert scores[1] == pytest.approx(scores[0], rel=0.03)


def test_the_anglewise_version_is_the_printed_algorithm_too() -> None:
    still = prepared(shape=(4, 49, 49), places=((1, 24, 24),))
    trajectory = drawn("translation-x-small", 60)
    excess = np.zeros(still.volume.shape, np.float32)
    excess[still.window] = still.excess
    displacement = displacement_px(trajectory, SPACING_MM)
    air = np.full(excess.shape, -1024.0, np.float32)
    slow = move_literally(air, excess, trajectory.angles_rad, displacement)
    compiled = move_anglewise(air, excess, trajectory.angles_rad, displacement)
    assert np.corrcoef(slow.ravel(), compiled.ravel())[0, 1] > 0.995


def test_a_reprojected_background_is_the_background() -> None:
    volume, mask = scan(shape=(6, 64, 64), places=((2, 32, 32),))
    fov = np.hypot(*(np.mgrid[:64, :64] - 31.5)) < 26
    volume = volume.with_hu(np.where(fov, volume.hu, -1024).astype(np.int16))
    still = prepare(volume, mask, np.random.default_rng(0))
    moved = move(still, replace(STILL, num_angles=720), background="reprojected")
    inside = ndimage.binary_erosion(fov, iterations=2)
    error = (moved.background.hu - still.background.hu)[:, inside]
    assert np.abs(error).mean() < 4
    assert moved.moving.hu == pytest.approx(moved.background.hu + moved.excess)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("place", [(0, 0, 0), (6, 78, 78), (0, 40, 1)])
def test_calcium_at_the_edge_of_the_scan_moves(place: tuple[int, int, int], engine: Engine) -> None:
    still = prepared(places=(place,))
    moved = move(still, drawn("jitter-small"), engine=engine)
    assert np.isfinite(moved.moving.hu).all()
    assert moved.excess.max() > 50


@pytest.mark.parametrize("engine", ENGINES)
def test_calcium_that_leaves_the_image_is_lost_and_nothing_else(engine: Engine) -> None:
    still = prepared(places=((3, 40, 72),))
    away = move(still, replace(STILL, motion=Fixed((30.0, 0.0, 0.0))), engine=engine)
    assert np.abs(away.excess).max() < 15  # the filter's tail at most
    above = move(still, replace(STILL, motion=Fixed((0.0, 0.0, 60.0))), engine=engine)
    assert np.array_equal(above.moving.hu, still.background.hu)


def test_the_same_seed_gives_the_same_scan() -> None:
    volume, mask = scan()
    trajectory = drawn("jitter-medium")
    first, second = (
        simulate(volume, mask, trajectory, rng=np.random.default_rng(5)) for _ in range(2)
    )
    assert np.array_equal(first.moving.hu, second.moving.hu)


def test_bad_input_is_refused() -> None:
    volume, mask = scan()
    rng = np.random.default_rng(0)
    with pytest.raises(ProdmError, match="calcium mask is empty"):
        prepare(volume, np.zeros_like(mask), rng)
    with pytest.raises(ProdmError, match=r"must lie on the scan's grid.*got \(8, 80, 79\)"):
        prepare(volume, mask[:, :, :-1], rng)
    broken = volume.hu.astype(np.float32)
    broken[0, 0, 0] = np.nan
    with pytest.raises(ProdmError, match="not numbers"):
        prepare(volume.with_hu(broken), mask, rng)
    with pytest.raises(ProdmError, match="pixels must be square"):
        prepare(Volume(volume.hu, Grid(volume.shape, (3.0, 0.5, 0.6))), mask, rng)
    still = prepared()
    with pytest.raises(ProdmError, match="no engine 'magic'"):
        move(still, STILL, engine="magic")  # type: ignore[arg-type]
    with pytest.raises(ProdmError, match="background must be one of kept, reprojected"):
        move(still, STILL, background="gone")  # type: ignore[arg-type]
    with pytest.raises(ProdmError, match="window must lie inside"):
        move(still, STILL, window=(slice(0, 9), slice(None), slice(None)))


def test_simulation_never_loads_torch() -> None:
    code = (
        "import prodm.pairs.simulate, prodm.motion.profiles, sys; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

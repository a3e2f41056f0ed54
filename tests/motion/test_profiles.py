"""The 21 motions: ranges, round trips, hand-worked paths."""

import dataclasses
import json

import numpy as np
import pytest

from prodm.errors import ProdmError
from prodm.motion.profiles import NUM_ANGLES, PROFILES, amplitude_band_px, draw
from prodm.motion.trajectory import Fixed, Jitter, Oscillation, Piecewise, Trajectory, Translation

SPACING_MM = 0.4


def drawn(profile: str, seed: int = 0) -> Trajectory:
    return draw(profile, np.random.default_rng(seed), pixel_spacing_mm=SPACING_MM)


def test_there_are_21_profiles_in_four_families() -> None:
    assert len(set(PROFILES)) == 21
    families = [name.split("-")[0] for name in PROFILES]
    counts = {family: families.count(family) for family in families}
    assert counts == {"translation": 6, "oscillation": 6, "piecewise": 6, "jitter": 3}


def test_bands_are_three_equal_parts_of_the_papers_range() -> None:
    edges = [amplitude_band_px(band) for band in ("small", "medium", "large")]
    assert edges[0][0] == 4
    assert edges[2][1] == pytest.approx(15)
    assert edges[0][1] == pytest.approx(edges[1][0])
    assert np.diff(edges).ravel() == pytest.approx([11 / 3] * 3)


@pytest.mark.parametrize("profile", PROFILES)
def test_amplitudes_and_directions_stay_in_their_ranges(profile: str) -> None:
    low, high = np.multiply(amplitude_band_px(profile.split("-")[-1]), SPACING_MM)
    for seed in range(20):
        motion = drawn(profile, seed).motion
        if isinstance(motion, Jitter):
            size = np.linalg.norm(motion.path(np.arange(4000) / 4000), axis=1).max()
            assert low * 0.999 <= size <= high * 1.001
            continue
        if isinstance(motion, Piecewise):
            vectors = [motion.first_xyz_mm, motion.second_xyz_mm]
        else:
            assert isinstance(motion, Translation | Oscillation)
            vectors = [motion.amplitude_xyz_mm]
        for vector in vectors:
            assert low <= np.linalg.norm(vector) <= high
            x, y, z = np.abs(vector)
            main, other = (x, y) if "-x-" in profile else (y, x)
            assert 2.0 / 1.5 <= main / other <= 4.0 / 0.5
            assert z < main / 2 + 1e-9


def test_all_signs_and_all_numbers_of_angles_occur() -> None:
    trajectories = [drawn("translation-x-small", seed) for seed in range(200)]
    ends = np.array([t.displacement(np.array([0.5]))[0] for t in trajectories])
    assert len({tuple(row) for row in np.sign(ends)}) == 8
    assert {t.num_angles for t in trajectories} == set(NUM_ANGLES)


@pytest.mark.parametrize("profile", PROFILES)
def test_json_round_trip_keeps_every_digit(profile: str) -> None:
    trajectory = dataclasses.replace(drawn(profile), start_deg=12.3, centred=True)
    again = Trajectory.from_json(trajectory.to_json())
    assert again == trajectory
    assert np.array_equal(again.displacement(again.times), trajectory.displacement(again.times))


def test_the_same_seed_gives_the_same_motion_whatever_the_options() -> None:
    plain = drawn("jitter-large", 3)
    rng = np.random.default_rng(3)
    other = draw(
        "jitter-large",
        rng,
        pixel_spacing_mm=SPACING_MM,
        num_angles=180,
        span_deg=360,
        start_deg=None,
        centred=True,
    )
    assert other.motion == plain.motion
    assert other.num_angles == 180
    assert 0 <= other.start_deg < 360


def test_a_centred_trajectory_has_no_mean_displacement() -> None:
    trajectory = dataclasses.replace(drawn("piecewise-y-large"), centred=True)
    assert trajectory.displacement(trajectory.times).mean(axis=0) == pytest.approx([0, 0, 0])


def test_translation_by_hand() -> None:
    trajectory = Trajectory("mine", Translation((8.0, -4.0, 2.0)), num_angles=8)
    assert trajectory.displacement(np.array([0.25])).tolist() == [[2.0, -1.0, 0.5]]


def test_oscillation_by_hand() -> None:
    motion = Oscillation((2.0, 0.0, 1.0), phase_rad=np.pi)
    assert motion.path(np.array([0.0, 0.25, 0.5])) == pytest.approx(
        np.array([[-2, 0, -1], [0, 0, 0], [2, 0, 1]]), abs=1e-12
    )


def test_piecewise_moves_dwells_and_moves_on() -> None:
    motion = Piecewise((2.0, 0.0, 0.0), (0.0, 4.0, 0.0), pause_start=0.4, pause_end=0.6)
    path = motion.path(np.array([0.0, 0.2, 0.4, 0.5, 0.6, 0.8]))
    assert path[:, 0] == pytest.approx([0, 1, 2, 2, 2, 2])
    assert path[:, 1] == pytest.approx([0, 0, 0, 0, 0, 2])


def test_jitter_is_smooth_and_closes_after_one_scan() -> None:
    motion = drawn("jitter-medium").motion
    assert motion.path(np.array([0.0])) == pytest.approx(motion.path(np.array([1.0])))


def test_views_cover_the_span_once() -> None:
    trajectory = Trajectory("mine", Fixed(), num_angles=360, span_deg=360.0, start_deg=90.0)
    assert np.rad2deg(trajectory.angles_rad[[0, 1, -1]]) == pytest.approx([90, 91, 449])


def test_a_profile_that_does_not_exist_is_refused_with_the_list() -> None:
    with pytest.raises(
        ProdmError, match="no motion profile 'jump'; choose from translation-x-small"
    ):
        drawn("jump")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"span_deg": 90.0}, "180 or 360 degrees, got 90"),
        ({"num_angles": 3}, "at least 8 angles, got 3"),
        ({"start_deg": float("nan")}, "start angle must be a number"),
        ({"motion": Fixed((0.0, float("inf"), 0.0))}, "must be numbers"),
    ],
)
def test_impossible_scans_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ProdmError, match=message):
        dataclasses.replace(drawn("jitter-small"), **change)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["{", "[]", json.dumps({"motion": {"family": "jump"}}), "{}"])
def test_broken_json_is_refused(text: str) -> None:
    with pytest.raises(ProdmError, match="trajectory"):
        Trajectory.from_json(text)


def test_a_pause_outside_the_scan_is_refused() -> None:
    with pytest.raises(ProdmError, match="pause must lie inside"):
        Piecewise((1.0, 0.0, 0.0), (1.0, 0.0, 0.0), pause_start=0.6, pause_end=0.5)

"""Families that are fitted to a path must give the motion back that made it."""

import numpy as np
import pytest
import torch

from prodm.model.families import FAMILIES, fit_motions
from prodm.model.reading import true_path, without_translation
from prodm.motion.profiles import PROFILES, draw

NUM_VIEWS = 90


def drawn(profile: str, seed: int, start_rad: float = 0.0) -> tuple[torch.Tensor, torch.Tensor]:
    """A motion of the simulator, and the path that a perfect reader would see."""
    trajectory = draw(
        profile, np.random.default_rng(seed), pixel_spacing_mm=1.0, num_angles=NUM_VIEWS
    )
    displacement = torch.from_numpy(trajectory.displacement(trajectory.times)).float()[None]
    return displacement, true_path(displacement, torch.tensor([start_rad]))[0]


@pytest.mark.parametrize("profile", PROFILES)
def test_the_right_family_is_close_to_the_path_of_its_own_motion(profile: str) -> None:
    _, path = drawn(profile, seed=3)
    motions = fit_motions(path, 0.0)
    family = FAMILIES.index(profile.split("-")[0])
    assert set(motions.family.tolist()) == set(range(len(FAMILIES)))
    seen = true_path(motions.displacement(), torch.zeros(len(motions.family)))
    away_px = (seen[:, 0] - path[0]).pow(2).mean(dim=1).sqrt()
    size_px = float(path[0].pow(2).mean().sqrt())
    assert float(away_px[motions.family == family].min()) < 0.12 * size_px


def test_a_drift_is_fitted_with_its_velocity() -> None:
    displacement, path = drawn("translation-x-medium", seed=5)
    motions = fit_motions(path, 0.0)
    (drift,) = motions.vectors[motions.family == 0]
    velocity = displacement[0, -1] * NUM_VIEWS / (NUM_VIEWS - 1)
    torch.testing.assert_close(drift[0], velocity, rtol=0.1, atol=0.3)


def test_another_start_is_taken_where_it_fits_much_better() -> None:
    start_rad = 5 * np.pi / 12
    _, path = drawn("translation-y-large", seed=2, start_rad=start_rad)
    motions = fit_motions(path, None)
    assert float(motions.start_rad[motions.family == 0]) == pytest.approx(start_rad)
    _, path = drawn("translation-y-large", seed=2)
    assert float(fit_motions(path, None).start_rad[0]) == 0


def test_phases_of_one_family_are_apart() -> None:
    _, path = drawn("oscillation-x-large", seed=1)
    motions = fit_motions(path, 0.0)
    first, second = motions.phase_rad[motions.family == 1].tolist()
    assert 0.7 < abs(first - second) < np.pi - 0.7


def test_a_translation_is_no_motion() -> None:
    angles = torch.arange(30) * np.pi / 30
    shift = 3 * torch.cos(angles) - 2 * torch.sin(angles)
    assert float(without_translation(shift).abs().max()) < 1e-5

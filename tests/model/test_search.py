"""A motion that was applied must be found again, as far as an image can show it."""

import numpy as np
import pytest
import torch
from torch import Tensor

from prodm.errors import ProdmError
from prodm.model.search import (
    FoundMotion,
    SearchSettings,
    explained_share,
    place,
    search_blind,
    search_guided,
    smooth_basis,
)
from prodm.physics import phase
from prodm.physics.fitting import NUM_VIEWS

SIZE = 64


def lesions() -> Tensor:
    """Two smooth lesions in two slices, well inside."""
    y, x = torch.meshgrid(torch.arange(SIZE) - 32.0, torch.arange(SIZE) - 32.0, indexing="ij")
    first = 500 * torch.exp(-(x**2 / 8 + (y - 1) ** 2 / 3))
    second = 300 * torch.exp(-((x - 8) ** 2 / 3 + (y + 6) ** 2 / 5))
    return torch.stack([first, first / 2 + second])


def angles(start_rad: float) -> Tensor:
    return torch.from_numpy(phase.view_angles_rad(NUM_VIEWS, start_rad=start_rad)).float()


def drift(start_rad: float, x_px: float = 9.0, y_px: float = -4.0) -> FoundMotion:
    """A lesion that moves evenly from rest: s jumps where the scan starts."""
    time = torch.arange(NUM_VIEWS) / NUM_VIEWS
    theta = angles(start_rad)
    return FoundMotion(time * (x_px * theta.cos() + y_px * theta.sin()), start_rad)


def without_translation(shift_px: Tensor, start_rad: float) -> Tensor:
    theta = angles(start_rad)
    both = torch.stack([theta.cos(), theta.sin()], dim=1)
    fit: Tensor = torch.linalg.lstsq(both, shift_px[:, None]).solution[:, 0]
    return shift_px - both @ fit


def in_a_wide_frame() -> Tensor:
    """The lesions in so wide an image that next to nothing of their streaks leaves it."""
    return torch.nn.functional.pad(lesions(), [96] * 4)


def test_undoing_a_motion_gives_the_still_lesions_back() -> None:
    motion = drift(0.7)
    still = motion.undo(motion.apply(in_a_wide_frame()))
    torch.testing.assert_close(still, in_a_wide_frame(), atol=5.0, rtol=0)  # 1 % of the peak


@pytest.mark.parametrize(("x_px", "y_px"), [(0.0, 0.0), (3.5, -6.25), (-11.0, 4.0)])
def test_a_guess_puts_a_lesion_in_its_place(x_px: float, y_px: float) -> None:
    motion = drift(0.4)
    moving = motion.apply(lesions())
    guess = lesions().clamp(min=0)
    placed = place(motion.translated(x_px, y_px), moving, guess)
    torch.testing.assert_close(placed.shift_px, motion.shift_px, atol=0.1, rtol=0)


def test_a_guess_of_nothing_moves_nothing() -> None:
    motion = drift(0.4)
    assert place(motion, motion.apply(lesions()), torch.zeros_like(lesions())) is motion


def test_the_basis_is_orthonormal_and_holds_no_translation() -> None:
    basis = smooth_basis(9)
    np.testing.assert_allclose(basis.T @ basis / NUM_VIEWS, np.eye(basis.shape[1]), atol=1e-9)
    theta = angles(0.0).numpy()
    assert np.abs(basis.T @ np.cos(theta)).max() < 1e-4
    assert np.abs(basis.T @ np.sin(theta)).max() < 1e-4


def test_nothing_has_less_absolute_sum_than_the_truth() -> None:
    motion = drift(0.0)
    moving = motion.apply(in_a_wide_frame())
    least = float(lesions().abs().sum())
    assert float(moving.sum()) == pytest.approx(least, rel=0.02)
    assert least < float(motion.undo(moving).abs().sum()) < 0.6 * float(moving.abs().sum())


@pytest.mark.parametrize("start_rad", [0.0, 2.0])
def test_the_blind_search_finds_a_drift_where_the_start_is_known(start_rad: float) -> None:
    motion = drift(start_rad)
    moving = motion.apply(lesions())
    settings = SearchSettings(start_rad=start_rad)
    found = search_blind(moving, settings, torch.Generator().manual_seed(0))
    error = without_translation(found.shift_px - motion.shift_px, start_rad)
    before = without_translation(motion.shift_px, start_rad)
    assert float(error.square().mean().sqrt()) < 0.25 * float(before.square().mean().sqrt())
    assert float(found.undo(moving).max()) > 0.9 * float(lesions().max())
    assert float(moving.max()) < 0.75 * float(lesions().max())


def test_the_blind_search_also_finds_where_the_scan_starts() -> None:
    moving = drift(1.1, 12.0, 6.0).apply(lesions())
    settings = SearchSettings(num_draws=192, num_kept=8)
    found = search_blind(moving, settings, torch.Generator().manual_seed(0))
    peak = float(lesions().max())
    assert float(moving.max()) < 0.7 * peak
    assert float(found.undo(moving).max()) > 0.85 * peak


def test_the_same_seed_finds_the_same_motion() -> None:
    moving = drift(0.0).apply(lesions())
    settings = SearchSettings(num_draws=16, num_kept=2, num_steps=5)
    first, again = (
        search_blind(moving, settings, torch.Generator().manual_seed(3)) for _ in range(2)
    )
    assert torch.equal(first.shift_px, again.shift_px)


def test_the_guided_search_finds_the_translation_too() -> None:
    motion = drift(0.0)
    found = search_guided(motion.apply(lesions()), lesions())
    assert explained_share(motion.apply(lesions()), lesions(), found) > 0.95
    still = found.undo(motion.apply(lesions()))
    assert float((still - lesions()).norm()) < 0.2 * float(lesions().norm())


def test_a_blurred_guess_is_good_enough_to_guide() -> None:
    motion = drift(0.0)
    blurred = torch.nn.functional.avg_pool2d(lesions(), 5, stride=1, padding=2)
    found = search_guided(motion.apply(lesions()), blurred)
    still = found.undo(motion.apply(lesions()))
    assert float((still - lesions()).norm()) < 0.35 * float(lesions().norm())


def test_a_constant_displacement_is_a_translation() -> None:
    rest = FoundMotion(torch.zeros(NUM_VIEWS), 0.4)
    moved = rest.translated(5.0, -3.0).apply(lesions())
    torch.testing.assert_close(moved, lesions().roll((-3, 5), (1, 2)), atol=3.0, rtol=0)


def test_the_explained_share_tells_right_from_wrong() -> None:
    motion = drift(0.0)
    moving = motion.apply(lesions())
    still = FoundMotion(torch.zeros(NUM_VIEWS), 0.0)
    assert explained_share(moving, lesions(), motion) == pytest.approx(1, abs=1e-3)
    assert explained_share(moving, lesions(), still) < 0.6
    assert explained_share(torch.zeros(1, 8, 8), torch.zeros(1, 8, 8), still) == 1.0


def test_an_impossible_search_is_refused() -> None:
    with pytest.raises(ProdmError, match="num_draws >= num_kept"):
        SearchSettings(num_draws=2, num_kept=3)

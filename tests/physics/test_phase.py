"""Laws of the phase: what is moved stays itself, and comes back."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from prodm.errors import ProdmError
from prodm.physics import phase

NUM_VIEWS = 720


def lesion(num_slices: int = 9, size: int = 64, centre: tuple[float, float] = (30, 35)) -> Any:  # noqa: ANN401
    y, x = np.mgrid[:size, :size]
    spot = 400 * np.exp(-((y - centre[0]) ** 2 + (x - centre[1]) ** 2) / (2 * 1.5**2))
    block = np.zeros((num_slices, size, size), np.float32)
    block[num_slices // 2 - 1 : num_slices // 2 + 2] = spot
    return block


def winding_path(num_views: int = NUM_VIEWS) -> NDArray[np.float32]:
    t = np.arange(num_views) / num_views
    return np.stack([8 * t, 3 * np.cos(6 * t), 1.2 * t - 0.4], -1).astype(np.float32)


def fixed_path(x: float, y: float, z: float) -> NDArray[np.float32]:
    return np.tile(np.array([x, y, z], np.float32), (NUM_VIEWS, 1))


def test_nothing_moves_at_rest() -> None:
    block = lesion()
    assert np.abs(phase.move(block, fixed_path(0, 0, 0)) - block).max() < 1e-4


@pytest.mark.parametrize("span_deg", [180, 360])
@pytest.mark.parametrize("start_rad", [0.0, 1.0, -2.5])
def test_a_constant_displacement_is_a_translation(span_deg: float, start_rad: float) -> None:
    block = lesion()
    moved = phase.move(block, fixed_path(3, -2, 0), start_rad=start_rad, span_deg=span_deg)
    assert np.abs(moved - np.roll(block, (-2, 3), (1, 2))).max() < 0.01


def test_a_whole_slice_up_and_half_a_slice_up() -> None:
    block = lesion()
    up = phase.move(block, fixed_path(0, 0, 1))
    assert up == pytest.approx(np.roll(block, 1, 0), abs=1e-3)
    half = phase.move(block, fixed_path(0, 0, 0.5))
    assert half == pytest.approx((block + np.roll(block, 1, 0)) / 2, abs=1e-3)


def test_what_leaves_the_block_along_z_is_gone() -> None:
    block = lesion()
    assert np.abs(phase.move(block, fixed_path(0, 0, 20))).max() == 0
    assert phase.move(block, fixed_path(0, 0, 5))[:-1].max() == 0


@pytest.mark.parametrize("shape", [(4, 64, 64), (4, 63, 64), (4, 65, 45)])
def test_undo_inverts_apply_and_magnitudes_stay(shape: tuple[int, int, int]) -> None:
    image = np.random.default_rng(0).normal(size=shape)
    shift = 5 * np.random.default_rng(1).normal(size=90)
    moved = phase.apply(image, shift, start_rad=0.4, padding=0)
    assert phase.undo(moved, shift, start_rad=0.4, padding=0) == pytest.approx(image, abs=1e-12)
    before, after = (np.abs(np.fft.fft2(array)) for array in (image, moved))
    assert after == pytest.approx(before, abs=1e-10)
    assert np.abs(moved - image).max() > 1


def test_undo_restores_a_padded_lesion_but_for_what_left_the_block() -> None:
    block = lesion()
    shift = phase.shift_of(winding_path()[:, :2], phase.view_angles_rad(NUM_VIEWS))
    moved = phase.apply(block, shift)
    restored = phase.undo(moved, shift)
    assert np.abs(moved - block).max() > 100
    assert np.abs(restored - block).max() < 12  # of 400: streaks that ran off the block


def test_padding_keeps_lesions_near_the_border_right() -> None:
    path = winding_path()
    path[:, 2] = 0
    wide = phase.move(lesion(3, 192, (64 + 4, 64 + 60)), path)[:, 64:128, 64:128]
    narrow = phase.move(lesion(3, 64, (4, 60)), path)
    assert np.abs(narrow - wide).max() < 6
    assert narrow[:, 30:, :20].max() < 4  # nothing came round the corner


def test_energy_is_kept() -> None:
    block = lesion()
    moved = phase.move(block, winding_path())
    assert moved.sum() == pytest.approx(block.sum(), rel=0.01)


def test_moving_is_linear() -> None:
    first, second = lesion(), lesion(centre=(40, 20))
    path = winding_path()
    together = phase.move(2 * first + second, path)
    assert together == pytest.approx(
        2 * phase.move(first, path) + phase.move(second, path), abs=1e-3
    )


def test_the_jump_is_where_the_scan_starts() -> None:
    """Starting half a turn later with the path run on gives the same line each time."""
    path = winding_path()
    path[:, 2] = 0
    angles = phase.view_angles_rad(NUM_VIEWS, start_rad=0.7)
    shift = phase.shift_of(path[:, :2], angles)
    later = phase.apply(lesion(), -shift, start_rad=0.7 + np.pi)
    assert later == pytest.approx(phase.apply(lesion(), shift, start_rad=0.7), abs=1e-3)


def test_a_full_turn_averages_the_two_half_turns() -> None:
    t = np.arange(2 * NUM_VIEWS) / (2 * NUM_VIEWS)
    path = np.stack([8 * t, 3 * np.cos(6 * t), t], -1).astype(np.float32)
    whole = phase.move(lesion(), path, span_deg=360, start_rad=0.3)
    first = phase.move(lesion(), path[:NUM_VIEWS], start_rad=0.3)
    second = phase.move(lesion(), path[NUM_VIEWS:], start_rad=0.3 + np.pi)
    assert whole == pytest.approx((first + second) / 2, abs=1.0)
    assert whole.max() < 0.9 * lesion().max()


def test_torch_and_numpy_agree_in_batches() -> None:
    block, path = lesion(), winding_path()
    batch = torch.tensor(np.stack([block, 2 * block]))
    paths = torch.tensor(np.stack([path, -path]))
    starts = torch.tensor([0.3, 1.1])
    moved = phase.move(batch, paths, start_rad=starts)
    for n, start in enumerate((0.3, 1.1)):
        alone = phase.move(batch[n].numpy(), paths[n].numpy(), start_rad=start)
        assert moved[n].numpy() == pytest.approx(alone, abs=0.02)


def test_gradients_reach_the_displacement() -> None:
    """Checked against differences, in double precision."""
    block = torch.tensor(lesion(5, 32, (15, 16)), dtype=torch.float64)
    path = torch.tensor(winding_path(40), dtype=torch.float64).requires_grad_()
    weights = torch.tensor(np.random.default_rng(0).normal(size=block.shape))
    loss = (phase.move(block, path) * weights).sum()
    loss.backward()
    assert path.grad is not None
    for view, axis in ((3, 0), (20, 1), (33, 2)):
        values = []
        for step in (-1e-4, 1e-4):
            moved = path.detach().clone()
            moved[view, axis] += step
            values.append(float((phase.move(block, moved) * weights).sum()))
        slope = (values[1] - values[0]) / 2e-4
        assert float(path.grad[view, axis]) == pytest.approx(slope, rel=1e-3)


def test_impossible_requests_are_refused() -> None:
    with pytest.raises(ProdmError, match="180 or 360 degrees, got 90"):
        phase.move(lesion(), winding_path(), span_deg=90)
    with pytest.raises(ProdmError, match="at least two samples, got 1"):
        phase.apply(lesion(), np.zeros(1, np.float32))


@pytest.mark.parametrize(
    ("first", "last", "dz"), [(13, 16, -0.62), (0, 2, 2.3), (5, 9, 0.0), (3, 4, -3.7), (0, 0, 1.0)]
)
def test_slices_that_nothing_reaches_need_not_be_transformed(
    first: int, last: int, dz: float
) -> None:
    block = np.zeros((16, 32, 32), np.float32)
    block[first:last, 10:20, 10:20] = np.random.default_rng(0).random((last - first, 10, 10))
    path = np.stack([np.linspace(0, 5, 60), np.linspace(0, -3, 60), np.linspace(0, dz, 60)], 1)
    shift = phase.shift_of(path[:, :2], phase.view_angles_rad(60))
    whole = phase.apply(block, shift, slice_shift=path[:, 2] if dz else None)
    np.testing.assert_allclose(phase.move(block, path), whole, atol=1e-6)

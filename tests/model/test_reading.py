"""A reader must see what projections show, and be asked for the path that the phase applies."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import Tensor

from prodm.errors import ProdmError
from prodm.model.losses import Batch
from prodm.model.motions import FoundMotion
from prodm.model.network import NetworkSettings
from prodm.model.reading import (
    NUM_ANGLES,
    NUM_BINS,
    MotionReader,
    angles_rad,
    around_lesion,
    look_through,
    projections,
    read_path,
    reading_loss,
    true_path,
)
from prodm.physics import phase

NETWORK = NetworkSettings(
    num_slices=3, channels=(32, 32, 32, 32), attention=(False,) * 4, num_head_channels=32
)
NUM_VIEWS = 90


def spot(x: float, y: float, size: int = 64) -> Tensor:
    """A smooth spot [1, 1, Y, X] at a place relative to the middle."""
    middle = (size - 1) / 2
    row, column = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    return torch.exp(-(((column - middle - x) ** 2 + (row - middle - y) ** 2) / 6))[None, None]


def drift(velocity: tuple[float, float, float]) -> Tensor:
    time = torch.arange(NUM_VIEWS)[:, None] / NUM_VIEWS
    return (time * torch.tensor(velocity))[None]


def test_projections_put_a_spot_where_its_angle_sees_it() -> None:
    seen = projections(spot(7.0, -4.0))[0, 0]
    bins = torch.arange(NUM_BINS) - (NUM_BINS - 1) / 2
    centres = (seen * bins).sum(dim=1) / seen.sum(dim=1)
    angles = angles_rad()
    torch.testing.assert_close(centres, 7 * angles.cos() - 4 * angles.sin(), atol=0.02, rtol=0)
    torch.testing.assert_close(seen.sum(dim=1), spot(7.0, -4.0).sum().expand(NUM_ANGLES))


def test_the_trace_of_a_moving_spot_is_its_path() -> None:
    """What the phase moves by s(theta) shows in the projections as a shift by s(theta)."""
    displacement, start = drift((8.0, -5.0, 0.0)), torch.tensor([0.6])
    moving = phase.move(spot(0.0, 0.0), displacement, start_rad=start, padding=64)
    path = true_path(displacement, start)[0, 0]
    seen = projections(moving)[0, 0].clamp(min=0) ** 4  # the trace, without its streaks
    bins = torch.arange(NUM_BINS) - (NUM_BINS - 1) / 2
    trace = (seen * bins).sum(dim=1) / seen.sum(dim=1)
    assert float((trace - path).abs().median()) < 0.25
    assert float(path.abs().max()) > 3


def test_a_path_moves_as_its_displacement_does() -> None:
    displacement = drift((6.0, 9.0, 0.5))
    path = true_path(displacement, torch.zeros(1))[0]
    still = spot(0.0, 0.0)[0].expand(5, -1, -1) * torch.tensor([0, 0, 1, 0, 0])[:, None, None]
    true = phase.move(still[None], displacement, start_rad=0.0, padding=32)[0]
    read = FoundMotion.from_path(path).apply(still)
    assert float((read - true).norm()) < 0.05 * float(true.norm())


def test_the_square_follows_the_lesion() -> None:
    squares = around_lesion(torch.cat([spot(20.0, -22.0), spot(0.0, 0.0)]), 1)
    assert squares.shape == (2, 1, 64, 64)
    places = [divmod(int(one.argmax()), 64) for one in squares]
    assert max(abs(value - 32) for place in places for value in place) <= 1
    with_rests = torch.cat([spot(20.0, -22.0), spot(14.0, -22.0)], dim=1)
    row, column = divmod(int(around_lesion(with_rests, 1)[0, 1].argmax()), 64)
    assert (row, column) == pytest.approx((32, 26), abs=1)


def batch() -> Batch:
    background = torch.full((2, 3, 64, 64), 0.2)
    displacement = torch.cat([drift((8.0, 3.0, 0.4)), drift((-5.0, 6.0, 0.2))])
    starts = torch.zeros(2)
    excess = spot(0.0, 0.0).expand(2, 3, -1, -1) * 0.5
    moving = background + phase.move(excess.contiguous(), displacement, start_rad=starts)
    calcium = excess > 0.1
    return Batch(
        background + excess, moving, calcium, calcium.int(), torch.ones(2, 3), background,
        displacement, starts,
    )  # fmt: skip


def test_the_right_path_loses_nothing_and_calcium_free_windows_do_not_count() -> None:
    data = batch()
    assert data.displacement is not None
    assert data.start_rad is not None
    assert data.background is not None
    path = true_path(data.displacement, data.start_rad)
    assert float(reading_loss(path, data)[0]) == 0
    away = path.clone()
    away[1, 0] += 2.0
    assert float(reading_loss(away, data)[1]["shift"]) == pytest.approx(1.0)
    moving = data.moving.clone()
    moving[1] = data.background[1]
    assert float(reading_loss(away, dataclasses.replace(data, moving=moving))[0]) == 0


def test_a_batch_of_unknown_motion_is_refused() -> None:
    with pytest.raises(ProdmError, match="moved afresh"):
        reading_loss(torch.zeros(2, 2, NUM_ANGLES), dataclasses.replace(batch(), displacement=None))


def test_brightness_and_place_do_not_change_what_is_read() -> None:
    torch.manual_seed(0)
    reader = MotionReader(NETWORK).eval()
    moving = spot(2.3, 1.4, size=96).expand(1, 3, -1, -1)
    rests = 0.5 * spot(6.1, 0.2, size=96).expand(1, 3, -1, -1)
    none = torch.zeros(1)

    @torch.no_grad()
    def read(moving: Tensor, rests: Tensor) -> Tensor:
        both = torch.cat([moving, rests], dim=1)
        path: Tensor = reader(both, both, none)
        return path

    first = read(moving, rests)
    torch.testing.assert_close(read(300 * moving, rests), first)
    moved = (image.roll((5, -7), dims=(-2, -1)) for image in (moving, rests))
    torch.testing.assert_close(read(*moved), first, atol=1e-4, rtol=1e-3)
    assert float((read(moving, rests.roll(4, dims=-1)) - first).abs().max()) > 1e-3


def test_slices_with_most_calcium_are_read() -> None:
    block = torch.zeros(8, 64, 64)
    block[3], block[4], block[5] = (share * spot(0, 0)[0, 0] for share in (1.0, 3.0, 2.0))
    odds = torch.arange(8.0)[:, None, None].expand(-1, 64, 64) / 10
    seen = []

    def predict(windows: Tensor, generator: torch.Generator) -> Tensor:
        seen.append(windows)
        return torch.stack([torch.full((2, NUM_ANGLES), float(n)) for n in range(len(windows))])

    path = read_path(block, odds, predict, 3)
    assert [float(window[1].max()) for window in seen[0]] == pytest.approx([3, 2, 1], rel=0.1)
    assert seen[0][0, 3:, 0, 0].tolist() == pytest.approx([0.3, 0.4, 0.5])
    assert float(path[0, 0]) == pytest.approx((4 * 1 + 1 * 2) / 14)
    edge = torch.zeros(8, 64, 64)
    edge[0] = spot(0, 0)[0, 0]
    read_path(edge, odds, predict, 3)
    assert not seen[1][0][0].any()


def test_a_reader_is_shown_every_slice_as_its_separator_sees_it() -> None:
    """A separator that finds slice n brighter by n, and is surer of slices in the middle."""
    behind = torch.rand(2, 5, 8, 8)
    brighter = torch.arange(1.0, 6.0)[:, None, None]
    calls = []

    def separate(windows: Tensor, generator: torch.Generator) -> Tensor:
        calls.append(len(windows))
        odds = torch.tensor([0.3, 0.8, 0.4])[:, None, None].expand_as(windows)
        return torch.cat([windows.frac(), odds], dim=1)

    seen = look_through(separate, 3, behind + brighter)
    torch.testing.assert_close(seen[:, :5], brighter.expand(2, 5, 8, 8))
    assert seen[0, 5:, 0, 0].tolist() == pytest.approx([0.3, 0.8, 0.8, 0.8, 0.4])
    assert calls == [6]
    with pytest.raises(ProdmError, match="at least the 3 slices"):
        look_through(separate, 3, behind[:, :1])


def test_a_reader_of_another_shape_is_refused() -> None:
    with pytest.raises(ProdmError, match="4 levels"):
        MotionReader(dataclasses.replace(NETWORK, channels=(32, 32), attention=(False, False)))
    with pytest.raises(ProdmError, match="windows of 2 x 3 slices"):
        MotionReader(NETWORK)(spot(0, 0), spot(0, 0), torch.zeros(1))


def test_true_paths_have_a_jump_where_the_scan_starts() -> None:
    path = true_path(drift((10.0, 0.0, 0.0)), torch.tensor([np.pi / 2 + 0.01]))[0, 0]
    steps = path.diff().abs()
    assert int(steps.argmax()) in (14, 15, 16)

"""The true motion must leave the smoothest image, whatever a separator got wrong."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from prodm.errors import ProdmError
from prodm.model import clearing
from prodm.model.clearing import Scene, roughness, smoother, smoother_for_its_tissue
from prodm.model.motions import FoundMotion
from prodm.physics import phase
from prodm.physics.fitting import NUM_VIEWS

SIZE = 64


def drift(x_px: float, y_px: float, z_slices: float = 0.0) -> FoundMotion:
    time = torch.arange(NUM_VIEWS) / NUM_VIEWS
    angles = math.pi * time
    shift = time * (x_px * angles.cos() + y_px * angles.sin())
    return FoundMotion(shift, 0.0, z_slices * time)


def lesion() -> Tensor:
    y, x = torch.meshgrid(torch.arange(SIZE) - 32.0, torch.arange(SIZE) - 32.0, indexing="ij")
    one = 600 * torch.exp(-(x**2 / 6 + y**2 / 3))
    return torch.stack([0 * one, one, one / 2, 0 * one])


def tissue(noise_hu: float = 15.0) -> Tensor:
    """A heart's edge, fat beside it, and grain."""
    x = torch.arange(SIZE) - 20.0
    edge = 60 * torch.tanh(x / 6)
    grain = torch.randn(4, SIZE, SIZE, generator=torch.Generator().manual_seed(0))
    return edge + noise_hu * grain


def left(scene: Scene, *motions: FoundMotion) -> list[float]:
    shift = torch.stack([motion.shift_px for motion in motions])
    along_z = torch.stack([torch.as_tensor(motion.slice_shift) for motion in motions])
    left: list[float] = scene.left(shift, along_z, 0.0).tolist()
    return left


def test_the_true_motion_leaves_the_smoothest_image() -> None:
    true = drift(8.0, -5.0, 0.3)
    moving = true.apply(lesion())
    scene = Scene.of(moving, tissue() + moving)
    nearly, wrong, other = drift(7.0, -4.0, 0.3), drift(-8.0, 5.0), drift(8.0, 5.0)
    best, *others = left(scene, true, nearly, wrong, other)
    assert best < -0.5
    assert best < min(others) - 0.01
    assert others[0] < min(others[1:])  # and nearly true is better than wrong


def test_the_image_tells_where_a_separator_is_wrong() -> None:
    """Of what moves only the bright part is seen: that alone is explained by less motion."""
    true, less = drift(9.0, 3.0), drift(7.5, 2.5)
    moving = true.apply(lesion())
    seen = torch.where(moving > 40, moving, 0.0)
    true_left, less_left = left(Scene.of(seen, tissue() + moving), true, less)
    assert true_left < less_left


def test_what_rests_is_explained_best_by_rest() -> None:
    still = lesion()
    image = tissue() + still
    rest, moved = left(Scene.of(still, image), drift(0.0, 0.0), drift(8.0, -5.0))
    assert rest < moved - 0.1


def test_roughness_is_neither_grain_nor_tissue() -> None:
    y, x = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")

    def rough(image: Tensor) -> float:
        padded = image[None].expand(1, SIZE, SIZE)
        return float(roughness(padded)) - float(roughness(torch.zeros_like(padded)))

    checks = 100.0 * (-1.0) ** (x + y)
    streaks = 100 * torch.sin(2 * math.pi * x / 8)
    slope = x.float()
    assert rough(streaks) > 5 * rough(checks)
    assert rough(slope - slope.mean()) < 0.2 * rough(streaks)


def test_the_gradient_points_to_the_true_motion() -> None:
    true = drift(8.0, -5.0)
    moving = true.apply(lesion())
    scene = Scene.of(moving, tissue() + moving)
    share = torch.tensor(0.85, requires_grad=True)
    cost = scene.left((share * true.shift_px)[None], torch.zeros(1, NUM_VIEWS), 0.0).sum()
    cost.backward()  # type: ignore[no-untyped-call]
    assert share.grad is not None
    assert float(share.grad) < 0


def test_taking_a_lesion_away_makes_its_image_smoother() -> None:
    motion = drift(8.0, -5.0)
    seen = motion.apply(lesion())
    image = tissue() + seen
    gained, share = smoother(image, seen)
    assert gained > 1000
    assert share > 0.5
    lost, share = smoother(image, motion.apply(lesion().roll(15, dims=-1)))
    assert lost < 0
    assert share < 0
    assert smoother(image, torch.zeros_like(image)) == (0.0, 0.0)


def test_only_the_slices_that_hold_what_moves_are_looked_at() -> None:
    moving = torch.zeros(16, 8, 8)
    moving[5:7] = 100.0
    scene = Scene.of(moving, torch.zeros(16, 8, 8))
    assert scene.moving.shape == (4, 8, 8)
    many = Scene.of(torch.full((16, 8, 8), 100.0), torch.zeros(16, 8, 8))
    assert many.moving.shape == many.image.shape == (8, 8, 8)


def test_a_mover_undoes_a_motion_as_the_opposite_motion_does() -> None:
    motion = drift(5.0, 3.0, 0.4)
    image = tissue()
    mover = phase.Mover(
        image, motion.shift_px, slice_shift=motion.slice_shift, start_rad=0.3, padding=20
    )
    options: dict[str, Any] = {
        "slice_shift": motion.slice_shift,
        "start_rad": 0.3,
        "padding": 20,
    }
    torch.testing.assert_close(mover.undo(image), phase.undo(image, motion.shift_px, **options))


def test_a_scene_needs_two_views() -> None:
    with pytest.raises(ProdmError, match="at least two samples"):
        phase.Mover(tissue(), torch.zeros(1))


def test_what_becomes_smoother_at_an_edge_of_lung_counts_for_little() -> None:
    """The same streak, over even tissue and across an edge that is rough anyway."""
    streak = torch.zeros(3, SIZE, SIZE)
    streak[1, 20:44, 30:33] = 60.0
    grain = 10 * torch.randn(streak.shape, generator=torch.Generator().manual_seed(2))
    even = torch.zeros_like(streak) + grain
    ribbed = even + 150 * (torch.arange(SIZE) % 8 < 4)
    in_tissue, in_ribs = (smoother_for_its_tissue(left + streak, left) for left in (even, ribbed))
    assert in_tissue > 50
    assert in_ribs < 0.3 * in_tissue


def test_what_is_rough_for_its_tissue_does_not_depend_on_contrast() -> None:
    streak = torch.zeros(3, SIZE, SIZE)
    streak[1, 20:44, 30:33] = 60.0
    left = 50 * torch.randn(streak.shape, generator=torch.Generator().manual_seed(2))
    faint, bright = (smoother_for_its_tissue(k * (left + streak), k * left) for k in (1.0, 3.0))
    assert faint < bright < 1.5 * faint


def test_lung_tells_of_no_lesion() -> None:
    streak = torch.zeros(3, SIZE, SIZE)
    streak[1, 20:44, 30:33] = 200.0
    lung = torch.full_like(streak, -850.0)
    assert smoother_for_its_tissue(lung + streak, lung) == 0
    assert smoother(lung + streak, streak)[0] > 1000


def test_nothing_taken_away_makes_nothing_smoother() -> None:
    image = tissue()
    assert smoother_for_its_tissue(image, image) == 0


def test_the_mean_around_is_that_of_what_lies_inside_of_the_image() -> None:
    images = torch.rand(2, 20, 24, generator=torch.Generator().manual_seed(0))
    found = clearing._mean_around(images, 5)
    for z, y, x in ((0, 0, 0), (1, 19, 10), (0, 10, 12)):
        around = images[z, max(0, y - 2) : y + 3, max(0, x - 2) : x + 3]
        assert float(found[z, y, x]) == pytest.approx(float(around.mean()), rel=1e-5)

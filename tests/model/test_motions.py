"""A motion undone must give the lesion back, in its place, sharp along z too."""

import pytest
import torch
from torch import Tensor

from prodm.model import motions
from prodm.model.motions import FoundMotion, explained_share, lack_of_peak, place
from prodm.model.phasing import Phased
from prodm.physics import phase
from prodm.physics.fitting import NUM_VIEWS

SIZE = 64


def lesions() -> Tensor:
    """Two smooth lesions in two of six slices, well inside."""
    y, x = torch.meshgrid(torch.arange(SIZE) - 32.0, torch.arange(SIZE) - 32.0, indexing="ij")
    first = 500 * torch.exp(-(x**2 / 8 + (y - 1) ** 2 / 3))
    second = 300 * torch.exp(-((x - 8) ** 2 / 3 + (y + 6) ** 2 / 5))
    none = torch.zeros_like(first)
    return torch.stack([none, none, first, first / 2 + second, none, none])


def drift(start_rad: float, z_slices: float | None = None) -> FoundMotion:
    """A lesion that moves evenly from rest: s jumps where the scan starts."""
    time = torch.arange(NUM_VIEWS) / NUM_VIEWS
    theta = torch.from_numpy(phase.view_angles_rad(NUM_VIEWS, start_rad=start_rad)).float()
    shift = time * (9 * theta.cos() - 4 * theta.sin())
    return FoundMotion(shift, start_rad, None if z_slices is None else z_slices * time)


def in_a_wide_frame() -> Tensor:
    """The lesions in so wide an image that next to nothing of their streaks leaves it."""
    return torch.nn.functional.pad(lesions(), [96] * 4)


def error(still: Tensor) -> float:
    return float((still - lesions()).norm() / lesions().norm())


def test_undoing_a_motion_gives_the_still_lesions_back() -> None:
    motion = drift(0.7)
    still = motion.undo(motion.apply(in_a_wide_frame()))
    torch.testing.assert_close(still, in_a_wide_frame(), atol=5.0, rtol=0)  # 1 % of the peak


def test_undo_is_the_adjoint_of_apply() -> None:
    motion = drift(0.3, z_slices=1.3)
    generator = torch.Generator().manual_seed(0)
    first, second = (torch.randn(6, 32, 32, generator=generator) for _ in range(2))
    left = float((motion.apply(first) * second).sum())
    assert left == pytest.approx(float((first * motion.undo(second)).sum()), rel=1e-3)


def test_refocusing_is_sharp_along_z_where_undoing_blurs() -> None:
    motion = drift(0.0, z_slices=0.9)
    moving = motion.apply(lesions())
    assert error(moving) > 0.6
    assert error(motion.undo(moving)) > 0.2
    assert error(motion.refocus(moving)) < 0.12
    assert float(motion.refocus(moving).min()) >= 0


def test_streaks_that_a_gate_cut_off_are_not_taken_for_absent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without the ends of its streaks a lesion is fainter; less so where their lack counts less."""
    motion, true = drift(0.3), lesions()
    moving = motion.apply(true)
    gated = torch.where(moving.abs() > 0.15 * moving.max(), moving, torch.zeros_like(moving))
    errors = []
    for weight in (1.0, 0.5):
        monkeypatch.setattr(motions, "SHUT_WEIGHT", weight)
        errors.append(error(motion.refocus(gated)))
    assert errors[1] < 0.95 * errors[0]


def test_refocusing_without_motion_changes_nothing() -> None:
    rest = FoundMotion(torch.zeros(NUM_VIEWS), 0.0)
    seen = lesions() - 20  # dark tissue that was taken to move
    assert torch.equal(rest.refocus(seen), seen)


@pytest.mark.parametrize(("x_px", "y_px"), [(0.0, 0.0), (3.5, -6.25), (-11.0, 4.0)])
def test_a_guess_puts_a_lesion_in_its_place(x_px: float, y_px: float) -> None:
    motion = drift(0.4)
    placed = place(motion.translated(x_px, y_px), motion.apply(lesions()), lesions().clamp(min=0))
    torch.testing.assert_close(placed.shift_px, motion.shift_px, atol=0.1, rtol=0)


def test_a_guess_of_nothing_moves_nothing() -> None:
    motion = drift(0.4)
    assert place(motion, motion.apply(lesions()), torch.zeros_like(lesions())) is motion


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


def test_the_sharp_image_lacks_least() -> None:
    motion = drift(0.0)
    moving = motion.apply(lesions())
    images = torch.stack([motion.undo(moving), moving])
    sharp, smeared = lack_of_peak(images).tolist()
    assert sharp < smeared < 0


def test_the_shift_at_an_angle_is_that_of_its_view() -> None:
    """Beyond 180 degrees a view sees the same line the other way round."""
    theta = torch.arange(30) * (torch.pi / 30)
    displacement = (3 * theta.cos() - 5 * theta.sin()).float()
    for start_rad in (0.0, 1.3, 4.0):
        shifted = FoundMotion(torch.zeros(NUM_VIEWS), start_rad).translated(3.0, -5.0)
        torch.testing.assert_close(shifted.shift_at(theta), displacement, atol=0.2, rtol=0)


def test_grain_is_left_out_of_the_image_but_counts_for_what_is_explained() -> None:
    """A motion that is right must not look wrong because the image has grain."""
    motion = drift(0.0)
    grain = 15 * torch.randn(lesions().shape, generator=torch.Generator().manual_seed(0))
    moving = motion.apply(lesions()) + grain
    focused, refocused = motion.focused(moving), motion.refocus(moving)
    far = lesions() < 1
    assert float(refocused[far].sum()) > 10 * float(focused[far].sum())
    assert float(focused.max()) == float(refocused.max())
    explained = Phased(moving, moving, motion).explained
    assert explained == pytest.approx(explained_share(moving, refocused, motion))
    assert explained > explained_share(moving, focused, motion) + 0.05
    rest = FoundMotion(torch.zeros(NUM_VIEWS), 0.0)
    assert torch.equal(rest.focused(moving), moving)


@pytest.mark.parametrize("start_rad", [0.0, 1.0, 3.25, 5.6])
def test_the_mean_of_motions_does_not_depend_on_where_their_scans_start(start_rad: float) -> None:
    """A translation is the same wherever the scan starts, so that its mean with itself is too."""

    def translation(start_rad: float) -> FoundMotion:
        angles = torch.from_numpy(phase.view_angles_rad(NUM_VIEWS, start_rad=start_rad)).float()
        return FoundMotion(3 * angles.cos() + 2 * angles.sin(), start_rad)

    first, second = translation(0.0), translation(start_rad)
    torch.testing.assert_close(first.mean(second).shift_px, first.shift_px, atol=0.02, rtol=0)
    torch.testing.assert_close(second.mean(first).shift_px, second.shift_px, atol=0.02, rtol=0)


def test_the_mean_of_two_motions_lies_between_them() -> None:
    rising, falling = torch.linspace(0, 4, NUM_VIEWS), torch.linspace(2, 0, NUM_VIEWS)
    first = FoundMotion(rising, 0.0, falling)
    second = FoundMotion(falling, 0.0)
    mean = first.mean(second)
    torch.testing.assert_close(mean.shift_px, (rising + falling) / 2)
    assert mean.slice_shift is not None
    torch.testing.assert_close(mean.slice_shift, falling / 2)


def test_a_mean_lies_nearer_to_the_motion_that_counts_more() -> None:
    first = FoundMotion(torch.full((NUM_VIEWS,), 4.0), 0.0, torch.full((NUM_VIEWS,), 1.0))
    second = FoundMotion(torch.zeros(NUM_VIEWS), 0.0)
    mean = first.mean(second, share=0.75)
    torch.testing.assert_close(mean.shift_px, torch.full((NUM_VIEWS,), 3.0))
    assert mean.slice_shift is not None
    torch.testing.assert_close(mean.slice_shift, torch.full((NUM_VIEWS,), 0.75))
    torch.testing.assert_close(first.mean(second, share=1.0).shift_px, first.shift_px)

"""What is missing of a motion shows from wedge to wedge; points tell it by how sure they are."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from prodm.errors import ProdmError
from prodm.model import tuning
from prodm.model.losses import Batch
from prodm.model.motions import FoundMotion, between_samples
from prodm.model.network import NetworkSettings
from prodm.model.reading import angles_rad, without_translation
from prodm.model.tuning import (
    ALONG_PX,
    NUM_LINES,
    NUM_WEDGES,
    Glimpse,
    Tuner,
    centres_rad,
    draw_errors,
    look_apart,
    shape_of,
    shapes,
    translations,
    tune,
    tuning_loss,
    what_is_told,
)
from prodm.physics import phase
from prodm.physics.fitting import NUM_VIEWS

THETA = torch.from_numpy(phase.view_angles_rad(NUM_VIEWS)).float()
TIME = torch.arange(NUM_VIEWS) / NUM_VIEWS
SMALL = NetworkSettings(
    channels=(8, 16, 32), attention=(False,) * 3, num_head_channels=8, norm_groups=8,
    num_wedges=NUM_WEDGES,
)  # fmt: skip
MIDDLE = 17  # the line through a point: of its own slice, of what moves


def drift(x_px: float = 8.0, y_px: float = 3.0) -> FoundMotion:
    return FoundMotion(TIME * (x_px * THETA.cos() + y_px * THETA.sin()), 0.0)


def spot() -> Tensor:
    """A round lesion that is brightest in the middle one of five slices."""
    y, x = torch.meshgrid(torch.arange(64.0), torch.arange(64.0), indexing="ij")
    one = 600 * torch.exp(-((x - 30) ** 2 + (y - 33) ** 2) / 8)
    return torch.stack([share * one for share in (0.1, 0.4, 1.0, 0.5, 0.1)])


def seen_with(motion: FoundMotion, undone: FoundMotion) -> Tensor:
    """Views of the brightest point of the spot, where one motion moves and another is undone."""
    moving = motion.apply(spot())[None]
    views, block = look_apart(
        torch.zeros_like(moving), moving, undone.shift_px[None], torch.zeros(1)
    )
    assert block.tolist() == [0] * len(views)
    return views[0]


def peaks_px(views: Tensor) -> Tensor:
    """How far along n each wedge is brightest, to a fraction of a step."""
    profiles = views[:, MIDDLE]
    top = profiles.argmax(dim=1)
    return torch.tensor(
        [
            ALONG_PX[n] + between_samples(profile[n - 1 : n + 2]) / 2
            for n, profile in zip(top.tolist(), profiles, strict=True)
        ]
    )


def test_by_the_true_motion_all_wedges_show_the_lesion_in_one_place() -> None:
    for motion in (FoundMotion(torch.zeros(NUM_VIEWS), 0.0), drift()):
        views = seen_with(motion, motion)
        assert peaks_px(views).tolist() == pytest.approx([0.0] * NUM_WEDGES, abs=0.1)
        assert float(views[:, MIDDLE, len(ALONG_PX) // 2].sum()) > 0.9  # wedges sum to the image


def test_in_each_wedge_a_lesion_lies_off_by_what_is_missing_there() -> None:
    """Up to a translation, that of the point itself; and with its sign."""
    true, wrong = drift(8.0, 3.0), drift(6.0, 4.5)
    missing = true.shift_at(centres_rad()) - wrong.shift_at(centres_rad())
    seen = peaks_px(seen_with(true, wrong)) @ shapes()
    assert seen.tolist() == pytest.approx((missing @ shapes()).tolist(), abs=0.1)
    assert float((missing @ shapes()).abs().max()) > 0.3


def test_points_are_the_brightest_of_all_but_the_outer_slices() -> None:
    moving = torch.zeros(2, 5, 64, 64)
    moving[0, 2, 20:23, 40:43] = 300.0
    moving[0, 4, 50:53, 10:13] = 900.0  # in the last slice
    moving[0, 1, 2:5, 2:5] = 20.0  # too faint
    views, block = look_apart(moving / 9, moving, torch.zeros(2, NUM_VIEWS), torch.zeros(2))
    assert block.tolist() == [0]
    assert float(views[0, 0, -1, 0]) == pytest.approx(math.log(300) - 4, abs=0.05)


def test_what_points_tell_is_the_least_squares_of_all_with_a_translation_for_each() -> None:
    """A slow twin: one large fit of the shape and of the translation of every point."""
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(4, NUM_WEDGES, generator=generator, dtype=torch.float64)
    sure = torch.rand(4, NUM_WEDGES, generator=generator, dtype=torch.float64) * 9 + 1
    basis, own = shapes().double(), translations().double()
    design = torch.cat(
        [basis.repeat(4, 1), torch.kron(torch.eye(4, dtype=torch.float64), own)], dim=1
    )
    weight = sure.flatten().sqrt()
    fit = torch.linalg.lstsq(weight[:, None] * design, weight * values.flatten()).solution
    precision, told = (part.sum(dim=0) for part in what_is_told(values, sure))
    torch.testing.assert_close(
        torch.linalg.solve(precision, told), fit[: basis.shape[1]], atol=1e-3, rtol=1e-3
    )
    covariance = torch.linalg.inv(design.T @ (sure.flatten()[:, None] * design))
    inner = covariance[: len(precision), : len(precision)]
    torch.testing.assert_close(torch.linalg.inv(precision), inner, atol=1e-3, rtol=1e-3)


def test_a_place_of_its_own_tells_nothing() -> None:
    sure = torch.full((2, NUM_WEDGES), 4.0)
    moved = torch.tensor([[1.0, -2.0], [0.5, 3.0]]) @ translations().T
    _, told = what_is_told(moved, sure)
    assert float(told.abs().max()) < 1e-3


def oracle(true: FoundMotion, sure: float) -> object:
    """A tuner that knows; what it is shown is the motion itself."""

    def predict(shift_px: Tensor, generator: torch.Generator) -> Tensor:
        missing = torch.stack(
            [
                (replace(true, shift_px=true.shift_px - one)).shift_at(centres_rad())
                for one in shift_px
            ]
        )
        return torch.stack([missing, torch.full_like(missing, sure)], dim=1)

    return predict


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        tuning, "look_apart", lambda fine, moving, shift_px, start_rad: (shift_px, None)
    )


@pytest.mark.usefixtures("shown")
def test_what_is_missing_is_put_in_and_the_place_stays() -> None:
    true, wrong = drift(8.0, 3.0), drift(6.5, 4.0).translated(2.0, -1.0)
    tuned = tune(wrong, [(spot(), spot())] * 2, oracle(true, 1e4))  # type: ignore[arg-type]
    left = without_translation(tuned.shift_at(angles_rad()) - true.shift_at(angles_rad()))
    assert float(left.square().mean().sqrt()) < 0.05
    before = without_translation(wrong.shift_at(angles_rad()) - true.shift_at(angles_rad()))
    assert float(before.square().mean().sqrt()) > 0.15
    torch.testing.assert_close(
        tuned.shift_at(centres_rad()) @ translations(),
        wrong.shift_at(centres_rad()) @ translations(),
        atol=1e-3, rtol=1e-3,
    )  # fmt: skip


@pytest.mark.usefixtures("shown")
def test_a_tuner_that_is_not_sure_changes_little() -> None:
    wrong = drift(6.5, 4.0)
    unsure = oracle(drift(8.0, 3.0), 1e-3)
    tuned = tune(wrong, [(spot(), spot())], unsure)  # type: ignore[arg-type]
    assert float((tuned.shift_px - wrong.shift_px).abs().max()) < 0.02


@pytest.mark.usefixtures("shown")
def test_a_scan_that_starts_elsewhere_is_tuned_likewise() -> None:
    """Lines that were seen the other way round get what is missing with the other sign."""
    start = math.pi / 3
    angles = torch.from_numpy(phase.view_angles_rad(NUM_VIEWS, start_rad=start)).float()
    true, wrong = (
        FoundMotion(TIME * (x * angles.cos() + y * angles.sin()), start)
        for x, y in ((8.0, 3.0), (6.5, 4.0))
    )
    tuned = tune(wrong, [(spot(), spot())], oracle(true, 1e4))  # type: ignore[arg-type]
    left = shape_of(replace(tuned, shift_px=tuned.shift_px - true.shift_px))
    assert float(left.abs().max()) < 0.05


def test_the_loss_is_least_where_a_tuner_is_right_and_as_sure_as_it_may_be() -> None:
    missing = draw_errors(1, torch.Generator().manual_seed(1))[:, 3::6]
    batch = Batch(
        still=torch.zeros(1, 1, 8, 8), moving=torch.zeros(1, 1, 8, 8),
        calcium=torch.zeros(1, 1, 8, 8, dtype=torch.bool),
        lesions=torch.zeros(1, 1, 8, 8, dtype=torch.int), spacing_mm=torch.ones(1, 3),
        missing=missing, block=torch.tensor([0, 0]),
    )  # fmt: skip

    def loss(off: Tensor, sure: float) -> float:
        certain = torch.full((NUM_WEDGES,), sure)
        answer = torch.stack([off, certain]).expand(2, 2, NUM_WEDGES)
        return float(tuning_loss(answer, batch)[0])

    true, wrong = missing[0], missing[0] + torch.tensor([0.5, -0.5] * 5)
    assert loss(true, 100.0) < loss(true, 1.0) < loss(wrong, 1.0) < loss(wrong, 100.0)
    with pytest.raises(ProdmError, match="a little wrong"):
        tuning_loss(torch.zeros(2, 2, NUM_WEDGES), replace(batch, missing=None))


def test_a_network_says_how_sure_it_is_of_each_point() -> None:
    torch.manual_seed(0)
    views = torch.randn(2, NUM_WEDGES, NUM_LINES + 1, len(ALONG_PX))
    answer = Tuner(SMALL)(views, views, torch.zeros(2))
    assert answer.shape == (2, 2, NUM_WEDGES)
    assert bool((answer[:, 1] > 0).all())
    with pytest.raises(ProdmError, match="10 wedges, 31 lines and 25 places"):
        Tuner(SMALL)(views[:, 1:], views[:, 1:], torch.zeros(2))
    with pytest.raises(ProdmError, match="three widths and 10 wedges"):
        Tuner(replace(SMALL, num_wedges=6))


def test_where_nothing_is_bright_a_motion_stays() -> None:
    motion, nothing = drift(), torch.zeros(5, 64, 64)
    assert tune(motion, [(nothing, nothing)], lambda *_: pytest.fail("asked")) is motion


def test_the_slices_with_most_that_moves_are_looked_at() -> None:
    block = torch.zeros(9, 64, 64)
    block[6] = 300.0
    glimpse = Glimpse.of(block, block)
    assert glimpse.moving.shape == (5, 64, 64)
    assert bool(glimpse.moving.any())
    assert Glimpse.of(block[:3], block[:3]).detail.shape == (5, 64, 64)

"""Correcting by phase must put calcium back in focus, nearly keep its sum, and invent none."""

import pytest
import torch
from torch import Tensor

from prodm.model import phasing
from prodm.model.classical import correct_without_weights
from prodm.model.motions import FoundMotion
from prodm.model.phasing import (
    STILL_HU,
    Phased,
    Separator,
    both_ways,
    correct_by_phase,
    moves_here,
    put_in_focus,
    separate_by_network,
)
from prodm.model.search import SearchSettings
from prodm.physics import phase
from prodm.physics.fitting import NUM_VIEWS

KNOWN_START = SearchSettings(start_rad=0.0)


def tissue() -> Tensor:
    """Smooth soft tissue beside fat, five slices."""
    column = torch.linspace(-100, 45, 64).expand(5, 64, 64)
    grain = torch.randn(5, 64, 64, generator=torch.Generator().manual_seed(1))
    return column + 5 * torch.nn.functional.avg_pool2d(grain, 3, stride=1, padding=1)


def lesion() -> Tensor:
    y, x = torch.meshgrid(torch.arange(64) - 31.0, torch.arange(64) - 33.0, indexing="ij")
    one = 700 * torch.exp(-(x**2 / 20 + y**2 / 12))  # wide enough to lie between pixels
    return torch.stack([0 * one, one / 2, one, one / 3, 0 * one])


def drift() -> FoundMotion:
    time = torch.arange(NUM_VIEWS) / NUM_VIEWS
    theta = torch.from_numpy(phase.view_angles_rad(NUM_VIEWS)).float()
    return FoundMotion((time - 0.5) * (9 * theta.cos() - 5 * theta.sin()), 0.0)


def moved() -> Tensor:
    return tissue() + drift().apply(lesion())


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def volume_above_130(hu: Tensor) -> int:
    return int((hu >= 130).sum())


def test_with_the_background_known_the_lesion_comes_back() -> None:
    result = correct_by_phase(moved(), tissue(), KNOWN_START, generator())
    still = tissue() + lesion()
    assert float(moved().max()) < 0.75 * float(still.max())
    assert float(result.corrected_hu.max()) == pytest.approx(float(still.max()), rel=0.1)
    assert volume_above_130(result.corrected_hu) == pytest.approx(volume_above_130(still), rel=0.1)
    assert result.explained > 0.9


def test_the_sum_of_what_moves_is_kept() -> None:
    """Up to the streaks that leave the block."""
    result = correct_by_phase(moved(), tissue(), KNOWN_START, generator())
    assert float(result.corrected_hu.sum() - tissue().sum()) == pytest.approx(
        float(moved().sum() - tissue().sum()), rel=0.02
    )


def test_what_is_not_calcium_stays_though_it_was_taken_to_move() -> None:
    """A separator knows the tissue without its grain; the grain must not go with the motion."""
    smooth = torch.linspace(-100, 45, 64).expand(5, 64, 64)
    result = correct_by_phase(moved(), smooth, KNOWN_START, generator())
    far = torch.ones(64, 64, dtype=torch.bool)
    far[11:51, 13:53] = False
    grain, true_grain = (
        (image - smooth)[:, far].flatten() for image in (result.corrected_hu, tissue())
    )
    assert float(torch.corrcoef(torch.stack([grain, true_grain]))[0, 1]) > 0.8


def test_without_weights_it_still_gains() -> None:
    result = correct_without_weights(moved(), KNOWN_START, generator())
    still = float((tissue() + lesion()).max())
    assert float(result.corrected_hu.max()) > float(moved().max()) + 0.3 * (
        still - float(moved().max())
    )


def test_tissue_without_calcium_is_left_alone() -> None:
    for result in (
        correct_without_weights(tissue(), KNOWN_START, generator()),
        correct_by_phase(tissue(), tissue(), KNOWN_START, generator()),
    ):
        assert torch.equal(result.corrected_hu, tissue())
        assert result.motion is None
        assert result.explained == 1.0


def test_without_weights_bone_at_the_border_is_left_alone() -> None:
    bone = tissue()
    bone[:, 20:31, :9] += 900
    result = correct_without_weights(bone, KNOWN_START, generator())
    assert torch.equal(result.corrected_hu, bone)


def test_without_weights_what_is_too_large_for_calcium_is_left_alone() -> None:
    bone = tissue()
    bone[:, 8:56, 20:29] += 900  # narrow enough to stand out from its surroundings
    result = correct_without_weights(bone, KNOWN_START, generator())
    assert torch.equal(result.corrected_hu, bone)
    bone[:, 24:56] = tissue()[:, 24:56]
    assert correct_without_weights(bone, KNOWN_START, generator()).motion is not None


def test_a_lesion_at_rest_stays() -> None:
    still = tissue() + lesion()
    result = correct_by_phase(still, tissue(), KNOWN_START, generator())
    assert volume_above_130(result.corrected_hu) == pytest.approx(volume_above_130(still), rel=0.1)


def test_a_wrong_motion_explains_less() -> None:
    right = Phased(moved(), moved() - tissue(), drift())
    rest = Phased(moved(), moved() - tissue(), FoundMotion(torch.zeros(NUM_VIEWS), 0.0))
    assert right.explained > rest.explained


def sees(calcium: Tensor) -> Separator:
    """A separator that sees nothing move, with a focuser whose answer is given."""

    def nothing(y: Tensor, generator: torch.Generator, num_jumps: int | None = None) -> Tensor:
        return torch.cat([y, torch.zeros_like(y)], dim=1)

    def focuser(y: Tensor, generator: torch.Generator, num_jumps: int | None = None) -> Tensor:
        return calcium[:, None]

    return Separator(nothing, 3, focuser=(focuser, 3))


def small() -> Tensor:
    """A few bright pixels, as grain has them."""
    spot = torch.zeros_like(lesion())
    spot[2, 31, 31:35] = 400.0
    return spot


def elsewhere() -> Tensor:
    """A lesion where there is none."""
    return lesion().roll(14, dims=-2)


def test_a_lesion_without_which_the_image_is_no_smoother_is_not_put_back() -> None:
    odds = 0 * lesion()
    seen = drift().apply(lesion())
    there = put_in_focus(moved(), seen, odds, drift(), sees(lesion()))
    assert there.motion is not None
    assert float((there.corrected_hu - moved()).abs().max()) > 100
    elsewhere_seen = put_in_focus(moved(), seen, odds, drift(), sees(elsewhere()))
    assert elsewhere_seen.motion is None
    assert torch.equal(elsewhere_seen.corrected_hu, moved())
    grain_seen = put_in_focus(moved(), seen, odds, drift(), sees(small()))
    assert torch.equal(grain_seen.corrected_hu, moved())


@pytest.mark.parametrize(("peak_hu", "moves"), [(250.0, True), (230.0, False)])
def test_what_moves_and_is_faint_may_be_tissue(peak_hu: float, moves: bool) -> None:
    """It is large, and the image is smoother without it, but it hardly counts."""
    faint = lesion() * (peak_hu / float(lesion().max()))
    seen = drift().apply(faint)
    assert moves_here(tissue() + seen, faint, seen) is moves


@pytest.mark.parametrize(
    ("gained_hu", "share", "moves"),
    [(710.0, 0.11, True), (710.0, 0.09, False), (9000.0, 0.05, True), (9000.0, 0.005, False)],
)
def test_long_streaks_may_be_a_small_share_of_a_rough_image(
    gained_hu: float, share: float, moves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a large motion spreads over lung and bone makes little of their roughness go away."""
    monkeypatch.setattr(phasing, "smoother", lambda *_: (gained_hu, share))
    assert moves_here(tissue(), lesion(), drift().apply(lesion())) is moves


def test_a_separator_that_sees_the_truth_gives_the_background() -> None:
    def knows_all(y: Tensor, generator: torch.Generator, num_jumps: int | None = None) -> Tensor:
        behind = (torch.full_like(y, 40.0) + 200) / 1000
        return torch.cat([behind, torch.full_like(y, 0.3)], dim=1)

    blocks = torch.full((1, 4, 16, 16), 40.0)
    blocks[0, 1, 4:8, 4:8] = 1500  # beyond what networks see
    blocks[0, 2, 0, 0] = -900
    blocks[0, 2, 4:8, 4:8] = 100
    seen = separate_by_network(blocks, Separator(knows_all, 3))
    assert float(seen.background_hu[0, 1, 5, 5]) == pytest.approx(40, abs=0.1)
    assert float(seen.background_hu[0, 2, 0, 0]) == pytest.approx(40 - 700, abs=0.1)
    assert seen.still_hu.shape == blocks.shape
    assert float(seen.still_hu[0, 2, 3, 3]) == pytest.approx(0.3 * STILL_HU, abs=0.1)
    assert torch.equal(seen.background_hu[0, 3], blocks[0, 3])  # nothing stands out on it
    assert not seen.still_hu[0, 3].any()


def test_images_are_seen_both_ways() -> None:
    """By hand: what is kept of one corner is kept of the other, by half."""

    def upper_left(y: Tensor, generator: torch.Generator, num_jumps: int | None = None) -> Tensor:
        return y * torch.tensor([[1.0, 0.0], [0.0, 0.0]])

    image = torch.tensor([[[[8.0, 6.0], [4.0, 2.0]]]])
    seen = both_ways(upper_left)(image, torch.Generator())
    assert seen.tolist() == [[[[4.0, 0.0], [0.0, 1.0]]]]

"""Correcting by phase must put calcium back in focus, nearly keep its sum, and invent none."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from prodm.model import phasing
from prodm.model.classical import correct_without_weights
from prodm.model.clearing import smoother
from prodm.model.motions import FoundMotion
from prodm.model.phasing import (
    STILL_HU,
    Phased,
    Separation,
    Separator,
    belief,
    correct_by_phase,
    correct_scan,
    look_again_at,
    moves_here,
    put_in_focus,
    separate_by_network,
    settle_again,
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


def traces() -> Tensor:
    """What a separator sees of a lesion that falls apart: too little to tell its motion."""
    return 0.2 * drift().apply(lesion())


@pytest.mark.parametrize("moving_hu", [traces(), 0 * lesion()], ids=["traces", "nothing"])
def test_calcium_that_was_not_seen_to_move_is_put_back_where_its_scan_moves(
    moving_hu: Tensor,
) -> None:
    nothing = torch.zeros_like(lesion())
    result = look_again_at(moved(), moving_hu, nothing, drift(), sees(lesion()), goes_along=False)
    away = result.corrected_hu - tissue()
    assert float((away - lesion()).norm()) < 0.1 * float(lesion().norm())
    assert result.motion is not None
    assert result.explained > 0.99


def small() -> Tensor:
    """A few bright pixels, as grain has them."""
    spot = torch.zeros_like(lesion())
    spot[2, 31, 31:35] = 400.0
    return spot


def elsewhere() -> Tensor:
    """A lesion where there is none."""
    return lesion().roll(14, dims=-2)


@pytest.mark.parametrize(
    ("moving_hu", "seen_hu"),
    [
        (traces(), 0 * lesion()),
        (traces(), torch.full_like(lesion(), 30.0)),
        (traces(), small()),
        (traces() + elsewhere(), elsewhere()),
        (lesion(), lesion()),
    ],
    ids=["nothing in focus", "faint", "small", "no smoother without it", "rests"],
)
def test_where_nothing_is_hidden_a_block_stays_as_it_is(moving_hu: Tensor, seen_hu: Tensor) -> None:
    result = look_again_at(
        moved(), moving_hu, 0 * lesion(), drift(), sees(seen_hu), goes_along=False
    )
    assert torch.equal(result.corrected_hu, moved())
    assert result.motion is None


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


def test_blocks_that_were_seen_in_focus_settle_once_more_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each block's own evidence is beside the place; that of both together is not."""
    shared = drift()
    blocks = [
        Phased(tissue() + lesion(), lesion(), shared, None, lesion()),
        Phased(moved(), lesion(), None),  # nothing was put back
        Phased(tissue() + 2 * lesion(), lesion(), shared, None, 2 * lesion()),
    ]
    maps = {}
    for brightest, offsets in ((700, ((3, 4), (1, 2))), (1400, ((-5, 0), (1, 2)))):
        maps[brightest] = torch.zeros(33, 33)
        for (down, right), hu in zip(offsets, (60.0, 50.0), strict=True):
            maps[brightest][16 + down, 16 + right] = hu

    def evidence(clean_hu: Tensor, lesion_hu: Tensor, _: object) -> Tensor:
        torch.testing.assert_close(clean_hu, tissue(), atol=1e-3, rtol=0)
        return maps[round(float(lesion_hu.max()))]

    monkeypatch.setattr(phasing, "evidence_of_all", evidence)
    images = torch.stack([moved(), moved(), moved() + drift().apply(lesion())])
    first, none, third = settle_again(images, blocks, (sees(lesion()).predict, 3))
    assert none is None
    assert first is third
    assert first is not None
    rests = first.undo(drift().apply(lesion()))
    wanted = lesion().roll((1, 2), (-2, -1))
    assert float((rests - wanted).norm()) < 0.2 * float(wanted.norm())


def test_a_lesion_is_believed_by_what_the_image_gains_and_by_its_gap() -> None:
    """A lesion in two slices, log-odds -2 and 4 there, -9 elsewhere; the better slice tells."""
    spots = torch.zeros_like(lesion())
    spots[1, 20:22, 30:34] = spots[2, 40:42, 10:14] = 200.0
    log_odds = torch.full_like(lesion(), -9.0)
    log_odds[1, 18:24, 28:36], log_odds[2, 38:44, 8:16] = -2.0, 4.0

    def gaps(clean_hu: Tensor) -> Tensor:
        torch.testing.assert_close(clean_hu[0], tissue(), atol=1e-3, rtol=0)
        return log_odds[None]

    phased = Phased(tissue() + spots, spots, drift(), None, spots)
    seen = drift().apply(spots)
    gained_hu, _ = smoother(tissue() + seen, seen)
    assert gained_hu > 100
    believed = belief(phased, seen, tissue() + seen, gaps)
    assert believed == pytest.approx(math.log(gained_hu) + 4, abs=1e-4)
    rough = belief(phased, seen, tissue(), gaps)  # no smoother without it
    assert rough == pytest.approx(4, abs=1e-4)
    nothing = Phased(tissue(), spots, drift(), None, 0 * spots)
    assert belief(nothing, seen, tissue(), gaps) == -math.inf


def test_a_scan_is_corrected_at_the_place_that_it_settles_on_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """First where it is, then two columns farther; a block that rests has no part in it."""
    behind = Separation(
        torch.stack([moved() - drift().apply(lesion()), tissue()]),
        torch.zeros(2, *lesion().shape),
    )
    monkeypatch.setattr(phasing, "separate_by_network", lambda *_: behind)
    monkeypatch.setattr(phasing, "find_motions", lambda *_, **__: [drift(), None])
    monkeypatch.setattr(phasing, "as_drawn", lambda motion, _: motion)
    settled: list[list[FoundMotion | None]] = []

    def settle(motions: list[FoundMotion | None], *_: object) -> list[FoundMotion | None]:
        off_px = 2.0 * len(settled)
        settled.append([None if one is None else one.translated(off_px, 0.0) for one in motions])
        return settled[-1]

    def placer(y: Tensor, generator: torch.Generator, num_jumps: int | None = None) -> Tensor:
        return torch.zeros(1, 33, 33)

    monkeypatch.setattr(phasing, "settle_motions", settle)
    separator = replace(sees(lesion()), placer=(placer, 3))
    blocks = torch.stack([moved(), tissue()])
    first, second = correct_scan(blocks, separator, KNOWN_START, generator())
    assert len(settled) == 2
    assert first.motion is settled[1][0]
    assert settled[1][1] is None
    assert torch.equal(second.corrected_hu, tissue())


@pytest.mark.parametrize(("tissue_rests", "start_rad"), [(True, 0.0), (False, None)])
def test_only_scans_whose_tissue_rests_are_known_to_start_at_angle_0_and_to_move_alike(
    monkeypatch: pytest.MonkeyPatch, tissue_rests: bool, start_rad: float | None
) -> None:
    asked: list[tuple[float | None, bool]] = []

    def remembered(*arguments: object, alike: bool) -> list[None]:
        asked.extend((one.start_rad, alike) for one in arguments if isinstance(one, SearchSettings))
        return [None]

    monkeypatch.setattr(phasing, "find_motions", remembered)
    behind = Separation(tissue()[None], torch.zeros(1, *lesion().shape))
    monkeypatch.setattr(phasing, "separate_by_network", lambda *_: behind)
    separator = replace(sees(lesion()), tissue_rests=tissue_rests)
    correct_scan(moved()[None], separator, SearchSettings(), generator())
    assert asked == [(start_rad, tissue_rests)]


@pytest.mark.parametrize(("log_odds", "is_put_back"), [(0.0, True), (-30.0, False)])
def test_a_lesion_is_put_back_where_something_is_missing(
    monkeypatch: pytest.MonkeyPatch, log_odds: float, is_put_back: bool
) -> None:
    behind = Separation((moved() - drift().apply(lesion()))[None], torch.zeros(1, *lesion().shape))
    monkeypatch.setattr(phasing, "separate_by_network", lambda *_: behind)
    monkeypatch.setattr(phasing, "find_motions", lambda *_, **__: [drift()])
    monkeypatch.setattr(phasing, "as_drawn", lambda motion, _: motion)
    monkeypatch.setattr(phasing, "settle_motions", lambda motions, *_: motions)

    def placer(y: Tensor, generator: torch.Generator, num_jumps: int | None = None) -> Tensor:
        return torch.zeros(1, 33, 33)

    separator = replace(
        sees(lesion()), placer=(placer, 3), gaps=lambda blocks: 0 * blocks + log_odds
    )
    (one,) = correct_scan(moved()[None], separator, KNOWN_START, generator())
    assert (one.lesion_hu is not None) == is_put_back
    assert torch.equal(one.corrected_hu, moved()) != is_put_back


@pytest.mark.parametrize("tissue_rests", [True, False])
def test_hidden_calcium_is_looked_for_in_scans_whose_tissue_rests(
    monkeypatch: pytest.MonkeyPatch, tissue_rests: bool
) -> None:
    """The second block seems to rest, and the first one tells its motion."""
    behind = Separation(torch.stack([moved() - traces()] * 2), torch.zeros(2, *lesion().shape))
    monkeypatch.setattr(phasing, "separate_by_network", lambda *_: behind)
    monkeypatch.setattr(phasing, "find_motions", lambda *_, **__: [drift(), None])
    monkeypatch.setattr(phasing, "as_drawn", lambda motion, _: motion)
    monkeypatch.setattr(phasing, "settle_motions", lambda motions, *_: motions)
    separator = replace(sees(lesion()), tissue_rests=tissue_rests)
    blocks = torch.stack([moved(), moved()])
    _, second = correct_scan(blocks, separator, KNOWN_START, generator())
    assert torch.equal(second.corrected_hu, moved()) != tissue_rests


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

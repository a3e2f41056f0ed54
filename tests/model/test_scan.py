"""The blocks of a scan must tell each other their motion, their place and what to believe."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from prodm.model import scan
from prodm.model.clearing import smoother
from prodm.model.motions import FoundMotion
from prodm.model.phasing import Phased, Separation, Separator
from prodm.model.reading import angles_rad, without_translation
from prodm.model.scan import (
    SeenLesion,
    believed,
    correct_scan,
    is_believed,
    look_again_at,
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

    monkeypatch.setattr(scan, "evidence_of_all", evidence)
    images = torch.stack([moved(), moved(), moved() + drift().apply(lesion())])
    first, none, third = settle_again(images, blocks, (sees(lesion()).predict, 3))
    assert none is None
    assert first is third
    assert first is not None
    rests = first.undo(drift().apply(lesion()))
    wanted = lesion().roll((1, 2), (-2, -1))
    assert float((rests - wanted).norm()) < 0.2 * float(wanted.norm())


def test_the_motion_is_fitted_again_to_what_was_seen_in_focus(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is off by a slow wave, which is fitted, and by a fast one, which nothing moves like."""

    def off_px(motion: FoundMotion) -> float:
        away = motion.shift_at(angles_rad()) - drift().shift_at(angles_rad())
        return float(without_translation(away).square().mean().sqrt())

    theta = torch.from_numpy(phase.view_angles_rad(NUM_VIEWS)).float()
    waves = 0.4 * torch.sin(3 * theta) + 0.2 * torch.sin(20 * theta)
    wrong = replace(drift(), shift_px=drift().shift_px + 2**0.5 * waves)
    lesions = [lesion(), lesion().roll((6, -9), (-2, -1))]
    images = torch.stack([tissue() + drift().apply(one) for one in lesions])
    phased = [Phased(tissue() + one, one, wrong, None, one) for one in lesions]
    monkeypatch.setattr(scan, "evidence_of_all", lambda *_: torch.zeros(33, 33))
    first, second = settle_again(images, phased, (sees(lesion()).predict, 3))
    assert first is second
    assert first is not None
    assert off_px(wrong) > 0.3
    assert off_px(first) < 0.1


def test_each_lesion_is_judged_by_what_was_seen_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two lesions, one of them in two slices, where the better one tells."""
    spots = torch.zeros_like(lesion())
    spots[1, 20:22, 30:34] = spots[2, 20:22, 30:34] = 200.0
    other = torch.zeros_like(lesion())
    other[2, 40:42, 10:14] = 250.0
    beside = torch.zeros_like(lesion())
    beside[2, 22, 30:34] = 40.0  # fainter than a lesion, and part of the first one
    log_odds = torch.full_like(lesion(), -9.0)
    log_odds[1, 18:25, 28:36], log_odds[2, 18:25, 28:36], log_odds[2, 38:44, 8:16] = -7.0, 4.0, -7.0
    image = tissue() + drift().apply(spots + beside + other)
    asked: list[tuple[SeenLesion, int]] = []

    def gaps(clean_hu: Tensor) -> Tensor:
        torch.testing.assert_close(clean_hu[0], tissue(), atol=1e-3, rtol=0)
        return log_odds[None]

    def judged(seen: SeenLesion, num_alike: int) -> bool:
        asked.append((seen, num_alike))
        return seen.peak_hu < 225

    monkeypatch.setattr(scan, "is_believed", judged)
    kept = believed(image, spots + beside + other, drift(), gaps, 3)
    assert torch.equal(kept, spots + beside)
    assert [(seen.peak_hu, seen.num_voxels, num) for seen, num in asked] == [
        (200.0, 16, 3),
        (250.0, 8, 3),
    ]
    for (seen, _), gap, true in zip(asked, (4.0, -7.0), (spots + beside, other), strict=True):
        gained_hu, _ = smoother(tissue() + drift().apply(true), drift().apply(true))
        assert seen.gap == pytest.approx(gap)
        assert seen.gained_hu == pytest.approx(gained_hu, rel=1e-3)


def test_a_lesion_is_believed_by_hand() -> None:
    """1.63 ln 1000 - 0.89 * 2 + 0.84 ln 3 + 1.73 ln 300 - 1.88 ln 20 - 13.17 = 1.47."""
    seen = SeenLesion(gained_hu=1000.0, gap=-2.0, peak_hu=300.0, num_voxels=20)
    odds = 1.63 * math.log(1000) - 1.78 + 0.84 * math.log(3)
    odds += 1.73 * math.log(300) - 1.88 * math.log(20) - 13.17
    assert odds == pytest.approx(1.47, abs=0.02)
    assert is_believed(seen, 3)
    for factor, is_one in ((0.02, True), (-0.02, False)):  # what would bring the odds to -0.6
        less = replace(seen, gap=-2.0 - (odds + 0.6) / 0.89 + factor)
        gain_and_gap = math.log(1000) + less.gap
        assert is_believed(less, 3) == (is_one and gain_and_gap >= 4.5)


@pytest.mark.parametrize(
    ("change", "num_alike", "is_one"),
    [
        ({}, 1, True),
        ({"gained_hu": 50.0}, 1, False),
        ({"gap": -4.0}, 1, False),
        ({"peak_hu": 90.0}, 1, False),
        ({"num_voxels": 80}, 1, False),
        ({"num_voxels": 80}, 9, True),
    ],
)
def test_each_part_of_what_was_seen_can_decide(
    change: dict[str, float], num_alike: int, is_one: bool
) -> None:
    seen = replace(SeenLesion(1000.0, -1.9, 300.0, 16), **change)  # type: ignore[arg-type]
    assert is_believed(seen, num_alike) == is_one


def test_no_gain_makes_up_for_calcium_that_is_not_missing() -> None:
    """The odds of a lesion so small and dense are good, but gain and gap come to 4.4."""
    seen = SeenLesion(gained_hu=3000.0, gap=-3.6, peak_hu=500.0, num_voxels=10)
    assert not is_believed(seen, 9)
    assert is_believed(replace(seen, gap=-3.4), 9)


@pytest.mark.parametrize(("num_alike", "is_one"), [(1, False), (2, False), (3, True)])
def test_what_is_large_and_faint_is_none_where_few_blocks_move_alike(
    num_alike: int, is_one: bool
) -> None:
    seen = SeenLesion(gained_hu=20_000.0, gap=1.0, peak_hu=300.0, num_voxels=240)
    assert is_believed(seen, num_alike) == is_one
    assert is_believed(replace(seen, peak_hu=311.0), num_alike)  # 270 + 240 / 6 = 310


def test_a_dense_lesion_does_not_vouch_for_what_the_image_is_no_smoother_without() -> None:
    both = lesion() + elsewhere()
    kept = believed(moved(), both, drift(), lambda blocks: 0 * blocks, 3)
    assert float(kept[:, 20:40].max()) == pytest.approx(float(lesion().max()))
    assert not kept[:, 45:].any()
    nothing = 0 * lesion()
    assert not believed(moved(), nothing, drift(), lambda blocks: 0 * blocks, 3).any()


def test_a_lesion_stays_whole_beside_one_that_is_not_believed() -> None:
    """They lie two pixels apart, and something is missing only where the first one rests."""
    true, none = torch.zeros_like(lesion()), torch.zeros_like(lesion())
    true[2, 20:24, 30:34], none[2, 25:29, 30:34] = 300.0, 300.0
    log_odds = torch.full_like(lesion(), -30.0)
    log_odds[2, 18:26, 28:36] = 10.0
    image = tissue() + drift().apply(true + none)
    kept = believed(image, true + none, drift(), lambda _: log_odds[None], 3)
    assert torch.equal(kept, true)


def test_what_a_polisher_says_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A focuser sees too much, and a polisher takes it away; only where tissue rests."""
    polished: list[Tensor] = []

    def polish(*arguments: Tensor) -> Tensor:
        polished.append(arguments[3])
        return lesion()

    monkeypatch.setattr(scan, "polish", polish)
    separator = replace(sees(1.5 * lesion()), polisher=(sees(lesion()).predict, 3))
    nothing = 0 * lesion()
    result = look_again_at(moved(), traces(), nothing, drift(), separator, goes_along=False)
    assert float(polished[0].max()) == pytest.approx(1.5 * float(lesion().max()))
    assert float((result.corrected_hu - tissue() - lesion()).norm()) < 0.1 * float(lesion().norm())


def test_a_scan_is_corrected_at_the_place_that_it_settles_on_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """First where it is, then two columns farther; a block that rests has no part in it."""
    behind = Separation(
        torch.stack([moved() - drift().apply(lesion()), tissue()]),
        torch.zeros(2, *lesion().shape),
    )
    monkeypatch.setattr(scan, "separate_by_network", lambda *_: behind)
    monkeypatch.setattr(scan, "find_motions", lambda *_, **__: [drift(), None])
    monkeypatch.setattr(scan, "as_drawn", lambda motion, _: motion)
    settled: list[list[FoundMotion | None]] = []

    def settle(motions: list[FoundMotion | None], *_: object) -> list[FoundMotion | None]:
        off_px = 2.0 * len(settled)
        settled.append([None if one is None else one.translated(off_px, 0.0) for one in motions])
        return settled[-1]

    def placer(y: Tensor, generator: torch.Generator, num_jumps: int | None = None) -> Tensor:
        return torch.zeros(1, 33, 33)

    monkeypatch.setattr(scan, "settle_motions", settle)
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

    monkeypatch.setattr(scan, "find_motions", remembered)
    behind = Separation(tissue()[None], torch.zeros(1, *lesion().shape))
    monkeypatch.setattr(scan, "separate_by_network", lambda *_: behind)
    separator = replace(sees(lesion()), tissue_rests=tissue_rests)
    correct_scan(moved()[None], separator, SearchSettings(), generator())
    assert asked == [(start_rad, tissue_rests)]


@pytest.mark.parametrize(("log_odds", "is_put_back"), [(0.0, True), (-30.0, False)])
def test_a_lesion_is_put_back_where_something_is_missing(
    monkeypatch: pytest.MonkeyPatch, log_odds: float, is_put_back: bool
) -> None:
    behind = Separation((moved() - drift().apply(lesion()))[None], torch.zeros(1, *lesion().shape))
    monkeypatch.setattr(scan, "separate_by_network", lambda *_: behind)
    monkeypatch.setattr(scan, "find_motions", lambda *_, **__: [drift()])
    monkeypatch.setattr(scan, "as_drawn", lambda motion, _: motion)
    monkeypatch.setattr(scan, "settle_motions", lambda motions, *_: motions)

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
    monkeypatch.setattr(scan, "separate_by_network", lambda *_: behind)
    monkeypatch.setattr(scan, "find_motions", lambda *_, **__: [drift(), None])
    monkeypatch.setattr(scan, "as_drawn", lambda motion, _: motion)
    monkeypatch.setattr(scan, "settle_motions", lambda motions, *_: motions)
    separator = replace(sees(lesion()), tissue_rests=tissue_rests)
    blocks = torch.stack([moved(), moved()])
    _, second = correct_scan(blocks, separator, KNOWN_START, generator())
    assert torch.equal(second.corrected_hu, moved()) != tissue_rests

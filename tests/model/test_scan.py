"""The blocks of a scan must tell each other their motion, their place and what to believe."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from prodm.model import scan
from prodm.model.motions import FoundMotion, without_grain
from prodm.model.phasing import Phased, Separation, Separator
from prodm.model.placing import place_of
from prodm.model.reading import angles_rad, without_translation
from prodm.model.scan import (
    MOST_SETTLINGS,
    correct_scan,
    look_again_at,
    settle_again,
    settle_for_good,
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


def anywhere(y: Tensor, generator: torch.Generator, num_jumps: int | None = None) -> Tensor:
    """A placer that knows of no place."""
    return torch.zeros(1, 33, 33)


@pytest.fixture
def one_block_drifts(monkeypatch: pytest.MonkeyPatch) -> None:
    """What moves in a block is known, and so are its motion and its place."""
    behind = Separation((moved() - drift().apply(lesion()))[None], torch.zeros(1, *lesion().shape))
    monkeypatch.setattr(scan, "separate_by_network", lambda *_: behind)
    monkeypatch.setattr(scan, "find_motions", lambda *_, **__: [drift()])
    monkeypatch.setattr(scan, "as_drawn", lambda motion, _: motion)
    monkeypatch.setattr(scan, "settle_motions", lambda motions, *_: motions)


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
    """Each time a column farther, until it stays; a block that rests has no part in it."""
    behind = Separation(
        torch.stack([moved() - drift().apply(lesion()), tissue()]),
        torch.zeros(2, *lesion().shape),
    )
    monkeypatch.setattr(scan, "separate_by_network", lambda *_: behind)
    monkeypatch.setattr(scan, "find_motions", lambda *_, **__: [drift(), None])
    monkeypatch.setattr(scan, "as_drawn", lambda motion, _: motion)
    monkeypatch.setattr(scan, "refit", lambda motion, _: motion)
    settled: list[list[FoundMotion | None]] = []

    def settle(motions: list[FoundMotion | None], *_: object) -> list[FoundMotion | None]:
        off_px = float(len(settled) in (1, 2))
        settled.append([None if one is None else one.translated(off_px, 0.0) for one in motions])
        return settled[-1]

    monkeypatch.setattr(scan, "settle_motions", settle)
    separator = replace(sees(lesion()), placer=(anywhere, 3))
    blocks = torch.stack([moved(), tissue()])
    first, second = correct_scan(blocks, separator, KNOWN_START, generator())
    assert len(settled) == 4
    assert first.motion is settled[-1][0]
    assert settled[1][1] is None
    assert torch.equal(second.corrected_hu, tissue())


@pytest.mark.parametrize(
    ("seen_off_px", "last_px", "num_looks"),
    [
        ((2.0, 0.1, 5.0), 2.1, 2),  # it hardly changes, and is taken to stay
        ((2.0, 2.0, 2.0, 2.0, 2.0), 2.0 * MOST_SETTLINGS, MOST_SETTLINGS),
        ((2.0, None, 5.0), 2.0, 2),  # nothing is seen any more
        ((None, 5.0), 0.0, 1),
    ],
)
def test_blocks_settle_until_their_motion_stays(
    monkeypatch: pytest.MonkeyPatch,
    seen_off_px: tuple[float | None, ...],
    last_px: float,
    num_looks: int,
) -> None:
    looks: list[FoundMotion] = []
    steps = iter(seen_off_px)

    def look(motion: FoundMotion) -> list[Phased]:
        looks.append(motion)
        return []

    def settle(*_: object) -> list[FoundMotion | None]:
        step = next(steps)
        return [None if step is None else looks[-1].translated(step, 0.0)]

    monkeypatch.setattr(scan, "settle_again", settle)
    last = settle_for_good(drift(), moved()[None], look, (anywhere, 3))
    torch.testing.assert_close(
        place_of(last) - place_of(drift()), torch.tensor([last_px, 0.0]), atol=1e-3, rtol=0
    )
    assert len(looks) == num_looks


@pytest.mark.usefixtures("one_block_drifts")
def test_where_nothing_is_seen_in_between_a_scan_keeps_the_place_that_it_had() -> None:
    """A focuser sees the lesion when it looks first and last, and nothing in between."""
    answers = iter([lesion(), 0 * lesion(), lesion()])

    def focuser(y: Tensor, generator: torch.Generator, num_jumps: int | None = None) -> Tensor:
        return next(answers)[:, None]

    separator = replace(sees(lesion()), placer=(anywhere, 3), focuser=(focuser, 3))
    (one,) = correct_scan(moved()[None], separator, KNOWN_START, generator())
    assert float((one.corrected_hu - tissue() - lesion()).norm()) < 0.1 * float(lesion().norm())


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


@pytest.mark.usefixtures("one_block_drifts")
@pytest.mark.parametrize(("log_odds", "is_put_back"), [(0.0, True), (-30.0, False)])
def test_a_lesion_is_put_back_where_something_is_missing(
    log_odds: float, is_put_back: bool
) -> None:
    separator = replace(
        sees(lesion()), placer=(anywhere, 3), gaps=lambda blocks: 0 * blocks + log_odds
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


def test_blocks_are_worked_on_a_few_at_a_time_with_the_same_result() -> None:
    made = [Phased(n * lesion(), lesion(), None) for n in range(5)]
    before = torch.get_num_threads()
    used: set[int] = set()

    def make(n: int) -> Phased:
        used.add(torch.get_num_threads())
        return made[n]

    try:
        for threads, inner in ((1, 1), (3, 1)):
            torch.set_num_threads(threads)
            used.clear()
            assert scan.of_each_block(make, 5) == made
            assert used == {inner}
            assert torch.get_num_threads() == threads

        def fails(n: int) -> Phased:
            raise ValueError(n)

        with pytest.raises(ValueError, match="0"):
            scan.of_each_block(fails, 2)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_a_margin_tells_neither_the_motion_nor_the_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is looked at all the same: what moves in from there is put in focus."""
    inner = (slice(1, 4), slice(8, 56), slice(8, 56))
    told: list[tuple[int, ...]] = []
    shown: list[Tensor] = []

    def find(
        moving: list[Tensor], paths: object, *others: object, alike: bool
    ) -> list[FoundMotion]:
        images = others[-1]
        assert isinstance(images, list)
        told.extend(tuple(one.shape) for one in (*moving, *images))
        return [drift()]

    def first_evidence(block_hu: Tensor, *_: object) -> Tensor:
        told.append(tuple(block_hu.shape))
        return torch.zeros(33, 33)

    def evidence(clean_hu: Tensor, lesion_hu: Tensor, _: object) -> Tensor:
        shown.append(lesion_hu)
        return torch.zeros(33, 33)

    def settle(
        motions: list[FoundMotion], asked: Callable[[int, FoundMotion], Tensor], *_: object
    ) -> list[FoundMotion]:
        asked(0, motions[0])
        return motions

    at_border = lesion().roll(-24, dims=-2)  # its middle lies in the margin, at row 7
    seen = tissue() + drift().apply(at_border)
    behind = Separation(tissue()[None], torch.zeros(1, *lesion().shape))
    monkeypatch.setattr(scan, "separate_by_network", lambda *_: behind)
    monkeypatch.setattr(scan, "find_motions", find)
    monkeypatch.setattr(scan, "as_drawn", lambda motion, _: motion)
    monkeypatch.setattr(scan, "place_evidence", first_evidence)
    monkeypatch.setattr(scan, "evidence_of_all", evidence)
    monkeypatch.setattr(scan, "settle_motions", settle)
    monkeypatch.setattr(scan, "refit", lambda motion, _: motion)

    separator = replace(sees(at_border), placer=(anywhere, 3))
    (one,) = correct_scan(seen[None], separator, KNOWN_START, generator(), margin=(1, 8, 8))
    assert told == [(3, 48, 48)] * 3
    assert len(shown) == 2
    lesion_seen = without_grain(at_border)
    for one_shown in shown:
        assert torch.equal(one_shown[inner], lesion_seen[inner])
        assert float(one_shown.sum()) == pytest.approx(float(lesion_seen[inner].sum()))
    away = one.corrected_hu[:, :12] - tissue()[:, :12]
    assert float((away - at_border[:, :12]).norm()) < 0.2 * float(at_border.norm())

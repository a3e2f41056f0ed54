"""A lesion must be believed by what was seen of it, and by nothing that was seen of others."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from prodm.model import believing
from prodm.model.believing import SeenLesion, believed, is_believed
from prodm.model.clearing import smoother
from prodm.model.motions import FoundMotion
from prodm.physics import phase
from prodm.physics.fitting import NUM_VIEWS


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


def elsewhere() -> Tensor:
    """A lesion where there is none."""
    return lesion().roll(14, dims=-2)


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

    monkeypatch.setattr(believing, "is_believed", judged)
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

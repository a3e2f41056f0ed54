"""A lesion must be believed by what was seen of it, and by nothing that was seen of others."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from prodm.model import believing
from prodm.model.believing import SeenLesion, believed, is_believed
from prodm.model.clearing import smoother, smoother_for_its_tissue
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


@pytest.mark.parametrize("most_slices", [0.0, 1.4])
def test_each_lesion_is_judged_by_what_was_seen_of_it(
    monkeypatch: pytest.MonkeyPatch, most_slices: float
) -> None:
    """Two lesions, one of them in two slices, where the better one tells."""
    along_z = torch.linspace(-most_slices, most_slices, NUM_VIEWS)
    motion = replace(drift(), slice_shift=along_z)
    spots = torch.zeros_like(lesion())
    spots[1, 20:22, 30:34] = spots[2, 20:22, 30:34] = 200.0
    other = torch.zeros_like(lesion())
    other[2, 40:42, 10:14] = 250.0
    beside = torch.zeros_like(lesion())
    beside[2, 22, 30:34] = 40.0  # fainter than a lesion, and part of the first one
    log_odds = torch.full_like(lesion(), -9.0)
    log_odds[1, 18:25, 28:36], log_odds[2, 18:25, 28:36], log_odds[2, 38:44, 8:16] = -7.0, 4.0, -7.0
    image = tissue() + motion.apply(spots + beside + other)
    asked: list[tuple[SeenLesion, int]] = []

    def gaps(clean_hu: Tensor) -> Tensor:
        torch.testing.assert_close(clean_hu[0], tissue(), atol=1e-3, rtol=0)
        return log_odds[None]

    def judged(seen: SeenLesion, num_alike: int) -> bool:
        asked.append((seen, num_alike))
        return seen.peak_hu < 225

    monkeypatch.setattr(believing, "is_believed", judged)
    kept = believed(image, spots + beside + other, motion, gaps, 3)
    assert torch.equal(kept, spots + beside)
    assert [(seen.peak_hu, seen.num_voxels, num) for seen, num in asked] == [
        (200.0, 16, 3),
        (250.0, 8, 3),
    ]
    for (seen, _), gap, true in zip(asked, (4.0, -7.0), (spots + beside, other), strict=True):
        moves = motion.apply(true)
        gain = smoother_for_its_tissue(tissue() + moves, tissue())
        assert seen.gap == pytest.approx(gap)
        assert seen.gain == pytest.approx(gain, rel=1e-3)
        assert seen.share == pytest.approx(smoother(tissue() + moves, moves)[1], rel=1e-3)
        assert seen.air == 0
        assert seen.tissue_hu == pytest.approx(float(tissue()[true > 60].mean()), abs=0.1)


def test_a_lesion_is_believed_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """2 ln 100 + 3 ln 4 + 5 * -2 + 7 ln 300 - 11 ln 20 + 13 ln 200 - 17 * 0.1 + 19 * 0.4 - 40."""
    weights: dict[str, float] = {"gain": 2, "alike": 3, "gap": 5, "peak": 7, "voxels": -11}
    weights |= {"share": 13, "air": -17, "tissue": 19}
    log_odds = 9.2103 + 4.1589 - 10 + 39.9265 - 32.9531 + 68.8781 - 1.7 + 7.6 - 40
    seen = SeenLesion(100.0, 0.2, -2.0, 300.0, 20, 0.1, 40.0)
    for beyond, is_one in ((1e-3, False), (-1e-3, True)):
        monkeypatch.setattr(believing, "WEIGHTS", {"none": -40.0, **weights})
        monkeypatch.setattr(believing, "LEAST_LOG_ODDS", log_odds + beyond)
        assert is_believed(seen, 4) is is_one


@pytest.mark.parametrize(
    ("change", "num_alike", "is_one"),
    [
        ({}, 1, True),
        ({"gain": 50.0}, 1, False),
        ({"gap": -4.0}, 1, False),
        ({"peak_hu": 90.0}, 1, False),
        ({"num_voxels": 80}, 1, False),
        ({"num_voxels": 80}, 9, True),
        ({"air": 0.8}, 1, False),
        ({"share": 0.9, "tissue_hu": -100.0}, 1, False),
    ],
)
def test_each_part_of_what_was_seen_can_decide(
    change: dict[str, float], num_alike: int, is_one: bool
) -> None:
    seen = replace(SeenLesion(200.0, 0.2, -1.9, 300.0, 30, 0.0, 20.0), **change)  # type: ignore[arg-type]
    assert is_believed(seen, num_alike) == is_one


def test_what_passes_through_air_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of a lesion's streaks lie over lung, in pixels, not in HU."""
    asked: list[SeenLesion] = []

    def judged(seen: SeenLesion, num_alike: int) -> bool:
        asked.append(seen)
        return True

    monkeypatch.setattr(believing, "is_believed", judged)
    image = tissue() + drift().apply(lesion())
    image[..., 33:] -= 850
    believed(image, lesion(), drift(), lambda blocks: 0 * blocks, 1)
    passes = drift().apply(lesion()).clamp(min=0)
    assert asked[0].air == pytest.approx(float(passes[..., 33:].sum() / passes.sum()), abs=0.02)
    assert 0.3 < asked[0].air < 0.7


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

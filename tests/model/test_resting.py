"""A placer must weigh every place alike, be shown the lesion where it is, and learn its offset."""

import dataclasses

import pytest
import torch
from torch import Tensor

from prodm.errors import ProdmError
from prodm.model.losses import Batch
from prodm.model.motions import FoundMotion
from prodm.model.network import NetworkSettings
from prodm.model.phasing import STILL_HU, Separator, settle_block
from prodm.model.placing import FARTHEST_PX, agreement, log_density, place_of, settle
from prodm.model.resting import (
    NUM_MAPS,
    NUM_PLACED,
    VIEWS,
    Placer,
    clean,
    evidence_of_all,
    look_around,
    placer_evidence,
    placing_loss,
)
from prodm.physics import phase
from prodm.physics.fitting import NUM_VIEWS

NETWORK = NetworkSettings(
    num_slices=3, channels=(8, 16), attention=(False, False), num_res_blocks=1,
    num_head_channels=8, norm_groups=8, fold=2,
)  # fmt: skip
TIME = torch.arange(NUM_VIEWS) / NUM_VIEWS
THETA = torch.from_numpy(phase.view_angles_rad(NUM_VIEWS)).float()
WIDTH = 2 * FARTHEST_PX + 1


def spot(row: float = 32.0, column: float = 32.0) -> Tensor:
    y, x = torch.meshgrid(torch.arange(64.0), torch.arange(64.0), indexing="ij")
    one = 600 * torch.exp(-((x - column) ** 2 + (y - row) ** 2) / 8)
    return torch.stack([one / 3, one, one / 4, 0 * one])


def drift() -> FoundMotion:
    return FoundMotion(TIME * (9 * THETA.cos() + 4 * THETA.sin()), 0.0)


def best(evidence: Tensor) -> tuple[int, int]:
    row, column = divmod(int(evidence.argmax()), WIDTH)
    return row - FARTHEST_PX, column - FARTHEST_PX


def test_agreement_is_the_sum_of_products_at_every_offset() -> None:
    """Against the obvious loop, borders included: what leaves the image counts nothing."""
    generator = torch.Generator().manual_seed(0)
    lesion, around = (torch.rand(20, 24, generator=generator) for _ in range(2))
    found = agreement(lesion, around)
    for down, right in ((0, 0), (3, -5), (-16, 16), (16, 1)):
        total = 0.0
        for y in range(20):
            for x in range(24):
                if 0 <= y + down < 20 and 0 <= x + right < 24:
                    total += float(lesion[y, x] * around[y + down, x + right])
        at = found[down + FARTHEST_PX, right + FARTHEST_PX]
        assert float(at) == pytest.approx(total, abs=1e-3)


def test_an_untrained_placer_says_nothing_of_the_place() -> None:
    network = Placer(NETWORK).eval()
    views = look_around(torch.zeros(4, 64, 64), spot(), 3)
    evidence = network(views[None], views[None], torch.zeros(1)).detach()
    assert evidence.shape == (1, WIDTH, WIDTH)
    torch.testing.assert_close(
        evidence, torch.full_like(evidence, float(evidence[0, 0, 0])), atol=1e-3, rtol=0
    )


def test_a_lesion_does_not_want_to_leave_the_image() -> None:
    """Beyond it nothing is known, which must not be better than what is unlikely."""
    network = Placer(NETWORK).eval()
    views = look_around(torch.zeros(4, 64, 64), spot(4, 32), 3)
    evidence = network(views[None], views[None], torch.zeros(1))[0].detach()
    assert float(evidence[0, FARTHEST_PX]) < float(evidence[FARTHEST_PX, FARTHEST_PX]) - 1


def test_the_evidence_is_largest_where_the_maps_fit_the_lesion() -> None:
    """With log-odds that are high at one spot, the lesion wants to be there."""
    network = Placer(NETWORK).eval()

    def body(folded: Tensor, t: Tensor) -> Tensor:
        maps = torch.zeros(len(folded), NUM_MAPS, 64, 64)
        maps[:, 0] = spot(29, 37)[1] / 600
        return torch.nn.functional.pixel_unshuffle(maps, 2)

    network.body.forward = body
    views = look_around(torch.zeros(4, 64, 64), spot(), 3)
    assert best(network(views[None], views[None], torch.zeros(1))[0].detach()) == (-3, 5)


def test_the_strongest_slices_are_looked_at_with_their_neighbours() -> None:
    clean_hu = torch.arange(4.0)[:, None, None].expand(4, 64, 64)
    views = look_around(clean_hu, spot(), 3)
    seen = views.reshape(NUM_PLACED, len(VIEWS), 3, 64, 64)
    assert seen[0, 0, :, 0, 0].tolist() == [0, 1, 2]  # slice 1 has most of the lesion
    assert seen[1, 0, :, 0, 0].tolist() == [0, 0, 1]  # then slice 0, whose edge is repeated
    torch.testing.assert_close(seen[0, 1], spot()[:3])
    few = look_around(clean_hu[:2], spot()[:2], 3)
    assert few.shape == views.shape
    assert not few.reshape(NUM_PLACED, -1)[2].any()


def test_all_slices_of_a_lesion_are_looked_at_once_each_and_along_the_diagonal() -> None:
    """Evidence that only tells which slice is looked at, and at which row and column of it."""
    shown: list[float] = []

    def predict(y: Tensor, generator: torch.Generator, num_jumps: int | None = None) -> Tensor:
        views = y.reshape(NUM_PLACED, len(VIEWS), 3, 64, 64)
        shown.extend(float(one.max()) for one in views[:, 1, 1])
        evidence = torch.zeros(1, WIDTH, WIDTH)
        row, column = divmod(int(views[0, 1, 1].argmax()), 64)
        evidence[0, row - 20, column - 20] = 1.0
        return evidence

    one = spot(30, 40)[1] / 600
    bright = (100.0, 700.0, 300.0, 500.0, 200.0, 50.0, 40.0, 30.0)
    lesion = torch.stack([hu * one for hu in bright])
    total = evidence_of_all(torch.zeros(8, 64, 64), lesion, (predict, 3))
    expected = torch.zeros(WIDTH, WIDTH)
    expected[10, 20] = 2.0  # two looks, each once as it is and once along the diagonal
    torch.testing.assert_close(total, expected)
    seen = [round(hu) for hu in shown]
    assert seen == [700, 500, 300, 700, 500, 300, 200, 100, 50, 200, 100, 50]  # the rest is grain


def test_a_clean_block_has_no_lesion() -> None:
    motion, tissue = drift(), torch.full((4, 64, 64), 40.0)
    moving = motion.apply(spot())
    left = clean(tissue + moving, motion.refocus(moving), motion) - tissue
    assert float(left.square().sum()) < 0.02 * float(moving.square().sum())


@pytest.mark.parametrize(("down", "right"), [(0, 0), (-3, 4), (6, 2)])
def test_settling_moves_the_lesion_by_the_offset_that_is_evident(down: int, right: int) -> None:
    """Rows and columns, and their signs: the lesion of the settled motion lies there."""
    evidence = torch.zeros(WIDTH, WIDTH)
    evidence[FARTHEST_PX + down, FARTHEST_PX + right] = 100.0
    moving = drift().apply(spot())
    lesion = settle(drift(), evidence).undo(moving)
    peak = divmod(int(lesion[1].argmax()), 64)
    assert peak == (32 + down, 32 + right)


def test_the_density_is_largest_where_a_drift_began() -> None:
    """A motion that is found 3 rows and -2 columns off: the lesion rests as far the other way."""
    off = drift().translated(-2.0, 3.0)
    down, right = best(log_density(off))
    assert abs(down - 3) <= 1
    assert abs(right + 2) <= 1
    torch.testing.assert_close(
        place_of(off) - place_of(drift()), torch.tensor([-2.0, 3.0]), atol=1e-3, rtol=0
    )


def test_a_placer_has_its_word_where_there_is_one() -> None:
    """Where it is sure, its evidence weighs more than the separator's odds."""
    shown: list[Tensor] = []

    def predict(y: Tensor, generator: torch.Generator, num_jumps: int | None = None) -> Tensor:
        shown.append(y)
        evidence = torch.zeros(1, WIDTH, WIDTH)
        evidence[0, FARTHEST_PX + 4, FARTHEST_PX] = 100.0
        return evidence

    moving = drift().apply(spot())
    block, odds = 40.0 + moving, spot(32, 40) / STILL_HU / 3
    separator = Separator(lambda *_: torch.zeros(0), 3, placer=(predict, 3))
    settled = settle_block(block, moving, odds, drift(), separator)
    assert divmod(int(settled.undo(moving)[1].argmax()), 64) == (36, 32)
    assert shown[0].shape == (1, NUM_PLACED * len(VIEWS) * 3, 64, 64)
    refocused = drift().refocus(moving)
    again = placer_evidence(clean(block, refocused, drift()), refocused, (predict, 3))
    assert best(again) == (4, 0)
    torch.testing.assert_close(shown[0], shown[1])


def batch(place: tuple[int, int]) -> Batch:
    calcium = torch.zeros(1, NUM_PLACED, 64, 64, dtype=torch.bool)
    still = torch.zeros(1, NUM_PLACED, 64, 64)
    return Batch(
        still=still, moving=still, calcium=calcium, lesions=calcium.int(),
        spacing_mm=torch.ones(1, 3), place=torch.tensor([place]),
    )  # fmt: skip


def test_the_loss_is_least_at_the_true_place() -> None:
    certain = torch.zeros(1, WIDTH, WIDTH)
    certain[0, FARTHEST_PX + 2, FARTHEST_PX - 5] = 8.0
    nothing = torch.full((1, NUM_PLACED, 64, 64), -9.0)
    right, parts = placing_loss(certain, nothing, batch((2, -5)))
    assert float(parts["off_px"]) == 0
    for wrong in ((-5, 2), (-2, 5), (2, 5)):
        loss, parts = placing_loss(certain, nothing, batch(wrong))
        assert float(loss) > float(right) + 1
        assert float(parts["off_px"]) > 0


def test_calcium_at_rest_that_is_missed_costs() -> None:
    silent = torch.zeros(1, WIDTH, WIDTH)
    there = batch((0, 0))
    there.calcium[0, 0, 30:34, 30:34] = True
    rests = torch.where(there.calcium, 9.0, -9.0)
    right, _ = placing_loss(silent, rests, there)
    missed, _ = placing_loss(silent, torch.full_like(rests, -9.0), there)
    assert float(missed) > float(right)


def test_what_does_not_fit_is_refused() -> None:
    network = Placer(NETWORK)
    with pytest.raises(ProdmError, match="takes 2 views of 3 x 3 slices"):
        network(torch.zeros(1), torch.zeros(1, 5, 64, 64), torch.zeros(1))
    without = dataclasses.replace(batch((0, 0)), place=None)
    with pytest.raises(ProdmError, match="learns from motions that were found"):
        placing_loss(torch.zeros(1, WIDTH, WIDTH), torch.zeros(1, 3, 64, 64), without)

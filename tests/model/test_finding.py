"""Blocks of a scan that move alike must find their motion together, and others theirs alone."""

import pytest
import torch
from torch import Tensor

from prodm.model import finding
from prodm.model.finding import find_motions, is_calcium, settle_motions
from prodm.model.motions import FoundMotion
from prodm.model.placing import FARTHEST_PX, place_of
from prodm.model.reading import angles_rad, without_translation
from prodm.model.search import SearchSettings, search, search_together
from prodm.model.sharpness import sharpness_cost
from prodm.physics import phase
from prodm.physics.fitting import NUM_VIEWS

SEARCH = SearchSettings(start_rad=0.0, num_draws=100)


def lesion(y_px: float, x_px: float, width_px: float = 2.0) -> Tensor:
    y, x = torch.meshgrid(torch.arange(64) - y_px, torch.arange(64) - x_px, indexing="ij")
    one = 600 * torch.exp(-(x**2 + (y / 1.5) ** 2) / (2 * width_px**2))
    return torch.stack([0 * one, one / 2, one, one / 3, 0 * one])


def drift(x_px: float, y_px: float) -> FoundMotion:
    time = torch.arange(NUM_VIEWS) / NUM_VIEWS
    theta = torch.from_numpy(phase.view_angles_rad(NUM_VIEWS)).float()
    return FoundMotion(time * (x_px * theta.cos() + y_px * theta.sin()), 0.0)


def grain(seed: int, size_hu: float) -> Tensor:
    drawn = torch.randn(5, 64, 64, generator=torch.Generator().manual_seed(seed))
    return size_hu * torch.nn.functional.avg_pool2d(3 * drawn, 3, stride=1, padding=1)


def path_of(motion: FoundMotion) -> Tensor:
    shift = motion.shift_at(angles_rad())
    return torch.stack([shift, torch.zeros_like(shift)])


def error_px(found: FoundMotion | None, true: FoundMotion) -> float:
    assert found is not None
    away = found.shift_at(angles_rad()) - true.shift_at(angles_rad())
    return float(without_translation(away).square().mean().sqrt())


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_blocks_that_move_alike_find_their_motion_better_together() -> None:
    """In each, something that rests was taken to move; the true motion makes the rest sharp."""
    true = drift(9.0, -6.0)
    read = [path_of(drift(*wrong)) for wrong in ((13.0, -6.0), (9.0, -1.0), (6.0, -9.0))]
    places = (((30, 30), (34, 40)), ((40, 25), (30, 34)), ((25, 36), (36, 26)))
    moving = [true.apply(lesion(*moves)) + 0.6 * lesion(*rests) for moves, rests in places]
    alone = [
        error_px(search(block, SEARCH, generator(), path)[0], true)
        for block, path in zip(moving, read, strict=True)
    ]
    together = find_motions(moving, read, SEARCH, generator())
    assert together[0] is together[1] is together[2]
    assert error_px(together[0], true) < 0.7 * sum(alone) / 3


def test_a_block_with_another_motion_goes_its_own_way() -> None:
    along, away = drift(9.0, -6.0), drift(-3.0, 12.0)
    motions = [along, along, away]
    moving = [motion.apply(lesion(32, 32)) for motion in motions]
    found = find_motions(moving, [path_of(motion) for motion in motions], SEARCH, generator())
    assert found[0] is found[1]
    assert found[2] is not found[0]
    for one, true in zip(found, motions, strict=True):
        assert error_px(one, true) < 0.5


def test_no_block_goes_its_own_way_where_all_calcium_moves_alike() -> None:
    motions = [drift(9.0, -6.0), drift(9.0, -6.0), drift(-3.0, 12.0)]
    moving = [motion.apply(lesion(32, 32)) for motion in motions]
    paths = [path_of(motion) for motion in motions]
    found = find_motions(moving, paths, SEARCH, generator(), alike=True)
    assert found[0] is found[1]
    assert found[2] is found[0] or (found[2] is not None and found[2].is_rest)


def test_what_rests_among_what_moves_rests() -> None:
    """A bright vertebra must neither follow the calcium nor keep it from moving."""
    true = drift(9.0, -6.0)
    bone = 3 * lesion(20, 40, 6.0)
    bone[:, 45:50, 10:20] = -90.0  # dips, as what moves has them
    moving = [bone, true.apply(lesion(30, 30)), true.apply(lesion(36, 28))]
    rest = path_of(drift(0.0, 0.0))
    found = find_motions(moving, [rest, path_of(true), path_of(true)], SEARCH, generator())
    assert found[0] is not None
    assert found[0].is_rest
    assert found[1] is found[2]
    assert error_px(found[1], true) < 0.5


def test_nothing_is_found_where_nothing_moves() -> None:
    true = drift(9.0, -6.0)
    found = find_motions(
        [None, true.apply(lesion(30, 30)), None], [None, path_of(true), None], SEARCH, generator()
    )
    assert found[0] is None
    assert found[2] is None
    assert error_px(found[1], true) < 0.5
    assert find_motions([None], [None], SEARCH, generator()) == [None]
    assert find_motions([], [], SEARCH, generator()) == []


def test_one_block_is_searched_as_it_is_alone() -> None:
    true = drift(9.0, -6.0)
    moving = true.apply(lesion(30, 30)) + grain(1, 20.0)
    (found,) = find_motions([moving], [path_of(true)], SEARCH, generator())
    seed = int(torch.randint(2**31, (1,), generator=generator()))
    alone = search(moving, SEARCH, torch.Generator().manual_seed(seed), path_of(true))[0]
    assert found is not None
    assert torch.equal(found.shift_px, alone.shift_px)


def test_a_motion_costs_what_it_sharpens() -> None:
    true = drift(9.0, -6.0)
    moving = true.apply(lesion(30, 30))
    rest = FoundMotion(torch.zeros(NUM_VIEWS), 0.0)
    assert sharpness_cost(moving, rest) == pytest.approx(-1.0, abs=1e-3)
    assert sharpness_cost(moving, true) < -1.2
    assert sharpness_cost(moving, drift(-9.0, 6.0)) > -1.0


def test_what_falls_apart_is_no_calcium() -> None:
    """The more there is in focus, the less it must sharpen."""
    true = drift(9.0, -6.0)
    moving = true.apply(lesion(30, 30))
    beside = moving + 0.8 * lesion(40, 40, 4.0)  # and something large that rests
    assert sharpness_cost(beside, true) > -1.0
    assert is_calcium(moving, true)
    assert is_calcium(beside, true)
    assert not is_calcium(0.2 * lesion(30, 30), true)
    assert not is_calcium(moving, FoundMotion(torch.zeros(NUM_VIEWS), 0.0))


def test_evidence_of_blocks_that_move_together_adds_up() -> None:
    """Each block leaves two places open, and only one of them is open in both."""
    true = drift(9.0, -6.0)
    open_places = {0: ((3, 0), (-4, 2)), 1: ((3, 0), (1, -5))}

    def evidence(n: int, motion: FoundMotion) -> Tensor:
        assert motion is true
        around = torch.zeros(2 * FARTHEST_PX + 1, 2 * FARTHEST_PX + 1)
        for y_px, x_px in open_places[n]:
            around[FARTHEST_PX + y_px, FARTHEST_PX + x_px] = 30.0
        return around

    rest = FoundMotion(torch.zeros(NUM_VIEWS), 0.0)
    settled = settle_motions([true, None, true, rest], lambda n, m: evidence(n // 2, m))
    assert settled[0] is settled[2]
    assert settled[1] is None
    assert settled[3] is rest
    assert settled[0] is not None
    moved = place_of(true) - place_of(settled[0])
    assert moved.tolist() == pytest.approx([0.0, 3.0], abs=0.6)


def test_what_was_read_of_all_blocks_is_averaged_and_counts_by_its_dark_streaks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A block without dark streaks, or one that was read to rest, says little of the motion."""
    read: list[Tensor] = []
    own: list[list[Tensor]] = []

    def remembered(
        blocks: object,
        settings: object,
        draws: object,
        path: Tensor,
        images: object,
        own_paths: list[Tensor],
    ) -> object:
        read.append(path)
        own.append(own_paths)
        return [true]

    monkeypatch.setattr(finding, "search_together", remembered)
    true = drift(9.0, -6.0)
    bright = lesion(30, 30)  # no dark streak at all
    moving = [true.apply(lesion(30, 30)), true.apply(lesion(36, 28)), bright]
    paths = [path_of(true), path_of(true), path_of(drift(-9.0, 6.0))]
    find_motions(moving, paths, SEARCH, generator())
    torch.testing.assert_close(read[0], path_of(true))
    find_motions(moving[:2], [path_of(true), path_of(drift(0.0, 0.0))], SEARCH, generator())
    torch.testing.assert_close(read[1], path_of(true))
    find_motions(moving[:1], [path_of(true)], SEARCH, generator())
    assert [len(paths) for paths in own] == [2, 2, 0]  # those with dark streaks; of one, the mean
    assert torch.equal(sum(own[1][1:], own[1][0]), path_of(true) + path_of(drift(0.0, 0.0)))


def test_dense_calcium_without_dark_streaks_is_not_asked_for_the_motion(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[list[Tensor]] = []

    def remembered(blocks: list[Tensor], *rest: object) -> list[FoundMotion]:
        asked.append(blocks)
        return [true]

    monkeypatch.setattr(finding, "search_together", remembered)
    monkeypatch.setattr(finding, "MOST_TOGETHER", 1)
    true = drift(9.0, -6.0)
    dense = 5 * lesion(30, 30, 8.0) - 20  # all of its dark part together is more
    moving = [dense, true.apply(lesion(30, 30))]
    assert float(dense.clamp(max=0).norm()) > float(moving[1].clamp(max=0).norm())
    find_motions(moving, [path_of(true)] * 2, SEARCH, generator())
    assert asked[0][0] is moving[1]


def test_only_some_blocks_are_searched_together(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def remembered(blocks: list[Tensor], *rest: object) -> list[FoundMotion]:
        seen.append(len(blocks))
        return search_together(blocks, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(finding, "search_together", remembered)
    monkeypatch.setattr(finding, "MOST_TOGETHER", 2)
    true = drift(9.0, -6.0)
    moving = [share * true.apply(lesion(30, 30)) for share in (0.4, 1.0, 0.7)]
    found = find_motions(moving, [path_of(true)] * 3, SEARCH, generator())
    assert seen == [2]
    assert found[0] is found[1] is found[2]

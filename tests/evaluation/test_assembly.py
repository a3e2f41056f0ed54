"""Blocks put together count every voxel once, and copies of the edge not at all."""

import numpy as np
import pytest

from prodm.errors import ProdmError
from prodm.evaluation.assembly import Layout, lay_out
from prodm.evaluation.metrics import measure
from prodm.pairs.blocks import BLOCK_SHAPE, cut
from prodm.volume import Index

SPACING_MM = (3.0, 1.0, 1.0)


def blocks_of(scan: np.ndarray, corners: list[Index]) -> np.ndarray:
    return np.stack(
        [
            cut(scan, tuple(slice(c, c + n) for c, n in zip(corner, BLOCK_SHAPE, strict=True)))  # type: ignore[arg-type]
            for corner in corners
        ]
    )


def noise(shape: Index) -> np.ndarray:
    return np.random.default_rng(0).integers(-100, 100, shape).astype(np.int16)


def covered_by(layout: Layout) -> np.ndarray:
    ones = np.ones((len(layout.windows), *BLOCK_SHAPE), dtype=np.int16)
    covered: np.ndarray = layout.assemble(ones, empty=0) == 1
    return covered


def test_overlapping_blocks_give_back_the_scan() -> None:
    scan = noise((24, 100, 110))
    corners = [(0, 0, 0), (5, 30, 40), (8, 36, 46)]
    layout = lay_out(corners, blocks_of(scan, corners))
    whole = layout.assemble(blocks_of(scan, corners))
    counted = covered_by(layout)
    np.testing.assert_array_equal(whole[counted], scan[counted])
    covered = np.zeros(scan.shape, dtype=bool)
    for z, y, x in corners:
        covered[z : z + 16, y : y + 64, x : x + 64] = True
    np.testing.assert_array_equal(counted, covered)
    assert sum(int(own.sum()) for own in layout.own) == covered.sum()


def test_a_lesion_in_two_blocks_counts_once() -> None:
    background = noise((24, 100, 110))
    scan = background.copy()
    scan[10, 50:53, 60:63] = 450  # 9 mm2 at weight 4: 36
    corners = [(0, 0, 10), (5, 30, 40)]
    parts = blocks_of(scan, corners), blocks_of(background, corners)
    scores = [measure(s, b, SPACING_MM).agatston for s, b in zip(*parts, strict=True)]
    assert scores == [36, 36]
    layout = lay_out(corners, parts[0])
    still, empty = (layout.assemble(part) for part in parts)
    assert measure(still, empty, SPACING_MM).agatston == 36


def test_a_lesion_across_a_seam_stays_one_lesion() -> None:
    background = noise((16, 64, 128))
    scan = background.copy()
    scan[8, 30, 40:100] = 150
    scan[8, 30, 99] = 450  # the peak weighs the whole lesion: 60 mm2 x 4
    corners = [(0, 0, 0), (0, 0, 64)]
    parts = blocks_of(scan, corners), blocks_of(background, corners)
    layout = lay_out(corners, parts[0])
    still, empty = (layout.assemble(part) for part in parts)
    assert measure(still, empty, SPACING_MM).agatston == 240


def test_copies_of_the_edge_count_for_nothing() -> None:
    background = noise((12, 70, 70))
    scan = background.copy()
    scan[[0, 11], 30:33, 30:33] = 450  # in the first and the last slice
    corners = [(-2, 0, 0)]  # two copies before the scan, two behind it
    parts = blocks_of(scan, corners), blocks_of(background, corners)
    assert measure(parts[0][0], parts[1][0], SPACING_MM).agatston == 6 * 36
    layout = lay_out(corners, parts[0])
    assert covered_by(layout).sum() == 12 * 64 * 64
    still, empty = (layout.assemble(part) for part in parts)
    assert measure(still, empty, SPACING_MM).agatston == 2 * 36


def test_a_voxel_belongs_to_the_block_in_which_it_lies_deepest() -> None:
    corners = [(0, 0, 0), (0, 0, 32)]
    blocks = blocks_of(noise((16, 64, 96)), corners)
    numbers = np.stack([np.full(BLOCK_SHAPE, n, dtype=np.int16) for n in (1, 2)])
    for order in ([0, 1], [1, 0]):
        layout = lay_out([corners[n] for n in order], blocks[order])
        middle = layout.assemble(numbers[order])[8, 32]
        assert middle[:46].tolist() == [1] * 46  # the seam is at 48, give or take the depth in z
        assert middle[50:].tolist() == [2] * 46


def test_every_block_is_asked_for() -> None:
    blocks = blocks_of(noise((16, 64, 64)), [(0, 0, 0)])
    with pytest.raises(ProdmError, match="1 blocks, got 2"):
        lay_out([(0, 0, 0)], blocks).assemble(np.concatenate([blocks, blocks]))

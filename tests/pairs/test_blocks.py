"""Blocks must cover all calcium, well inside, with few windows."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from prodm.pairs.blocks import (
    BLOCK_SHAPE,
    BORDER,
    MARGIN,
    STORED_SHAPE,
    cover,
    cut,
    draw_calcium_free,
    grow,
    inside,
    without_margin,
)
from prodm.volume import Index, Window


def calcium_at(*places: Window) -> NDArray[np.bool_]:
    calcium = np.zeros((40, 300, 300), dtype=bool)
    for place in places:
        calcium[place] = True
    return calcium


def covered(calcium: NDArray[np.bool_], border: Index) -> NDArray[np.bool_]:
    """Voxels that lie in some window, at least ``border`` from its faces."""
    left = calcium.copy()
    for window in cover(calcium):
        shrunk = grow(window, (-border[0], -border[1], -border[2]))
        left[inside(shrunk, (30, 200, 220))[1]] = False
    found: NDArray[np.bool_] = calcium & ~left
    return found


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 12))
def test_all_calcium_lies_well_inside_some_block(seed: int, num_lesions: int) -> None:
    rng = np.random.default_rng(seed)
    calcium = np.zeros((30, 200, 220), dtype=bool)
    for _ in range(num_lesions):
        z, y, x = (int(rng.integers(0, n)) for n in calcium.shape)
        calcium[z : z + 4, y : y + int(rng.integers(1, 90)), x : x + int(rng.integers(1, 90))] = 1
    assert np.array_equal(covered(calcium, BORDER), calcium)


def test_one_lesion_lies_in_the_middle_of_one_block() -> None:
    calcium = calcium_at((slice(10, 14), slice(100, 110), slice(50, 54)))
    (window,) = cover(calcium)
    assert window == (slice(4, 20), slice(73, 137), slice(20, 84))


def test_neighbours_share_a_block_and_strangers_do_not() -> None:
    near = calcium_at(
        (slice(10, 12), slice(100, 104), slice(50, 54)),
        (slice(14, 16), slice(120, 124), slice(70, 74)),
    )
    far = calcium_at(
        (slice(10, 12), slice(100, 104), slice(50, 54)),
        (slice(10, 12), slice(200, 204), slice(50, 54)),
    )
    assert [len(cover(near)), len(cover(far))] == [1, 2]


def test_no_calcium_needs_no_block() -> None:
    assert cover(calcium_at()) == []


def test_calcium_free_blocks_hold_none_and_lie_in_the_region() -> None:
    calcium = calcium_at((slice(10, 30), slice(100, 160), slice(100, 160)))
    region = calcium_at((slice(0, 40), slice(60, 240), slice(60, 240)))
    windows = draw_calcium_free(calcium, region, 5, np.random.default_rng(0))
    assert len(windows) == 5
    for window in windows:
        assert not cut(calcium, window).any()
        z, y, x = ((s.start + s.stop) // 2 for s in window)
        assert region[z, y, x]


def test_a_window_beyond_the_edge_repeats_the_edge() -> None:
    array = np.arange(24).reshape(2, 3, 4)
    window = (slice(-1, 2), slice(1, 4), slice(3, 6))
    block = cut(array, window)
    assert block.shape == (3, 3, 3)
    assert np.array_equal(block[0], block[1])
    assert np.array_equal(block[1], np.repeat([[7], [11], [11]], 3, axis=1))
    own, outer = inside(window, (2, 3, 4))
    assert np.array_equal(block[own], array[outer])


def test_a_grown_window_without_its_margin_is_the_window() -> None:
    array = np.random.default_rng(0).random((30, 100, 100))
    window = (slice(-3, 13), slice(20, 84), slice(50, 114))
    block = without_margin(cut(array, grow(window, MARGIN)), MARGIN)
    assert np.array_equal(block, cut(array, window))


def test_stored_blocks_have_room_for_random_offsets() -> None:
    window = (slice(0, 16), slice(0, 64), slice(0, 64))
    shape = tuple(s.stop - s.start for s in grow(window, MARGIN))
    assert shape == STORED_SHAPE
    assert BLOCK_SHAPE == (16, 64, 64)

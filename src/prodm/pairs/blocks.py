"""Regions of interest: where to cut blocks out of a scan, and how to cut them.

A network sees blocks of 64 × 64 pixels and 16 slices. Calcium should lie well inside its
block, so windows are laid over the calcium with a border to spare, as few of them as a greedy
cover finds. Stored blocks carry a margin besides, from which training crops at random offsets.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from prodm.volume import Index, Window

BLOCK_SHAPE: Index = (16, 64, 64)
BORDER: Index = (2, 8, 8)  # least distance of covered calcium from the faces of its block
MARGIN: Index = (2, 16, 16)  # what a stored block has more, on each side
NO_MARGIN: Index = (0, 0, 0)
STORED_SHAPE: Index = (20, 96, 96)
COARSE = 4  # pixels; the cover is sought on a grid this coarse


def cover(calcium: NDArray[np.bool_], shape: Index = BLOCK_SHAPE) -> list[Window]:
    """Lay few windows of ``shape`` over all of the calcium [Z, Y, X].

    Greedy: the window that takes in most of what is still uncovered comes first, centred on
    what it takes in. Windows may reach beyond the array: ``cut`` replicates the edge there.
    """
    voxels = np.argwhere(calcium)
    inner = np.array([n - 2 * b for n, b in zip(shape, BORDER, strict=True)])
    windows = []
    while len(voxels):
        corner = _fullest_corner(voxels, inner)
        taken = np.all((voxels >= corner) & (voxels < corner + inner), axis=1)
        content = voxels[taken]
        centre = (content.min(axis=0) + content.max(axis=0) + 1) // 2
        windows.append(_window_around(centre, shape))
        voxels = voxels[~taken]
    return windows


def _fullest_corner(voxels: NDArray[np.int64], inner: NDArray[np.int64]) -> NDArray[np.int64]:
    """Corner of the box of size ``inner`` that holds most voxels, on the coarse grid."""
    steps = np.array([1, COARSE, COARSE])
    low = voxels.min(axis=0) // steps
    cells = voxels // steps - low
    counts = np.zeros(cells.max(axis=0) + 1, dtype=np.int64)
    np.add.at(counts, tuple(cells.T), 1)
    for axis, width in enumerate(inner // steps):
        counts = _running_sum(counts, axis, int(width))
    best = np.array(np.unravel_index(int(counts.argmax()), counts.shape))
    corner: NDArray[np.int64] = (best + low) * steps
    return corner


def _running_sum(counts: NDArray[np.int64], axis: int, width: int) -> NDArray[np.int64]:
    """Sum over ``width`` cells that start at each cell."""
    counts = np.moveaxis(counts, axis, 0)
    total = np.concatenate([np.zeros((1, *counts.shape[1:]), np.int64), counts.cumsum(axis=0)])
    ends = np.minimum(np.arange(len(counts)) + width, len(counts))
    return np.moveaxis(total[ends] - total[:-1], 0, axis)


def draw_calcium_free(
    calcium: NDArray[np.bool_],
    region: NDArray[np.bool_],
    count: int,
    rng: np.random.Generator,
    shape: Index = BLOCK_SHAPE,
) -> list[Window]:
    """Draw windows centred inside the region that hold no calcium; fewer where none fits."""
    centres = np.argwhere(region)
    windows: list[Window] = []
    for centre in rng.permutation(centres, axis=0)[: 50 * count]:
        window = _window_around(centre, shape)
        if len(windows) < count and not cut(calcium, window).any():
            windows.append(window)
    return windows


def grow(window: Window, margin: Index = MARGIN) -> Window:
    """Return the window with a margin on each side."""
    z, y, x = (slice(s.start - m, s.stop + m) for s, m in zip(window, margin, strict=True))
    return z, y, x


def without_margin(blocks: NDArray[Any], margin: Index) -> NDArray[Any]:
    """Return blocks [..., Z, Y, X] without so many voxels on each side."""
    z, y, x = (slice(m, n - m) for m, n in zip(margin, blocks.shape[-3:], strict=True))
    return blocks[..., z, y, x]


def margin_of(blocks: NDArray[Any]) -> Index:
    """Return how many voxels blocks [..., Z, Y, X] have more than a block, on each side.

    >>> margin_of(np.zeros(STORED_SHAPE)), margin_of(np.zeros(BLOCK_SHAPE))
    ((2, 16, 16), (0, 0, 0))
    """
    z, y, x = (
        max(0, (n - inner) // 2) for n, inner in zip(blocks.shape[-3:], BLOCK_SHAPE, strict=True)
    )
    return z, y, x


def cut(array: NDArray[Any], window: Window) -> NDArray[Any]:
    """Return a copy of the window; where it reaches beyond the array, the edge is repeated."""
    indices = [
        np.clip(np.arange(axis.start, axis.stop), 0, length - 1)
        for axis, length in zip(window, array.shape, strict=True)
    ]
    return array[np.ix_(*indices)]


def inside(window: Window, shape: Index) -> tuple[Window, Window]:
    """Return the part of the window that lies in an array, in its own and the array's indices."""
    own, outer = [], []
    for axis, length in zip(window, shape, strict=True):
        start, stop = max(axis.start, 0), min(axis.stop, length)
        own.append(slice(start - axis.start, max(stop, start) - axis.start))
        outer.append(slice(start, max(stop, start)))
    return (own[0], own[1], own[2]), (outer[0], outer[1], outer[2])


def _window_around(centre: NDArray[np.int64], shape: Index) -> Window:
    z, y, x = (int(c) - n // 2 for c, n in zip(centre, shape, strict=True))
    return slice(z, z + shape[0]), slice(y, y + shape[1]), slice(x, x + shape[2])

"""A scan put together from its blocks, so that no calcium counts twice.

Blocks of one scan overlap. Each voxel belongs to the block in which it lies deepest, measured
from the block's faces; what the other blocks say of it is left out. Where a block reached
beyond its scan, the scan's edge was repeated, and those copies count for nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prodm.calcium import AIR_HU
from prodm.errors import ProdmError
from prodm.volume import Index, Window

Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Layout:
    """Where the blocks of one scan lie in the box that holds them all."""

    shape: Index
    windows: tuple[Window, ...]  # one per block, in the box
    own: tuple[Mask, ...]  # one per block: the voxels that it decides

    def assemble(self, blocks: NDArray[Any], *, empty: float = AIR_HU) -> NDArray[Any]:
        """Return the box with blocks [N, Z, Y, X] in it; where there is none, air by default."""
        if len(blocks) != len(self.windows):
            raise ProdmError(f"the scan has {len(self.windows)} blocks, got {len(blocks)}")
        box = np.full(self.shape, empty, dtype=blocks.dtype)
        for block, window, own in zip(blocks, self.windows, self.own, strict=True):
            np.copyto(box[window], block, where=own)
        return box


def lay_out(corners: Sequence[Index], still: NDArray[np.int16]) -> Layout:
    """Decide for each voxel of a scan which of its blocks [N, Z, Y, X] it belongs to.

    ``corners`` are the indices in the scan of the first voxel of each block; they are negative
    where a block begins before the scan does.
    """
    block_shape = still.shape[1:]
    low = np.min(corners, axis=0)
    shape = np.max(corners, axis=0) + block_shape - low
    box: Index = (int(shape[0]), int(shape[1]), int(shape[2]))
    windows = [_window(np.subtract(corner, low), block_shape) for corner in corners]
    depth = _depth(block_shape)
    deepest = np.zeros(box, dtype=np.float32)
    owner = np.full(box, -1, dtype=np.int32)
    for n, (corner, window) in enumerate(zip(corners, windows, strict=True)):
        better = (depth > deepest[window]) & _in_scan(corner, still[n])
        deepest[window][better] = depth[better]
        owner[window][better] = n
    own = tuple(owner[window] == n for n, window in enumerate(windows))
    return Layout(box, tuple(windows), own)


def _window(corner: NDArray[Any], shape: Sequence[int]) -> Window:
    z, y, x = (slice(int(c), int(c) + n) for c, n in zip(corner, shape, strict=True))
    return z, y, x


def _depth(shape: Sequence[int]) -> NDArray[np.float32]:
    """Distance of each voxel to the nearest face, as a fraction of the block's length."""
    depths = []
    for axis, length in enumerate(shape):
        steps = np.arange(length)
        to_face = (np.minimum(steps, length - 1 - steps) + 1) / length
        depths.append(to_face.reshape([-1 if n == axis else 1 for n in range(3)]))
    depth: NDArray[np.float32] = np.minimum(np.minimum(depths[0], depths[1]), depths[2])
    return depth.astype(np.float32)


def _in_scan(corner: Index, still: NDArray[np.int16]) -> Mask:
    """Return the voxels that are not copies of the scan's edge.

    Before the scan they are told by the corner, behind it by being equal to the plane before:
    two planes of a real scan are never the same.
    """
    inside = np.ones(still.shape, dtype=bool)
    for axis, start in enumerate(corner):
        planes = np.moveaxis(inside, axis, 0)
        planes[: max(0, -start)] = False
        values = np.moveaxis(still, axis, 0)
        last = len(values) - 1
        while last > 0 and np.array_equal(values[last], values[last - 1]):
            planes[last] = False
            last -= 1
    return inside

"""Blocks of a scan in a network's own spacing, and back, without losing detail.

A network was trained on pixels and slices of certain sizes. A scan within that range is cut as
it is. Outside of it, a whole factor n per axis brings it there:

    too coarse    n - 1 samples are put between neighbours, by cubic splines. The scan's own
                  samples stay among them, and only they are read back.
    too fine      every n-th sample makes a block of its own, n blocks in turn (a comb). All
                  samples are in exactly one of them, and they are put together again.

In both cases the way back is exact: what returns is input + (corrected - cut) at the scan's own
samples, so a corrector that changes nothing changes no bit, and one that knows the truth gives
the truth. A whole factor always suffices, since ranges are at least a factor of two wide.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from prodm.errors import ProdmError
from prodm.pairs.blocks import BLOCK_SHAPE, NO_MARGIN, cut, grow
from prodm.volume import Hounsfield, Index, Vector, Window

Blocks = NDArray[np.float32]
EDGE_SAMPLES = 8  # beyond a block, so that its splines do not feel the border
MOST_FINER = 2  # samples are made from at most this few
MOST_COMBS = 8
TOLERANCE = 1.02  # a spacing this little outside the range is inside it


@dataclass(frozen=True)
class SpacingRange:
    """Spacings, least and most, that a corrector knows from its training."""

    slice_mm: tuple[float, float] = (2.0, 5.0)
    pixel_mm: tuple[float, float] = (0.3, 1.0)

    def __post_init__(self) -> None:
        for name, (low, high) in (("slice_mm", self.slice_mm), ("pixel_mm", self.pixel_mm)):
            if not 0 < 2 * low <= high < math.inf:
                raise ProdmError(
                    f"the range of {name} must be positive and reach from a value to at least "
                    f"its double, got {low:g} to {high:g}"
                )


@dataclass(frozen=True)
class Sampling:
    """How blocks are sampled: samples put in between, or combs, per axis; 1 is as scanned."""

    finer: Index = (1, 1, 1)
    combs: Index = (1, 1, 1)

    @property
    def is_native(self) -> bool:
        """Whether blocks are cut as scanned."""
        return self.finer == self.combs == (1, 1, 1)

    @property
    def window_shape(self) -> Index:
        """Voxels of the scan under one block."""
        z, y, x = (
            length * comb // fine
            for length, comb, fine in zip(BLOCK_SHAPE, self.combs, self.finer, strict=True)
        )
        return z, y, x

    @property
    def blocks_per_window(self) -> int:
        """Number of blocks that one window makes."""
        return math.prod(self.combs)

    def spacing_mm(self, spacing_mm: Vector) -> Vector:
        """Return the spacing that blocks of a scan of ``spacing_mm`` have."""
        z, y, x = (
            s * comb / fine
            for s, comb, fine in zip(spacing_mm, self.combs, self.finer, strict=True)
        )
        return z, y, x

    def take(self, hu: Hounsfield, window: Window, margin: Index = NO_MARGIN) -> Blocks:
        """Return the blocks [N, Z, Y, X] of a window; beyond the scan its edge is repeated.

        ``margin`` is how many samples they have more on each side, even numbers.
        """
        z, y, x = (
            m * comb // fine for m, comb, fine in zip(margin, self.combs, self.finer, strict=True)
        )
        array = _finer(hu, grow(window, (z, y, x)), self.finer)
        return np.stack([array[comb] for comb in self._combs()])

    def put(self, blocks: Blocks) -> Blocks:
        """Return the window [Z, Y, X] that blocks [N, Z, Y, X] make, at the scan's samples."""
        array = np.empty([n * c for n, c in zip(BLOCK_SHAPE, self.combs, strict=True)], np.float32)
        for block, comb in zip(blocks, self._combs(), strict=True):
            array[comb] = block
        z, y, x = (slice(None, None, n) for n in self.finer)
        return array[z, y, x]

    def _combs(self) -> list[Window]:
        starts = product(*(range(n) for n in self.combs))
        return [
            (slice(z, None, self.combs[0]), slice(y, None, self.combs[1]),
             slice(x, None, self.combs[2]))
            for z, y, x in starts
        ]  # fmt: skip


def choose_sampling(spacing_mm: Vector, known: SpacingRange) -> Sampling:
    """Return the sampling that brings a scan into the range that a corrector knows.

    >>> choose_sampling((1.0, 1.4, 1.4), SpacingRange())
    Sampling(finer=(1, 2, 2), combs=(2, 1, 1))
    """
    finer, combs = [], []
    for spacing, (low, high) in zip(
        spacing_mm, (known.slice_mm, known.pixel_mm, known.pixel_mm), strict=True
    ):
        finer.append(2 ** math.ceil(math.log2(max(1.0, spacing / (high * TOLERANCE)))))
        combs.append(math.ceil(low / (spacing * TOLERANCE)))
    if max(finer) > MOST_FINER or max(combs) > MOST_COMBS:
        raise ProdmError(
            f"voxels of {_times(spacing_mm)} mm (z, y, x) cannot be brought to slices of "
            f"{known.slice_mm[0]:g} to {known.slice_mm[1]:g} mm and pixels of "
            f"{known.pixel_mm[0]:g} to {known.pixel_mm[1]:g} mm; resample the scan first"
        )
    return Sampling((finer[0], finer[1], finer[2]), (combs[0], combs[1], combs[2]))


def _finer(hu: Hounsfield, window: Window, factors: Index) -> Blocks:
    """Cut a window, with samples put between neighbours by cubic splines."""
    margins = [EDGE_SAMPLES if n > 1 else 0 for n in factors]
    z, y, x = (slice(s.start - m, s.stop + m) for s, m in zip(window, margins, strict=True))
    array: Blocks = cut(hu, (z, y, x)).astype(np.float32)
    if factors == (1, 1, 1):
        return array
    shape = [(span.stop - span.start) * n for span, n in zip(window, factors, strict=True)]
    finer: Blocks = ndimage.affine_transform(
        array,
        [1 / n for n in factors],
        offset=margins,
        output_shape=tuple(shape),
        order=3,
        mode="mirror",
        output=np.float32,
    )
    return finer


def _times(values: Sequence[float]) -> str:
    return " x ".join(f"{value:.3g}" for value in values)

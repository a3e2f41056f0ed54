"""Masks of calcium or of a region, as vessel labels on a scan's grid."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from prodm.errors import ProdmError
from prodm.volume import Grid


def read_mask(path: Path, scan_grid: Grid) -> NDArray[np.uint8]:
    """Return the labels [Z, Y, X], 0 to 5, of a mask on the scan's grid."""
    raise ProdmError(f"cannot read the mask {path} yet, for a grid {scan_grid.shape}")

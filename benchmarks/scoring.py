"""How long a large scan takes to score, beside one mask for each patch of calcium.

    python benchmarks/scoring.py

The scan has 60 slices of 512 x 512 pixels, 8,000 specks and a bar. The obvious alternative labels
each slice and then looks at the whole slice once for each patch. Both must give the same score.
"""

import math
import time

import numpy as np
from scipy import ndimage

from prodm.agatston import CLINICAL, score
from prodm.calcium import Vessel
from prodm.volume import Grid, Hounsfield, Volume

SPACING_MM = (3.0, 0.5, 0.5)
NUM_RUNS = 3


def large_scan() -> Volume:
    """Return noise with specks of four pixels and a bar through all slices."""
    hu = np.random.default_rng(0).normal(40, 10, (60, 512, 512)).astype(np.int16)
    for row, column in ((0, 0), (0, 1), (1, 0), (1, 1)):
        hu[20:40, 200 + row : 300 : 5, 200 + column : 300 : 5] = 500
    hu[:, 100:400, 350:360] = 300
    return Volume(hu, Grid((60, 512, 512), SPACING_MM))


def by_masks(hu: Hounsfield) -> float:
    """Return the score by one mask for each patch."""
    pixel_mm2 = SPACING_MM[1] * SPACING_MM[2]
    total = 0.0
    for image in hu:
        labels, count = ndimage.label(image >= 130, structure=np.ones((3, 3)))
        for label in range(1, count + 1):
            patch = labels == label
            area_mm2 = float(patch.sum()) * pixel_mm2
            if area_mm2 >= CLINICAL.min_area_mm2:
                total += area_mm2 * min(int(image[patch].max()) // 100, 4)
    return total


def main() -> None:
    """Print processor seconds of both, the best of a few runs, and their ratio."""
    volume = large_scan()
    region = np.full(volume.shape, Vessel.UNSPECIFIED, dtype=np.uint8)
    fast_s, slow_s = math.inf, math.inf
    for _ in range(NUM_RUNS):
        started = time.process_time()
        fast = score(volume, region).agatston
        fast_s = min(fast_s, time.process_time() - started)
    started = time.process_time()
    slow = by_masks(volume.hu)
    slow_s = time.process_time() - started
    if not math.isclose(fast, slow):
        raise SystemExit(f"the scores differ: {fast} and {slow}")
    print(f"score {fast:.0f}: {fast_s:.2f} s, by masks {slow_s:.2f} s, ratio {slow_s / fast_s:.0f}")


if __name__ == "__main__":
    main()

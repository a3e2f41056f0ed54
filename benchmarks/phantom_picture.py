"""Draws docs/phantom.png: axial slices of two phantoms in a soft-tissue window.

The upper row shows one scan around the heart at the levels of its four arteries, with the
labels outlined; the lower row another scan of the whole chest, from the liver up.

    python benchmarks/phantom_picture.py --output docs/phantom.png
"""

import argparse
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from prodm.anatomy.phantom import Phantom, PhantomSettings, make_phantom
from prodm.calcium import Vessel

WINDOW_HU = (-160, 240)  # width 400, level 40
HEART_SEED, CHEST_SEED = 101, 109
CHEST_LEVELS = (0.06, 0.36, 0.62, 0.88)  # of the way from the lowest slice to the highest


def show(axes: Axes, phantom: Phantom, index: int, title: str) -> None:
    """Draw one slice."""
    axes.imshow(phantom.still.hu[index], cmap="gray", vmin=WINDOW_HU[0], vmax=WINDOW_HU[1])
    labels = phantom.calcium[index] > 0
    if labels.any():
        axes.contour(labels, [0.5], colors="tab:orange", linewidths=0.6)
    axes.set_title(title, fontsize=9)
    axes.axis("off")


def main() -> None:
    """Make the two phantoms and write the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("docs/phantom.png"))
    output = parser.parse_args().output
    heart = make_phantom(HEART_SEED, PhantomSettings(gated_fraction=1.0))
    chest = make_phantom(CHEST_SEED, PhantomSettings(gated_fraction=0.0))
    figure, axes = plt.subplots(2, 4, figsize=(14, 7.3))
    for place, vessel in zip(axes[0], (Vessel.LM, Vessel.LAD, Vessel.LCX, Vessel.RCA), strict=True):
        slices = np.flatnonzero((heart.calcium == vessel).any(axis=(1, 2)))
        index = int(slices[len(slices) // 2])
        show(place, heart, index, f"{heart.patient}, slice {index}: {vessel.name}")
    for place, level in zip(axes[1], CHEST_LEVELS, strict=True):
        index = round(level * (chest.still.shape[0] - 1))
        show(place, chest, index, f"{chest.patient}, slice {index}")
    figure.tight_layout()
    figure.savefig(output, dpi=90)


if __name__ == "__main__":
    main()

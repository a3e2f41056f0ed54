"""Set simulated motion artifacts beside those of a real scan, at the same scale and window.

    python benchmarks/artifacts.py -o docs/artifacts.png
    python benchmarks/artifacts.py --real SCAN -o beside.png

The first row is a phantom at rest, the next ones the same lesions along one trajectory of each
family and size. With ``--real`` the brightest places of that scan's heart follow below; such a
picture shows a patient and is not to be committed.
"""

import argparse
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy import ndimage

from prodm.agatston import score
from prodm.anatomy.heart import find_heart
from prodm.anatomy.phantom import make_phantom
from prodm.files.scans import read_scan
from prodm.motion.profiles import draw
from prodm.pairs.simulate import StillScan, move, prepare
from prodm.volume import Hounsfield, Volume

PROFILES = (
    "translation-x-medium",
    "translation-y-large",
    "oscillation-x-small",
    "oscillation-y-large",
    "piecewise-x-medium",
    "piecewise-y-large",
    "jitter-small",
    "jitter-large",
)
NUM_PLACES = 8
SIDE_MM = 50.0
WINDOW_HU = (-140, 460)


def main() -> None:
    """Draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--real", type=Path, help="scan with smeared calcium")
    parser.add_argument("--seed", type=int, default=101)
    arguments = parser.parse_args()
    phantom = make_phantom(arguments.seed)
    still = prepare(phantom.still, phantom.calcium, np.random.default_rng(0))
    places = brightest(phantom.still, phantom.calcium > 0, 2)
    rows = []
    for place in places:
        rows.append([("still", crop(phantom.still.hu, place, phantom.still.spacing_mm[2]))])
        rows[-1] += [(profile, moved_crop(still, profile, place)) for profile in PROFILES[:4]]
        rows.append([(profile, moved_crop(still, profile, place)) for profile in PROFILES[4:]])
    if arguments.real:
        volume = read_scan(arguments.real).volume
        found = brightest(volume, find_heart(volume).mask, NUM_PLACES)
        crops = [
            (f"real, slice {z}", crop(volume.hu, (z, y, x), volume.spacing_mm[2]))
            for z, y, x in found
        ]
        rows += [crops[:5], crops[5:]]
    columns = max(len(row) for row in rows)
    figure = Figure(figsize=(2.4 * columns, 2.6 * len(rows)), layout="constrained")
    axes = figure.subplots(len(rows), columns, squeeze=False)
    for axis in axes.flat:
        axis.axis("off")
    for row, line in zip(rows, axes, strict=True):
        for (title, image), axis in zip(row, line, strict=False):
            axis.imshow(image, cmap="gray", vmin=WINDOW_HU[0], vmax=WINDOW_HU[1])
            axis.set_title(title, fontsize=8)
    figure.savefig(arguments.output, dpi=80)


def moved_crop(still: StillScan, profile: str, place: tuple[int, int, int]) -> NDArray[np.float32]:
    """Return the place as one trajectory of a profile shows it."""
    spacing_mm = still.volume.spacing_mm
    rng = np.random.default_rng(sum(profile.encode()))
    trajectory = draw(profile, rng, pixel_spacing_mm=spacing_mm[2], num_angles=720)
    z = slice(place[0], place[0] + 1)
    moving = move(still, trajectory, window=(z, slice(None), slice(None))).moving
    return crop(moving.hu, (0, *place[1:]), spacing_mm[2])


def brightest(volume: Volume, region: NDArray[np.bool_], count: int) -> list[tuple[int, int, int]]:
    """Return the voxels (z, y, x) of the heaviest lesions, one per slice."""
    places: list[tuple[int, int, int]] = []
    for lesion in sorted(score(volume, region).lesions, key=lambda one: -one.agatston):
        z, y, x = (round(n) for n in volume.grid.index_zyx(lesion.position_xyz_mm))
        if all(abs(z - other[0]) > 0 for other in places) and len(places) < count:
            places.append((z, y, x))
    return places


def crop(hu: Hounsfield, place: tuple[int, int, int], pixel_mm: float) -> NDArray[np.float32]:
    """Return a square of ``SIDE_MM`` around a voxel, on a grid of 160 pixels."""
    z, y, x = place
    steps = (np.arange(160) / 159 - 0.5) * SIDE_MM / pixel_mm
    grid = np.meshgrid(y + steps, x + steps, indexing="ij")
    image: NDArray[np.float32] = ndimage.map_coordinates(
        hu[z].astype(np.float32), grid, order=1, mode="nearest"
    )
    return image


if __name__ == "__main__":
    main()

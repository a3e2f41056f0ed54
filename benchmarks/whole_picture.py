"""Compare the fast simulation with Algorithm 1 over all calcium of the phantom that is raced.

    python benchmarks/whole_picture.py --oversampling 1 --angles 180

The race of ``prodm bench simulate`` compares pictures around one dense lesion only; here every
lesion counts. With ``--oversampling 2`` or 3 the printed algorithm works on fractions of a pixel.
"""

import argparse

import numpy as np
from scipy import ndimage

from prodm.agatston import score
from prodm.benchmarks import simulation
from prodm.benchmarks.literal_algorithm import move_literally
from prodm.calcium import AIR_HU
from prodm.pairs.simulate import displacement_px, move, prepare

HALF_PX = 108


def main() -> None:
    """Print one line per family."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--oversampling", type=int, default=1)
    parser.add_argument("--angles", type=int, default=180)
    arguments = parser.parse_args()
    still = simulation._still_phantom(None)
    _, y, x = ((int(used.min()) + int(used.max())) // 2 for used in np.nonzero(still.calcium > 0))
    around = [slice(middle - HALF_PX, middle + HALF_PX + 1) for middle in (y, x)]
    window = (slice(0, still.volume.shape[0]), around[0], around[1])
    part = prepare(still.volume.crop(window), still.calcium[window], np.random.default_rng(0))
    excess = simulation._whole_excess(part)
    air = np.full(excess.shape, AIR_HU, np.float32)
    near = ndimage.binary_dilation(excess > 0, np.ones((3, 3, 3)), iterations=10)
    print("profile, r of the scan, r of the calcium, Agatston literal, Agatston prodm")
    for profile in simulation.FAMILIES:
        trajectory = simulation._trajectory(profile, still, arguments.angles)
        displacement = displacement_px(trajectory, still.volume.spacing_mm)
        moved = move_literally(
            air, excess, trajectory.angles_rad, displacement, oversampling=arguments.oversampling
        ) - np.float32(AIR_HU)
        literal = (part.background.hu + moved).astype(np.float32)
        fast = move(part, trajectory).moving.hu
        r_scan = np.corrcoef(literal[near], fast[near])[0, 1]
        r_calcium = np.corrcoef(moved[near], (fast - part.background.hu)[near])[0, 1]
        scores = [score(part.volume.with_hu(hu), near).agatston for hu in (literal, fast)]
        print(f"{profile}, {r_scan:.5f}, {r_calcium:.5f}, {scores[0]:.1f}, {scores[1]:.1f}")


if __name__ == "__main__":
    main()

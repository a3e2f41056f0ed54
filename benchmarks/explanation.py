"""How much of a right correction, and of wrong ones, does a motion explain?

    python benchmarks/explanation.py STORE -n 84

Blocks of training patients of a store of pairs are moved by back-projection along all 21 profiles,
from a random start angle. Each is then "corrected" rightly and wrongly, and ``explain`` judges.
The table holds quantiles of the residual and the share above the threshold of the warning.
"""

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from prodm.correction.explanation import UNEXPLAINED, explain
from prodm.motion.profiles import PROFILES, draw
from prodm.pairs.blocks import BLOCK_SHAPE, MARGIN
from prodm.pairs.simulate import displacement_px
from prodm.pairs.store import BlockRow, Pairs
from prodm.physics.projection import filtered_projections
from prodm.physics.reconstruction import back_project, covering_radius_px

Floats = NDArray[np.float32]
INNER = tuple(slice(m, m + n) for m, n in zip(MARGIN, BLOCK_SHAPE, strict=True))
LEAST_VOXELS = 8
LEAST_HU = 80.0
PER_SCAN = 2
GRAIN_HU = 15.0
INVENTED_HU = 400.0
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True, eq=False)
class Case:
    """One block, HU [Z, Y, X]: its tissue, its calcium at rest and as two motions show it."""

    family: str
    pixel_mm: float
    tissue: Floats
    still: Floats
    moving: Floats
    moving_flat: Floats  # the same motion without its part along z


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("store", type=Path)
    parser.add_argument("-n", "--blocks", type=int, default=84)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    cases = list(make_cases(Pairs(options.store), options.blocks, rng))
    found: dict[str, list[tuple[str, float]]] = {}
    num_changed: dict[str, int] = {}
    seconds = 0.0
    for number, case in enumerate(cases):
        other = cases[(number + 7) % len(cases)]
        for name, (before, after) in corrections(case, other, rng).items():
            started = time.process_time()
            explanation = explain(before, after, case.pixel_mm)
            seconds += time.process_time() - started
            num_changed[name] = num_changed.get(name, 0) + 1
            if explanation is not None:
                found.setdefault(name, []).append((case.family, explanation.residual))
    families = sorted({case.family for case in cases})
    print("| correction | blocks | " + " | ".join(f"{q:.0%}" for q in QUANTILES), end="")
    print(f" | above {UNEXPLAINED:g} | " + " | ".join(families) + " |")
    for name, results in found.items():
        residuals = np.array([residual for _, residual in results])
        row = [f"{len(residuals)} of {num_changed[name]}"]
        row += [f"{value:.2f}" for value in np.quantile(residuals, QUANTILES)]
        row.append(f"{np.mean(residuals > UNEXPLAINED):.0%}")
        for family in families:
            own = [residual for of, residual in results if of == family]
            row.append(f"{np.median(own):.2f}" if own else "")
        print(f"| {name} | " + " | ".join(row) + " |")
    print(f"{1000 * seconds / sum(num_changed.values()):.0f} ms of one core per block")


def make_cases(pairs: Pairs, count: int, rng: np.random.Generator) -> Iterator[Case]:
    """Move blocks of training patients that hold calcium well inside."""
    rows = [r for r in pairs.blocks if r.split == "train" and r.calcium_voxels > LEAST_VOXELS]
    used: dict[str, int] = {}
    number = 0
    for index in rng.permutation(len(rows)):
        row = rows[index]
        tissue = pairs.read("background", row).astype(np.float32)
        excess = pairs.read("still", row) - tissue
        if used.get(row.scan, 0) == PER_SCAN or excess[INNER].max() < LEAST_HU:
            continue
        used[row.scan] = used.get(row.scan, 0) + 1
        yield move(row, tissue, excess, PROFILES[number % len(PROFILES)], rng)
        number += 1
        if number == count:
            return


def move(
    row: BlockRow, tissue: Floats, excess: Floats, profile: str, rng: np.random.Generator
) -> Case:
    """Move the calcium of one stored block along a trajectory, with and without its z part."""
    trajectory = draw(profile, rng, pixel_spacing_mm=row.spacing_y_mm, start_deg=None)
    displacement = displacement_px(trajectory, row.spacing_mm)
    shape_yx = (excess.shape[1], excess.shape[2])
    slices, rows, columns = ((0, length) for length in excess.shape)
    profiles = filtered_projections(
        excess,
        trajectory.angles_rad,
        radius_px=covering_radius_px(shape_yx, rows, columns, displacement),
    )
    seen = [
        back_project(profiles, moved, slices=slices, rows=rows, columns=columns)
        for moved in (displacement, displacement * (1, 1, 0))
    ]
    moving, flat = (np.rint(tissue + image)[INNER].astype(np.float32) for image in seen)
    family = profile.split("-", maxsplit=1)[0]
    still = (tissue + excess)[INNER]
    return Case(family, row.spacing_y_mm, tissue[INNER], still, moving, flat)


def corrections(
    case: Case, other: Case, rng: np.random.Generator
) -> dict[str, tuple[Floats, Floats]]:
    """Return pairs of input and correction, by what was done."""
    calcium = case.still - case.tissue
    grain = ndimage.gaussian_filter(rng.normal(0, 1, calcium.shape), (0, 0.7, 0.7))
    grain = (GRAIN_HU * grain / grain.std()).astype(np.float32)
    denoised = ndimage.gaussian_filter(case.tissue, (0, 1, 1))
    invented = _invented(case, rng)
    return {
        "right": (case.moving, case.still),
        "right, and nothing moved along z": (case.moving_flat, case.still),
        "right, with other grain": (case.moving, case.still + grain),
        "right, denoised": (case.moving, denoised + calcium),
        "half of the way (mean of both)": (case.moving, (case.moving + case.still) / 2),
        "calcium 0.7 times as bright": (case.moving, case.tissue + 0.7 * calcium),
        "calcium 1.4 times as bright": (case.moving, case.tissue + 1.4 * calcium),
        "a lesion invented beside": (case.moving, case.still + invented),
        "in the wrong slices (upside down)": (case.moving, case.tissue + calcium[::-1]),
        "another block's calcium": (case.moving, case.tissue + other.still - other.tissue),
        "a lesion where none was seen": (case.tissue, case.tissue + invented),
        "calcium deleted": (case.moving, case.tissue),
    }


def _invented(case: Case, rng: np.random.Generator) -> Floats:
    """A lesion of about 4 pixels and two slices in soft tissue."""
    inner = np.zeros(case.tissue.shape, dtype=bool)
    inner[3:12, 14:46, 14:46] = True
    smooth = ndimage.gaussian_filter(case.tissue, (0, 2, 2))
    places = np.argwhere(inner & (smooth > -20) & (smooth < 100))
    z, y, x = places[rng.integers(len(places))] if len(places) else (7, 30, 30)
    lesion = np.zeros(case.tissue.shape, dtype=np.float32)
    lesion[z : z + 2, y - 2 : y + 2, x - 2 : x + 2] = INVENTED_HU
    return np.asarray(ndimage.gaussian_filter(lesion, (0.3, 0.8, 0.8)))


if __name__ == "__main__":
    main()

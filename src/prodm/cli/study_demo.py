"""The cases of ``prodm study new --demo``: phantoms whose calcium moves.

Three stand-ins for methods: the moving patch (original), the mean of moving and still
(halfway), and the still patch itself (still), which a reader should find best.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from prodm.cli.terminal import progress_bar
from prodm.study.cases import CasePatches, CaseSource, cut_patches

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from prodm.anatomy.phantom import Phantom
    from prodm.volume import Index, Vector

NUM_CASES = 6
CASES_PER_PHANTOM = 2
MOST_PHANTOMS = 24
FAR_APART_MM = 20.0
FROM_BORDER_PX = 32
FROM_END_SLICES = 7
FEWEST_VOXELS = 24  # of calcium; less is hard to find in a patch
NUM_VIEWS = 360
PROFILES = ("oscillation-x-medium", "piecewise-y-medium", "jitter-large", "oscillation-y-medium")


def demo_cases(seed: int, shape: Index, num_cases: int = NUM_CASES) -> list[CasePatches]:
    """Make phantoms until there are enough plaques to look at."""
    from prodm.anatomy.phantom import PhantomSettings, make_phantom

    settings = PhantomSettings(num_pixels=320, coverage_mm=(84.0, 96.0), gated_fraction=1.0)
    cases: list[CasePatches] = []
    with progress_bar("phantoms") as progress:
        for phantom_seed in range(seed, seed + MOST_PHANTOMS):
            phantom = make_phantom(phantom_seed, settings)
            for place in _places(phantom)[: num_cases - len(cases)]:
                cases.append(_case(phantom, place, shape, len(cases)))
            progress(len(cases), num_cases)
            if len(cases) == num_cases:
                break
    return cases


def _places(phantom: Phantom) -> list[Vector]:
    """Return the middles of the largest plaques that do not share a patch."""
    import numpy as np

    chosen: list[Vector] = []
    num_slices, num_rows, num_columns = phantom.still.shape
    for plaque in sorted(phantom.plaques, key=lambda p: -p.length_mm * p.density_hu):
        place = plaque.position_xyz_mm
        z, y, x = (round(index) for index in phantom.still.grid.index_zyx(place))
        near = phantom.calcium[max(z - 1, 0) : z + 2, max(y - 8, 0) : y + 9, max(x - 8, 0) : x + 9]
        inside = min(y, x, num_rows - y, num_columns - x) >= FROM_BORDER_PX
        inside &= min(z, num_slices - z) >= FROM_END_SLICES
        apart = all(np.linalg.norm(np.subtract(place, c)) >= FAR_APART_MM for c in chosen)
        if inside and apart and np.count_nonzero(near) >= FEWEST_VOXELS:
            chosen.append(place)
    return chosen[:CASES_PER_PHANTOM]


def _case(phantom: Phantom, place: Vector, shape: Index, number: int) -> CasePatches:
    """Cut a patch around a plaque and let its calcium move."""
    import numpy as np

    labels = phantom.still.with_hu(phantom.calcium.astype(np.int16))
    cut = cut_patches(
        CaseSource(f"{phantom.patient}-case-{number + 1}", {}, place),
        {"still": phantom.still, "calcium": labels},
        None,
        shape,
        clip_hu=None,
    )
    still = cut.patches["still"].astype(np.float64)
    moving = _moved(still, cut.patches["calcium"] > 0, cut.grid.spacing_mm, number)
    patches = {"original": moving, "halfway": (moving + still) / 2, "still": still}
    return replace(
        cut, patches={name: np.rint(hu).astype(np.int16) for name, hu in patches.items()}
    )


def _moved(
    still: NDArray[np.float64], calcium: NDArray[np.bool_], spacing_mm: Vector, number: int
) -> NDArray[np.float64]:
    """Return the patch with its calcium blurred by a drawn motion."""
    import numpy as np
    from scipy import ndimage

    from prodm.motion.profiles import draw
    from prodm.physics.phase import move

    around = ndimage.binary_dilation(calcium, np.ones((1, 3, 3)))
    tissue = float(np.median(still[ndimage.binary_dilation(around, np.ones((1, 7, 7))) & ~around]))
    excess = np.where(around, np.maximum(still - tissue, 0), 0)
    rng = np.random.default_rng(number)
    trajectory = draw(
        PROFILES[number % len(PROFILES)], rng, pixel_spacing_mm=spacing_mm[2], num_angles=NUM_VIEWS
    )
    displacement = trajectory.displacement(trajectory.times)
    displacement[:, 2] = 0  # stays in its slice, so that every reader finds it
    displacement[:, :2] /= spacing_mm[2], spacing_mm[1]
    displacement -= displacement.mean(axis=0)
    moved: NDArray[np.float64] = still - excess + move(excess, displacement)
    return moved

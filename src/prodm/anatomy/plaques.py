"""Coronary plaques: calcium along the arteries, as many and as large as in real patients.

One number per patient, the burden, moves everything together: patients with more plaques
also have longer, wider and denser ones. Within a patient one number per plaque, its size,
does the same. The constants were fitted so that the lesions found in the finished scans
follow the percentiles of 450 annotated scans; ``benchmarks/phantom_statistics.py`` prints
both side by side.
"""

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from prodm.anatomy.chambers import STEP_MM
from prodm.anatomy.painting import Tubes
from prodm.calcium import Vessel

Array = NDArray[np.float64]
GOLDEN_RATIO = 0.6180339887498949
PLACES_TRIED = 8


@dataclass(frozen=True)
class PlaqueSettings:
    """How plaques are drawn. Spreads are those of the logarithm."""

    zero_calcium_fraction: float = 0.2  # of patients
    count: float = 4.2  # plaques of a patient with the median burden
    count_spread: float = 1.95
    count_most: float = 85.0  # the count levels off towards it
    length_mm: float = 4.2
    length_spread: float = 0.7
    width_mm: float = 1.54
    width_spread: float = 0.3
    density_hu: float = 362.0  # of the calcium itself, before the scanner blurs it
    density_spread: float = 0.19
    density_own_spread: float = 0.2  # the part that does not follow the size
    burden_to_size: float = 0.08  # how far the patient's burden moves the size of plaques
    heavy_fraction: float = 0.05  # of plaques are far larger than the rest
    heavy_size: float = 1.6
    vessel_shares: tuple[float, float, float, float] = (0.47, 0.18, 0.295, 0.055)  # LAD LCX RCA LM


@dataclass(frozen=True, eq=False)
class Plaque:
    """One plaque: a curved rod of calcium in the wall of an artery."""

    vessel: Vessel
    position_xyz_mm: tuple[float, float, float]  # of its middle
    length_mm: float
    width_mm: float
    density_hu: float
    line_xyz_mm: Array  # [N, 3]
    radii_mm: Array  # [N]
    densities_hu: Array  # [N - 1]

    @property
    def tubes(self) -> Tubes:
        """The plaque as segments to paint."""
        columns = [
            self.line_xyz_mm[:-1], self.line_xyz_mm[1:], self.radii_mm[:-1, None],
            self.radii_mm[1:, None], np.ones((len(self.line_xyz_mm) - 1, 1)),
            self.densities_hu[:, None],
        ]  # fmt: skip
        return Tubes(np.hstack(columns))

    def reaches(self, z_mm: float) -> bool:
        """Tell whether the plaque may show on the plane at this height."""
        z, margin = self.line_xyz_mm[:, 2], self.radii_mm.max() + 1.0
        return bool(z.min() - margin <= z_mm <= z.max() + margin)

    def to_json(self) -> dict[str, object]:
        """Return what a person wants to know of the plaque."""
        return {
            "vessel": self.vessel.name,
            "position_xyz_mm": [round(value, 2) for value in self.position_xyz_mm],
            "length_mm": round(self.length_mm, 2),
            "width_mm": round(self.width_mm, 2),
            "density_hu": round(self.density_hu, 1),
        }


def rank_of_seed(seed: int) -> float:
    """Return where a patient stands among all, from 0, no calcium, to 1, the most.

    Steps of the golden ratio spread the ranks evenly, so that a few neighbouring seeds already
    hold free, light and heavy patients in the right proportion.

    >>> [round(rank_of_seed(seed), 2) for seed in range(4)]
    [0.5, 0.12, 0.74, 0.35]
    """
    return (0.5 + seed * GOLDEN_RATIO) % 1.0


def draw_plaques(
    rng: np.random.Generator,
    arteries: dict[Vessel, Array],
    artery_radius_mm: dict[Vessel, Array],
    settings: PlaqueSettings,
    rank: float,
) -> tuple[Plaque, ...]:
    """Draw the plaques of the patient of one rank; the lowest ranks have none."""
    free = settings.zero_calcium_fraction
    if rank < free or free == 1.0:
        return ()
    quantile = (rank - free) / (1.0 - free)
    burden = NormalDist().inv_cdf(min(max(quantile, 1e-6), 1 - 1e-6))
    wanted = settings.count * np.exp(settings.count_spread * burden)
    mean = wanted / (1 + wanted / settings.count_most)
    count = max(1, rng.poisson(mean))
    vessels = (Vessel.LAD, Vessel.LCX, Vessel.RCA, Vessel.LM)
    shares = np.asarray(settings.vessel_shares) / sum(settings.vessel_shares)
    plaques = []
    taken = {vessel: np.zeros(len(line), bool) for vessel, line in arteries.items()}
    for _ in range(count):
        vessel = vessels[rng.choice(4, p=shares)]
        size = rng.standard_normal() + settings.burden_to_size * burden
        if rng.random() < settings.heavy_fraction:
            size += settings.heavy_size
        length = settings.length_mm * np.exp(settings.length_spread * size)
        piece = _draw_place(rng, vessel, taken[vessel], float(length))
        taken[vessel][piece] = True
        plaques.append(
            _draw_plaque(
                rng, vessel, arteries[vessel][piece], artery_radius_mm[vessel][piece], size,
                settings,
            )
        )  # fmt: skip
    return tuple(plaques)


def _draw_place(
    rng: np.random.Generator, vessel: Vessel, taken: NDArray[np.bool_], length_mm: float
) -> slice:
    """Draw the piece of an artery that a plaque lies in, a free one if any is found."""
    steps = round(min(max(length_mm, 1.0), 0.5 * STEP_MM * len(taken)) / STEP_MM)
    piece = slice(0, steps + 1)
    for _ in range(PLACES_TRIED):
        # Plaques crowd near the origin of the artery; in the right one they lie all along.
        place = rng.beta(1.0, 1.3) if vessel is Vessel.RCA else rng.beta(1.1, 2.4)
        start = round(place * (len(taken) - 1 - steps))
        piece = slice(start, start + steps + 1)
        if not taken[piece].any():
            break
    return piece


def _draw_plaque(
    rng: np.random.Generator,
    vessel: Vessel,
    line: Array,
    artery_radius_mm: Array,
    size: float,
    settings: PlaqueSettings,
) -> Plaque:
    length_mm = STEP_MM * (len(line) - 1)
    width = settings.width_mm * np.exp(settings.width_spread * size)
    density = settings.density_hu * np.exp(
        settings.density_spread * size + settings.density_own_spread * rng.standard_normal()
    )
    width = float(np.clip(width, 0.6, 4.0))
    density = float(np.clip(density, 250.0, 2200.0))
    tangent = line[-1] - line[0]
    tangent = tangent / np.linalg.norm(tangent)
    side = np.cross(tangent, rng.standard_normal(3))
    side = side / np.linalg.norm(side)
    turn = np.cross(tangent, side)
    along = np.linspace(-1, 1, len(line))
    # The plaque winds around the lumen a little and swells and thins on its way.
    winding = rng.normal(0, 0.5) * along
    out = np.maximum(artery_radius_mm - 0.2 * width, 0.0)
    line = line + out[:, None] * (np.cos(winding)[:, None] * side + np.sin(winding)[:, None] * turn)
    swell = 1 + 0.25 * np.sin(rng.uniform(2, 5) * along + rng.uniform(0, 6.3))
    radii = 0.5 * width * swell * np.sqrt(np.clip(1.15 - along**2, 0.1, 1))
    grain = 1 + 0.25 * np.sin(rng.uniform(2, 6) * along[:-1] + rng.uniform(0, 6.3))
    middle = line[len(line) // 2]
    return Plaque(
        vessel, (float(middle[0]), float(middle[1]), float(middle[2])), length_mm, width, density,
        line, radii, density * grain,
    )  # fmt: skip

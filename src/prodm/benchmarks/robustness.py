"""The same blocks moved by the same motions in different ways, to see what a correction bears.

``reference`` moves calcium as a correction by phase supposes. Each of the other ``CASES`` adds
one thing that it leaves out: another scanner, a lesion that changes its shape, noise, or a
background that was reconstructed too. ``benchmarks/phase_robustness.py`` corrects and judges them.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from prodm.anatomy.grain import draw_noise, noise_spectrum
from prodm.benchmarks import fan_beam
from prodm.benchmarks.deforming import rotations, scan_deforming, stretches
from prodm.motion.profiles import PROFILES, draw
from prodm.motion.trajectory import Trajectory
from prodm.pairs import blocks
from prodm.pairs.simulate import StillScan, displacement_px, moving_excess
from prodm.pairs.store import BlockRow
from prodm.physics.projection import filtered_projections
from prodm.physics.reconstruction import back_project, covering_radius_px
from prodm.volume import Grid, Vector, Volume, Window

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]

NUM_VIEWS = 360
SCAN_PX = 512  # the isocentre is in the middle
SOURCE_MM = 570.0  # from the source to the isocentre
TURN_DEG = 10.0  # from minus to plus this while the scan lasts
STRETCH = 0.10  # from half of it too short to half of it too long
GRAIN_MM = 1.0
INNER: Window = tuple(  # type: ignore[assignment]
    slice(m, m + n) for m, n in zip(blocks.MARGIN, blocks.BLOCK_SHAPE, strict=True)
)


@dataclass(frozen=True, eq=False)
class Block:
    """A stored block [Z, Y, X] in HU with its margin, and the number that fixes its motion."""

    number: int
    row: BlockRow
    background: NDArray[np.int16]
    excess: NDArray[np.int16]  # of the calcium that lies wholly inside the margin

    @property
    def profile(self) -> str:
        """Name of its motion; 21 blocks in a row have all of them."""
        return PROFILES[(5 * self.number) % len(PROFILES)]

    @property
    def spacing_mm(self) -> Vector:
        """Spacing (z, y, x)."""
        return self.row.spacing_mm

    def trajectory(self, *, span_deg: float = 180.0, start_deg: float | None = 0.0) -> Trajectory:
        """Return its motion, always the same, as seen by a scan; a start of None is drawn."""
        return draw(
            self.profile,
            self.rng("motion"),
            pixel_spacing_mm=self.spacing_mm[2],
            num_angles=NUM_VIEWS,
            span_deg=span_deg,
            start_deg=start_deg,
        )

    def rng(self, purpose: str) -> np.random.Generator:
        """Return a stream of its own for each purpose."""
        return np.random.default_rng([self.number, *purpose.encode()])


@dataclass(frozen=True, eq=False)
class Seen:
    """What a scan shows of a block without its margin, and what lies behind the calcium; HU."""

    moving: Floats
    background: Floats


def reference(block: Block) -> Seen:
    """Show the block as the fast simulation does: parallel rays, 180 degrees, start at 0."""
    return parallel(block, block.trajectory())


def parallel(block: Block, trajectory: Trajectory) -> Seen:
    """Move by back-projection."""
    volume = Volume(block.background, Grid(block.background.shape, block.spacing_mm))
    window: Window = tuple(slice(0, n) for n in block.excess.shape)  # type: ignore[assignment]
    still = StillScan(
        volume, block.excess.astype(np.uint8), volume, block.excess.astype(np.float64), window
    )
    (excess,) = moving_excess(still, trajectory, [INNER])
    return _over(block, excess)


def fan(block: Block) -> Seen:
    """Move in a fan-beam short scan with Parker weights, ray by ray."""
    geometry = fan_beam.FanBeam(source_px=SOURCE_MM / block.spacing_mm[2], num_views=NUM_VIEWS)
    middle = (SCAN_PX - 1) / 2
    excess = fan_beam.scan(
        block.excess.astype(np.float32),
        displacement_px(block.trajectory(), block.spacing_mm),
        geometry,
        isocentre_yx=(middle - block.row.corner_y, middle - block.row.corner_x),
        rows=(INNER[1].start, INNER[1].stop),
        columns=(INNER[2].start, INNER[2].stop),
    )
    return _over(block, excess[INNER[0]])


def turning(block: Block, *, as_one: bool) -> Seen:
    """Rotate each lesion around its own centre, or all of them around one."""
    times = block.trajectory().times
    sign = block.rng("turn").choice([-1.0, 1.0])
    angles_rad = sign * np.deg2rad(TURN_DEG) * (2 * times - 1)
    return _deforming(block, rotations(angles_rad), as_one=as_one)


def stretching(block: Block) -> Seen:
    """Stretch each lesion along a direction of the block's own."""
    factors = 1 + STRETCH * (block.trajectory().times - 0.5)
    axis_rad = float(block.rng("stretch").uniform(0, np.pi))
    return _deforming(block, stretches(factors, axis_rad), as_one=False)


def noisy(block: Block, noise_hu: float) -> Seen:
    """Add noise with the grain of a soft kernel to the reference."""
    seen = reference(block)
    size = blocks.STORED_SHAPE[1]
    spectrum = noise_spectrum(size, block.spacing_mm[2], GRAIN_MM)
    rng = block.rng("noise")
    grain = np.stack([draw_noise(rng, spectrum, (size, size))[0] for _ in seen.moving])
    noise = np.float32(noise_hu) * grain[:, INNER[1], INNER[2]]
    return Seen(seen.moving + noise, seen.background)


def reprojected(block: Block) -> Seen:
    """Project and reconstruct the background too, which fades out in the block's margin."""
    trajectory = block.trajectory()
    rows, columns = ((axis.start, axis.stop) for axis in INNER[1:])
    hu = block.background[INNER[0]].astype(np.float32)
    level_hu = hu.mean()
    at_rest = np.zeros((NUM_VIEWS, 3))
    profiles = filtered_projections(
        (hu - level_hu) * _fading(),
        trajectory.angles_rad,
        radius_px=covering_radius_px(blocks.STORED_SHAPE[1:], rows, columns, at_rest),
    )
    image = back_project(profiles, at_rest, slices=(0, len(hu)), rows=rows, columns=columns)
    seen = parallel(block, trajectory)
    return Seen(image + level_hu + (seen.moving - seen.background), image + level_hu)


CASES: dict[str, Callable[[Block], Seen]] = {
    "reference": reference,
    "random start": lambda block: parallel(block, block.trajectory(start_deg=None)),
    "360 degrees": lambda block: parallel(block, block.trajectory(span_deg=360.0)),
    "fan beam": fan,
    "lesions rotate": lambda block: turning(block, as_one=False),
    "all rotates as one": lambda block: turning(block, as_one=True),
    "lesions stretch": stretching,
    "noise 5 HU": lambda block: noisy(block, 5.0),
    "noise 10 HU": lambda block: noisy(block, 10.0),
    "noise 20 HU": lambda block: noisy(block, 20.0),
    "noise 40 HU": lambda block: noisy(block, 40.0),
    "background reprojected": reprojected,
}


def _over(block: Block, excess: Floats) -> Seen:
    background = block.background[INNER].astype(np.float32)
    return Seen(background + excess, background)


def _deforming(block: Block, matrices: Doubles, *, as_one: bool) -> Seen:
    trajectory = block.trajectory()
    moved = displacement_px(trajectory, block.spacing_mm)
    labels, count = ndimage.label(block.excess != 0, np.ones((3, 3, 3)))
    parts = [block.excess] if as_one else [block.excess * (labels == n + 1) for n in range(count)]
    total = np.zeros(blocks.BLOCK_SHAPE, np.float32)
    for part in parts:
        _, y, x = ndimage.center_of_mass(np.maximum(part, 0))
        image = scan_deforming(
            part.astype(np.float32),
            trajectory.angles_rad,
            moved,
            matrices,
            centre_yx=(float(y), float(x)),
            rows=(INNER[1].start, INNER[1].stop),
            columns=(INNER[2].start, INNER[2].stop),
        )
        total += image[INNER[0]]
    return _over(block, total)


def _fading() -> Floats:
    """Weights [Y, X] that are 1 inside the margin and fall to 0 at the block's sides."""
    along = []
    for size, margin in zip(blocks.STORED_SHAPE[1:], blocks.MARGIN[1:], strict=True):
        from_side = np.minimum(np.arange(size), np.arange(size)[::-1])
        along.append(np.sin(np.pi / 2 * np.minimum(from_side / margin, 1)) ** 2)
    return np.outer(*along).astype(np.float32)

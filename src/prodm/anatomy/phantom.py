"""A still chest scan with ground truth, made from a seed.

Anatomy is drawn first (``thorax``, ``chambers``, ``bones``, ``plaques``), each part from its
own stream of random numbers, and then painted plane by plane: several planes per slice are
averaged for partial volume, blurred in the plane, and get the noise of a soft kernel. The
labels are what an annotator would draw: the voxels of coronary calcium that reach 130 HU in
the finished scan.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage
from scipy.spatial import cKDTree

from prodm.anatomy.fields import Bend, RandomField, draw_field
from prodm.anatomy.grain import STREAK_SHARE, blur, draw_noise, noise_spectrum
from prodm.anatomy.painting import Canvas, Floats
from prodm.anatomy.plaques import Plaque, PlaqueSettings, draw_plaques, rank_of_seed
from prodm.anatomy.thorax import OtherCalcium, Thorax, draw_thorax
from prodm.calcium import AIR_HU, CALCIUM_THRESHOLD_HU
from prodm.errors import ProdmError
from prodm.volume import Grid, Volume

Range = tuple[float, float]
STREAMS = ("acquisition", "fields", "wall", "heart", "organs", "lungs", "bones", "plaques",
           "other calcium", "noise")  # fmt: skip
PLANES_EVERY_MM = 1.25  # at most, along z
QUIET_BELOW_HU = -960.0  # air beside the body
CALCIUM_EXCESS_HU = 40.0  # what the plaque itself must add for a voxel to be its own
SMALLEST_LABEL_PIXELS = 2  # nobody draws around a single pixel


@dataclass(frozen=True)
class PhantomSettings:
    """What varies from seed to seed: ranges are (least, most)."""

    num_pixels: int = 512
    coverage_mm: Range = (126.0, 144.0)  # along z
    gated_fraction: float = 0.7  # share of scans with a field of view around the heart
    gated_pixel_mm: Range = (0.34, 0.50)
    chest_pixel_mm: Range = (0.60, 0.90)
    slice_spacings_mm: tuple[float, ...] = (3.0, 2.5, 2.0, 5.0)
    slice_spacing_shares: tuple[float, ...] = (0.80, 0.10, 0.05, 0.05)
    heart_scale: Range = (0.86, 1.12)
    noise_hu: Range = (10.0, 26.0)
    psf_fwhm_mm: Range = (0.9, 1.2)
    bend_mm: Range = (1.5, 3.0)
    plaques: PlaqueSettings = field(default_factory=PlaqueSettings)
    other_calcium: OtherCalcium = field(default_factory=OtherCalcium)

    def __post_init__(self) -> None:
        for name in ("coverage_mm", "gated_pixel_mm", "chest_pixel_mm", "heart_scale",
                     "noise_hu", "psf_fwhm_mm", "bend_mm"):  # fmt: skip
            low, high = getattr(self, name)
            if not 0 <= low <= high:
                raise ProdmError(
                    f"{name} must be (least, most), both not negative, got {low, high}"
                )
        if self.num_pixels < 16:
            raise ProdmError(f"a phantom needs at least 16 pixels a side, got {self.num_pixels}")
        if len(self.slice_spacings_mm) != len(self.slice_spacing_shares):
            raise ProdmError("slice_spacings_mm and slice_spacing_shares must be as long")


@dataclass(frozen=True)
class Acquisition:
    """The scanner's part of one phantom."""

    pixel_mm: float
    slice_mm: float
    num_slices: int
    noise_hu: float
    psf_fwhm_mm: float
    gated: bool


@dataclass(frozen=True, eq=False)
class Phantom:
    """A still scan and its truth."""

    patient: str
    seed: int
    still: Volume  # int16
    calcium: NDArray[np.uint8]  # [Z, Y, X], labels of prodm.calcium.Vessel
    heart: NDArray[np.bool_]  # [Z, Y, X], within the pericardium
    plaques: tuple[Plaque, ...]  # those whose middle lies in the scan
    acquisition: Acquisition


def make_phantom(seed: int, settings: PhantomSettings = PhantomSettings()) -> Phantom:  # noqa: B008
    """Make the phantom of one seed; the same seed and settings always give the same scan."""
    if seed < 0:
        raise ProdmError(f"a phantom's seed must not be negative, got {seed}")
    rngs = {name: np.random.default_rng([seed, n]) for n, name in enumerate(STREAMS)}
    acquisition = _draw_acquisition(rngs["acquisition"], settings)
    scale = rngs["acquisition"].uniform(*settings.heart_scale)
    fine = draw_field(rngs["fields"], step_mm=1.5, smooth_mm=2.2, cells=96)
    coarse = draw_field(rngs["fields"], step_mm=8.0, smooth_mm=22.0)
    bend = Bend(coarse, rngs["fields"].uniform(*settings.bend_mm))
    thorax = draw_thorax(rngs, bend, scale, settings.other_calcium)
    plaques = draw_plaques(
        rngs["plaques"],
        thorax.heart.arteries,
        thorax.heart.artery_radius_mm,
        settings.plaques,
        rank_of_seed(seed),
    )
    grid = _place_grid(rngs["acquisition"], acquisition, settings.num_pixels, thorax, scale)
    plaques = tuple(plaque for plaque in plaques if _within(grid, plaque.position_xyz_mm))
    hu, excess, heart = _paint(_Anatomy(thorax, plaques, bend, fine, coarse), grid, acquisition)
    _add_noise(hu, rngs["noise"], acquisition, grid)
    still = Volume(np.clip(np.rint(hu), AIR_HU, 3071).astype(np.int16), grid)
    calcium = _labels(still, excess, plaques)
    return Phantom(f"phantom-{seed:05d}", seed, still, calcium, heart, plaques, acquisition)


@dataclass(frozen=True, eq=False)
class _Anatomy:
    """All that is painted of one patient."""

    thorax: Thorax
    plaques: tuple[Plaque, ...]
    bend: Bend
    fine: RandomField
    coarse: RandomField

    def paint(self, z_mm: float, y_mm: Floats, x_mm: Floats) -> tuple[Canvas, Floats | None]:
        """Return the plane at one height, and what its plaques add to it, if there are any."""
        canvas = Canvas(
            hu=np.empty((len(y_mm), len(x_mm)), np.float32),
            z_mm=z_mm,
            y_mm=y_mm,
            x_mm=x_mm,
            straight=self.bend.plane(z_mm, y_mm, x_mm),
            fine=self.fine.plane(z_mm, y_mm, x_mm),
            coarse=self.coarse.plane(z_mm, y_mm, x_mm),
            bend_mm=3.5 * self.bend.amplitude_mm,
        )
        self.thorax.paint(canvas)
        here = [plaque for plaque in self.plaques if plaque.reaches(z_mm)]
        if not here:
            return canvas, None
        before = canvas.hu.copy()
        for plaque in here:
            canvas.paint(plaque.tubes)
        return canvas, canvas.hu - before


def _paint(
    anatomy: _Anatomy, grid: Grid, acquisition: Acquisition
) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """Return HU without noise, what coronary calcium adds to them, and the heart."""
    hu, excess = np.zeros(grid.shape, np.float32), np.zeros(grid.shape, np.float32)
    heart = np.empty(grid.shape, np.bool_)
    y_mm, x_mm = _rows_and_columns(grid)
    num_planes = int(np.ceil(acquisition.slice_mm / PLANES_EVERY_MM))
    steps = ((np.arange(num_planes) + 0.5) / num_planes - 0.5) * acquisition.slice_mm
    blurring = (acquisition.psf_fwhm_mm, acquisition.pixel_mm)
    for index in range(grid.shape[0]):
        slice_z = grid.origin_xyz_mm[2] + index * acquisition.slice_mm
        for n, step in enumerate(steps):
            canvas, added = anatomy.paint(float(slice_z + step), y_mm, x_mm)
            hu[index] += canvas.hu
            if added is not None:
                excess[index] += added
            if n == num_planes // 2:
                heart[index] = canvas.inside(anatomy.thorax.heart.sac)
        hu[index] = blur(hu[index] / np.float32(num_planes), *blurring)
        if excess[index].any():
            excess[index] = blur(excess[index] / np.float32(num_planes), *blurring)
    return hu, excess, heart


def _rows_and_columns(grid: Grid) -> tuple[Floats, Floats]:
    """Return y of the rows and x of the columns, in mm."""
    x, y, _ = grid.origin_xyz_mm
    y_mm = (y + grid.spacing_mm[1] * np.arange(grid.shape[1])).astype(np.float32)
    x_mm = (x + grid.spacing_mm[2] * np.arange(grid.shape[2])).astype(np.float32)
    return y_mm, x_mm


def _draw_acquisition(rng: np.random.Generator, settings: PhantomSettings) -> Acquisition:
    gated = bool(rng.random() < settings.gated_fraction)
    pixel = rng.uniform(*(settings.gated_pixel_mm if gated else settings.chest_pixel_mm))
    shares = np.asarray(settings.slice_spacing_shares) / sum(settings.slice_spacing_shares)
    slice_mm = float(rng.choice(settings.slice_spacings_mm, p=shares))
    num_slices = max(1, round(rng.uniform(*settings.coverage_mm) / slice_mm))
    return Acquisition(
        round(float(pixel), 4), slice_mm, num_slices, float(rng.uniform(*settings.noise_hu)),
        float(rng.uniform(*settings.psf_fwhm_mm)), gated,
    )  # fmt: skip


def _place_grid(
    rng: np.random.Generator,
    acquisition: Acquisition,
    num_pixels: int,
    thorax: Thorax,
    scale: float,
) -> Grid:
    """Lay the field of view around the heart, or around the chest."""
    x, y = (8.0, -2.0) if acquisition.gated else thorax.wall.center_xy_mm
    if num_pixels * acquisition.pixel_mm < 150:
        x, y = 14.0, -10.0
    jitter = rng.normal(0, 3 if acquisition.gated else 6, 3)
    half = 0.5 * (num_pixels - 1) * acquisition.pixel_mm
    middle_z = -6.0 * scale + 0.5 * jitter[2]
    bottom = middle_z - 0.5 * (acquisition.num_slices - 1) * acquisition.slice_mm
    origin = (float(x + jitter[0] - half), float(y + jitter[1] - half), float(bottom))
    return Grid(
        (acquisition.num_slices, num_pixels, num_pixels),
        (acquisition.slice_mm, acquisition.pixel_mm, acquisition.pixel_mm),
        (round(origin[0], 3), round(origin[1], 3), round(origin[2], 3)),
    )


def _within(grid: Grid, position_xyz_mm: tuple[float, float, float]) -> bool:
    index = grid.index_zyx(position_xyz_mm)
    return all(-0.5 <= i <= n - 0.5 for i, n in zip(index, grid.shape, strict=True))


def _add_noise(hu: Floats, rng: np.random.Generator, acquisition: Acquisition, grid: Grid) -> None:
    """Add noise in place: stronger in the middle of the body, with faint streaks along x."""
    y_mm, x_mm = _rows_and_columns(grid)
    spectrum = noise_spectrum(len(x_mm), acquisition.pixel_mm, acquisition.psf_fwhm_mm)
    radius2 = (x_mm[None, :] / 170) ** 2 + ((y_mm[:, None] - 20) / 120) ** 2
    level = acquisition.noise_hu * (0.55 + 0.45 * np.exp(-radius2)).astype(np.float32)
    even = np.float32(np.sqrt(1 - STREAK_SHARE**2))
    for image in hu:
        grain, streaks = draw_noise(rng, spectrum, (len(y_mm), len(x_mm)))
        quiet = np.where(image < QUIET_BELOW_HU, np.float32(0.6), np.float32(1.0))
        image += quiet * level * (even * grain + np.float32(STREAK_SHARE) * streaks)


def _labels(still: Volume, excess: Floats, plaques: tuple[Plaque, ...]) -> NDArray[np.uint8]:
    """Return what an annotator would draw, by vessel."""
    labels = np.zeros(still.shape, np.uint8)
    mask = (still.hu >= CALCIUM_THRESHOLD_HU) & (excess >= CALCIUM_EXCESS_HU)
    if not mask.any():
        return labels
    in_plane = np.zeros((3, 3, 3), bool)
    in_plane[1] = True
    lesions, count = ndimage.label(mask, in_plane)
    sizes = np.bincount(lesions.ravel(), minlength=count + 1)
    mask &= sizes[lesions] >= SMALLEST_LABEL_PIXELS
    voxels = np.argwhere(mask)
    points = np.asarray(still.grid.origin_xyz_mm) + voxels[:, ::-1] * still.spacing_mm[::-1]
    tree = cKDTree(np.vstack([plaque.line_xyz_mm for plaque in plaques]))
    owner = np.repeat([int(p.vessel) for p in plaques], [len(p.line_xyz_mm) for p in plaques])
    labels[tuple(voxels.T)] = owner[tree.query(points)[1]]
    return labels

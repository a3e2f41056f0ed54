"""Find the heart in a chest or cardiac CT without contrast, by geometry alone.

The heart is what the two lungs hold between them. In order, on voxels of about 3 mm:

1. lungs, and in each slice their convex hull: the hull without the lungs is the mediastinum,
   down to the diaphragm;
2. bones that reach out of the hull (ribs, sternum, spine) are cut out with a margin, and so is
   the descending aorta, followed from slice to slice as a disc in front and to the left of
   the spine;
3. the top is 15 mm below the carina, where calcium scans begin; where no trachea is seen, the
   scan's own top;
4. the bottom: the liver joins where the right border suddenly moves out. From there down, heart
   and abdomen are parted at their waist, by a watershed on the depth below lungs and fat;
5. what is left is smoothed (large vessels of the hilum go) and brought to the scan's grid.

The region holds the heart with its fat, the roots of the great vessels and both valves. Calcium
of the ascending aorta and of the valves therefore lies inside.
"""

from dataclasses import dataclass

import numpy as np
from scipy import ndimage
from skimage.segmentation import watershed

from prodm.anatomy.lungs import Lungs, Mask, find_carina, find_lungs, hull_of_lungs
from prodm.anatomy.spine import BONE_HU, SOFT_HU, behind_the_heart, find_spine, largest
from prodm.errors import ProdmError
from prodm.volume import Grid, Vector, Volume

STEP_MM = 3.0
MARGIN_MM = 30.0  # kept around the lungs
BONE_MARGIN_MM = 5.0
LOWERED_MM = 15.0  # how far the hull of the lungs is carried down at their base
CHEST_WALL_MM = 5.0  # of the hull's rim, where cartilage of the ribs may lie
BELOW_CARINA_MM = 15.0
VESSELS_BELOW_MM = 8.0  # radius of what opening removes: vessels of the lung
HILUM_BELOW_MM = 18.0
JOIN_JUMP_MM = 20.0  # of the right border, over 9 mm: the liver has joined
EDGE_MM = 6.0  # from the right edge of a cut view, where the liver has pushed the lung out
ABDOMEN_BELOW_JOIN_MM = 45.0
HEART_ML = (120.0, 2500.0)
MIN_HEIGHT_MM = 45.0
MAX_HEIGHT_MM = 150.0  # where no trachea was seen, what lies above is no heart


@dataclass(frozen=True)
class HeartRegion:
    """Mask [Z, Y, X] on the scan's grid, and what may be wrong with it."""

    mask: Mask
    description: str
    warnings: tuple[str, ...] = ()


def find_heart(volume: Volume) -> HeartRegion:
    """Find the heart of a scan whose axes point to left, back and head."""
    if np.any(np.diag(volume.grid.direction) < 0.7):
        raise ProdmError("the heart is looked for in volumes to left, back and head; use to_lps()")
    coarse, lungs = _around_lungs(volume.resample((STEP_MM, STEP_MM, STEP_MM)))
    mask, warnings = _find(coarse, lungs)
    return HeartRegion(
        mask=_upsample(mask, coarse.grid, volume),
        description="found between the lungs, from below the carina to the diaphragm",
        warnings=tuple(warnings),
    )


def _not_found(reason: str) -> ProdmError:
    return ProdmError(f"the heart was not found: {reason}; give its mask with --region")


def _around_lungs(volume: Volume) -> tuple[Volume, Lungs]:
    """Crop to the lungs and a margin, where everything else happens."""
    lungs = find_lungs(volume)
    if lungs is None:
        raise _not_found("there are no two lungs in this scan")
    window = _window(lungs.both, MARGIN_MM, volume.spacing_mm)
    return volume.crop(window), Lungs(lungs.right[window], lungs.left[window])


def _find(volume: Volume, lungs: Lungs) -> tuple[Mask, list[str]]:
    """Return the mask on a coarse volume, and warnings."""
    hull = hull_of_lungs(lungs, volume.spacing_mm)
    slices = np.flatnonzero(hull.any(axis=(1, 2)))
    if slices.size == 0:
        raise _not_found("the lungs do not lie side by side in any slice")
    top = int(slices[-1])
    carina = find_carina(volume, hull)
    if carina is not None:
        top = min(top, max(0, carina - round(BELOW_CARINA_MM / volume.spacing_mm[0])))
    below = (slice(0, top + 1), slice(None), slice(None))
    heart = np.zeros(volume.shape, dtype=bool)
    heart[below], warnings = _find_below_top(
        volume.crop(below), Lungs(lungs.right[below], lungs.left[below]), hull[below]
    )
    return heart, warnings


def _find_below_top(volume: Volume, lungs: Lungs, hull: Mask) -> tuple[Mask, list[str]]:
    warnings = []
    spacing_mm = volume.spacing_mm
    hull = _lowered(hull, LOWERED_MM, spacing_mm)
    tissue = _erode_slices(hull, CHEST_WALL_MM, spacing_mm) & ~lungs.both & (volume.hu > -500)
    tissue &= ~_dilate(_bones(volume, hull), BONE_MARGIN_MM, spacing_mm)
    spine = find_spine(volume, lungs)
    if spine is None:
        warnings.append("no spine is in view, so the descending aorta could not be left out")
    else:
        tissue &= ~behind_the_heart(volume, spine)
    tissue = _open(tissue, VESSELS_BELOW_MM, spacing_mm)
    mediastinum = _follow_down(tissue)
    join = _liver_joins(_open(mediastinum, HILUM_BELOW_MM, spacing_mm), spacing_mm)
    heart = mediastinum
    if join is not None:
        heart = _above_the_waist(volume, tissue, mediastinum, join)
    heart = _without_branches(heart, spacing_mm)
    bottom = int(np.flatnonzero(heart.any(axis=(1, 2)))[0]) if heart.any() else 0
    heart[bottom + round(MAX_HEIGHT_MM / spacing_mm[0]) :] = False
    _check(heart, spacing_mm)
    if join is None and heart[0].any():
        warnings.append("the scan ends inside the heart, or shows no liver below it")
    return heart, warnings


def _check(heart: Mask, spacing_mm: Vector) -> None:
    volume_ml = heart.sum() * float(np.prod(spacing_mm)) / 1000
    height_mm = np.count_nonzero(heart.any(axis=(1, 2))) * spacing_mm[0]
    if not HEART_ML[0] <= volume_ml <= HEART_ML[1]:
        raise _not_found(f"what lies between the lungs measures {volume_ml:.0f} mL")
    if height_mm < MIN_HEIGHT_MM:
        raise _not_found(f"what lies between the lungs is only {height_mm:.0f} mm tall")


def _lowered(mask: Mask, distance_mm: float, spacing_mm: Vector) -> Mask:
    """Let each slice also hold what slices up to a distance above it hold.

    At the base the lungs thin out and their hull shrinks; the rib cage does not.
    """
    lowered = mask.copy()
    for step in range(1, round(distance_mm / spacing_mm[0]) + 1):
        lowered[:-step] |= mask[step:]
    return lowered


def _bones(volume: Volume, hull: Mask) -> Mask:
    """Return dense pieces that reach out of the hull; calcium of the heart stays inside it."""
    numbered, _ = ndimage.label(volume.hu > BONE_HU, structure=np.ones((3, 3, 3)))
    outside = np.unique(numbered[~hull])
    bones: Mask = np.isin(numbered, outside[outside > 0])
    return bones


def _follow_down(tissue: Mask) -> Mask:
    """Keep, from the top slice down, the pieces that touch what was kept one slice above."""
    kept = np.zeros_like(tissue)
    for z in range(len(tissue) - 1, -1, -1):
        numbered, count = ndimage.label(tissue[z])
        if count == 0:
            continue
        above = kept[z + 1] if z + 1 < len(tissue) else None
        if above is None or not above.any():
            kept[z] = largest(tissue[z])
        else:
            touching = np.unique(numbered[above])
            kept[z] = np.isin(numbered, touching[touching > 0])
    return kept


def _liver_joins(mediastinum: Mask, spacing_mm: Vector) -> int | None:
    """Return the highest slice in which the liver has joined the heart.

    The liver comes suddenly and stays; vessels of the hilum also come suddenly, and go.
    """
    dz, dy, dx = spacing_mm
    used = np.flatnonzero(mediastinum.any(axis=(1, 2)))
    if used.size == 0:
        return None
    area_mm2 = mediastinum.sum(axis=(1, 2)) * dy * dx
    right_mm = np.array([_first_column(mask) for mask in mediastinum]) * dx
    step = max(1, round(9 / dz))
    lowest = int(used[0]) + round(LOWERED_MM / dz)  # below, the hull is made up
    for z in used[::-1]:
        if z + step > used[-1] or area_mm2[z] < 6000:
            continue
        below = slice(min(lowest, z), z + 1)
        stays_mm = np.percentile(right_mm[below], 90)
        jumped = right_mm[z + step] - stays_mm > JOIN_JUMP_MM
        at_edge = stays_mm <= EDGE_MM < right_mm[z + step] - EDGE_MM
        if jumped or at_edge:
            return int(z)
    return None


def _first_column(mask: Mask) -> int:
    columns = np.flatnonzero(mask.any(axis=0))
    return int(columns[0]) if columns.size else 0


def _above_the_waist(volume: Volume, tissue: Mask, mediastinum: Mask, join: int) -> Mask:
    """Part heart from abdomen below the slice where the liver joins."""
    spacing_mm = volume.spacing_mm
    dz = spacing_mm[0]
    heart = mediastinum.copy()
    heart[: join + 1] = False
    footprint: Mask = np.any(heart[join + 1 : join + 1 + round(40 / dz)], axis=0)
    if not footprint.any():
        raise _not_found("the scan shows the liver, but not the heart above it")
    abdomen = tissue & ~mediastinum
    abdomen[: join + 1] |= ~_dilate(footprint, 15.0, spacing_mm[1:])
    abdomen[: max(0, join - round(ABDOMEN_BELOW_JOIN_MM / dz))] = True
    soft = np.pad(tissue & (volume.hu > SOFT_HU), 1, mode="edge")
    depth_mm = ndimage.distance_transform_edt(soft, sampling=spacing_mm)[1:-1, 1:-1, 1:-1]
    seeds = np.where(heart, 1, np.where(abdomen, 2, 0)).astype(np.int32)
    basins = watershed(-ndimage.gaussian_filter(depth_mm, 1.5), seeds, mask=tissue)
    parted: Mask = basins == 1
    return parted


def _without_branches(heart: Mask, spacing_mm: Vector) -> Mask:
    """Cut vessels of the hilum, and keep the largest piece with its holes filled."""
    core = largest(_open(heart, HILUM_BELOW_MM, spacing_mm))
    trimmed = largest(heart & _dilate(core, 5.0, spacing_mm))
    return np.stack([ndimage.binary_fill_holes(slice_mask) for slice_mask in trimmed])


def _upsample(mask: Mask, grid: Grid, volume: Volume) -> Mask:
    """Bring a coarse mask to the scan's grid with a smooth border."""
    whole = np.zeros(volume.shape, dtype=bool)
    soft = ndimage.gaussian_filter(mask.astype(np.float32), 0.7)
    scale = np.divide(volume.spacing_mm, grid.spacing_mm)
    first = np.asarray(grid.index_zyx(volume.grid.origin_xyz_mm))
    coarse = _window(mask, 2 * STEP_MM, grid.spacing_mm)
    window = []
    for axis, span in enumerate(coarse):
        start = int(np.floor((span.start - first[axis]) / scale[axis]))
        stop = int(np.ceil((span.stop - first[axis]) / scale[axis]))
        window.append(slice(max(0, start), min(volume.shape[axis], stop)))
    offset = first + scale * [span.start for span in window]
    shape = tuple(span.stop - span.start for span in window)
    fine = ndimage.affine_transform(
        soft, scale, offset=offset, output_shape=shape, order=1, mode="nearest"
    )
    whole[tuple(window)] = fine > 0.5
    return whole


def _window(mask: Mask, margin_mm: float, spacing_mm: Vector) -> tuple[slice, slice, slice]:
    spans = []
    for axis, others in enumerate(((1, 2), (0, 2), (0, 1))):
        used = np.flatnonzero(mask.any(axis=others))
        margin = int(np.ceil(margin_mm / spacing_mm[axis]))
        spans.append(
            slice(max(0, int(used[0]) - margin), min(mask.shape[axis], int(used[-1]) + margin + 1))
        )
    return spans[0], spans[1], spans[2]


def _dilate(mask: Mask, radius_mm: float, spacing_mm: tuple[float, ...]) -> Mask:
    if not mask.any():
        return mask
    dilated: Mask = ndimage.distance_transform_edt(~mask, sampling=spacing_mm) <= radius_mm
    return dilated


def _erode_slices(mask: Mask, radius_mm: float, spacing_mm: Vector) -> Mask:
    """Peel each slice; the edge of the image is no border."""
    padded = np.pad(mask, ((0, 0), (1, 1), (1, 1)), mode="edge")
    far_apart = (1e6, spacing_mm[1], spacing_mm[2])
    depth_mm = ndimage.distance_transform_edt(padded, sampling=far_apart)[:, 1:-1, 1:-1]
    eroded: Mask = depth_mm > radius_mm
    return eroded


def _open(mask: Mask, radius_mm: float, spacing_mm: Vector) -> Mask:
    """Remove what no ball of this radius fits into; the edge of the image is no border."""
    margin = [int(np.ceil(radius_mm / s)) + 1 for s in spacing_mm]
    padded = np.pad(mask, [(n, n) for n in margin], mode="edge")
    core = ndimage.distance_transform_edt(padded, sampling=spacing_mm) > radius_mm
    opened = _dilate(core, radius_mm, spacing_mm)
    return opened[tuple(slice(n, -n) for n in margin)]

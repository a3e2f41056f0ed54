"""The lungs and the airway of a CT scan, as landmarks for what lies between them.

All functions work on an LPS volume of coarse, nearly cubic voxels (about 3 mm): averaging
removes noise and thin vessels, and every landmark here is larger than a centimetre.
"""

from dataclasses import dataclass
from itertools import permutations

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage
from skimage.morphology import convex_hull_image
from skimage.segmentation import watershed

from prodm.volume import Vector, Volume

Mask = NDArray[np.bool_]

LUNG_BELOW_HU = -500.0
OUTSIDE_AIR_BELOW_HU = -960.0  # lungs hold blood; the room, the trachea and most gas do not
LUMEN_BELOW_HU = -920.0
MAX_TRACHEA_MM = 30.0  # wide
MIN_TRACHEA_MM2 = 130.0  # at its beginning; a bronchus is smaller
MAX_GAP_MM = 12.0  # where it touches the lung and is not seen alone
MIN_LUNG_ML = 60.0
MIN_LUNG_SHARE = 0.15  # of the largest piece: gas in the bowel is smaller
MIN_LUNG_DISTANCE_MM = 60.0  # between the centres of right and left, along x
MAX_BRIDGE_MM = 30.0  # the lungs come apart at the latest when this much is peeled off
MIN_SLICE_AREA_MM2 = 300.0  # of each lung, where something lies between them


@dataclass(frozen=True)
class Lungs:
    """Masks [Z, Y, X] of the right and the left lung, with the large airways in part."""

    right: Mask
    left: Mask

    @property
    def both(self) -> Mask:
        """Either lung."""
        either: Mask = self.right | self.left
        return either


def find_lungs(volume: Volume) -> Lungs | None:
    """Return both lungs, or None where there are not two.

    Lungs may be cut by the edge of the image. Room air around the body is told from
    them by its density, gas in the bowel by its amount.
    """
    numbered, count = ndimage.label(volume.hu < LUNG_BELOW_HU)
    if count == 0:
        return None
    pieces = np.arange(1, count + 1)
    volumes_ml = np.bincount(numbered.ravel())[1:] * volume.grid.voxel_volume_mm3 / 1000
    pieces = pieces[volumes_ml >= MIN_LUNG_ML]
    pieces = pieces[
        np.array([_holds_blood(volume, numbered == piece) for piece in pieces], dtype=bool)
    ]
    if pieces.size == 0:
        return None
    pieces = pieces[volumes_ml[pieces - 1] >= MIN_LUNG_SHARE * volumes_ml[pieces - 1].max()]
    lungs = np.isin(numbered, pieces)
    window = ndimage.find_objects(lungs.astype(np.uint8))[0]
    sides = _split(lungs[window], volume.spacing_mm)
    if sides is None:
        return None
    right, left = np.zeros_like(lungs), np.zeros_like(lungs)
    right[window], left[window] = sides == 1, sides == 2
    return Lungs(right, left)


def _holds_blood(volume: Volume, piece: Mask) -> bool:
    """Whether even the thinner parts of a piece of air are denser than air alone."""
    return float(np.percentile(volume.hu[piece], 30)) >= OUTSIDE_AIR_BELOW_HU


def _split(lungs: Mask, spacing_mm: Vector) -> NDArray[np.int32] | None:
    """Part right, 1, from left, 2: peel until two large pieces lie side by side, then grow back."""
    depth_mm = ndimage.distance_transform_edt(lungs, sampling=spacing_mm)
    voxel_ml = float(np.prod(spacing_mm)) / 1000
    for peeled_mm in np.arange(0.0, MAX_BRIDGE_MM, 3.0):
        numbered, _ = ndimage.label(depth_mm > peeled_mm)
        sizes = np.bincount(numbered.ravel())
        sizes[0] = 0
        cores = [
            int(n) for n in np.argsort(sizes)[::-1][:4] if sizes[n] * voxel_ml > MIN_LUNG_ML / 2
        ]
        centres_x_mm = {n: _centre(numbered == n)[2] * spacing_mm[2] for n in cores}
        pairs = [
            (right, left)
            for right, left in permutations(cores, 2)
            if centres_x_mm[left] - centres_x_mm[right] > MIN_LUNG_DISTANCE_MM
            and min(sizes[right], sizes[left]) > MIN_LUNG_SHARE * sizes.max()
        ]
        if not pairs:
            continue
        right, left = max(pairs, key=lambda pair: min(sizes[pair[0]], sizes[pair[1]]))
        middle_mm = (centres_x_mm[right] + centres_x_mm[left]) / 2
        seeds = np.zeros(lungs.shape, dtype=np.int32)
        for piece in np.flatnonzero(sizes * voxel_ml > 1.0):
            mask = numbered == piece
            seeds[mask] = 1 if _centre(mask)[2] * spacing_mm[2] < middle_mm else 2
        sides: NDArray[np.int32] = watershed(-depth_mm, seeds, mask=lungs)
        return sides
    return None


def _centre(mask: Mask) -> Vector:
    z, y, x = ndimage.center_of_mass(mask)
    return float(z), float(y), float(x)


def hull_of_lungs(lungs: Lungs, spacing_mm: Vector) -> Mask:
    """Return, slice by slice, the convex hull of both lungs; empty where one is missing."""
    hull = np.zeros(lungs.right.shape, dtype=bool)
    pixel_mm2 = spacing_mm[1] * spacing_mm[2]
    areas_mm2 = np.minimum(lungs.right.sum(axis=(1, 2)), lungs.left.sum(axis=(1, 2))) * pixel_mm2
    for z in np.flatnonzero(areas_mm2 >= MIN_SLICE_AREA_MM2):
        hull[z] = convex_hull_image(lungs.right[z] | lungs.left[z])
    return hull


@dataclass(frozen=True)
class _AirSpot:
    y: float
    x: float
    area_mm2: float
    width_mm: float


def find_carina(volume: Volume, hull: Mask) -> int | None:
    """Return the slice where the trachea ends, or None where no trachea is seen.

    The trachea is followed down: one spot of air between the lungs in each slice, until it
    widens, splits or leaves. Where the top of the scan cuts the lungs, it must begin there.
    """
    track: list[tuple[int, _AirSpot]] = []
    slices = np.flatnonzero(hull.any(axis=(1, 2)))[::-1]
    dz = volume.spacing_mm[0]
    search_mm, needed_mm = (10.0, 30.0) if hull[-1].any() else (80.0, 20.0)
    for z in slices:
        spots = _air_spots(volume, hull, int(z))
        if not track:
            if (slices[0] - z) * dz > search_mm:
                return None
            wide = [
                s for s in spots if s.area_mm2 > MIN_TRACHEA_MM2 and s.width_mm < MAX_TRACHEA_MM
            ]
            track = [(int(z), wide[0])] if len(wide) == 1 else []
            continue
        last_z, last = track[-1]
        near = [s for s in spots if _distance_mm(s, last, volume.spacing_mm) < 20]
        if len(near) == 1 and near[0].width_mm < MAX_TRACHEA_MM:
            track.append((int(z), near[0]))
        elif near or (last_z - z) * dz > MAX_GAP_MM:
            if (track[0][0] - last_z) * dz >= needed_mm:
                return last_z
            track = []
    return None


def _distance_mm(one: _AirSpot, other: _AirSpot, spacing_mm: Vector) -> float:
    return float(np.hypot((one.y - other.y) * spacing_mm[1], (one.x - other.x) * spacing_mm[2]))


def _air_spots(volume: Volume, hull: Mask, z: int) -> list[_AirSpot]:
    """Small pieces of air in one slice near the middle of the hull."""
    dy, dx = volume.spacing_mm[1:]
    middle_x = np.nonzero(hull[z])[1].mean()
    numbered, _ = ndimage.label(volume.hu[z] < -600)
    spots = []
    for piece, (rows, columns) in enumerate(ndimage.find_objects(numbered), start=1):
        y, x = np.nonzero(numbered[rows, columns] == piece)
        area_mm2 = y.size * dy * dx
        y_mean, x_mean = y.mean() + rows.start, x.mean() + columns.start
        central = abs(x_mean - middle_x) * dx <= 30 and hull[z, int(y_mean), int(x_mean)]
        lumen = volume.hu[z, rows, columns].min() < LUMEN_BELOW_HU
        if 60 < area_mm2 < 900 and central and lumen:
            spots.append(_AirSpot(y_mean, x_mean, area_mm2, (columns.stop - columns.start) * dx))
    return spots

"""Back-projection of filtered profiles, with one displacement per view.

If what is scanned moves by D_i while view i is taken, its projection at that angle slides by
<D_i, n_i>. So the moving image is the ordinary back-projection of the still profiles, each read
at a slid place,

    y(x) = (pi / N) sum_i Q_i(<x, n_i> - <D_i, n_i>)

and a displacement along z reads between the profiles of neighbouring slices. The factor is the
same for 180 and 360 degrees, where each line is measured twice and counts half.
"""

import numba
import numpy as np
from numpy.typing import NDArray

from prodm.physics.projection import BINS_PER_PIXEL, Profiles

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Range = tuple[int, int]  # first and one past the last

LANES = 8  # slices that are laid back side by side, as the processor likes it
TILE_PX = 32
LARGEST_SLIP_PX = 0.15  # by which joined views may disagree at the corner of a tile
GROUPS_AT_ONCE = 16  # so many joined profiles of a tile stay in the cache


def back_project(
    profiles: Profiles,
    displacement: Doubles,
    *,
    slices: Range,
    rows: Range,
    columns: Range,
) -> Floats:
    """Return the image [Z, Y, X] on a range of slices, rows and columns.

    Ranges count from the first voxel of the image that was projected and may leave it. Each view's
    ``displacement`` [N, 3] is (x in pixels, y in pixels, z in slices). Profiles that end before
    a pixel contribute their last value, so give them a radius that covers the range.
    """
    cosine, sine = np.cos(profiles.angles_rad), np.sin(profiles.angles_rad)
    slide = displacement[:, 0] * cosine + displacement[:, 1] * sine
    first_y, first_x = profiles.origin_yx_px
    first_y, first_x = rows[0] - first_y, columns[0] - first_x
    # Bin at which view i sees the first pixel of the range.
    corner = (first_x * cosine + first_y * sine - slide + profiles.radius_px) * BINS_PER_PIXEL
    num_slices = slices[1] - slices[0]
    seen = _between_slices(profiles.values, slices[0] - displacement[:, 2], num_slices)
    corner_reach_px = TILE_PX / np.sqrt(2)
    step_rad = float(np.ptp(profiles.angles_rad)) / max(1, len(cosine) - 1)
    joined = max(1, int(2 * LARGEST_SLIP_PX / (corner_reach_px * step_rad))) if step_rad else 1
    image = np.zeros((len(seen), rows[1] - rows[0], columns[1] - columns[0], LANES), np.float32)
    _lay_back(
        seen,
        corner.astype(np.float32),
        (cosine * BINS_PER_PIXEL).astype(np.float32),
        (sine * BINS_PER_PIXEL).astype(np.float32),
        joined,
        image,
    )
    image *= np.float32(np.pi / len(cosine))
    stack = image.transpose(0, 3, 1, 2).reshape(-1, *image.shape[1:3])
    return np.ascontiguousarray(stack[:num_slices])


def covering_radius_px(
    shape_yx: tuple[int, int], rows: Range, columns: Range, displacement: Doubles
) -> float:
    """Return how far profiles of an image must reach to cover a range under a displacement."""
    centre_y, centre_x = (shape_yx[0] - 1) / 2, (shape_yx[1] - 1) / 2
    away_y = max(abs(rows[0] - centre_y), abs(rows[1] - 1 - centre_y))
    away_x = max(abs(columns[0] - centre_x), abs(columns[1] - 1 - centre_x))
    farthest = np.hypot(displacement[:, 0], displacement[:, 1]).max(initial=0.0)
    return float(np.hypot(away_y, away_x) + farthest) + TILE_PX  # a tile reads a little beyond it


@numba.njit(parallel=True, cache=True)  # type: ignore[untyped-decorator]
def _between_slices(values: Floats, first: Doubles, num_slices: int) -> Floats:
    """Read slices first[i], first[i] + 1, ...; as [slice // 8, N, B * 8 + slice % 8]."""
    num_views, num_stored, num_bins = values.shape
    num_groups = (num_slices + LANES - 1) // LANES
    seen = np.zeros((num_groups, num_views, num_bins * LANES), np.float32)
    for i in numba.prange(num_views):
        lowest = int(np.floor(first[i]))
        above_weight = np.float32(first[i] - lowest)
        below_weight = np.float32(1) - above_weight
        for z in range(num_slices):
            below = lowest + z
            row = seen[z // LANES, i]
            lane = z % LANES
            if 0 <= below < num_stored:
                for b in range(num_bins):
                    row[b * LANES + lane] += below_weight * values[i, below, b]
            if 0 <= below + 1 < num_stored:
                for b in range(num_bins):
                    row[b * LANES + lane] += above_weight * values[i, below + 1, b]
    return seen


@numba.njit(parallel=True, cache=True, fastmath=True)  # type: ignore[untyped-decorator]
def _lay_back(
    seen: Floats, corner: Floats, cosine: Floats, sine: Floats, joined: int, image: Floats
) -> None:
    """Add every view to every pixel of image [slice // 8, Y, X, slice % 8], tile by tile.

    Under one small tile, neighbouring views differ only by where they see the tile's centre. So
    ``joined`` views are first slid to agree there and summed, and then laid back as one at their
    mean angle; what is left is a slip of a fraction of a pixel at the tile's corners.
    The eight sums are written out: only so does the compiler keep them in one register.
    """
    num_groups, num_rows, num_columns, _ = image.shape
    num_views, num_bins = seen.shape[1], seen.shape[2] // LANES
    tiles_x = (num_columns + TILE_PX - 1) // TILE_PX
    num_tiles = tiles_x * ((num_rows + TILE_PX - 1) // TILE_PX)
    reach = int(np.ceil(TILE_PX * 0.7072 * BINS_PER_PIXEL)) + 2  # bins from centre to corner
    width = 2 * reach + 1
    zero, one = np.float32(0), np.float32(1)
    views_at_once = joined * GROUPS_AT_ONCE
    for job in numba.prange(num_groups * num_tiles):
        group, tile = job // num_tiles, job % num_tiles
        y_start, x_start = (tile // tiles_x) * TILE_PX, (tile % tiles_x) * TILE_PX
        y_stop, x_stop = min(y_start + TILE_PX, num_rows), min(x_start + TILE_PX, num_columns)
        y_centre = np.float32(0.5 * (y_start + y_stop - 1))
        x_centre = np.float32(0.5 * (x_start + x_stop - 1))
        sums = np.empty((GROUPS_AT_ONCE, width * LANES), np.float32)
        along = np.empty(GROUPS_AT_ONCE, np.float32)
        across = np.empty(GROUPS_AT_ONCE, np.float32)
        for first in range(0, num_views, views_at_once):
            num_sums = 0
            for start in range(first, min(first + views_at_once, num_views), joined):
                stop = min(start + joined, num_views)
                row = sums[num_sums]
                row[:] = zero
                mean_cosine = mean_sine = zero
                for i in range(start, stop):
                    mean_cosine += cosine[i]
                    mean_sine += sine[i]
                    left = corner[i] + y_centre * sine[i] + x_centre * cosine[i] - np.float32(reach)
                    left = min(max(left, zero), np.float32(num_bins - width - 1))
                    b = np.int64(left)
                    u = left - np.float32(b)
                    v = one - u
                    low = seen[group, i, b * LANES : (b + width) * LANES]
                    high = seen[group, i, (b + 1) * LANES : (b + 1 + width) * LANES]
                    for k in range(width * LANES):
                        row[k] += v * low[k] + u * high[k]
                along[num_sums] = mean_cosine / np.float32(stop - start)
                across[num_sums] = mean_sine / np.float32(stop - start)
                num_sums += 1
            for y in range(y_start, y_stop):
                for x in range(x_start, x_stop):
                    s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = zero
                    away_y, away_x = np.float32(y) - y_centre, np.float32(x) - x_centre
                    for n in range(num_sums):
                        position = np.float32(reach) + away_y * across[n] + away_x * along[n]
                        b = np.int64(position)
                        u = position - np.float32(b)
                        v = one - u
                        pair = sums[n, b * LANES : (b + 2) * LANES]
                        s0 += v * pair[0] + u * pair[8]
                        s1 += v * pair[1] + u * pair[9]
                        s2 += v * pair[2] + u * pair[10]
                        s3 += v * pair[3] + u * pair[11]
                        s4 += v * pair[4] + u * pair[12]
                        s5 += v * pair[5] + u * pair[13]
                        s6 += v * pair[6] + u * pair[14]
                        s7 += v * pair[7] + u * pair[15]
                    pixel = image[group, y, x]
                    pixel[0] += s0
                    pixel[1] += s1
                    pixel[2] += s2
                    pixel[3] += s3
                    pixel[4] += s4
                    pixel[5] += s5
                    pixel[6] += s6
                    pixel[7] += s7

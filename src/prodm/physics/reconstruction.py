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
VIEWS_AT_ONCE = 32  # the profiles of so many views under one tile stay in the cache


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
    image = np.zeros((len(seen), rows[1] - rows[0], columns[1] - columns[0], LANES), np.float32)
    _lay_back(
        seen,
        corner.astype(np.float32),
        (cosine * BINS_PER_PIXEL).astype(np.float32),
        (sine * BINS_PER_PIXEL).astype(np.float32),
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
    return float(np.hypot(away_y, away_x) + farthest)


@numba.njit(parallel=True, cache=True)  # type: ignore[untyped-decorator]
def _between_slices(values: Floats, first: Doubles, num_slices: int) -> Floats:
    """Profiles read at slices first[i], first[i] + 1, ..., as [slice // 8, N, B, slice % 8]."""
    num_views, num_bins, num_stored = values.shape
    num_groups = (num_slices + LANES - 1) // LANES
    seen = np.zeros((num_groups, num_views, num_bins, LANES), np.float32)
    for i in numba.prange(num_views):
        below = int(np.floor(first[i]))
        above_weight = np.float32(first[i] - below)
        below_weight = np.float32(1) - above_weight
        for z in range(num_slices):
            source = below + z
            group, lane = z // LANES, z % LANES
            if 0 <= source < num_stored:
                for b in range(num_bins):
                    seen[group, i, b, lane] += below_weight * values[i, b, source]
            if 0 <= source + 1 < num_stored:
                for b in range(num_bins):
                    seen[group, i, b, lane] += above_weight * values[i, b, source + 1]
    return seen


@numba.njit(parallel=True, cache=True, fastmath=True)  # type: ignore[untyped-decorator]
def _lay_back(seen: Floats, corner: Floats, cosine: Floats, sine: Floats, image: Floats) -> None:
    """Add every view to every pixel of image [slice // 8, Y, X, slice % 8], tile by tile.

    The eight sums are written out: only so does the compiler keep them in one register.
    """
    num_groups, num_rows, num_columns, _ = image.shape
    _, num_views, num_bins, _ = seen.shape
    tiles_x = (num_columns + TILE_PX - 1) // TILE_PX
    num_tiles = tiles_x * ((num_rows + TILE_PX - 1) // TILE_PX)
    zero, one, last = np.float32(0), np.float32(1), np.float32(num_bins - 1.001)
    for job in numba.prange(num_groups * num_tiles):
        group, tile = job // num_tiles, job % num_tiles
        y_start, x_start = (tile // tiles_x) * TILE_PX, (tile % tiles_x) * TILE_PX
        for first_view in range(0, num_views, VIEWS_AT_ONCE):
            last_view = min(first_view + VIEWS_AT_ONCE, num_views)
            for y in range(y_start, min(y_start + TILE_PX, num_rows)):
                for x in range(x_start, min(x_start + TILE_PX, num_columns)):
                    s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = zero
                    for i in range(first_view, last_view):
                        position = corner[i] + np.float32(y) * sine[i] + np.float32(x) * cosine[i]
                        position = min(max(position, zero), last)
                        b = np.int64(position)
                        u = position - np.float32(b)
                        v = one - u
                        low, high = seen[group, i, b], seen[group, i, b + 1]
                        s0 += v * low[0] + u * high[0]
                        s1 += v * low[1] + u * high[1]
                        s2 += v * low[2] + u * high[2]
                        s3 += v * low[3] + u * high[3]
                        s4 += v * low[4] + u * high[4]
                        s5 += v * low[5] + u * high[5]
                        s6 += v * low[6] + u * high[6]
                        s7 += v * low[7] + u * high[7]
                    pixel = image[group, y, x]
                    pixel[0] += s0
                    pixel[1] += s1
                    pixel[2] += s2
                    pixel[3] += s3
                    pixel[4] += s4
                    pixel[5] += s5
                    pixel[6] += s6
                    pixel[7] += s7

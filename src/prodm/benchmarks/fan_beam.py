"""A fan-beam short scan of calcium that moves, ray by ray, as a judge of the fast simulation.

It shares no code with ``prodm.physics`` and uses neither parallel rays nor linearity in the
motion: in each view the calcium is where it is at that moment, and every ray adds up what it
meets. Lengths are in pixels, x along columns and y along rows (downwards).

    source   S(b) = R (-sin b, cos b) around the isocentre, b the angle of the view
    ray      at angle g from the ray through the isocentre; it is the line <x, n> = R sin g with
             n = (cos, sin) of b + g. The same line comes again at b + pi + 2 g, from -g.
    scan     over 180 degrees + the fan, the least that sees every line. Lines seen twice are
             weighted so that the two sum to one (Parker, Med Phys 9:254, 1982)
    image    sum over views of Q(b, g) / L^2 db, with L the distance from the source to the pixel
             and Q the weighted rays times R cos g, filtered along g with the ramp of equal
             angles, -1 / (pi sin(n a))^2 at odd n (Kak and Slaney, section 3.4.1)

The detector is an arc; its channels are as fine as a fifth of a pixel at the isocentre, so that
what differs from a still image is motion and not resolution. Between slices the calcium is
interpolated linearly.
"""

import math
from dataclasses import dataclass

import numba
import numpy as np
import scipy.fft
from numpy.typing import NDArray
from scipy import ndimage

from prodm.errors import ProdmError

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Range = tuple[int, int]  # first and one past the last

FINER = 6  # samples per pixel of the calcium that rays meet, a cubic spline through its pixels
SPLINE_MARGIN_PX = 8  # around the calcium; the spline fades by 0.27 with each pixel
STEP_PX = 0.5  # along a ray
NEGLIGIBLE_HU = 1e-3


@dataclass(frozen=True)
class FanBeam:
    """A scanner and its short scan.

    >>> FanBeam(source_px=1000.0, fan_deg=50.0).span_deg
    230.0
    """

    source_px: float  # from the source to the isocentre, R
    fan_deg: float = 52.0  # from the first to the last channel
    num_views: int = 720
    start_deg: float = 0.0
    channel_px: float = 0.2  # at the isocentre

    def __post_init__(self) -> None:
        if not (self.source_px > 0 and self.channel_px > 0 and 0 < self.fan_deg < 180):
            raise ProdmError(
                "a fan beam needs a positive distance and channel and a fan below 180 degrees, "
                f"got {self}"
            )
        if self.num_views < 8:
            raise ProdmError(f"a scan needs at least 8 views, got {self.num_views}")

    @property
    def span_deg(self) -> float:
        """How far the source turns."""
        return 180.0 + self.fan_deg

    @property
    def turned_rad(self) -> Doubles:
        """Angles [N] by which the source has turned since the start."""
        return np.arange(self.num_views, dtype=np.float64) * (
            math.radians(self.span_deg) / self.num_views
        )

    @property
    def half_fan_rad(self) -> float:
        """From the middle to the last channel."""
        return math.radians(self.fan_deg) / 2

    @property
    def channel_rad(self) -> float:
        """Angle between neighbouring rays."""
        return self.channel_px / self.source_px


def scan(
    calcium: NDArray[np.floating],
    displacement: Doubles,
    geometry: FanBeam,
    *,
    isocentre_yx: tuple[float, float],
    rows: Range,
    columns: Range,
) -> Floats:
    """Return the image [Z, Y, X] of calcium [Z, Y, X] over zero that moves, on rows and columns.

    Each view's ``displacement`` [N, 3] is (x in pixels, y in pixels, z in slices). Rows, columns
    and the isocentre count from the calcium's first pixel.
    """
    if displacement.shape != (geometry.num_views, 3):
        raise ProdmError(
            f"each of {geometry.num_views} views needs a displacement (x, y, z), "
            f"got an array of {displacement.shape}"
        )
    image = np.zeros((len(calcium), rows[1] - rows[0], columns[1] - columns[0]), np.float32)
    occupied = np.nonzero(np.abs(calcium) > NEGLIGIBLE_HU)
    if not occupied[0].size:
        return image
    z, y, x = (slice(int(axis.min()), int(axis.max()) + 1) for axis in occupied)
    # Everything from here on has the isocentre as its origin.
    fine = _spline_samples(calcium[z, y, x])
    corner_yx = np.array([y.start, x.start]) - SPLINE_MARGIN_PX - isocentre_yx
    first_yx = np.array([rows[0], columns[0]], dtype=np.float64) - isocentre_yx
    radius_px = _radius_px(fine, corner_yx, image, first_yx, displacement)
    angles = math.radians(geometry.start_deg) + geometry.turned_rad
    first_channel, num_channels = _channels(geometry, angles, first_yx, radius_px)
    arc = (geometry.source_px, geometry.channel_rad)
    rays = np.zeros((geometry.num_views, num_channels, fine.shape[2]), np.float32)
    _project(fine, corner_yx, angles, displacement[:, :2], arc, first_channel, rays)
    channels = first_channel[:, None] + np.arange(num_channels, dtype=np.float64)
    fan = channels * geometry.channel_rad
    weights = parker_weights(geometry.turned_rad[:, None], fan, geometry.half_fan_rad)
    weights *= geometry.source_px * np.cos(fan)
    rays *= weights[:, :, None].astype(np.float32)
    filtered = _filtered(rays, geometry.channel_rad)
    seen = _between_slices(filtered, z.start + displacement[:, 2], len(calcium))
    _lay_back(seen, first_yx, angles, arc, first_channel, image)
    image *= np.float32(math.radians(geometry.span_deg) / geometry.num_views)
    return image


def parker_weights(turned_rad: Doubles, fan_rad: Doubles, half_fan_rad: float) -> Doubles:
    """Return the weights of rays at ``fan_rad`` when the source has turned by ``turned_rad``.

    The two broadcast. A ray and its conjugate, at turned + pi + 2 fan and -fan, sum to one; what
    lies outside the scan or the fan weighs nothing.
    """
    turned, fan = np.broadcast_arrays(turned_rad, fan_rad)
    left = np.pi + 2 * half_fan_rad - turned  # until the end
    with np.errstate(divide="ignore", invalid="ignore"):
        rising = np.sin(np.pi / 4 * turned / (half_fan_rad - fan)) ** 2
        falling = np.sin(np.pi / 4 * left / (half_fan_rad + fan)) ** 2
    weights = np.ones(turned.shape)
    weights = np.where(left < 2 * (half_fan_rad + fan), falling, weights)
    weights = np.where(turned < 2 * (half_fan_rad - fan), rising, weights)
    inside = (turned >= 0) & (left >= 0) & (np.abs(fan) <= half_fan_rad)
    return np.where(inside, weights, 0.0)


def _spline_samples(calcium: NDArray[np.floating]) -> Floats:
    """Sample the spline through calcium [Z, Y, X] and its margin finely, as [Y, X, Z]."""
    margin = (SPLINE_MARGIN_PX, SPLINE_MARGIN_PX)
    padded = np.pad(calcium.astype(np.float64), ((0, 0), margin, margin))
    y, x = (np.arange((n - 1) * FINER + 1) / FINER for n in padded.shape[1:])
    places = np.meshgrid(y, x, indexing="ij")
    planes = [ndimage.map_coordinates(plane, places, order=3, mode="mirror") for plane in padded]
    return np.ascontiguousarray(np.stack(planes, axis=-1).astype(np.float32))


def _radius_px(
    fine: Floats, corner_yx: Doubles, image: Floats, first_yx: Doubles, displacement: Doubles
) -> float:
    """Return how far around the image's first pixel the image and the moving calcium reach."""
    farthest = 0.0
    for start, size in (
        (first_yx, np.array(image.shape[1:])),
        (corner_yx, np.array(fine.shape[:2]) / FINER),
    ):
        for corner in ((0, 0), (0, 1), (1, 0), (1, 1)):
            away = start + np.array(corner) * size - first_yx
            farthest = max(farthest, float(np.hypot(*away)))
    return farthest + float(np.hypot(displacement[:, 0], displacement[:, 1]).max()) + 2


def _channels(
    geometry: FanBeam, angles: Doubles, centre_yx: Doubles, radius_px: float
) -> tuple[NDArray[np.int64], int]:
    """Return each view's first channel, and how many channels see a disc."""
    to_x = centre_yx[1] + geometry.source_px * np.sin(angles)
    to_y = centre_yx[0] - geometry.source_px * np.cos(angles)
    distance = np.hypot(to_x, to_y)
    if distance.min() <= radius_px:
        raise ProdmError(
            f"the source, {geometry.source_px:g} pixels from the isocentre, must stay outside "
            f"what is imaged, which reaches {radius_px:.0f} pixels around {centre_yx.tolist()}"
        )
    half_width = np.arcsin(radius_px / distance)
    middle = _fan_angle(to_x, to_y, np.cos(angles), np.sin(angles))
    first = np.floor((middle - half_width) / geometry.channel_rad).astype(np.int64) - 1
    return first, int(np.ceil(2 * half_width.max() / geometry.channel_rad)) + 3


@numba.njit(cache=True)  # type: ignore[untyped-decorator]
def _fan_angle(to_x: Doubles, to_y: Doubles, cosine: Doubles, sine: Doubles) -> Doubles:
    """Fan angle of the ray from the source towards (to_x, to_y); 0 is through the isocentre."""
    # The middle ray runs along (sin b, -cos b); rays at positive angles lie towards (cos b, sin b).
    return np.arctan2(to_x * cosine + to_y * sine, to_x * sine - to_y * cosine)


@numba.njit(parallel=True, cache=True, fastmath=True)  # type: ignore[untyped-decorator]
def _project(
    fine: Floats,
    corner_yx: Doubles,
    angles: Doubles,
    displacement_xy: Doubles,
    arc: tuple[float, float],
    first_channel: NDArray[np.int64],
    rays: Floats,
) -> None:
    """Add up along every ray [view, channel, slice] the calcium where it is in that view."""
    num_y, num_x, num_slices = fine.shape
    source_px, channel_rad = arc
    for i in numba.prange(len(angles)):
        cosine, sine = np.cos(angles[i]), np.sin(angles[i])
        # The source as the moving calcium sees it, in fine samples.
        source_x = (-source_px * sine - displacement_xy[i, 0] - corner_yx[1]) * FINER
        source_y = (source_px * cosine - displacement_xy[i, 1] - corner_yx[0]) * FINER
        for k in range(rays.shape[1]):
            fan = (first_channel[i] + k) * channel_rad
            along_x = np.sin(fan) * cosine + np.cos(fan) * sine
            along_y = np.sin(fan) * sine - np.cos(fan) * cosine
            enter, leave = 0.0, 4.0 * source_px * FINER
            for start, along, size in (
                (source_x, along_x, num_x - 1.0),
                (source_y, along_y, num_y - 1.0),
            ):
                if abs(along) > 1e-12:
                    a, b = -start / along, (size - start) / along
                    enter, leave = max(enter, min(a, b)), min(leave, max(a, b))
                elif not 0 <= start <= size:
                    leave = -1.0
            step = STEP_PX * FINER
            total = rays[i, k]
            for n in range(int(np.ceil((leave - enter) / step))):
                way = enter + (n + 0.5) * step
                x, y = source_x + way * along_x, source_y + way * along_y
                column, row = int(np.floor(x)), int(np.floor(y))
                if 0 <= column < num_x - 1 and 0 <= row < num_y - 1:
                    u, v = np.float32(x - column), np.float32(y - row)
                    one = np.float32(1)
                    for z in range(num_slices):
                        total[z] += (one - v) * (
                            (one - u) * fine[row, column, z] + u * fine[row, column + 1, z]
                        ) + v * (
                            (one - u) * fine[row + 1, column, z] + u * fine[row + 1, column + 1, z]
                        )
            for z in range(num_slices):
                total[z] *= np.float32(STEP_PX)


def _filtered(rays: Floats, channel_rad: float) -> Floats:
    """Filter weighted rays [view, channel, slice] along the channels."""
    num_channels = rays.shape[1]
    length = scipy.fft.next_fast_len(2 * num_channels, real=True)
    distance = np.minimum(np.arange(length), length - np.arange(length))
    kernel = np.zeros(length)
    odd = (distance % 2 == 1) & (distance < num_channels)
    kernel[odd] = -1 / (np.pi * np.sin(distance[odd] * channel_rad)) ** 2
    kernel[0] = 1 / (2 * channel_rad) ** 2
    spectrum = scipy.fft.rfft(rays, n=length, axis=1)
    spectrum *= (np.fft.rfft(kernel).real * channel_rad).astype(np.float32)[:, None]
    filtered: Floats = scipy.fft.irfft(spectrum, n=length, axis=1)[:, :num_channels]
    return filtered


def _between_slices(filtered: Floats, lowest: Doubles, num_slices: int) -> Floats:
    """Put the calcium's slices, the first of which lies at ``lowest`` [view], on whole slices."""
    seen = np.zeros((*filtered.shape[:2], num_slices), np.float32)
    below = np.floor(lowest).astype(np.int64)
    upper_weight = (lowest - below).astype(np.float32)
    for z in range(filtered.shape[2]):
        for target, weight in ((below + z, 1 - upper_weight), (below + z + 1, upper_weight)):
            (views,) = np.nonzero((target >= 0) & (target < num_slices))
            seen[views, :, target[views]] += filtered[views, :, z] * weight[views, None]
    return seen


@numba.njit(parallel=True, cache=True, fastmath=True)  # type: ignore[untyped-decorator]
def _lay_back(
    seen: Floats,
    first_yx: Doubles,
    angles: Doubles,
    arc: tuple[float, float],
    first_channel: NDArray[np.int64],
    image: Floats,
) -> None:
    """Add to every pixel [slice, Y, X] what the ray through it says, over the distance squared."""
    num_slices, num_rows, num_columns = image.shape
    source_px, channel_rad = arc
    cosines, sines = np.cos(angles), np.sin(angles)
    for row in numba.prange(num_rows):
        total = np.zeros((num_columns, num_slices), np.float32)
        for i in range(len(angles)):
            for column in range(num_columns):
                to_x = first_yx[1] + column + source_px * sines[i]
                to_y = first_yx[0] + row - source_px * cosines[i]
                fan = _fan_angle(to_x, to_y, cosines[i], sines[i])
                position = fan / channel_rad - first_channel[i]
                k = int(np.floor(position))
                closeness = 1 / (to_x * to_x + to_y * to_y)
                upper = np.float32((position - k) * closeness)
                lower = np.float32(closeness) - upper
                for z in range(num_slices):
                    total[column, z] += lower * seen[i, k, z] + upper * seen[i, k + 1, z]
        for z in range(num_slices):
            for column in range(num_columns):
                image[z, row, column] = total[column, z]

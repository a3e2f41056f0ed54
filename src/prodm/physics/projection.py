"""Parallel projections of a sparse image, filtered for back-projection.

An image is taken as a cubic spline through its pixels: a sum of coefficients c_p times
B(x - p_x) B(y - p_y), with B the cubic B-spline. The projection of such a footprint at angle
theta is a smooth bump with the spectrum sinc^4(w cos theta) sinc^4(w sin theta), so

    Q_theta(w) = |w| H(w) sinc^4(w cos theta) sinc^4(w sin theta) sum_p c_p exp(-2 pi i w <p, n>)

is the filtered projection, w in cycles per pixel. The sum is binned on quarter pixels with cubic
B-spline weights, whose blur, and that of two linear interpolations when the profile is read, is
divided out. Nothing is lost to coarse bins: the still image comes back at the pixels, and
between them it is the spline, so that a motion by a fraction of a pixel blurs nothing.

H is 1 for the plain ramp. The others are the usual windows, which end at half a cycle per pixel.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numba
import numpy as np
import scipy.fft
from numpy.typing import NDArray
from scipy import ndimage

from prodm.errors import ProdmError

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]

BINS_PER_PIXEL = 4
SPLINE_MARGIN_PX = 8  # the coefficients fall by 0.27 with each pixel away from the image
NEGLIGIBLE_HU = 1e-3
ANGLES_AT_ONCE = 64

FILTER_WINDOWS: dict[str, Callable[[Doubles], Doubles]] = {
    "ramp": lambda w: np.ones(len(w)),
    "shepp-logan": lambda w: np.where(w <= 0.5, np.sinc(w), 0.0),
    "cosine": lambda w: np.where(w <= 0.5, np.cos(np.pi * w), 0.0),
    "hamming": lambda w: np.where(w <= 0.5, 0.54 + 0.46 * np.cos(2 * np.pi * w), 0.0),
    "hann": lambda w: np.where(w <= 0.5, 0.5 + 0.5 * np.cos(2 * np.pi * w), 0.0),
}


@dataclass(frozen=True, eq=False)
class Profiles:
    """Filtered projections of a stack of slices, ready to be laid back.

    ``values`` [N, Z, B] holds, for view i, slice z and bin b, the profile at the signed
    distance b / BINS_PER_PIXEL - radius_px from ``origin_yx_px`` along n = (cos, sin) in (x, y).
    """

    values: Floats
    angles_rad: Doubles
    origin_yx_px: tuple[float, float]
    radius_px: int


def filtered_projections(
    image: NDArray[np.float32] | Doubles,
    angles_rad: Doubles,
    *,
    radius_px: float,
    filter_window: str = "ramp",
) -> Profiles:
    """Project slices [Z, Y, X] at each angle and filter the profiles.

    The profiles are centred at the middle of the image and reach ``radius_px`` from there, which
    may be far outside the image: the filter's tails are wanted where the image is empty.
    """
    if filter_window not in FILTER_WINDOWS:
        raise ProdmError(
            f"there is no filter window {filter_window!r}; choose from {', '.join(FILTER_WINDOWS)}"
        )
    coefficients = _spline_coefficients(image)
    slices, rows, columns = np.nonzero(np.abs(coefficients) > NEGLIGIBLE_HU)
    origin_yx = ((image.shape[1] - 1) / 2, (image.shape[2] - 1) / 2)
    y = (rows - SPLINE_MARGIN_PX - origin_yx[0]).astype(np.float32)
    x = (columns - SPLINE_MARGIN_PX - origin_yx[1]).astype(np.float32)
    values = coefficients[slices, rows, columns].astype(np.float32)

    input_radius_px = float(np.hypot(x, y).max(initial=0.0)) + 2
    output_radius_px = int(np.ceil(radius_px)) + 1
    # The filter reaches from any input to any output without coming round.
    half_length_px = int(np.ceil(input_radius_px + output_radius_px)) + 1
    num_bins = scipy.fft.next_fast_len(2 * half_length_px * BINS_PER_PIXEL, real=True)
    ramp, frequency = _ramp(num_bins, filter_window)
    kept = 2 * output_radius_px * BINS_PER_PIXEL + 1
    first = num_bins // 2 - output_radius_px * BINS_PER_PIXEL

    profiles = np.empty((len(angles_rad), image.shape[0], kept), np.float32)
    for start in range(0, len(angles_rad), ANGLES_AT_ONCE):
        part = slice(start, start + ANGLES_AT_ONCE)
        angles = angles_rad[part]
        bins = np.zeros((len(angles), image.shape[0], num_bins), np.float32)
        _deposit(x, y, slices, values, angles, num_bins // 2, bins)
        spectrum = scipy.fft.rfft(bins, axis=-1, workers=numba.get_num_threads())
        cosine, sine = np.cos(angles)[:, None], np.sin(angles)[:, None]
        footprint = (np.sinc(frequency * cosine) * np.sinc(frequency * sine)) ** 4
        spectrum *= (ramp * footprint).astype(np.float32)[:, None, :]
        filtered = scipy.fft.irfft(spectrum, n=num_bins, axis=-1, workers=numba.get_num_threads())
        profiles[part] = filtered[:, :, first : first + kept]
    return Profiles(profiles, np.asarray(angles_rad, np.float64), origin_yx, output_radius_px)


def _spline_coefficients(image: NDArray[np.float32] | Doubles) -> Doubles:
    """Cubic B-spline coefficients in-plane, on the image grown by the margin."""
    margin = SPLINE_MARGIN_PX
    padded = np.pad(image.astype(np.float64), ((0, 0), (margin, margin), (margin, margin)))
    for axis in (1, 2):
        padded = ndimage.spline_filter1d(padded, 3, axis=axis, mode="mirror")
    coefficients: Doubles = padded
    return coefficients


def _ramp(num_bins: int, filter_window: str) -> tuple[Doubles, Doubles]:
    """Ramp times window, corrected for the two interpolations, and the frequencies it is at.

    The ramp is transformed from its samples in space (Kak and Slaney, eq. 3.61), because |w|
    sampled in frequency loses the mean of the image.
    """
    distance = np.minimum(np.arange(num_bins), num_bins - np.arange(num_bins))
    kernel = np.zeros(num_bins)
    odd = distance % 2 == 1
    kernel[odd] = -((BINS_PER_PIXEL / (np.pi * distance[odd])) ** 2)
    kernel[0] = BINS_PER_PIXEL**2 / 4
    frequency = np.arange(num_bins // 2 + 1, dtype=np.float64) * (BINS_PER_PIXEL / num_bins)
    interpolation = np.sinc(frequency / BINS_PER_PIXEL) ** 8  # cubic in, twice linear out
    ramp: Doubles = np.fft.rfft(kernel).real / interpolation
    ramp *= FILTER_WINDOWS[filter_window](frequency)
    return ramp, frequency


@numba.njit(parallel=True, cache=True, fastmath=True)  # type: ignore[untyped-decorator]
def _deposit(
    x: Floats,
    y: Floats,
    slices: NDArray[np.int64],
    values: Floats,
    angles_rad: Doubles,
    centre_bin: int,
    bins: Floats,
) -> None:
    """Add each coefficient to four bins [angle, slice, bin] with cubic B-spline weights."""
    for i in numba.prange(len(angles_rad)):
        cosine = np.float32(np.cos(angles_rad[i]) * BINS_PER_PIXEL)
        sine = np.float32(np.sin(angles_rad[i]) * BINS_PER_PIXEL)
        for p in range(len(values)):
            position = x[p] * cosine + y[p] * sine
            below = np.floor(position)
            f = position - below
            b = int(below) + centre_bin
            g = np.float32(1) - f
            sixth = values[p] / np.float32(6)
            row = bins[i, slices[p]]
            row[b - 1] += sixth * g * g * g
            row[b] += sixth * (np.float32(4) - np.float32(6) * f * f + np.float32(3) * f * f * f)
            row[b + 1] += sixth * (
                np.float32(4) - np.float32(6) * g * g + np.float32(3) * g * g * g
            )
            row[b + 2] += sixth * f * f * f

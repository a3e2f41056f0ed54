"""Algorithm 1 angle by angle in numba: what a compiler gains where linearity is not used.

Each view still moves the calcium, puts it back and projects the whole image; only the projector
and the reconstruction are compiled and run on all cores. The fast simulation is compared with
this to see what projecting the still calcium once is worth by itself.
"""

import numba
import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from prodm.benchmarks.literal_algorithm import calcium_box

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]


def move_anglewise(
    background: Floats,
    excess: Floats,
    angles_rad: Doubles,
    displacement: Doubles,
    air_hu: float = -1024.0,
) -> Floats:
    """Return slices [Z, Y, X] in HU in which the calcium moved; as ``move_literally``."""
    attenuation = (background - np.float32(air_hu)).astype(np.float32)
    num_bins = int(np.ceil(np.hypot(*background.shape[1:]))) + 4
    sinograms = np.zeros((len(background), len(angles_rad), num_bins), np.float32)
    box = calcium_box(excess, displacement)
    calcium = excess[box]
    for i, (dx, dy, dz) in enumerate(displacement):
        instant = attenuation.copy()
        instant[box] += ndimage.shift(calcium, (dz, dy, dx), order=1, mode="grid-constant")
        _project(instant, np.cos(angles_rad[i]), np.sin(angles_rad[i]), sinograms[:, i])
    filtered = _ramp_filter(sinograms)
    slices = np.zeros(background.shape, np.float32)
    _reconstruct(filtered, np.cos(angles_rad), np.sin(angles_rad), slices)
    return slices * np.float32(np.pi / len(angles_rad)) + np.float32(air_hu)


def _ramp_filter(sinograms: Floats) -> Floats:
    num_bins = sinograms.shape[-1]
    length = 2 * num_bins
    distance = np.minimum(np.arange(length), length - np.arange(length))
    kernel = np.where(distance % 2 == 1, -1 / (np.pi * np.maximum(distance, 1)) ** 2, 0.0)
    kernel[0] = 0.25
    spectrum = np.fft.rfft(sinograms, n=length) * np.fft.rfft(kernel).real.astype(np.float32)
    filtered: Floats = np.fft.irfft(spectrum, n=length)[..., :num_bins].astype(np.float32)
    return filtered


@numba.njit(parallel=True, cache=True, fastmath=True)  # type: ignore[untyped-decorator]
def _project(images: Floats, cosine: float, sine: float, bins: Floats) -> None:
    """Sum each slice along lines one pixel apart, between pixels bilinearly."""
    num_slices, num_rows, num_columns = images.shape
    num_bins = bins.shape[1]
    middle = 0.5 * (num_bins - 1)
    for job in numba.prange(num_slices * num_bins):
        z, b = job // num_bins, job % num_bins
        total = 0.0
        for step in range(num_bins):
            x = (b - middle) * cosine - (step - middle) * sine + 0.5 * (num_columns - 1)
            y = (b - middle) * sine + (step - middle) * cosine + 0.5 * (num_rows - 1)
            column, row = int(np.floor(x)), int(np.floor(y))
            if 0 <= column < num_columns - 1 and 0 <= row < num_rows - 1:
                u, v = x - column, y - row
                total += (1 - v) * (
                    (1 - u) * images[z, row, column] + u * images[z, row, column + 1]
                ) + v * ((1 - u) * images[z, row + 1, column] + u * images[z, row + 1, column + 1])
        bins[z, b] = total


@numba.njit(parallel=True, cache=True, fastmath=True)  # type: ignore[untyped-decorator]
def _reconstruct(filtered: Floats, cosine: Doubles, sine: Doubles, slices: Floats) -> None:
    num_slices, num_rows, num_columns = slices.shape
    middle = 0.5 * (filtered.shape[2] - 1)
    for job in numba.prange(num_slices * num_rows):
        z, row = job // num_rows, job % num_rows
        y = row - 0.5 * (num_rows - 1)
        for i in range(len(cosine)):
            for column in range(num_columns):
                x = column - 0.5 * (num_columns - 1)
                position = x * cosine[i] + y * sine[i] + middle
                b = int(position)
                u = np.float32(position - b)
                slices[z, row, column] += (1 - u) * filtered[z, i, b] + u * filtered[z, i, b + 1]

"""The paper's Algorithm 1 as it is printed, on scikit-image: slow, and independent.

For each view the calcium is moved and put back into the background, the whole image is projected
at that one angle, and all views are reconstructed at the end. It shares no code with the fast
simulation. scikit-image turns its angles the other way: its theta is minus ours.
"""

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage
from skimage.transform import iradon, radon

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]


def move_literally(
    background: Floats,
    excess: Floats,
    angles_rad: Doubles,
    displacement: Doubles,
    *,
    air_hu: float = -1024.0,
    oversampling: int = 1,
) -> Floats:
    """Return slices [Z, Y, X] in HU in which the calcium moved.

    ``excess`` [Z, Y, X] is the calcium over the background; displacements [N, 3] are (x in pixels,
    y in pixels, z in slices). Empty slices above and below catch what moves along z.

    scikit-image rotates an image bilinearly to project it, which blurs small lesions. With
    ``oversampling`` 2 or more it works on fractions of a pixel, with cubic interpolation, where
    that blur is small: many times slower, and what a picture is to be compared with.
    """
    if oversampling == 1:
        return _run(background, excess, angles_rad, displacement, air_hu, order=1)
    fine = [_between_pixels(array, oversampling) for array in (background, excess)]
    farther = displacement * (oversampling, oversampling, 1)
    moving = _run(fine[0], fine[1], angles_rad, farther, air_hu, order=3)
    return moving[:, ::oversampling, ::oversampling]


def _run(
    background: Floats,
    excess: Floats,
    angles_rad: Doubles,
    displacement: Doubles,
    air_hu: float,
    order: int,
) -> Floats:
    thetas_deg = -np.rad2deg(angles_rad)
    attenuation = background - np.float32(air_hu)
    box = calcium_box(excess, displacement)
    calcium = excess[box]
    views = []
    for theta_deg, (dx, dy, dz) in zip(thetas_deg, displacement, strict=True):
        moved = ndimage.shift(calcium, (dz, 0, 0), order=1, mode="grid-constant")
        moved = ndimage.shift(moved, (0, dy, dx), order=order, mode="grid-constant")
        instant = attenuation.copy()
        instant[box] += moved
        views.append(np.stack([radon(image, [theta_deg], circle=False)[:, 0] for image in instant]))
    sinograms = np.stack(views, axis=-1)
    slices = [
        iradon(sinogram, thetas_deg, output_size=background.shape[1], circle=False)
        for sinogram in sinograms
    ]
    moving: Floats = (np.stack(slices) + air_hu).astype(np.float32)
    return moving


def calcium_box(excess: Floats, displacement: Doubles) -> tuple[slice, slice, slice]:
    """Where the calcium ever is: nobody would move the empty rest of the scan."""
    reach = int(np.ceil(np.abs(displacement[:, :2]).max())) + 8
    bounds = [slice(None)]
    for axis in (1, 2):
        held = np.flatnonzero(excess.any(axis=(0, 3 - axis)))
        first, last = (held[0], held[-1]) if len(held) else (0, 0)
        bounds.append(slice(max(0, int(first) - reach), int(last) + 1 + reach))
    return bounds[0], bounds[1], bounds[2]


def _between_pixels(array: Floats, oversampling: int) -> Floats:
    """Slices with cubic values between the pixels; each n-th one is a pixel."""
    rows, columns = array.shape[1:]
    ends = (rows - 1) * oversampling + 1, (columns - 1) * oversampling + 1
    places = np.mgrid[: ends[0], : ends[1]] / oversampling
    fine = [ndimage.map_coordinates(image, places, order=3, mode="nearest") for image in array]
    return np.stack(fine).astype(np.float32)

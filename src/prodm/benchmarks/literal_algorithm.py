"""The paper's Algorithm 1 as it is printed, on scikit-image: slow, and independent.

For each view the calcium is moved and put back into the background, the whole image is projected
at that one angle, and all views are reconstructed at the end. It shares no code with the fast
simulation. scikit-image turns its angles the other way: its theta is minus ours.

The paper does not say how to interpolate. ``linear`` is what scikit-image does by default, and the
fastest; it blurs lesions of a pixel or two, even at rest. ``cubic`` is scikit-image's too.
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage
from skimage.transform import iradon, radon, warp

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Interpolation = Literal["linear", "cubic"]

ORDER: dict[Interpolation, int] = {"linear": 1, "cubic": 3}


def move_literally(
    background: Floats,
    excess: Floats,
    angles_rad: Doubles,
    displacement: Doubles,
    *,
    air_hu: float = -1024.0,
    interpolation: Interpolation = "linear",
) -> Floats:
    """Return square slices [Z, Y, X] in HU in which the calcium moved.

    ``excess`` [Z, Y, X] is the calcium over the background; displacements [N, 3] are (x in pixels,
    y in pixels, z in slices). Empty slices above and below catch what moves along z, which is
    always interpolated linearly between slices.
    """
    thetas_deg = -np.rad2deg(angles_rad)
    attenuation = background - np.float32(air_hu)
    box = calcium_box(excess, displacement)
    calcium = excess[box]
    order = ORDER[interpolation]
    views = []
    for theta_deg, (dx, dy, dz) in zip(thetas_deg, displacement, strict=True):
        along_z = ndimage.shift(calcium, (dz, 0, 0), order=1, mode="grid-constant")
        moved = [ndimage.shift(a, (dy, dx), order=order, mode="grid-constant") for a in along_z]
        instant = attenuation.copy()
        instant[box] += np.stack(moved)
        views.append(np.stack([_project(image, theta_deg, interpolation) for image in instant]))
    sinograms = np.stack(views, axis=-1)
    size = background.shape[1]
    slices = [
        iradon(sinogram, thetas_deg, output_size=size, circle=False, interpolation=interpolation)
        for sinogram in sinograms
    ]
    moving: Floats = (np.stack(slices) + air_hu).astype(np.float32)
    return moving


def _project(image: Floats, theta_deg: float, interpolation: Interpolation) -> Floats:
    if interpolation == "linear":
        view: Floats = radon(image, [theta_deg], circle=False)[:, 0]
        return view
    return rotate_and_sum(image, theta_deg, ORDER[interpolation])


def rotate_and_sum(image: Floats, theta_deg: float, order: int) -> Floats:
    """Return one view [bins] as ``radon`` makes it, which rotates with ``order`` 1 only."""
    diagonal = np.sqrt(2) * max(image.shape)
    padding = []
    for length in image.shape:
        extra = int(np.ceil(diagonal - length))
        before = (length + extra) // 2 - length // 2
        padding.append((before, extra - before))
    padded = np.pad(image, padding)
    middle = len(padded) // 2
    cos, sin = np.cos(np.deg2rad(theta_deg)), np.sin(np.deg2rad(theta_deg))
    rotation = np.array(
        [
            [cos, sin, -middle * (cos + sin - 1)],
            [-sin, cos, -middle * (cos - sin - 1)],
            [0, 0, 1],
        ]
    )
    view: Floats = warp(padded, rotation, order=order, clip=False).sum(axis=0)
    return view


def calcium_box(excess: Floats, displacement: Doubles) -> tuple[slice, slice, slice]:
    """Where the calcium ever is: nobody would move the empty rest of the scan."""
    reach = int(np.ceil(np.abs(displacement[:, :2]).max())) + 8
    bounds = [slice(None)]
    for axis in (1, 2):
        held = np.flatnonzero(excess.any(axis=(0, 3 - axis)))
        first, last = (held[0], held[-1]) if len(held) else (0, 0)
        bounds.append(slice(max(0, int(first) - reach), int(last) + 1 + reach))
    return bounds[0], bounds[1], bounds[2]

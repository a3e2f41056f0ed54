"""The paper's Algorithm 1 as it is printed, on scikit-image: slow, and independent.

For each view the calcium is moved and put back into the background, the whole image is projected
at that one angle, and all views are reconstructed at the end. It shares no code with the fast
simulation. scikit-image turns its angles the other way: its theta is minus ours.

The paper does not say how to interpolate, nor on which grid. Linear on whole pixels is what
scikit-image does by default, and the fastest; it blurs small lesions, even at rest. Cubic on halves
of a pixel (``oversampling`` 2) is many times slower and sharp.
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
    oversampling: int = 1,
) -> Floats:
    """Return square slices [Z, Y, X] in HU in which the calcium moved.

    ``excess`` [Z, Y, X] is the calcium over the background; displacements [N, 3] are (x in pixels,
    y in pixels, z in slices). Empty slices above and below catch what moves along z, which is
    always interpolated linearly between slices.
    """
    thetas_deg = -np.rad2deg(angles_rad)
    order = ORDER[interpolation]
    tissue = background - np.float32(air_hu)
    kept = np.flatnonzero(_calcium_slices(excess, displacement) | tissue.any(axis=(1, 2)))
    attenuation = _shifted(tissue[kept], 0.0, 0.0, order, oversampling)
    box = calcium_box(excess, displacement)
    calcium = excess[box]
    fine_box = (slice(None), *(_finer(axis, oversampling) for axis in box[1:]))
    views = []
    for theta_deg, (dx, dy, dz) in zip(thetas_deg, displacement, strict=True):
        along_z = ndimage.shift(calcium, (dz, 0, 0), order=1, mode="grid-constant")
        instant = attenuation.copy()
        instant[fine_box] += _shifted(along_z[kept], dy, dx, order, oversampling)
        views.append(np.stack([_project(image, theta_deg, interpolation) for image in instant]))
    moving = np.full(background.shape, air_hu, np.float32)
    for z, sinogram in zip(kept, np.stack(views, axis=-1), strict=True):
        reconstructed = iradon(
            sinogram,
            thetas_deg,
            output_size=attenuation.shape[1],
            circle=False,
            interpolation=interpolation,
        )
        moving[z] += reconstructed[::oversampling, ::oversampling]
    return moving


def _calcium_slices(excess: Floats, displacement: Doubles) -> NDArray[np.bool_]:
    """Which slices [Z] calcium ever reaches."""
    reach = int(np.ceil(np.abs(displacement[:, 2]).max())) + 1
    reached: NDArray[np.bool_] = ndimage.binary_dilation(excess.any(axis=(1, 2)), iterations=reach)
    return reached


def _shifted(slices: Floats, dy: float, dx: float, order: int, oversampling: int) -> Floats:
    """Move slices in-plane, by pixels, onto a grid whose each n-th point is a pixel."""
    step = np.full(2, 1 / oversampling)
    shape = tuple((length - 1) * oversampling + 1 for length in slices.shape[1:])
    return np.stack(
        [
            ndimage.affine_transform(
                image, step, (-dy, -dx), shape, order=order, mode="grid-constant"
            )
            for image in slices
        ]
    )


def _finer(pixels: slice, oversampling: int) -> slice:
    return slice(pixels.start * oversampling, (pixels.stop - 1) * oversampling + 1)


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
        end = min(excess.shape[axis], int(last) + 1 + reach)
        bounds.append(slice(max(0, int(first) - reach), end))
    return bounds[0], bounds[1], bounds[2]

"""Motion as a phase: how a parallel scan sees a rigid motion, in one Fourier transform.

By the central-slice theorem, the view at angle theta measures one line through the origin of an
image's Fourier plane, the one along n = (cos theta, sin theta). What moves by D(theta) while
it is scanned is therefore seen with

    Y(w, theta) = E(w, theta) exp(-2 pi i w s(theta)),     s(theta) = <D(theta), n>

with w the signed frequency along the line in cycles per pixel. Magnitudes stay, phases turn.
A line is the same at theta and theta + pi, where w and s change sign. Over 180 degrees s is one
real function, in general with a jump where the scan starts and ends. Over 360 degrees each line
is measured twice and the two are averaged: then magnitudes change too, and nothing undoes it.
A displacement along z blends the spectra of neighbouring slices, linearly and angle by angle.

Conventions. Images are [..., Z, Y, X] and hold what moves, over a background of zero; numpy and
torch arrays alike, batched and differentiable. ``shift`` [..., M] is s in pixels, and
``slice_shift`` [..., M] the displacement along z in slices, both at the angles

    theta_j = start_rad + span * j / M

of the scan's views, linear in between; the jump lies half a step before the first view. The
leading axes of a shift are those of the images, without Z. Images are padded with zeros before
the transform, to an odd length: an even one has a Nyquist line that holds two directions at
once, and no phase. Where ``padding=0`` keeps an even length, that line is left as it is.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import array_api_compat
import numpy as np
from numpy.typing import NDArray

from prodm.errors import ProdmError

Array = Any  # a numpy array or a torch tensor
Floats = NDArray[np.float64]

PADDING_PX = 96  # what leaves the block fades before it comes round; see docs/simulation.md


def move(
    block: Array,
    displacement: Array,
    *,
    start_rad: float | Array = 0.0,
    span_deg: float = 180.0,
    padding: int | None = None,
) -> Array:
    """Return blocks [..., Z, Y, X] as a scan sees them moving.

    ``displacement`` [..., M, 3] holds (x in pixels, y in pixels, z in slices) at the M views.
    """
    xp = array_api_compat.array_namespace(block, displacement)
    angles = view_angles_rad(displacement.shape[-2], start_rad=start_rad, span_deg=span_deg)
    shift = shift_of(displacement[..., :2], angles)
    along_z = displacement[..., 2]
    moves_along_z = bool(xp.any(along_z != 0))
    reached = _reached_slices(block, along_z) if isinstance(block, np.ndarray) else slice(None)
    seen = apply(
        block[..., reached, :, :],
        shift,
        slice_shift=along_z if moves_along_z else None,
        start_rad=start_rad,
        span_deg=span_deg,
        padding=padding,
    )
    if seen.shape == block.shape:
        return seen
    moved = np.zeros(block.shape, seen.dtype)
    moved[..., reached, :, :] = seen
    return moved


def _reached_slices(block: NDArray[np.floating[Any]], along_z: NDArray[np.floating[Any]]) -> slice:
    """Return the slices that what moves ever reaches; at least one.

    One slice more at each end: half a step before the first view and after the last, the
    displacement is extrapolated.
    """
    held = np.flatnonzero(block.any(axis=(*range(block.ndim - 3), -2, -1)))
    if len(held) == 0:
        return slice(0, 1)
    low, high = int(np.floor(along_z.min())) - 1, int(np.ceil(along_z.max())) + 1
    return slice(max(0, int(held[0]) + min(low, 0)), int(held[-1]) + max(high, 0) + 1)


def apply(
    image: Array,
    shift: Array,
    *,
    slice_shift: Array | None = None,
    start_rad: float | Array = 0.0,
    span_deg: float = 180.0,
    padding: int | None = None,
) -> Array:
    """Turn the phases of images [..., Z, Y, X] by s(theta), and blend slices for the z part.

    ``padding`` is how many pixels are added at least.
    """
    mover = Mover(
        image,
        shift,
        slice_shift=slice_shift,
        start_rad=start_rad,
        span_deg=span_deg,
        padding=padding,
    )
    return mover.apply(image)


class Mover:
    """A motion that many images of one size are moved by, and back.

    What depends on the motion alone is worked out once. ``image`` is any of them, to tell their
    size, precision and device.
    """

    def __init__(
        self,
        image: Array,
        shift: Array,
        *,
        slice_shift: Array | None = None,
        start_rad: float | Array = 0.0,
        span_deg: float = 180.0,
        padding: int | None = None,
    ) -> None:
        _check_views(shift.shape[-1])
        self._xp = xp = array_api_compat.array_namespace(image)
        rows, columns = self._size = image.shape[-2:]
        self._shape = shape = (padded_length(rows, padding), padded_length(columns, padding))
        turns = [
            _lines(xp, image, shape, shift.shape[-1], start_rad, span_deg, turn)
            for turn in range(_num_turns(span_deg))
        ]
        there = [_term(xp, lines, shift, slice_shift) for lines in turns]
        self._there = _slice_weights(xp, there)
        # A line comes back with its phase turned back, from where its slice went.
        self._back = [(-step, xp.conj(weight)) for step, weight in self._there]

    def apply(self, image: Array) -> Array:
        """Return images [..., Z, Y, X] as the motion shows them."""
        return self._turned(image, self._there)

    def undo(self, image: Array) -> Array:
        """Return images with a motion over 180 degrees undone, as ``undo`` does."""
        return self._turned(image, self._back)

    def _turned(self, image: Array, weights: list[tuple[int, Array]]) -> Array:
        spectrum = transform(self._xp, image, self._shape)
        return inverse(self._xp, _blend(self._xp, spectrum, weights), self._size, self._shape)


def turner(
    image: Array,
    num_views: int,
    *,
    start_rad: float | Array = 0.0,
    span_deg: float = 180.0,
    padding: int | None = None,
) -> Callable[[Array, Array | None], Array]:
    """Return ``apply`` as a function of s(theta) and the z part, for many motions of one image.

    What depends on the image and on the start of the scan alone is worked out once. With one
    image [Z, Y, X] and N starts, N motions are applied to it together.
    """
    _check_views(num_views)
    xp = array_api_compat.array_namespace(image)
    rows, columns = image.shape[-2:]
    shape = (padded_length(rows, padding), padded_length(columns, padding))
    spectrum = transform(xp, image, shape)
    turns = [
        _lines(xp, image, shape, num_views, start_rad, span_deg, turn)
        for turn in range(_num_turns(span_deg))
    ]

    def turn(shift: Array, slice_shift: Array | None) -> Array:
        terms = [_term(xp, lines, shift, slice_shift) for lines in turns]
        blended = _blend(xp, spectrum, _slice_weights(xp, terms))
        return inverse(xp, blended, (rows, columns), shape)

    return turn


def undo(
    image: Array,
    shift: Array,
    *,
    slice_shift: Array | None = None,
    start_rad: float | Array = 0.0,
    padding: int | None = None,
) -> Array:
    """Turn the phases back: the inverse of ``apply`` for a scan over 180 degrees.

    In-plane it is exact up to what fell off the border of the image (with ``padding=0``, where
    nothing falls off, up to rounding). The z part is undone by blending the other way, which
    blurs a little along z instead of inverting.
    """
    back = None if slice_shift is None else -slice_shift
    return apply(image, -shift, slice_shift=back, start_rad=start_rad, padding=padding)


def refocuser(
    image: Array,
    num_views: int,
    *,
    start_rad: float | Array = 0.0,
    padding: int | None = None,
) -> Callable[[Array, Array], Array]:
    """Return a sharp ``undo`` as a function of s(theta) and the z part, for many motions.

    Here the z part is a third phase, exact for what is smooth along z, so that no motion blurs
    and all leave the energy as it is: a fair measure of which one gives the sharpest image.
    """
    xp = array_api_compat.array_namespace(image)
    num_slices, rows, columns = image.shape[-3:]
    shape = (padded_length(rows, padding), padded_length(columns, padding))
    depth = num_slices + (num_slices > 1)  # what leaves at one end must not enter at the other
    spectrum = xp.fft.fft(transform(xp, image, shape), n=depth, axis=-3)
    lower, upper_weight, frequency = _lines(xp, image, shape, num_views, start_rad, 180.0, 0)
    along = like(xp, np.fft.fftfreq(depth)[:, None, None], image)

    def undone(shift: Array, slice_shift: Array) -> Array:
        turned = frequency * _interpolate(xp, shift, lower, upper_weight)
        turned = turned + along * _interpolate(xp, slice_shift, lower, upper_weight)
        phase = xp.cos(2 * np.pi * turned) + 1j * xp.sin(2 * np.pi * turned)
        still = xp.fft.ifft(spectrum * phase, axis=-3)[..., :num_slices, :, :]
        return inverse(xp, still, (rows, columns), shape)

    return undone


def shift_of(displacement: Array, angles_rad: Array) -> Array:
    """Return s [..., M], the in-plane displacement [..., M, 2] along n at each view's angle."""
    xp = array_api_compat.array_namespace(displacement)
    angles = like(xp, angles_rad, displacement)
    return displacement[..., 0] * xp.cos(angles) + displacement[..., 1] * xp.sin(angles)


def view_angles_rad(
    num_views: int, *, start_rad: float | Array = 0.0, span_deg: float = 180.0
) -> Array:
    """Return the angles [M] (or [..., M], for a batch of starts) at which s is sampled."""
    steps = np.arange(num_views) * (np.deg2rad(span_deg) / num_views)
    if isinstance(start_rad, int | float):
        return start_rad + steps
    xp = array_api_compat.array_namespace(start_rad)
    return start_rad[..., None] + like(xp, steps, start_rad)


@lru_cache(maxsize=64)
def polar_frequencies(shape: tuple[int, int]) -> tuple[Floats, Floats]:
    """Return w (signed, cycles per pixel) and theta in [0, pi) of the half plane of an rfft2.

    Both are [Y, X // 2 + 1]. A sample and its mirror image get the same theta and opposite w, to
    the last bit. On the Nyquist lines of even lengths w is 0.
    """
    rows, columns = shape
    y = np.fft.fftfreq(rows)[:, None]
    x = np.fft.rfftfreq(columns)[None, :]
    sign = np.where(y < 0, -1.0, 1.0)
    theta = np.arctan2(sign * y, sign * x + 0.0)
    theta = np.where(theta >= np.pi, 0.0, theta)
    frequency = sign * np.hypot(x, y)
    if rows % 2 == 0:
        frequency[rows // 2, :] = 0
    if columns % 2 == 0:
        frequency[:, -1] = 0
    return frequency, theta


@lru_cache(maxsize=64)
def _static_lines(
    shape: tuple[int, int], num_views: int, start_rad: float, span_deg: float, turn: int
) -> tuple[NDArray[np.int64], Floats, Floats]:
    frequency, theta = polar_frequencies(shape)
    lower, upper_weight, sign = _locate(np, theta, num_views, start_rad, span_deg, turn)
    return lower.astype(np.int64), upper_weight, frequency * sign


def _lines(
    xp: Any,  # noqa: ANN401
    image: Array,
    shape: tuple[int, int],
    num_views: int,
    start_rad: float | Array,
    span_deg: float,
    turn: int,
) -> tuple[Array, Array, Array]:
    """For each Fourier sample: the view below it, the weight of the one above, and signed w."""
    if isinstance(start_rad, int | float):
        lower, upper_weight, frequency = _static_lines(
            shape, num_views, float(start_rad), float(span_deg), turn
        )
        device = array_api_compat.device(image)
        index = xp.asarray(lower, device=device)
        return index, like(xp, upper_weight, image), like(xp, frequency, image)
    frequency, theta = polar_frequencies(shape)
    starts = start_rad[..., None, None]
    angles = like(xp, theta, image)
    lower, upper_weight, sign = _locate(xp, angles, num_views, starts, span_deg, turn)
    index = xp.astype(lower, xp.int64)
    return index, upper_weight, (like(xp, frequency, image) * sign)[..., None, :, :]


def _locate(
    xp: Any,  # noqa: ANN401
    theta: Array,
    num_views: int,
    start_rad: float | Array,
    span_deg: float,
    turn: int,
) -> tuple[Array, Array, Array]:
    """Find where the lines at theta are measured in the given half turn of the scan."""
    step = float(np.deg2rad(span_deg)) / num_views
    first_edge = start_rad - step / 2
    half_turns = turn - xp.floor((theta - first_edge) / np.pi)
    position = (theta + np.pi * half_turns - first_edge) / step - 0.5
    lower = xp.clip(xp.floor(position), 0, num_views - 2)
    odd = half_turns - 2 * xp.floor(half_turns / 2)
    return lower, position - lower, 1 - 2 * odd


def _check_views(num_views: int) -> None:
    if num_views < 2:
        raise ProdmError(f"s(theta) needs at least two samples, got {num_views}")


def _term(
    xp: Any,  # noqa: ANN401
    lines: tuple[Array, Array, Array],
    shift: Array,
    slice_shift: Array | None,
) -> tuple[Array, Array]:
    """Return by what each Fourier sample is turned, and how far it is moved along z, or None."""
    lower, upper_weight, frequency = lines
    turned = (-2 * np.pi) * frequency * _interpolate(xp, shift, lower, upper_weight)
    phase = xp.cos(turned) + 1j * xp.sin(turned)
    if slice_shift is None:
        return phase, None
    return phase, _interpolate(xp, slice_shift, lower, upper_weight)


def _interpolate(xp: Any, samples: Array, lower: Array, upper_weight: Array) -> Array:  # noqa: ANN401
    """Samples [..., M] at fractional positions, as [..., 1, Y, X]: one value for all slices."""
    batch = tuple(samples.shape[:-1])
    plane = tuple(lower.shape[-2:])
    if lower.ndim == 2:
        flat = xp.reshape(lower, (-1,))
        below = xp.take(samples, flat, axis=-1)
        above = xp.take(samples, flat + 1, axis=-1)
    else:
        flat = xp.broadcast_to(
            xp.reshape(lower, (*lower.shape[:-2], -1)), (*batch, plane[0] * plane[1])
        )
        below = xp.take_along_axis(samples, flat, axis=-1)
        above = xp.take_along_axis(samples, flat + 1, axis=-1)
    below = xp.reshape(below, (*batch, *plane))
    above = xp.reshape(above, (*batch, *plane))
    return (below + (above - below) * upper_weight)[..., None, :, :]


def _slice_weights(xp: Any, terms: list[tuple[Array, Array]]) -> list[tuple[int, Array]]:  # noqa: ANN401
    """Return by what the spectra of other slices count, by how many slices they are away.

    It is the mean over the half turns of their phases, blended along z.
    """
    share = 1.0 / len(terms)
    if terms[0][1] is None:
        return [(0, sum(phase for phase, _ in terms) * share)]
    lowest = min(xp.min(along_z).item() for _, along_z in terms)
    highest = max(xp.max(along_z).item() for _, along_z in terms)
    # Slice z is seen where slice z - dz was: integer steps from floor(-highest) to ceil(-lowest).
    weights = []
    for step in range(int(np.floor(-highest)), int(np.ceil(-lowest)) + 1):
        parts = []
        for phase, along_z in terms:
            hat = 1 - xp.abs(along_z + step)
            parts.append(phase * xp.where(hat > 0, hat, xp.zeros_like(hat)))
        weights.append((step, sum(parts) * share))
    return weights


def _blend(xp: Any, spectrum: Array, weights: list[tuple[int, Array]]) -> Array:  # noqa: ANN401
    """Return the weighted sum of the spectra of neighbouring slices."""
    if len(weights) == 1 and weights[0][0] == 0:
        return spectrum * weights[0][1]
    total = xp.zeros_like(spectrum)
    for step, weight in weights:
        if abs(step) < spectrum.shape[-3]:
            total = total + _shift_slices(xp, spectrum, step) * weight
    return total


def _shift_slices(xp: Any, spectrum: Array, step: int) -> Array:  # noqa: ANN401
    """Slice z of the result is slice z + step; zero where there is none."""
    if step == 0:
        return spectrum
    empty = xp.zeros_like(spectrum[..., : abs(step), :, :])
    if step > 0:
        return xp.concat([spectrum[..., step:, :, :], empty], axis=-3)
    return xp.concat([empty, spectrum[..., :step, :, :]], axis=-3)


def transform(xp: Any, image: Array, shape: tuple[int, int]) -> Array:  # noqa: ANN401
    """rfft2 of the image padded with zeros; rows of zeros are not transformed along x."""
    return xp.fft.fft(xp.fft.rfft(image, n=shape[1], axis=-1), n=shape[0], axis=-2)


def inverse(xp: Any, spectrum: Array, kept: tuple[int, int], shape: tuple[int, int]) -> Array:  # noqa: ANN401
    """Return the image of a spectrum, without what was padded."""
    rows = xp.fft.ifft(spectrum, axis=-2)[..., : kept[0], :]
    return xp.fft.irfft(rows, n=shape[1], axis=-1)[..., : kept[1]]


def padded_length(length: int, padding: int | None) -> int:
    """Odd length without large prime factors, at least ``length + padding``.

    >>> [padded_length(n, None) for n in (32, 64, 512)]
    [135, 175, 625]
    >>> padded_length(64, 0)
    64
    """
    if padding == 0:
        return length
    candidate = length + (PADDING_PX if padding is None else padding)
    candidate += 1 - candidate % 2
    while not _is_smooth(candidate):
        candidate += 2
    return candidate


def _is_smooth(number: int) -> bool:
    for prime in (3, 5, 7):
        while number % prime == 0:
            number //= prime
    return number == 1


def _num_turns(span_deg: float) -> int:
    """Return how often each line is measured."""
    if span_deg not in (180, 360):
        raise ProdmError(f"the angular span must be 180 or 360 degrees, got {span_deg:g}")
    return int(span_deg) // 180


def like(xp: Any, values: Array, other: Array) -> Array:  # noqa: ANN401
    """Constants as an array of the same library, precision and device as ``other``."""
    if isinstance(values, np.ndarray):
        return xp.asarray(values, dtype=other.dtype, device=array_api_compat.device(other))
    return values

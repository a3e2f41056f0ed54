"""The 21 named motions of the simulation, and how their parameters are drawn.

Translation, oscillation and piecewise motion, each mainly along x or along y, each small,
medium or large, and jitter in the same three sizes. The paper names the families and the ranges
but not the other 17 profiles; this split is ours:

    amplitude A      [4, 15] in-plane pixels, cut into three equal bands
    direction        A * r / |r| with r in [2, 4] along the main in-plane axis, [0.5, 1.5] along
                     the other, [0.3, 1] along z, each with a random sign
    phase            uniform over a full turn
    jitter           weights in [0.5, 1] for three harmonics, each along a direction drawn as above
                     with a random main axis, scaled so that the largest excursion is A
    piecewise        both moves drawn as above; the first ends at t in [0.2, 0.5] and the dwell
                     lasts 0.1 to 0.3 of the scan

A is a length in in-plane pixels along all three axes. It becomes mm with the pixel spacing, so
that the z part is right whatever the slice spacing.
"""

import numpy as np

from prodm.errors import ProdmError
from prodm.motion.trajectory import (
    Floats,
    Jitter,
    Motion,
    Oscillation,
    Piecewise,
    Trajectory,
    Translation,
    Vector,
)

NUM_ANGLES = (180, 360, 540, 720, 1080)
AMPLITUDE_RANGE_PX = (4.0, 15.0)
MAIN_RATIO = (2.0, 4.0)
OTHER_RATIO = (0.5, 1.5)
Z_RATIO = (0.3, 1.0)
WEIGHT = (0.5, 1.0)
PAUSE_START = (0.2, 0.5)
PAUSE_LENGTH = (0.1, 0.3)

BANDS = ("small", "medium", "large")
PROFILES: tuple[str, ...] = (
    *(
        f"{family}-{axis}-{band}"
        for family in ("translation", "oscillation", "piecewise")
        for axis in ("x", "y")
        for band in BANDS
    ),
    *(f"jitter-{band}" for band in BANDS),
)


def amplitude_band_px(band: str) -> tuple[float, float]:
    """Return the ends of one third of the amplitude range.

    >>> [round(edge, 2) for edge in amplitude_band_px("medium")]
    [7.67, 11.33]
    """
    low, high = AMPLITUDE_RANGE_PX
    width = (high - low) / len(BANDS)
    start = low + width * BANDS.index(band)
    return start, start + width


def draw(
    profile: str,
    rng: np.random.Generator,
    *,
    pixel_spacing_mm: float,
    num_angles: int | None = None,
    span_deg: float = 180.0,
    start_deg: float | None = 0.0,
    centred: bool = False,
) -> Trajectory:
    """Draw one trajectory of a profile.

    ``num_angles=None`` draws from 180 to 1080 views as in the paper, ``start_deg=None`` draws the
    angle at which the scan starts. The motion is drawn first: the same ``rng`` gives the same
    motion whatever the options say.

    >>> draw("jitter-small", np.random.default_rng(0), pixel_spacing_mm=0.5).num_angles
    540
    """
    if profile not in PROFILES:
        raise ProdmError(
            f"there is no motion profile {profile!r}; choose from {', '.join(PROFILES)}"
        )
    if not pixel_spacing_mm > 0:
        raise ProdmError(f"the pixel spacing must be positive, got {pixel_spacing_mm} mm")
    motion = _draw_motion(profile, rng, pixel_spacing_mm)
    drawn_angles = int(rng.choice(NUM_ANGLES))
    drawn_start_deg = float(rng.uniform(0, 360))
    return Trajectory(
        profile=profile,
        motion=motion,
        num_angles=drawn_angles if num_angles is None else num_angles,
        span_deg=float(span_deg),
        start_deg=drawn_start_deg if start_deg is None else float(start_deg),
        centred=centred,
    )


def _draw_motion(profile: str, rng: np.random.Generator, pixel_spacing_mm: float) -> Motion:
    family, *axis, band = profile.split("-")
    low_px, high_px = amplitude_band_px(band)
    if family == "jitter":
        amplitude_mm = rng.uniform(low_px, high_px) * pixel_spacing_mm
        return _draw_jitter(amplitude_mm, rng)

    def amplitude() -> Vector:
        return _vector(rng.uniform(low_px, high_px) * pixel_spacing_mm * _direction(axis[0], rng))

    if family == "translation":
        return Translation(amplitude())
    if family == "oscillation":
        return Oscillation(amplitude(), phase_rad=float(rng.uniform(0, 2 * np.pi)))
    pause_start = float(rng.uniform(*PAUSE_START))
    pause_end = pause_start + float(rng.uniform(*PAUSE_LENGTH))
    return Piecewise(amplitude(), amplitude(), pause_start, pause_end)


def _draw_jitter(amplitude_mm: float, rng: np.random.Generator) -> Jitter:
    weights = rng.uniform(*WEIGHT, size=3)
    axes = rng.choice(["x", "y"], size=3)
    vectors = [weight * _direction(axis, rng) for weight, axis in zip(weights, axes, strict=True)]
    phase_rad = float(rng.uniform(0, 2 * np.pi))

    def jitter(scale: float) -> Jitter:
        first, second, third = (_vector(scale * vector) for vector in vectors)
        return Jitter((first, second, third), phase_rad)

    path = jitter(1.0).path(np.arange(1080) / 1080)
    return jitter(amplitude_mm / float(np.linalg.norm(path, axis=1).max()))


def _direction(main_axis: str, rng: np.random.Generator) -> Floats:
    """Unit vector (x, y, z) that lies mainly along one in-plane axis."""
    main, other, z = rng.uniform(*MAIN_RATIO), rng.uniform(*OTHER_RATIO), rng.uniform(*Z_RATIO)
    ratios = np.array([main, other, z] if main_axis == "x" else [other, main, z])
    signs = rng.choice([-1.0, 1.0], size=3)
    direction: Floats = signs * ratios / np.linalg.norm(ratios)
    return direction


def _vector(values: Floats) -> Vector:
    x, y, z = (float(value) for value in values)
    return x, y, z

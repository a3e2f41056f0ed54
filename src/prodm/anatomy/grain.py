"""How a soft reconstruction kernel blurs a slice, and the grain of the noise it leaves.

Filtered back-projection turns white noise of the detector into noise whose power rises with
spatial frequency f like a ramp and falls with the square of the kernel's transfer function,

    power(f) ~ f * exp(-(f / f_c)^2)

so neighbouring pixels hang together over about 1 / (2 f_c) mm. Rays through shoulders and
spine carry fewer photons, which adds streaks along x and noise in the middle of the body.
"""

import numpy as np
from numpy.typing import NDArray
from scipy import fft, ndimage

Floats = NDArray[np.float32]
FWHM_PER_SIGMA = 2.3548
STREAK_SHARE = 0.3


def blur(hu: Floats, fwhm_mm: float, pixel_mm: float) -> Floats:
    """Return a slice [Y, X] after the in-plane point spread."""
    sigma = fwhm_mm / FWHM_PER_SIGMA / pixel_mm
    blurred: Floats = ndimage.gaussian_filter(hu, sigma, mode="nearest", truncate=3.0)
    return blurred


def noise_spectrum(num_pixels: int, pixel_mm: float, fwhm_mm: float) -> tuple[Floats, Floats]:
    """Amplitudes [Y, X // 2 + 1] of even grain and of streaks along x, each of unit variance."""
    fy = fft.fftfreq(num_pixels, pixel_mm)[:, None]
    fx = fft.rfftfreq(num_pixels, pixel_mm)[None, :]
    f = np.hypot(fx, fy)
    cut_off = 0.62 / fwhm_mm
    grain = np.sqrt(f + 0.02) * np.exp(-0.5 * (f / cut_off) ** 2)
    streaks = grain * np.exp(-0.5 * (fx / (0.12 * f + 0.01)) ** 2)
    weights = np.full(f.shape, 2.0)
    weights[:, 0] = 1.0
    if num_pixels % 2 == 0:
        weights[:, -1] = 1.0

    def unit(amplitude: NDArray[np.float64]) -> Floats:
        power = float((weights * amplitude**2).sum()) / num_pixels**2
        normalised: Floats = (amplitude / np.sqrt(power)).astype(np.float32)
        return normalised

    return unit(grain), unit(streaks)


def draw_noise(
    rng: np.random.Generator, spectrum: tuple[Floats, Floats], shape: tuple[int, int]
) -> tuple[Floats, Floats]:
    """Draw even grain and streaks [Y, X], each of unit variance."""
    first = fft.rfft2(rng.standard_normal(shape, dtype=np.float32))
    grain: Floats = fft.irfft2(first * spectrum[0], s=shape)
    second = fft.rfft2(rng.standard_normal(shape, dtype=np.float32))
    streaks: Floats = fft.irfft2(second * spectrum[1], s=shape)
    return grain, streaks

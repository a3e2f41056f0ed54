"""The soft kernel: point spread of the stated width, noise of the stated grain."""

import numpy as np
import pytest

from prodm.anatomy.grain import blur, draw_noise, noise_spectrum


@pytest.mark.parametrize("fwhm_mm", [0.9, 1.2])
def test_a_point_is_half_as_high_half_its_width_away(fwhm_mm: float) -> None:
    image = np.zeros((101, 101), np.float32)
    image[50, 50] = 1
    seen = blur(image, fwhm_mm, pixel_mm=0.05)
    away = round(fwhm_mm / 2 / 0.05)
    assert seen[50, 50 + away] / seen[50, 50] == pytest.approx(0.5, abs=0.03)
    assert seen.sum() == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("pixel_mm", [0.4, 0.8])
def test_noise_has_unit_variance_and_a_grain_of_about_a_millimetre(pixel_mm: float) -> None:
    rng = np.random.default_rng(0)
    spectrum = noise_spectrum(256, pixel_mm, fwhm_mm=1.0)
    draws = [draw_noise(rng, spectrum, (256, 256)) for _ in range(8)]
    grain = np.stack([even for even, _ in draws])
    assert grain.std() == pytest.approx(1, abs=0.02)
    assert np.stack([streaks for _, streaks in draws]).std() == pytest.approx(1, abs=0.1)
    steps = np.arange(1, 6)
    together = [float((grain[..., n:] * grain[..., :-n]).mean()) for n in steps]
    half = np.interp(0.5, [*together[::-1], 1.0], [*steps[::-1], 0]) * pixel_mm
    assert 0.2 < half < 0.8  # the grain is twice as wide


def test_streaks_run_along_x() -> None:
    rng = np.random.default_rng(1)
    _, streaks = draw_noise(rng, noise_spectrum(256, 0.5, 1.0), (256, 256))
    along_x = float((streaks[:, 3:] * streaks[:, :-3]).mean())
    along_y = float((streaks[3:] * streaks[:-3]).mean())
    assert along_x > 0.5 > along_y

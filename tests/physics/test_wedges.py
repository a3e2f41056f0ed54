"""Wedges must sum to the image, and each must show its moment of the scan."""

import numpy as np
import pytest

from prodm.errors import ProdmError
from prodm.physics import phase
from prodm.physics.wedges import partial_angle_images

NUM_VIEWS = 720


def test_partial_angle_images_sum_to_the_image() -> None:
    image = np.random.default_rng(0).normal(size=(2, 3, 64, 48))
    for padding in (0, None):
        parts = partial_angle_images(image, 5, start_rad=0.2, padding=padding)
        assert parts.shape == (2, 3, 5, 64, 48)
        assert parts.sum(axis=-3) == pytest.approx(image, abs=1e-12)


def test_each_wedge_shows_the_lesion_where_it_was_at_that_moment() -> None:
    """Across a wedge's own direction the position is seen; so a step in time is seen by wedge."""
    y, x = np.mgrid[:64, :64]
    spot = 400 * np.exp(-((y - 30) ** 2 + (x - 35) ** 2) / (2 * 1.5**2))
    block = np.stack([spot] * 3).astype(np.float32)
    t = np.arange(NUM_VIEWS) / NUM_VIEWS
    path = np.zeros((NUM_VIEWS, 3), np.float32)
    path[t > 0.5, 1] = 10.0  # jumps along y in the second half, whose lines run along y
    parts = partial_angle_images(phase.move(block, path), 4)[1]
    rows = parts[:, :, 35].argmax(axis=1)
    assert rows[1] == pytest.approx(30, abs=1)
    assert rows[2] == pytest.approx(40, abs=1)


def test_wedges_may_end_where_the_scan_does() -> None:
    """Then neither the first nor the last shows the other end, and they still sum to the image."""
    image = np.random.default_rng(0).normal(size=(2, 47, 47))
    _, theta = phase.polar_frequencies((47, 47))
    for start_rad in (0.0, 1.0):
        parts = partial_angle_images(image, 5, start_rad=start_rad, padding=0, wraps=False)
        assert parts.sum(axis=-3) == pytest.approx(image, abs=1e-12)
        spectra = np.abs(np.fft.rfft2(parts)).sum(axis=0)
        moment = ((theta - start_rad) % np.pi) / np.pi
        moment[0, 0] = np.nan  # the mean has no direction
        assert spectra[0][moment > 0.31].max() < 1e-9
        assert spectra[-1][moment < 0.69].max() < 1e-9


def test_one_wedge_is_refused() -> None:
    with pytest.raises(ProdmError, match="at least two wedges, got 1"):
        partial_angle_images(np.zeros((2, 8, 8)), 1)

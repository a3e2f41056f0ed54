"""Blocks in a network's spacing come back at the scan's, sample by sample."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prodm.correction.geometry import Sampling, SpacingRange, choose_sampling
from prodm.errors import ProdmError
from prodm.pairs.blocks import BLOCK_SHAPE, MARGIN, cut, grow, without_margin
from prodm.volume import Window

KNOWN = SpacingRange()
HU = np.random.default_rng(0).integers(-200, 900, (20, 70, 70)).astype(np.int16)


def window_of(sampling: Sampling, corner: int) -> Window:
    z, y, x = (slice(corner, corner + n) for n in sampling.window_shape)
    return z, y, x


@pytest.mark.parametrize(
    ("spacing_mm", "finer", "combs"),
    [
        ((3.0, 0.6, 0.6), (1, 1, 1), (1, 1, 1)),
        ((3.27, 0.977, 0.977), (1, 1, 1), (1, 1, 1)),
        ((5.0, 1.01, 1.01), (1, 1, 1), (1, 1, 1)),  # rounding in headers
        ((1.0, 0.6, 0.6), (1, 1, 1), (2, 1, 1)),
        ((0.625, 0.25, 0.25), (1, 1, 1), (4, 2, 2)),
        ((6.0, 1.4, 1.4), (2, 2, 2), (1, 1, 1)),
    ],
)
def test_the_factor_is_the_smallest_that_fits(
    spacing_mm: tuple[float, float, float],
    finer: tuple[int, int, int],
    combs: tuple[int, int, int],
) -> None:
    assert choose_sampling(spacing_mm, KNOWN) == Sampling(finer, combs)


@settings(max_examples=60, deadline=None)
@given(st.floats(0.4, 6.0), st.floats(0.15, 1.5))
def test_every_usable_spacing_is_brought_into_the_range(slice_mm: float, pixel_mm: float) -> None:
    sampling = choose_sampling((slice_mm, pixel_mm, pixel_mm), KNOWN)
    dz, dy, _ = sampling.spacing_mm((slice_mm, pixel_mm, pixel_mm))
    assert KNOWN.slice_mm[0] * 0.97 <= dz <= KNOWN.slice_mm[1] * 1.03
    assert KNOWN.pixel_mm[0] * 0.97 <= dy <= KNOWN.pixel_mm[1] * 1.03


SAMPLINGS = [
    Sampling(),
    Sampling(combs=(3, 1, 1)),
    Sampling(combs=(2, 2, 2)),
    Sampling(finer=(1, 2, 2)),
    Sampling(finer=(2, 2, 2)),
    Sampling(finer=(1, 2, 2), combs=(2, 1, 1)),
]


@pytest.mark.parametrize("corner", [-5, 2])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_blocks_put_back_are_the_window(sampling: Sampling, corner: int) -> None:
    window = window_of(sampling, corner)
    blocks = sampling.take(HU, window)
    assert blocks.shape == (sampling.blocks_per_window, *BLOCK_SHAPE)
    np.testing.assert_allclose(sampling.put(blocks), cut(HU, window), atol=1e-3)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_margin_is_the_scan_around_a_block_at_the_same_samples(sampling: Sampling) -> None:
    rng = np.random.default_rng(1)
    scan = rng.integers(-200, 900, (90, 260, 260)).astype(np.int16)
    window = window_of(sampling, 40)
    seen = sampling.take(scan, window, MARGIN)
    assert seen.shape[1:] == tuple(n + 2 * m for n, m in zip(BLOCK_SHAPE, MARGIN, strict=True))
    blocks = without_margin(seen, MARGIN)
    np.testing.assert_allclose(blocks, sampling.take(scan, window), atol=1.0)  # splines end later
    if sampling.is_native:
        np.testing.assert_array_equal(seen[0], cut(scan, grow(window, MARGIN)))


def test_samples_in_between_follow_a_smooth_wave_through_the_scans_own() -> None:
    x = np.arange(80.0)
    wave = np.broadcast_to(300 * np.sin(x / 4), (20, 80, 80)).astype(np.float32)
    block = Sampling(finer=(1, 1, 2)).take(wave, (slice(2, 18), slice(2, 66), slice(20, 52)))[0]
    np.testing.assert_allclose(block[0, 0], 300 * np.sin((20 + np.arange(64) / 2) / 4), atol=0.5)


def test_a_scan_too_coarse_is_refused() -> None:
    with pytest.raises(ProdmError, match=r"voxels of 12 x 0.6 x 0.6 mm .* resample"):
        choose_sampling((12.0, 0.6, 0.6), KNOWN)


def test_a_range_must_be_two_wide() -> None:
    with pytest.raises(ProdmError, match=r"range of slice_mm .* its double, got 3 to 5"):
        SpacingRange(slice_mm=(3.0, 5.0))

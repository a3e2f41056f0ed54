"""The independent fan-beam scan obeys the laws of a scan, and shares nothing with the fast one."""

import ast
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from prodm.benchmarks import fan_beam
from prodm.benchmarks.fan_beam import FanBeam, parker_weights, scan
from prodm.errors import ProdmError

Y, X = np.mgrid[:64, :64].astype(np.float64)
SCANNER = FanBeam(source_px=1000.0, num_views=720)
ISOCENTRE_YX = (100.0, -60.0)  # the lesion lies well off the axis


def lesion(y: float, x: float, fwhm_px: float, peak_hu: float = 400.0) -> NDArray[np.float64]:
    image = peak_hu * np.exp(-4 * np.log(2) * ((Y - y) ** 2 + (X - x) ** 2) / fwhm_px**2)
    return np.where(image > 1e-2, image, 0.0)


def seen(
    calcium: NDArray[np.float64], displacement: NDArray[np.float64], geometry: FanBeam = SCANNER
) -> NDArray[np.float32]:
    return scan(
        calcium,
        displacement,
        geometry,
        isocentre_yx=ISOCENTRE_YX,
        rows=(0, 64),
        columns=(0, 64),
    )


def constant(x: float, y: float, z: float) -> NDArray[np.float64]:
    return np.tile([x, y, z], (SCANNER.num_views, 1))


def relative_error(image: NDArray[np.floating], true: NDArray[np.floating]) -> float:
    return float(np.linalg.norm(image - true) / np.linalg.norm(true))


def test_a_still_disc_comes_back_with_its_value() -> None:
    fine = np.mgrid[: 64 * 8, : 64 * 8] / 8 - 31.5 + 1 / 16
    covered = (np.hypot(*fine) < 20).reshape(64, 8, 64, 8).mean(axis=(1, 3))
    image = seen(300.0 * covered[None], constant(0, 0, 0))[0]
    radius = np.hypot(Y - 31.5, X - 31.5)
    np.testing.assert_allclose(image[radius < 17], 300.0, atol=1.0)
    np.testing.assert_allclose(image[radius > 23], 0.0, atol=1.0)


@pytest.mark.parametrize(("fwhm_px", "tolerance"), [(1.6, 0.03), (2.0, 0.02), (3.0, 0.01)])
def test_a_still_lesion_keeps_its_peak_and_its_sum(fwhm_px: float, tolerance: float) -> None:
    still = lesion(30.0, 40.0, fwhm_px)[None]
    image = seen(still, constant(0, 0, 0))
    assert image.max() == pytest.approx(still.max(), rel=tolerance)
    assert image.sum() == pytest.approx(still.sum(), rel=0.005)
    assert relative_error(image, still) < tolerance


@given(
    half_fan_deg=st.floats(5, 40), fan_share=st.floats(-0.99, 0.99), turned_share=st.floats(0, 1)
)
def test_parker_weights_of_conjugate_rays_sum_to_one(
    half_fan_deg: float, fan_share: float, turned_share: float
) -> None:
    half_fan = np.deg2rad(half_fan_deg)
    fan = fan_share * half_fan
    turned = turned_share * (np.pi + 2 * half_fan)
    total = 0.0
    for half_turns in (-1, 0, 1):  # every time that the line comes by
        again = turned + half_turns * np.pi + (2 * fan if half_turns % 2 else 0.0)
        sign = -1.0 if half_turns % 2 else 1.0
        total += float(parker_weights(np.array(again), np.array(sign * fan), half_fan))
    assert total == pytest.approx(1.0, abs=1e-9)


def test_parker_weights_are_zero_outside_the_scan_and_the_fan() -> None:
    turned = np.array([-0.1, 1.0, np.pi + 0.9])
    fan = np.array([0.0, 0.5, 0.0])
    assert parker_weights(turned, fan, 0.4).tolist() == [0.0, 0.0, 0.0]


def test_a_constant_displacement_is_a_shift() -> None:
    still = np.stack([0 * X, lesion(30.0, 30.0, 2.5), 0 * X])
    image = seen(still, constant(5.0, -3.0, 0.25))
    moved = lesion(27.0, 35.0, 2.5)
    assert relative_error(image, np.stack([0 * X, 0.75 * moved, 0.25 * moved])) < 0.02


def test_a_moving_lesion_smears_and_keeps_its_sum() -> None:
    still = lesion(30.0, 30.0, 3.0)[None]
    path = np.zeros((SCANNER.num_views, 3))
    path[:, 0] = np.linspace(-4, 4, SCANNER.num_views)
    image = seen(still, path)
    assert image.max() < 0.8 * still.max()
    assert image.sum() == pytest.approx(still.sum(), rel=0.05)  # streaks leave the image


def test_moving_the_lesion_with_the_isocentre_changes_nothing() -> None:
    path = np.random.default_rng(0).normal(0, 2, (90, 3)) * [1, 1, 0]
    geometry = FanBeam(source_px=1000.0, num_views=90)
    image = seen(lesion(30.0, 30.0, 3.0)[None], path, geometry)
    shifted = scan(
        lesion(33.0, 26.0, 3.0)[None],
        path,
        geometry,
        isocentre_yx=(ISOCENTRE_YX[0] + 3, ISOCENTRE_YX[1] - 4),
        rows=(3, 67),
        columns=(-4, 60),
    )
    np.testing.assert_allclose(shifted, image, atol=0.1)


def test_nothing_is_seen_of_nothing() -> None:
    assert not seen(np.zeros((2, 64, 64)), constant(0, 0, 0)).any()


def test_the_simulator_shares_no_code_with_the_fast_one() -> None:
    tree = ast.parse(Path(fan_beam.__file__).read_text())
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {module for module in imported if module and module.startswith("prodm")} == {
        "prodm.errors"
    }


def test_impossible_scans_are_refused() -> None:
    with pytest.raises(ProdmError, match="needs a displacement"):
        seen(lesion(30.0, 30.0, 2.0)[None], np.zeros((10, 3)))
    with pytest.raises(ProdmError, match="outside what is imaged"):
        seen(lesion(30.0, 30.0, 2.0)[None], constant(0, 0, 0), FanBeam(source_px=120.0))
    with pytest.raises(ProdmError, match="fan below 180 degrees"):
        FanBeam(source_px=1000.0, fan_deg=180.0)
    with pytest.raises(ProdmError, match="at least 8 views"):
        FanBeam(source_px=1000.0, num_views=4)

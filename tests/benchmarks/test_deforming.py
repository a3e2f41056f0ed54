"""A lesion that turns or stretches once and for all comes back turned or stretched."""

import numpy as np
import pytest
from numpy.typing import NDArray

from prodm.benchmarks.deforming import rotations, scan_deforming, stretches

Doubles = NDArray[np.float64]
Y, X = np.mgrid[:80, :80].astype(np.float64)
NUM_VIEWS = 180
ANGLES_RAD: Doubles = np.arange(NUM_VIEWS, dtype=np.float64) * (np.pi / NUM_VIEWS)
TURNED = rotations(np.array([0.3]))[0]
STRETCHED = stretches(np.array([1.2]), axis_rad=0.5)[0]


def lesion(centre_xy: Doubles, matrix: Doubles) -> Doubles:
    """Return an ellipse of Gaussian profile, deformed by the matrix, around a place."""
    inverse = np.linalg.inv(matrix)
    away = np.stack([X - centre_xy[0], Y - centre_xy[1]])
    along, across = np.einsum("ij,jyx->iyx", inverse, away)
    image: Doubles = 400 * np.exp(-((along / 2.5) ** 2 + (across / 1.2) ** 2) / 2)
    return np.where(image > 1e-2, image, 0.0)


@pytest.mark.parametrize("matrix", [np.eye(2), TURNED, STRETCHED, TURNED @ STRETCHED])
def test_a_constant_deformation_is_seen_as_it_is(matrix: Doubles) -> None:
    centre, place, moved = np.array([45.0, 30.0]), np.array([40.0, 38.0]), np.array([3.0, -2.0])
    image = scan_deforming(
        lesion(place, np.eye(2))[None],
        ANGLES_RAD,
        np.tile([*moved, 0.0], (NUM_VIEWS, 1)),
        np.tile(matrix, (NUM_VIEWS, 1, 1)),
        centre_yx=(centre[1], centre[0]),
        rows=(5, 75),
        columns=(2, 70),
    )[0]
    true = lesion(centre + matrix @ (place - centre) + moved, matrix)[5:75, 2:70]
    assert np.linalg.norm(image - true) < 0.03 * np.linalg.norm(true)
    assert image.sum() == pytest.approx(true.sum(), rel=0.01)


def test_stretches_and_rotations_are_what_they_say() -> None:
    np.testing.assert_allclose(rotations(np.array([np.pi / 2]))[0] @ [1, 0], [0, 1], atol=1e-12)
    along = np.array([np.cos(0.5), np.sin(0.5)])
    np.testing.assert_allclose(STRETCHED @ along, 1.2 * along)
    assert np.linalg.det(STRETCHED) == pytest.approx(1.2)

"""Painted shapes have the size, place and value they were given."""

import numpy as np
import pytest

from prodm.anatomy.painting import Canvas, Floats, Solid, Tubes, ellipsoid, tube

PIXEL_MM = 0.5


def canvas(z_mm: float = 0.0, rng: np.random.Generator | None = None) -> Canvas:
    axis = np.arange(-40, 40, PIXEL_MM, dtype=np.float32)
    x, y = np.meshgrid(axis, axis)
    noise: list[Floats] = [
        np.zeros_like(x) if rng is None else rng.standard_normal(x.shape, dtype=np.float32)
        for _ in range(2)
    ]
    straight = (x, y, np.full_like(x, z_mm))
    return Canvas(np.zeros_like(x), z_mm, axis, axis, straight, noise[0], noise[1], 0.0)


def volume_mm3(shape: Solid | Tubes, step_mm: float = 0.5) -> float:
    """Sum of coverage over planes through a shape."""
    total = 0.0
    for z in np.arange(-38, 38, step_mm):
        plane = canvas(float(z))
        plane.paint(shape)
        total += float(plane.hu.sum())
    return total * PIXEL_MM**2 * step_mm


def test_a_sphere_has_the_volume_of_a_sphere() -> None:
    sphere = Solid(np.stack([ellipsoid(np.zeros(3), np.eye(3), (12.0, 12.0, 12.0))]), 1.0)
    assert volume_mm3(sphere) == pytest.approx(4 / 3 * np.pi * 12**3, rel=0.005)


def test_a_turned_ellipsoid_has_the_volume_of_an_ellipsoid() -> None:
    turn, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((3, 3)))
    row = ellipsoid(np.array([3.0, -2.0, 1.0]), turn, (18.0, 9.0, 12.0))
    assert volume_mm3(Solid(np.stack([row]), 1.0)) == pytest.approx(
        4 / 3 * np.pi * 18 * 9 * 12, rel=0.01
    )


def test_a_tube_has_the_volume_of_a_capsule() -> None:
    line = np.array([[-10.0, -5.0, -8.0], [12.0, 6.0, 9.0]])
    length = float(np.linalg.norm(line[1] - line[0]))
    expected = np.pi * 4**2 * length + 4 / 3 * np.pi * 4**3
    assert volume_mm3(tube(line, 4.0, 1.0)) == pytest.approx(expected, rel=0.01)


def test_stretching_a_tube_makes_it_taller_by_that_factor() -> None:
    line = np.array([[-10.0, 0.0, 0.0], [10.0, 0.0, 0.0]])
    plain, tall = volume_mm3(tube(line, 4.0, 1.0)), volume_mm3(tube(line, 4.0, 1.0, stretch=2.0))
    assert tall / plain == pytest.approx(2.0, rel=0.01)


def test_blocks_that_are_skipped_would_not_have_been_painted() -> None:
    """The slow twin takes the distance of every pixel."""
    rng = np.random.default_rng(7)
    rows = np.stack([
        ellipsoid(rng.uniform(-10, 10, 3), np.linalg.qr(rng.standard_normal((3, 3)))[0],
                  (16.0, 9.0, 11.0), join_mm=4.0 * n)
        for n in range(3)
    ])  # fmt: skip
    solid = Solid(rows, 1.0, smooth_mm=3.0, grow_mm=1.0, rough_mm=0.3)
    plane = canvas(2.0)
    smooth_noise = np.sin(plane.x_mm / 3)[None, :] * np.cos(plane.y_mm / 4)[:, None]
    plane = Canvas(
        plane.hu, 2.0, plane.y_mm, plane.x_mm, plane.straight,
        smooth_noise.astype(np.float32), plane.coarse, 0.0,
    )  # fmt: skip
    plane.paint(solid)
    points = np.stack([axis.ravel() for axis in plane.straight], axis=1).astype(np.float64)
    distance = solid.distance_mm(points) - 0.3 * smooth_noise.ravel()
    expected = np.clip(0.5 - distance / PIXEL_MM, 0, 1).reshape(plane.hu.shape)
    np.testing.assert_allclose(plane.hu, expected, atol=1e-3)


def test_later_shapes_cover_earlier_ones() -> None:
    plane = canvas()
    for hu, radius in ((100.0, 20.0), (-50.0, 8.0)):
        row = ellipsoid(np.zeros(3), np.eye(3), (radius, radius, radius))
        plane.paint(Solid(np.stack([row]), hu))
    assert plane.hu[80, 80] == -50
    assert plane.hu[80, 110] == 100
    assert plane.hu[0, 0] == 0


def test_a_shape_beyond_the_plane_or_the_field_paints_nothing() -> None:
    plane = canvas()
    for place in ([0.0, 0.0, 30.0], [300.0, 0.0, 0.0]):
        plane.paint(Solid(np.stack([ellipsoid(np.array(place), np.eye(3), (9.0, 9.0, 9.0))]), 1.0))
        plane.paint(tube(np.array([place, place]) + np.eye(3)[:2], 3.0, 1.0))
    assert not plane.hu.any()

"""Random fields repeat, hang together, and bend space in a way that can be undone."""

import numpy as np

from prodm.anatomy.fields import Bend, draw_field


def test_a_plane_of_a_field_equals_its_points() -> None:
    field = draw_field(np.random.default_rng(0), step_mm=4.0, smooth_mm=8.0, cells=16)
    x, y = np.linspace(-50, 60, 23, dtype=np.float32), np.linspace(-9, 70, 17, dtype=np.float32)
    plane = field.plane(-7.3, y, x)
    points = np.array([[a, b, -7.3] for b in y for a in x])
    np.testing.assert_allclose(plane.ravel(), field.at(points), atol=2e-5)


def test_a_field_has_unit_variance_and_repeats() -> None:
    field = draw_field(np.random.default_rng(1), step_mm=2.0, smooth_mm=4.0, cells=16)
    assert abs(field.table.std() - 1) < 1e-5
    points = np.random.default_rng(2).uniform(-20, 20, (50, 3))
    np.testing.assert_allclose(field.at(points), field.at(points + 32.0), atol=1e-9)


def test_bending_and_straightening_undo_each_other() -> None:
    bend = Bend(draw_field(np.random.default_rng(3), step_mm=8.0, smooth_mm=22.0), 3.0)
    points = np.random.default_rng(4).uniform(-80, 80, (200, 3))
    assert np.abs(bend.straight(points) - points).max() > 2
    np.testing.assert_allclose(bend.straight(bend.patient(points)), points, atol=1e-3)


def test_the_bend_of_a_plane_is_the_bend_of_its_points() -> None:
    bend = Bend(draw_field(np.random.default_rng(5), step_mm=8.0, smooth_mm=22.0), 2.0)
    x, y = np.linspace(-30, 30, 5, dtype=np.float32), np.linspace(-20, 40, 4, dtype=np.float32)
    planes = np.stack([axis.ravel() for axis in bend.plane(11.0, y, x)], axis=1)
    points = np.array([[a, b, 11.0] for b in y for a in x])
    np.testing.assert_allclose(planes, bend.straight(points), atol=1e-3)

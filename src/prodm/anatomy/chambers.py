"""The phantom's heart: chambers, great vessels, the fat around them and the coronary arteries.

The heart has its own frame, in mm of an average heart: ``u`` runs from the centre of the
valve plane to the apex, ``v`` from the left to the right ventricle, ``w = u x v`` to the
diaphragm. Ventricles lie at positive u, atria at negative u. The right coronary artery and
the circumflex run around the groove at the valve plane, the anterior descending one in the
groove between the ventricles on the side of -w: each is found by walking outwards until the
chambers are left behind.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import CubicSpline, PchipInterpolator

from prodm.anatomy.fields import Bend
from prodm.anatomy.painting import Solid, Tubes, ellipsoid, tube
from prodm.calcium import Vessel

Array = NDArray[np.float64]
_Shape = tuple[tuple[float, ...], tuple[float, ...]]
STEP_MM = 0.5  # between points of a centre line
CLEAR_MM = 6.0

# Centre (u, v, w) and radii in the heart's frame, mm.
LEFT_VENTRICLE = ((28.0, -21.0, 1.0), (47.0, 30.0, 31.0))
LEFT_CAVITY = ((23.0, -21.0, 1.0), (38.0, 20.0, 21.0))
RIGHT_VENTRICLE = ((22.0, 16.0, 5.0), (43.0, 25.0, 34.0))
RIGHT_CAVITY = ((20.0, 19.0, 4.0), (38.0, 19.0, 30.0))
OUTFLOW = ((8.0, 17.0, -22.0), (17.0, 15.0, 22.0))
LEFT_ATRIUM = ((-29.0, -18.0, -3.0), (20.0, 31.0, 26.0))
RIGHT_ATRIUM = ((-20.0, 29.0, 8.0), (24.0, 20.0, 31.0))
APPENDAGE = ((-12.0, -30.0, -29.0), (14.0, 9.0, 11.0))
ROOT = ((-9.0, 2.0, -17.0), (17.0, 15.0, 17.0))


@dataclass(frozen=True, eq=False)
class Heart:
    """The heart of one patient in paint order, its sac, and its arteries' centre lines."""

    sac: Solid  # the pericardium: what the heart mask shows
    shapes: tuple[Solid | Tubes, ...]
    arteries: dict[Vessel, Array]  # points [N, 3] of the patient, STEP_MM apart, from the ostium
    artery_radius_mm: dict[Vessel, Array]
    root_xyz_mm: Array  # straight coordinates of the aortic valve
    mitral_xyz_mm: Array
    frame: Array  # u, v, w as rows
    aorta_xyz_mm: Array  # centre line of the ascending aorta, straight coordinates
    aorta_radius_mm: float


@dataclass(frozen=True, eq=False)
class _Frame:
    base_xyz_mm: Array
    axes: Array
    scale: float

    def point(self, uvw: Array) -> Array:
        return self.base_xyz_mm + self.scale * np.asarray(uvw, dtype=np.float64) @ self.axes

    def ellipsoid(self, shape: _Shape, jitter: Array, join_mm: float) -> Array:
        center, radii = shape
        a, b, c = self.scale * np.asarray(radii) * jitter
        middle = self.point(np.asarray(center))
        return ellipsoid(middle, self.axes, (float(a), float(b), float(c)), self.scale * join_mm)


def draw_heart(rng: np.random.Generator, bend: Bend, scale: float) -> Heart:
    """Draw the heart of one patient around the origin of straight coordinates."""
    frame = _Frame(np.array([9.0, -6.0, 0.0]) + rng.normal(0, 2, 3), _draw_axes(rng), scale)
    blood, muscle = rng.uniform(36, 47), rng.uniform(45, 52)

    def chamber(shape: _Shape, join_mm: float = 0.0) -> Array:
        return frame.ellipsoid(shape, rng.uniform(0.94, 1.06, 3), join_mm)

    left, right = chamber(LEFT_VENTRICLE), chamber(RIGHT_VENTRICLE, 13.0)
    outflow = chamber(OUTFLOW, 10.0)
    atria = [chamber(LEFT_ATRIUM), chamber(RIGHT_ATRIUM)]
    appendage, root = chamber(APPENDAGE), chamber(ROOT)
    cavities = np.stack([chamber(LEFT_CAVITY), chamber(RIGHT_CAVITY)])
    everything = np.stack([left, right, outflow, *atria, appendage, root])
    fat_mm = scale * rng.uniform(1.5, 5.5)
    sac = Solid(everything, -100.0, smooth_mm=24.0, grow_mm=fat_mm, rough_mm=0.5, sway_mm=1.6)
    walls = Solid(everything, muscle, smooth_mm=3.0, rough_mm=0.35, sway_mm=0.5)

    aorta_radius = scale * rng.uniform(14.0, 18.0)
    trunk_radius = scale * rng.uniform(12.0, 14.5)
    aorta, trunk, right_artery, left_artery = _great_vessel_lines(frame, rng)
    obstacles = Solid(everything, 0.0, smooth_mm=2.0)
    blocked = _along(trunk, trunk_radius), _along(aorta, aorta_radius)
    arteries, radii = _coronaries(frame, obstacles, blocked, rng)
    lines = {vessel: _resample(bend.patient(line)) for vessel, line in arteries.items()}
    artery_radius = {
        vessel: np.linspace(*radii[vessel], len(line)) for vessel, line in lines.items()
    }
    hidden = {"texture_hu": 2.0}
    shapes: list[Solid | Tubes] = [
        Solid(everything, 5.0, smooth_mm=24.0, grow_mm=fat_mm + 1.0, rough_mm=0.5, sway_mm=1.6),
        sac,
        Solid(sac.ellipsoids, -98.0, 24.0, fat_mm - 1.0, 0.5, 1.6, texture_hu=6.0),
        walls,
        Solid(cavities, blood, smooth_mm=2.0, edge_mm=3.0),
        Solid(np.stack(atria), blood, smooth_mm=4.0, grow_mm=-1.5, edge_mm=1.5),
        tube(bend.patient(trunk), trunk_radius, blood, **hidden),
        _tapered(bend.patient(right_artery), 0.82 * trunk_radius, blood),
        _tapered(bend.patient(left_artery), 0.82 * trunk_radius, blood),
        Tubes(_veins(frame, bend, blood, rng)),
        tube(bend.patient(aorta), aorta_radius + 1.0, 40.0),
        tube(bend.patient(aorta), aorta_radius, blood, **hidden),
    ]
    for vessel, line in lines.items():
        shapes.append(tube(line, artery_radius[vessel], blood))
    mitral = frame.point(np.array([-3.0, -20.0, 0.0]))
    return Heart(
        sac, tuple(shapes), lines, artery_radius, frame.point(np.array(ROOT[0])), mitral,
        frame.axes, aorta, aorta_radius,
    )  # fmt: skip


def _draw_axes(rng: np.random.Generator) -> Array:
    u = np.array([0.66, -0.55, -0.50]) + rng.normal(0, 0.06, 3)
    u /= np.linalg.norm(u)
    v = np.array([-0.62, -0.77, 0.04]) + rng.normal(0, 0.06, 3)
    v -= (v @ u) * u
    v /= np.linalg.norm(v)
    return np.stack([u, v, np.cross(u, v)])


def _great_vessel_lines(
    frame: _Frame, rng: np.random.Generator
) -> tuple[Array, Array, Array, Array]:
    """Centre lines of aorta, pulmonary trunk and its two arteries, straight coordinates."""
    s = frame.scale
    root = frame.point(np.array(ROOT[0]))
    wobble = rng.normal(0, 1.5, (4, 3))
    aorta = root + s * np.array(
        [[0, 0, 0], [-5, -4, 14], [-11, -5, 30], [-13, -2, 48], [-10, 6, 70], [0, 24, 92]]
    )
    start = frame.point(np.array([4.0, 17.0, -30.0]))
    fork = root + s * np.array([20.0, 8.0, 40.0]) + wobble[0]
    trunk = np.stack([start, (start + fork) / 2 + s * np.array([3.0, -5.0, 0.0]), fork])
    right = fork + s * np.array([[0, 0, 0], [-16, 16, 1], [-42, 20, -3], [-66, 26, -10]])
    left = fork + s * np.array([[0, 0, 0], [10, 16, 5], [26, 36, 3], [36, 48, -8]])
    return _smooth(aorta), _smooth(trunk), _smooth(right + wobble[1]), _smooth(left + wobble[2])


def _veins(frame: _Frame, bend: Bend, blood: float, rng: np.random.Generator) -> Array:
    """Caval and pulmonary veins as rows of Tubes."""
    s = frame.scale
    atrium = frame.point(np.array(RIGHT_ATRIUM[0]))
    superior = atrium + s * np.array([[0, 4, 5], [-1, 8, 35], [-2, 6, 60], [-4, 0, 110]])
    inferior = atrium + s * np.array([[0, 6, -5], [2, 12, -40], [3, 14, -110]])
    wide = [(superior, s * rng.uniform(8, 10.5)), (inferior, s * rng.uniform(10, 12.5))]
    rows = [tube(bend.patient(_smooth(line)), radius, blood).segments for line, radius in wide]
    lines = []
    left = frame.point(np.array(LEFT_ATRIUM[0]))
    for side in (-1, 1):
        for height in (10, -12):
            end = left + s * np.array([side * 50, 14, height * 1.8]) + rng.normal(0, 4, 3)
            middle = left + s * np.array([side * 26, 8, height])
            lines.append((np.stack([left, middle, end]), s * rng.uniform(5, 7)))
    rows += [
        _tapered(bend.patient(_smooth(line)), radius, blood).segments for line, radius in lines
    ]
    return np.vstack(rows)


def _tapered(line: Array, radius_mm: float, hu: float) -> Tubes:
    """Return a vessel that narrows to a third on its way into the lung."""
    return tube(line, radius_mm * np.linspace(1.0, 0.33, len(line)), hu, texture_hu=2.0)


def _coronaries(
    frame: _Frame,
    obstacles: Solid,
    blocked: tuple[Array, ...],
    rng: np.random.Generator,
) -> tuple[dict[Vessel, Array], dict[Vessel, tuple[float, float]]]:
    """Centre lines in straight coordinates, and the radii at their ends."""
    s = frame.scale
    radii = {
        Vessel.LM: (s * rng.uniform(1.9, 2.5), s * 1.9),
        Vessel.LAD: (s * rng.uniform(1.5, 2.1), 0.7),
        Vessel.LCX: (s * rng.uniform(1.3, 1.9), 0.7),
        Vessel.RCA: (s * rng.uniform(1.5, 2.2), 0.9),
    }
    clearance = {vessel: 1.2 + 0.5 * sum(pair) for vessel, pair in radii.items()}

    def groove(degrees: Array, u: Array, vessel: Vessel) -> Array:
        angles = np.deg2rad(degrees)
        ways = np.stack([0 * angles, np.cos(angles), np.sin(angles)], axis=1) @ frame.axes
        starts = frame.point(np.stack([u, 0 * u - 3, 0 * u], axis=1))
        return _walk_out(starts, ways, obstacles, blocked, clearance[vessel])

    end = rng.uniform(-235, -200)
    degrees = np.linspace(-118, end, 16)
    circumflex = groove(degrees, np.linspace(-3, -5, 16), Vessel.LCX)
    degrees = np.linspace(-42, rng.uniform(85, 105), 20)
    right = groove(degrees, np.linspace(-2, -4, 20), Vessel.RCA)
    descending = _between_ventricles(frame, obstacles, blocked, clearance[Vessel.LAD], rng)
    posterior = _walk_out(
        frame.point(np.stack([np.linspace(2, 40, 6), np.full(6, -3.0), np.zeros(6)], axis=1)),
        np.broadcast_to(frame.axes[2], (6, 3)), obstacles, blocked, clearance[Vessel.RCA],
    )  # fmt: skip
    fork = circumflex[0]
    root = frame.point(np.array(ROOT[0]))
    left_ostium = _leave(root, fork, obstacles.ellipsoids[-1])
    right_ostium = _leave(root, root + s * np.array([-9.0, -17.0, 7.0]), obstacles.ellipsoids[-1])
    main = np.stack([left_ostium, 0.5 * (left_ostium + fork) + s * np.array([0, 0, 2.5]), fork])
    lines = {
        Vessel.LM: main,
        Vessel.LAD: np.vstack([fork, descending]),
        Vessel.LCX: circumflex,
        Vessel.RCA: np.vstack([right_ostium, right, posterior]),
    }
    return {vessel: _tortuous(_smooth(line), s, rng) for vessel, line in lines.items()}, radii


def _between_ventricles(
    frame: _Frame,
    obstacles: Solid,
    blocked: tuple[Array, ...],
    clearance_mm: float,
    rng: np.random.Generator,
) -> Array:
    """Follow the deepest way from base to apex on the side of -w."""
    us = np.linspace(9, rng.uniform(58, 70), 10)
    vs = np.linspace(-26, 8, 18)
    u, v = np.meshgrid(us, vs, indexing="ij")
    starts = frame.point(np.stack([u.ravel(), v.ravel(), 0 * u.ravel()], axis=1))
    ways = np.broadcast_to(-frame.axes[2], starts.shape)
    ends = _walk_out(starts, ways, obstacles, blocked, clearance_mm)
    reach = np.linalg.norm(ends - starts, axis=1).reshape(u.shape)
    # The groove shallows towards the apex, where any v is as good as the one before.
    best = vs[np.argmin(reach + 0.02 * (v + 6) ** 2, axis=1)]
    smooth = np.polynomial.Polynomial.fit(us, best, 2)(us)
    starts = frame.point(np.stack([us, smooth, 0 * us], axis=1))
    return _walk_out(starts, ways[: len(us)], obstacles, blocked, clearance_mm)


def _walk_out(
    starts: Array, ways: Array, obstacles: Solid, blocked: tuple[Array, ...], clearance_mm: float
) -> Array:
    """Return, per ray, the first point from which the next CLEAR_MM keep the clearance.

    A short gap between two chambers is crossed; a vessel that lies farther out is not.
    """
    steps = np.arange(0.0, 60.0, 0.5)
    points = starts[:, None] + steps[None, :, None] * ways[:, None]
    distance = obstacles.distance_mm(points.reshape(-1, 3))
    for spheres in blocked:
        gaps = np.linalg.norm(points.reshape(-1, 1, 3) - spheres[None, :, :3], axis=2)
        distance = np.minimum(distance, (gaps - spheres[:, 3]).min(axis=1))
    inside = (distance < clearance_mm).reshape(len(starts), len(steps))
    ahead = round(CLEAR_MM / 0.5)
    padded = np.pad(inside, ((0, 0), (0, ahead)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, ahead, axis=1)
    first = np.argmax(~windows.any(axis=2), axis=1)
    return starts + steps[np.minimum(first, len(steps) - 1), None] * ways


def _along(line: Array, radius_mm: float) -> Array:
    """Spheres [N, 4] that stand for a wide vessel."""
    return np.hstack([line[::8], np.full((len(line[::8]), 1), radius_mm)])


def _leave(center: Array, target: Array, row: Array) -> Array:
    """Return the point where the way from the centre of an ellipsoid to a target leaves it."""
    way = (target - center) / np.linalg.norm(target - center)
    local = row[3:12].reshape(3, 3) @ way / row[12:15]
    leave: Array = center + way / np.linalg.norm(local)
    return leave


def _smooth(points: Array) -> Array:
    """Return a smooth line through points, STEP_MM apart."""
    knots = np.concatenate([[0], np.cumsum(np.linalg.norm(np.diff(points, axis=0), axis=1))])
    line = PchipInterpolator if len(points) > 3 else CubicSpline
    dense = line(knots, points, axis=0)(np.linspace(0, knots[-1], max(8, round(knots[-1]))))
    return _resample(dense)


def _resample(line: Array) -> Array:
    """Return points STEP_MM apart along a line."""
    knots = np.concatenate([[0], np.cumsum(np.linalg.norm(np.diff(line, axis=0), axis=1))])
    places = np.linspace(0, knots[-1], max(2, round(knots[-1] / STEP_MM) + 1))
    return np.stack([np.interp(places, knots, axis) for axis in line.T], axis=1)


def _tortuous(line: Array, scale: float, rng: np.random.Generator) -> Array:
    """Let a line wander sideways, the ends kept."""
    along = np.arange(len(line)) * STEP_MM
    fade = np.minimum(1.0, np.minimum(along, along[::-1]) / 10)
    waves = np.zeros_like(line)
    for length_mm in (12.0, 21.0, 38.0):
        phases = rng.uniform(0, 2 * np.pi, 3)
        waves += rng.normal(0, 0.012 * length_mm, 3) * np.sin(
            2 * np.pi * along[:, None] / (scale * length_mm) + phases
        )
    return _resample(line + fade[:, None] * waves)

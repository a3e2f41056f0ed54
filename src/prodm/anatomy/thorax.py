"""Everything of the phantom's chest that is neither heart, wall nor bone, and the order of all.

Lungs with vessels and bronchi, mediastinal fat, descending aorta, oesophagus, liver, stomach,
spleen, and the calcium that is not coronary: aortic wall, valves, bronchi.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prodm.anatomy.bones import CAVITY, draw_bones, spine_center_y_mm
from prodm.anatomy.chambers import Heart, draw_heart
from prodm.anatomy.fields import Bend
from prodm.anatomy.painting import Canvas, Solid, Tubes, ellipsoid, tube
from prodm.anatomy.wall import Wall, draw_wall

Array = NDArray[np.float64]
FLAT = np.eye(3)


@dataclass(frozen=True, eq=False)
class Thorax:
    """One patient's chest without coronary calcium, in paint order: lung, organs, wall, bones."""

    wall: Wall
    heart: Heart
    organs: tuple[Solid | Tubes, ...]
    bones: tuple[Solid | Tubes, ...]

    def paint(self, canvas: Canvas) -> None:
        """Paint a whole plane."""
        self.wall.paint_lung(canvas)
        for shape in self.organs:
            canvas.paint(shape)
        self.wall.paint(canvas)
        for shape in self.bones:
            canvas.paint(shape)


@dataclass(frozen=True)
class OtherCalcium:
    """How often calcium that is not coronary is met, as a share of patients."""

    aortic_wall: float = 0.45
    aortic_valve: float = 0.25
    mitral_valve: float = 0.12
    bronchi: float = 0.25


def draw_thorax(
    rngs: dict[str, np.random.Generator], bend: Bend, scale: float, other: OtherCalcium
) -> Thorax:
    """Draw the chest of one patient; each part has its own stream of random numbers."""
    wall = draw_wall(rngs["wall"], scale**0.5)
    heart = draw_heart(rngs["heart"], bend, scale)
    rng = rngs["organs"]
    aorta = _descending_aorta(rng, bend, wall, scale)
    aorta_radius = scale * rng.uniform(11.0, 14.5)
    airway_shapes = _airways(rng, bend, heart, scale)
    organs = [
        *_lung_vessels(rngs["lungs"], wall, heart, scale),
        *_mediastinal_fat(rng, wall, scale),
        *airway_shapes,
        *heart.shapes,
        tube(aorta, aorta_radius + 1.0, 42.0),
        tube(aorta, aorta_radius, rng.uniform(38, 47), texture_hu=2.0),
        *_oesophagus(rng, bend, wall),
        *_abdomen(rng, wall, scale),
        *_other_calcium(rngs["other calcium"], bend, heart, (aorta, aorta_radius), other),
    ]
    return Thorax(wall, heart, tuple(organs), tuple(draw_bones(rngs["bones"], wall)))


def _descending_aorta(rng: np.random.Generator, bend: Bend, wall: Wall, scale: float) -> Array:
    z = np.arange(-170.0, 171.0, 4.0)
    front = np.array([spine_center_y_mm(wall, float(height)) for height in z]) - 17 * scale
    x = 24 * scale + rng.normal(0, 3) - 0.10 * np.clip(-z, 0, None) + 3 * np.sin(z / 60)
    return bend.patient(np.stack([x, front + rng.normal(0, 2), z], axis=1))


def _oesophagus(rng: np.random.Generator, bend: Bend, wall: Wall) -> list[Solid | Tubes]:
    z = np.arange(-170.0, 171.0, 8.0)
    y = np.array([spine_center_y_mm(wall, float(height)) for height in z]) - 23
    x = 3 + rng.normal(0, 2) + 0.06 * np.clip(-z, 0, None)
    line = bend.patient(np.stack([x, y - 0.04 * np.clip(-z, 0, None), z], axis=1))
    radii = 6.5 + 1.2 * np.sin(z / 17 + rng.uniform(0, 6))
    shapes: list[Solid | Tubes] = [tube(line, radii, 36.0, texture_hu=6.0)]
    for _ in range(rng.integers(0, 3)):
        start = rng.integers(8, 30)
        shapes.append(tube(line[start : start + 4] + np.array([0.5, -1.0, 0.0]), 1.8, -600.0))
    return shapes


def _mediastinal_fat(rng: np.random.Generator, wall: Wall, scale: float) -> list[Solid | Tubes]:
    fat = rng.uniform(-108, -95)
    front = float(wall.point(CAVITY, np.array([1.5 * np.pi]), np.array([0.0]))[0, 1])
    spine = spine_center_y_mm(wall) - 12
    rich = rng.uniform(0.7, 1.25)
    rows = [
        ellipsoid(np.array([0, 8, 85]), FLAT, (36 * scale, 62, 62)),
        ellipsoid(np.array([2, front + 12, 20]), FLAT, (20 * rich, 24, 85)),
        ellipsoid(np.array([14, front + 16, -45]), FLAT, (34 * rich, 22 * rich, 26)),
        ellipsoid(np.array([14, spine - 2, 0]), FLAT, (21 * rich, 17, 400)),
        ellipsoid(np.array([-4, 30, 45]), FLAT, (46 * scale, 28, 26)),
    ]
    return [Solid(np.stack(rows), fat, 20.0, 0.0, rough_mm=0.7, sway_mm=2.5, texture_hu=7.0)]


def _abdomen(rng: np.random.Generator, wall: Wall, scale: float) -> list[Solid | Tubes]:
    """Domes of the diaphragm with liver, stomach and spleen below."""
    right, left = rng.uniform(-60, -40), rng.uniform(-70, -52)
    middle = min(left, -56 * scale)
    x, y = wall.center_xy_mm
    liver = [
        ellipsoid(np.array([x - 66, y + 2, right - 75]), FLAT, (82.0, 96.0, 75.0)),
        ellipsoid(np.array([x + 2, y - 28, middle - 60]), FLAT, (70.0, 62.0, 58.0)),
        ellipsoid(np.array([x - 24, y - 10, right - 42]), FLAT, (36.0, 42.0, 44.0)),
    ]
    dome = [*liver, ellipsoid(np.array([x + 68, y + 6, left - 70]), FLAT, (78.0, 96.0, 70.0))]
    hu = rng.uniform(48, 64)
    stomach = np.array([x + 62, y - 8, left - 38])
    gas = rng.uniform(8, 20)
    return [
        Solid(np.stack(dome), 45.0, 16.0, 2.5, rough_mm=0.3, sway_mm=2.0),
        Solid(np.stack(dome), -95.0, 16.0, -0.5, rough_mm=0.5, sway_mm=2.0, texture_hu=8.0),
        Solid(np.stack(liver), hu, 16.0, -1.0, sway_mm=2.0, texture_hu=3.0),
        Solid(np.stack([ellipsoid(stomach, FLAT, (36.0, 42.0, 32.0))]), 38.0, rough_mm=1.0),
        Solid(np.stack([ellipsoid(stomach, FLAT, (32.0, 38.0, 28.0))]), 15.0, texture_hu=14.0),
        Solid(
            np.stack([ellipsoid(stomach + np.array([0, -16, 2]), FLAT, (24.0, gas, 22.0))]), -950.0,
            rough_mm=0.4,
        ),
        Solid(
            np.stack([ellipsoid(np.array([x + 78, y + 48, left - 42]), FLAT, (28.0, 38.0, 36.0))]),
            48.0, sway_mm=2.0, texture_hu=3.0,
        ),
    ]  # fmt: skip


def _airways(
    rng: np.random.Generator, bend: Bend, heart: Heart, scale: float
) -> list[Solid | Tubes]:
    fork = heart.root_xyz_mm + scale * np.array([-2.0, 44.0, 47.0]) + rng.normal(0, 2, 3)
    lines = [(fork + np.array([[0, 0, 0], [0, -4, 90]]), 8.5)]
    for side, fall in ((-1, 1.0), (1, 0.75)):
        main = fork + scale * np.array(
            [[0, 0, 0], [side * 18, 1, -16 * fall], [side * 36, 3, -28 * fall]]
        )
        lower = main[-1] + scale * np.array([[0, 0, 0], [side * 10, 12, -26], [side * 18, 24, -58]])
        upper = main[-1] + scale * np.array([[0, 0, 0], [side * 16, -12, 8], [side * 30, -26, 20]])
        lines += [(main, 6.5), (lower, 3.8), (upper, 3.2)]
        for _ in range(5):
            tip = lower[rng.integers(1, 3)]
            way = rng.normal(0, 1, 3) * [0.8, 1.0, 0.8] + [side * 0.9, 0.3, -0.5]
            way *= 28 / np.linalg.norm(way)
            lines.append((np.stack([tip, tip + way, tip + 1.9 * way]), 2.0))
    shapes: list[Solid | Tubes] = []
    for grow, hu in ((1.2, 0.0), (0.0, -980.0)):
        rows = [tube(bend.patient(line), radius + grow, hu).segments for line, radius in lines]
        shapes.append(Tubes(np.vstack(rows)))
    return shapes


def _lung_vessels(
    rng: np.random.Generator, wall: Wall, heart: Heart, scale: float
) -> list[Solid | Tubes]:
    """Grow trees from both hila until their branches are thin or meet the pleura."""
    segments = []
    for side in (-1, 1):
        hilum = heart.root_xyz_mm + scale * np.array([side * 42.0 + 4, 28.0, 30.0])
        tips, ways, radii = [], [], []
        for _ in range(17):
            way = rng.normal(0, 1, 3) * [0.7, 1.0, 1.1] + [side * 0.8, 0.1, -0.35]
            tips.append(hilum + rng.normal(0, 1, 3) * [4, 10, 16])
            ways.append(way / np.linalg.norm(way))
            radii.append(rng.uniform(2.0, 4.8))
        tip, way, radius = np.array(tips), np.array(ways), np.array(radii)
        for _ in range(9):
            length = 7 + 3.0 * radius * rng.uniform(0.6, 1.4, len(radius))
            end = tip + way * length[:, None]
            keep = wall.inside(CAVITY, end, inset_mm=2.0)
            narrow = radius * 0.9
            rows = [tip, end, radius[:, None], narrow[:, None],
                    np.ones((len(tip), 1)), np.full((len(tip), 1), 38.0)]  # fmt: skip
            segments.append(np.hstack(rows)[keep])
            tip, way, radius = end[keep], way[keep], radius[keep]
            children = []
            for share in (0.83, 0.62):
                turn = way + rng.normal(0, 0.42, way.shape) * (1.25 - share)
                turn += 0.25 * rng.normal(0, 1, way.shape)
                children.append((tip, turn / np.linalg.norm(turn, axis=1)[:, None], radius * share))
            tip, way, radius = (np.concatenate(parts) for parts in zip(*children, strict=True))
            thick = radius > 0.45
            tip, way, radius = tip[thick], way[thick], radius[thick]
    return [Tubes(np.vstack(segments))]


def _other_calcium(
    rng: np.random.Generator,
    bend: Bend,
    heart: Heart,
    aorta: tuple[Array, float],
    other: OtherCalcium,
) -> list[Solid | Tubes]:
    rows = []
    if rng.random() < other.aortic_wall:
        ascending = (bend.patient(heart.aorta_xyz_mm)[20:], heart.aorta_radius_mm)
        for line, radius in (ascending, aorta, aorta):
            for _ in range(rng.poisson(3.0)):
                middle = line[rng.integers(2, len(line) - 2)]
                start, sweep = rng.uniform(0, 2 * np.pi), rng.uniform(0.1, 0.7)
                angle = np.linspace(start, start + sweep, 6)
                arc = np.stack([np.cos(angle), np.sin(angle), 0 * angle], axis=1)
                points = middle + (radius + 0.2) * arc + [0, 0, 1] * rng.normal(0, 2, (6, 1))
                rows.append(tube(points, rng.uniform(0.4, 1.1), rng.uniform(350, 1100)).segments)
    if rng.random() < other.aortic_valve:
        for _ in range(rng.integers(1, 6)):
            place = heart.root_xyz_mm + rng.normal(0, 4.5, 3)
            points = bend.patient(place + np.cumsum(rng.normal(0, 1.2, (4, 3)), axis=0))
            rows.append(tube(points, rng.uniform(0.5, 1.5), rng.uniform(350, 1100)).segments)
    if rng.random() < other.mitral_valve:
        # The ring of the valve, mostly its rear half.
        start = rng.uniform(-1.2, 0.6)
        angle = np.linspace(start, start + rng.uniform(0.4, 2.0), 12)
        ring = np.stack([0 * angle, -16 * np.cos(angle), 16 * np.sin(angle)], axis=1) @ heart.frame
        points = bend.patient(heart.mitral_xyz_mm + ring + rng.normal(0, 0.5, ring.shape))
        rows.append(tube(points, rng.uniform(0.8, 2.2), rng.uniform(400, 1000)).segments)
    if rng.random() < other.bronchi:
        for _ in range(rng.integers(1, 5)):
            side = rng.choice([-1.0, 1.0])
            shift = np.array([side * rng.uniform(22, 42), 42, rng.uniform(20, 45)])
            place = heart.root_xyz_mm + shift
            points = bend.patient(place + np.cumsum(rng.normal(0, 1.0, (3, 3)), axis=0))
            rows.append(tube(points, rng.uniform(0.5, 2.0), rng.uniform(250, 900)).segments)
    return [Tubes(np.vstack(rows))] if rows else []

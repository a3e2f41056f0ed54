"""Ribs, sternum, spine and shoulder blades: a dense shell around spongy bone."""

import numpy as np
from numpy.typing import NDArray

from prodm.anatomy.painting import Solid, Tubes, ellipsoid, tube
from prodm.anatomy.wall import Wall

Array = NDArray[np.float64]
BED, CAVITY = 2, 3  # borders of the wall
CORTEX_MM = 1.3


def draw_bones(rng: np.random.Generator, wall: Wall) -> list[Solid | Tubes]:
    """Return the bones of the chest in paint order."""
    cortex, spongy = rng.uniform(550, 950), rng.uniform(110, 220)
    aged = rng.random() < 0.35  # cartilage turns to chalk with age
    shapes = _spine(rng, wall, cortex, spongy)
    shapes += _ribs(rng, wall, cortex, spongy, aged)
    shapes += _sternum(rng, wall, cortex, spongy)
    shapes += _shoulder_blades(rng, wall, cortex, spongy)
    return [*shapes, *_couch(wall)]


def _couch(wall: Wall) -> list[Solid | Tubes]:
    """The curved top of the table and its bottom, below the back."""
    back = float(wall.point(0, np.array([np.pi / 2]), np.array([0.0]))[0, 1])
    x = np.linspace(-230.0, 230.0, 60)
    arcs = []
    for lift, curve, radius, hu in ((14.0, 1500.0, 0.9, -150.0), (46.0, 4000.0, 1.1, 60.0)):
        line = np.stack([x, back + lift - x**2 / curve, 0 * x], axis=1)
        arcs.append(tube(line, radius, hu, stretch=1e4).segments)
    return [Tubes(np.vstack(arcs))]


def spine_center_y_mm(wall: Wall, z_mm: float = 0.0) -> float:
    """Return where the middle of the vertebral bodies lies."""
    back = wall.point(CAVITY, np.array([np.pi / 2]), np.array([z_mm]))
    return float(back[0, 1]) - 40.0


def _bone(line: Array, radius: Array, cortex: float, spongy: float, stretch: float) -> list[Tubes]:
    shell = tube(line, radius, cortex, stretch=stretch, texture_hu=60.0)
    core = tube(line, np.maximum(radius - CORTEX_MM, 0.3), spongy, stretch=stretch, texture_hu=45.0)
    return [shell, core]


def _ribs(
    rng: np.random.Generator, wall: Wall, cortex: float, spongy: float, aged: bool
) -> list[Solid | Tubes]:
    shells, cores, cartilages, chalk = [], [], [], []
    gap = rng.uniform(24, 28)
    drop = rng.uniform(75, 100)  # from the spine to the front end
    phase = rng.uniform(0, gap)
    for number in range(-4, 8):
        head_z = phase + number * gap
        for side in (0, 1):
            sweep = np.linspace(0.17, 2.62, 44)  # from the spine forwards
            z = head_z - drop * np.sin(np.clip(sweep - 0.1, 0, 1.9) / 1.9 * np.pi / 2) ** 1.3
            z = z + 16 * np.clip(sweep - 2.0, 0, None)  # cartilage rises to the sternum
            angle = np.pi / 2 - sweep if side else np.pi / 2 + sweep
            line = wall.point(CAVITY, angle, z, inset_mm=-5.5)
            radius = 3.9 + rng.normal(0, 0.15)
            bony = sweep < rng.uniform(2.05, 2.2)
            radii = radius - 0.5 * np.exp(-sweep)
            shell, core = _bone(line[bony], radii[bony], cortex, spongy, 1.7)
            shells.append(shell.segments)
            cores.append(core.segments)
            cartilage = line[np.count_nonzero(bony) - 1 :]
            cartilages.append(tube(cartilage, radius + 0.6, 95.0, stretch=1.6).segments)
            if aged and len(cartilage) > 6:
                start = rng.integers(0, len(cartilage) - 5)
                some = cartilage[start : start + 5] + rng.normal(0, 1.2, 3)
                chalk.append(tube(some, rng.uniform(0.6, 1.6), rng.uniform(250, 600)).segments)
    parts: list[Solid | Tubes] = [
        Tubes(np.vstack(cartilages), 15.0), Tubes(np.vstack(shells), 60.0),
        Tubes(np.vstack(cores), 45.0),
    ]  # fmt: skip
    if chalk:
        parts.append(Tubes(np.vstack(chalk), 80.0))
    return parts


def _sternum(
    rng: np.random.Generator, wall: Wall, cortex: float, spongy: float
) -> list[Solid | Tubes]:
    width, thickness = rng.uniform(14, 19), rng.uniform(4.6, 6.0)
    z = np.arange(-45.0, 130.0, 6.0)
    line = wall.point(CAVITY, np.full(len(z), 1.5 * np.pi), z, inset_mm=-6.5)
    rows, cores = [], []
    flat = np.eye(3)
    for point in line:
        rows.append(ellipsoid(point, flat, (width, thickness, 9.0)))
        cores.append(ellipsoid(point, flat, (width - 1.2, thickness - 1.0, 9.0)))
    return [
        Solid(np.stack(rows), 0.6 * cortex, smooth_mm=6.0, rough_mm=0.3, texture_hu=60.0),
        Solid(np.stack(cores), 0.6 * spongy, smooth_mm=6.0, rough_mm=0.3, texture_hu=35.0),
    ]


def _spine(
    rng: np.random.Generator, wall: Wall, cortex: float, spongy: float
) -> list[Solid | Tubes]:
    height = rng.uniform(23, 26)
    half_width, half_depth = rng.uniform(15, 18), rng.uniform(13, 15)
    phase = rng.uniform(0, height)
    bodies, cores, discs, arch, arch_cores = [], [], [], [], []
    flat = np.eye(3)
    for number in range(-6, 7):
        z = phase + number * height
        y = spine_center_y_mm(wall, z)
        center = np.array([0.0, y, z])
        # Two stacked ellipsoids with a waist make a body with flat ends.
        for lift in (-0.27, 0.0, 0.27):
            thick = 0.97 if lift == 0.0 else 1.0
            place = center + np.array([0, 0, lift * height])
            radii = (half_width * thick, half_depth * thick, 0.33 * height)
            bodies.append(ellipsoid(place, flat, radii))
            small = (radii[0] - 0.8, radii[1] - 0.8, radii[2] - 1.2)
            cores.append(ellipsoid(place, flat, small))
        disc = center + np.array([0, 0, 0.5 * height])
        discs.append(ellipsoid(disc, flat, (half_width, half_depth, 5.0)))
        for side in (-1, 1):
            pedicle = center + np.array(
                [[side * 10, 10, 3], [side * 12, 19, 3], [side * 30, 32, 6 + rng.normal(0, 2)]]
            )
            lamina = center + np.array([[side * 12, 19, 2], [side * 4, 32, -4]])
            for line, radius in ((pedicle, 4.0), (lamina, 3.3)):
                shell, core = _bone(line, np.full(len(line), radius), cortex, spongy, 1.3)
                arch.append(shell.segments)
                arch_cores.append(core.segments)
        thorn = center + np.array([[0, 31, -3], [rng.normal(0, 1), 42, -14], [0, 52, -24]])
        shell, core = _bone(thorn, np.array([3.0, 2.6, 3.2]), cortex, spongy, 1.8)
        arch.append(shell.segments)
        arch_cores.append(core.segments)
    y = spine_center_y_mm(wall)
    canal = np.array([[0.0, spine_center_y_mm(wall, z) + 21, z] for z in range(-160, 161, 20)])
    return [
        Solid(  # soft tissue around the spine
            np.stack([
                ellipsoid(np.array([0.0, y, 0.0]), flat, (half_width + 3, half_depth + 2, 900.0)),
                ellipsoid(np.array([0.0, y + 33, 0.0]), flat, (36.0, 20.0, 900.0), 12.0),
            ]),
            48.0, rough_mm=0.5, sway_mm=1.0, texture_hu=6.0,
        ),
        Solid(np.stack(discs), 85.0, texture_hu=6.0),
        Solid(np.stack(bodies), 0.5 * cortex, smooth_mm=3.0, rough_mm=0.2, texture_hu=60.0),
        Solid(np.stack(cores), spongy, smooth_mm=3.0, rough_mm=0.4, texture_hu=45.0),
        Tubes(np.vstack(arch), 60.0), Tubes(np.vstack(arch_cores), 40.0),
        tube(canal, 8.5, -20.0), tube(canal, 6.8, 28.0),
    ]  # fmt: skip


def _shoulder_blades(
    rng: np.random.Generator, wall: Wall, cortex: float, spongy: float
) -> list[Solid | Tubes]:
    tip = rng.uniform(5, 45)  # the lower tip; with the arms up it moves outwards
    shells, cores = [], []
    for side in (-1, 1):
        for turn in np.linspace(0.0, 0.42, 24):
            angle = np.pi / 2 - side * (1.0 + turn)
            z = np.arange(tip + 60 * abs(turn - 0.2), 140.0, 10.0)
            line = wall.point(BED, np.full(len(z), angle), z, inset_mm=-4.0 - 14 * turn)
            radius = np.full(len(line), 2.2 + 6 * max(turn - 0.3, 0.0))
            shell, core = _bone(line, radius, 0.8 * cortex, spongy, 1.0)
            shells.append(shell.segments)
            cores.append(core.segments)
    return [Tubes(np.vstack(shells), 50.0), Tubes(np.vstack(cores), 40.0)]

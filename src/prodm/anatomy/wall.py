"""The chest wall: skin, fat, muscle, ribs' bed and the cavity, as rings around an axis.

Each border is a radius by angle and height around the vertical axis through the middle of
the chest. Angle 0 points to the patient's left, 90 degrees to the back.
"""

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy import ndimage

from prodm.anatomy.painting import Canvas, Floats

Array = NDArray[np.float64]
NUM_ANGLES = 720
Z_STEP_MM = 5.0
Z_FIRST_MM = -150.0
NUM_Z = 61
SKIN_MM = 1.8


@dataclass(frozen=True, eq=False)
class Wall:
    """Border radii [border, z, angle] around ``center_xy_mm``, from outside inwards."""

    radii_mm: Array
    center_xy_mm: tuple[float, float]
    fat_hu: float
    muscle_hu: float
    lung_hu: float
    lean: float  # how much fat lies between the muscles; larger is less

    def radius(self, border: int, angle: Array, z_mm: Array) -> Array:
        """Return the radius of a border at angles and heights [N]."""
        indices = [
            (np.asarray(z_mm) - Z_FIRST_MM) / Z_STEP_MM,
            np.mod(np.asarray(angle) / (2 * np.pi), 1.0) * NUM_ANGLES,
        ]
        table = np.concatenate([self.radii_mm[border], self.radii_mm[border][:, :1]], axis=1)
        radius: Array = ndimage.map_coordinates(table, indices, order=1, mode="nearest")
        return radius

    def point(self, border: int, angle: Array, z_mm: Array, inset_mm: float = 0.0) -> Array:
        """Return points [N, 3] on a border, moved inwards by ``inset_mm``."""
        radius = self.radius(border, angle, z_mm) - inset_mm
        x = self.center_xy_mm[0] + radius * np.cos(angle)
        y = self.center_xy_mm[1] + radius * np.sin(angle)
        return np.stack([x, y, np.broadcast_to(z_mm, np.shape(x))], axis=1)

    def inside(self, border: int, points_xyz_mm: Array, inset_mm: float = 0.0) -> NDArray[np.bool_]:
        """Tell which points [N, 3] lie within a border."""
        x = points_xyz_mm[:, 0] - self.center_xy_mm[0]
        y = points_xyz_mm[:, 1] - self.center_xy_mm[1]
        radius = self.radius(border, np.arctan2(y, x), points_xyz_mm[:, 2])
        within: NDArray[np.bool_] = np.hypot(x, y) < radius - inset_mm
        return within

    def paint_lung(self, canvas: Canvas) -> None:
        """Fill the whole plane with lung, denser towards the back where blood sinks."""
        slope = (self.lung_hu + 0.35 * (canvas.y_mm - self.center_xy_mm[1])).astype(np.float32)
        canvas.hu[:] = slope[:, None] + np.float32(14) * canvas.fine
        canvas.hu[:] += np.float32(12) * canvas.coarse

    def paint(self, canvas: Canvas) -> None:
        """Cover all that lies outside the cavity: the rings of the wall, and air around."""
        place = np.clip((canvas.z_mm - Z_FIRST_MM) / Z_STEP_MM, 0, NUM_Z - 1.001)
        below, part = int(place), place - int(place)
        rings = (1 - part) * self.radii_mm[:, below] + part * self.radii_mm[:, below + 1]
        _paint_rings(
            canvas.hu, canvas.y_mm, canvas.x_mm, canvas.fine, canvas.coarse,
            np.ascontiguousarray(rings, dtype=np.float32),
            np.array([*self.center_xy_mm, self.fat_hu, self.muscle_hu, self.lean]),
        )  # fmt: skip


def draw_wall(rng: np.random.Generator, scale: float) -> Wall:
    """Draw the chest wall of one patient."""
    half_width = scale * rng.uniform(122, 142)
    half_depth = scale * rng.uniform(92, 106)
    fat_mm = rng.gamma(3.0, 5.5) + 4
    angle = np.linspace(0, 2 * np.pi, NUM_ANGLES, endpoint=False)[None, :]
    z = (Z_FIRST_MM + Z_STEP_MM * np.arange(NUM_Z))[:, None]
    taper = 1 - 0.0011 * (z + 20) - 1.1e-5 * (z + 20) ** 2
    power = rng.uniform(1.95, 2.3)
    shape = (np.abs(np.cos(angle) / half_width) ** power
             + np.abs(np.sin(angle) / half_depth) ** power) ** (-1 / power)  # fmt: skip
    cavity = shape * np.clip(taper, 0.6, 1.2)
    front, back = np.maximum(-np.sin(angle), 0), np.maximum(np.sin(angle), 0)
    side = np.abs(np.cos(angle))
    cavity = cavity * (1 + 0.03 * _wander(rng, 3, 40))
    bed = cavity + 10 + 1.5 * _wander(rng, 6, 30)
    higher = 1 / (1 + np.exp(-(z - 10) / 25))
    spine_groove = np.exp(-(((angle - np.pi / 2) / 0.42) ** 2))
    pectoral = np.exp(-(((np.abs(angle - 1.5 * np.pi) - 0.55) / 0.38) ** 2)) * higher
    latissimus = np.exp(-(((np.abs(angle - np.pi / 2) - 1.0) / 0.45) ** 2))
    muscle_mm = rng.uniform(0.8, 1.25) * (
        4 + 3 * side + 13 * pectoral + 16 * latissimus * (0.35 + higher) + 26 * spine_groove
    )
    muscle = bed + np.maximum(2.5, muscle_mm * (1 + 0.25 * _wander(rng, 9, 30)))
    layer = fat_mm * (0.75 + 0.5 * side + 0.35 * front - 0.1 * back)
    breast: Array | float = 0.0
    if rng.random() < 0.45:
        lobes = np.exp(-(((np.abs(angle - 1.5 * np.pi) - 0.62) / 0.34) ** 2))
        breast = lobes * np.exp(-(((z - rng.uniform(-40, 0)) / 45) ** 2)) * rng.uniform(8, 38)
    skin = muscle + SKIN_MM + layer * (1 + 0.15 * _wander(rng, 4, 40)) + breast
    flat = 0.86 * np.median(skin[:, NUM_ANGLES // 4])  # the couch flattens the back
    skin = np.where(back > 0.5, np.minimum(skin, (flat + 12) / np.maximum(back, 0.5)), skin)
    skin = np.maximum(ndimage.gaussian_filter(skin, (1, 4), mode=("nearest", "wrap")),
                      muscle + SKIN_MM + 2)  # fmt: skip
    lean = rng.uniform(0.7, 1.4)
    return Wall(
        np.stack([skin, muscle, bed, cavity]), (rng.normal(0, 2), 25 + rng.normal(0, 2)),
        rng.uniform(-112, -98), rng.uniform(46, 60), rng.uniform(-890, -820), lean,
    )  # fmt: skip


def _wander(rng: np.random.Generator, waves: int, z_mm: float) -> Array:
    """Smooth unit noise [z, angle] with about ``waves`` bumps around."""
    noise = rng.standard_normal((NUM_Z, NUM_ANGLES))
    sigma = (z_mm / Z_STEP_MM, NUM_ANGLES / (4 * waves))
    noise = ndimage.gaussian_filter(noise, sigma, mode=("reflect", "wrap"))
    result: Array = np.clip(noise / noise.std(), -2, 2)
    return result


@njit(cache=True, fastmath=True)  # type: ignore[untyped-decorator]
def _paint_rings(
    hu: Floats, y_mm: Floats, x_mm: Floats, fine: Floats, coarse: Floats, rings: Floats, look: Array
) -> None:
    center_x, center_y, fat, muscle, lean = look
    angles = rings.shape[1]
    pixel = x_mm[1] - x_mm[0]
    per_radian = angles / (2 * np.pi)
    innermost, outermost = rings[3].min() - pixel, rings[0].max() + pixel
    for j in range(y_mm.size):
        y = y_mm[j] - center_y
        for i in range(x_mm.size):
            x = x_mm[i] - center_x
            radius = np.sqrt(x * x + y * y)
            if radius < innermost:
                continue
            if radius > outermost:
                hu[j, i] = -1000.0
                continue
            place = np.arctan2(y, x) * per_radian
            if place < 0:
                place += angles
            a = int(place) % angles
            b = (a + 1) % angles
            part = place - int(place)
            f, c = fine[j, i], coarse[j, i]
            value = -1000.0
            ring = (1 - part) * rings[3, a] + part * rings[3, b]
            within = min(max(0.5 + (ring - radius) / pixel, 0.0), 1.0)
            if within == 1.0:
                continue
            for border in range(3):
                ring = (1 - part) * rings[border, a] + part * rings[border, b]
                depth = ring - radius
                cover = min(max(0.5 + depth / pixel, 0.0), 1.0)
                if cover == 0.0:
                    break
                if border == 0:
                    skin = min(max((depth - 1.8) / pixel + 0.5, 0.0), 1.0)
                    strands = 60.0 * max(f - 2.2, 0.0)
                    inner = 20.0 + skin * (fat - 20.0 + 5.0 * f + strands)
                elif border == 1:
                    # Muscles lie in sheets with fat between them.
                    first = abs(depth - 6.0 - 3.0 * c - 0.5 * f)
                    second = abs(depth - 14.0 + 4.0 * c - 0.5 * f)
                    gap = min(first, second) - 0.9 + 0.5 * lean * (1.0 + f)
                    sheet = min(max(gap / 0.8, 0.0), 1.0)
                    strand = min(max(2.6 - f, 0.0), 1.0)
                    inner = fat + sheet * strand * (muscle - fat + 5.0 * f)
                else:
                    layer = min(max(0.75 + 0.35 * f + 0.3 * c, 0.0), 1.0)
                    inner = fat + layer * (muscle - 10.0 - fat)
                value += cover * (inner - value)
            hu[j, i] = value + within * (hu[j, i] - value)

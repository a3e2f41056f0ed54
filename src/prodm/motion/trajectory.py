"""A motion of the calcium while it is scanned, as a value that can be written down and replayed.

Time t runs over one scan, 0 <= t < 1; view i of N is measured at t = i / N and at the angle
start + span * i / N. A displacement is (x, y, z) in mm: x along the columns of an axial slice,
y along its rows (downwards), z along the slices towards the head. All motion is rigid.

The four families are those of the paper's appendix. Translation drifts with a constant
velocity, oscillation is one cosine period along a fixed direction, jitter sums three harmonics
with a direction each, piecewise moves, dwells, and moves on in a new direction.
"""

import json
import math
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from prodm.errors import ProdmError

Vector = tuple[float, float, float]
Floats = NDArray[np.float64]

SPANS_DEG = (180.0, 360.0)


@dataclass(frozen=True)
class Fixed:
    """No motion: the calcium stays at one displacement all the time."""

    family: ClassVar[str] = "fixed"
    offset_xyz_mm: Vector = (0.0, 0.0, 0.0)

    def path(self, times: Floats) -> Floats:
        """Return displacements [N, 3] in mm at times [N]."""
        return np.tile(np.asarray(self.offset_xyz_mm, dtype=np.float64), (len(times), 1))


@dataclass(frozen=True)
class Translation:
    """A drift that starts at rest and covers ``amplitude_xyz_mm`` in one scan."""

    family: ClassVar[str] = "translation"
    amplitude_xyz_mm: Vector

    def path(self, times: Floats) -> Floats:
        """Return displacements [N, 3] in mm at times [N]."""
        return _along(times, self.amplitude_xyz_mm)


@dataclass(frozen=True)
class Oscillation:
    """Back and forth once per scan: cos(2 pi t + phase) times the amplitude."""

    family: ClassVar[str] = "oscillation"
    amplitude_xyz_mm: Vector
    phase_rad: float

    def path(self, times: Floats) -> Floats:
        """Return displacements [N, 3] in mm at times [N]."""
        swing = np.cos(2 * np.pi * times + self.phase_rad)
        return _along(swing, self.amplitude_xyz_mm)


@dataclass(frozen=True)
class Jitter:
    """Three harmonics, sin(2 pi k t + phase) for k = 1, 2, 3, each along its own vector."""

    family: ClassVar[str] = "jitter"
    harmonics_xyz_mm: tuple[Vector, Vector, Vector]
    phase_rad: float

    def path(self, times: Floats) -> Floats:
        """Return displacements [N, 3] in mm at times [N]."""
        orders = np.arange(1, len(self.harmonics_xyz_mm) + 1)
        waves = np.sin(2 * np.pi * orders * times[:, None] + self.phase_rad)
        path: Floats = waves @ np.asarray(self.harmonics_xyz_mm)
        return path


@dataclass(frozen=True)
class Piecewise:
    """A first move until ``pause_start``, a dwell until ``pause_end``, a second move to the end."""

    family: ClassVar[str] = "piecewise"
    first_xyz_mm: Vector
    second_xyz_mm: Vector
    pause_start: float
    pause_end: float

    def __post_init__(self) -> None:
        if not 0 < self.pause_start <= self.pause_end < 1:
            raise ProdmError(
                "a pause must lie inside the scan, 0 < start <= end < 1, "
                f"got {self.pause_start} to {self.pause_end}"
            )

    def path(self, times: Floats) -> Floats:
        """Return displacements [N, 3] in mm at times [N]."""
        first = np.clip(times / self.pause_start, 0, 1)
        second = np.clip((times - self.pause_end) / (1 - self.pause_end), 0, 1)
        return _along(first, self.first_xyz_mm) + _along(second, self.second_xyz_mm)


Motion = Fixed | Translation | Oscillation | Jitter | Piecewise
FAMILIES: dict[str, type[Motion]] = {
    "fixed": Fixed,
    "translation": Translation,
    "oscillation": Oscillation,
    "jitter": Jitter,
    "piecewise": Piecewise,
}


@dataclass(frozen=True)
class Trajectory:
    """A motion and the scan that sees it.

    >>> drift = Trajectory("mine", Translation((4.0, 0.0, 0.0)), num_angles=8)
    >>> drift.displacement(drift.times)[:, 0].tolist()
    [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5]
    >>> Trajectory.from_json(drift.to_json()) == drift
    True
    """

    profile: str
    motion: Motion
    num_angles: int = 720
    span_deg: float = 180.0
    start_deg: float = 0.0
    centred: bool = False  # subtract the mean over the scan's views

    def __post_init__(self) -> None:
        if self.num_angles < 8:
            raise ProdmError(f"a scan needs at least 8 angles, got {self.num_angles}")
        if self.span_deg not in SPANS_DEG:
            raise ProdmError(f"the angular span must be 180 or 360 degrees, got {self.span_deg:g}")
        if not math.isfinite(self.start_deg):
            raise ProdmError(f"the start angle must be a number, got {self.start_deg}")
        if not np.all(np.isfinite(self.motion.path(self.times))):
            raise ProdmError(f"the displacements of {self.profile!r} must be numbers")

    @property
    def times(self) -> Floats:
        """Times [N] of the views."""
        return np.arange(self.num_angles) / self.num_angles

    @property
    def angles_rad(self) -> Floats:
        """Angles [N] of the views: view i measures along n = (cos, sin) in (x, y)."""
        return np.deg2rad(self.start_deg + self.span_deg * self.times)

    def displacement(self, times: Floats) -> Floats:
        """Return displacements [N, 3], (x, y, z) in mm, at times [N] of the scan."""
        path = self.motion.path(np.asarray(times, dtype=np.float64))
        if self.centred:
            path = path - self.motion.path(self.times).mean(axis=0)
        return path

    def to_dict(self) -> dict[str, Any]:
        """Return what ``from_dict`` reads, fit for JSON."""
        return {
            "profile": self.profile,
            "motion": {"family": self.motion.family, **asdict(self.motion)},
            "num_angles": self.num_angles,
            "span_deg": self.span_deg,
            "start_deg": self.start_deg,
            "centred": self.centred,
        }

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> "Trajectory":
        """Rebuild a trajectory from ``to_dict``."""
        try:
            motion = dict(content["motion"])
            family = FAMILIES[motion.pop("family")]
            arguments = {name: _tuples(value) for name, value in motion.items()}
            rest = {name: value for name, value in content.items() if name != "motion"}
            return cls(motion=family(**arguments), **rest)
        except (KeyError, TypeError, ValueError) as error:
            raise ProdmError(f"this is not a trajectory: {error!r}") from error

    def to_json(self) -> str:
        """Return the trajectory as JSON; numbers keep every digit."""
        return json.dumps(self.to_dict())

    @classmethod
    def from_json(cls, text: str) -> "Trajectory":
        """Rebuild a trajectory from ``to_json``."""
        try:
            content = json.loads(text)
        except json.JSONDecodeError as error:
            raise ProdmError(f"this is not a trajectory in JSON: {error}") from error
        if not isinstance(content, dict):
            raise ProdmError("a trajectory in JSON must be an object")
        return cls.from_dict(content)


def _along(distances: Floats, vector: Vector) -> Floats:
    """Points [N, 3] at multiples [N] of one vector."""
    points: Floats = distances[:, None] * np.asarray(vector, dtype=np.float64)
    return points


def _tuples(value: Any) -> Any:  # noqa: ANN401
    return tuple(_tuples(item) for item in value) if isinstance(value, list | tuple) else value

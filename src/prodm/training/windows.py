"""Draw training windows: choose a place, move its calcium afresh, crop.

Every number that is drawn comes from the seed, the step and the sample's place in the batch,
so that any step can be drawn again on its own: resuming needs no state of a generator, and two
processes share a batch by each drawing its part of it.

By default the still block is moved by the phase engine with a new trajectory at each visit,
so that no pair is seen twice. With ``stored`` pairs the moving block is one that ``prodm build``
made by back-projection.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from prodm.errors import ProdmError
from prodm.model import normalise
from prodm.model.losses import Batch, lesion_neighbourhoods
from prodm.model.motions import FoundMotion
from prodm.motion.profiles import PROFILES, draw
from prodm.motion.trajectory import Trajectory
from prodm.pairs.blocks import MARGIN, STORED_SHAPE
from prodm.pairs.store import BlockRow, Pairs, Split
from prodm.physics import phase
from prodm.physics.fitting import NUM_VIEWS as SHIFT_VIEWS

NUM_VIEWS = 90  # samples of s(theta); it is smooth but for its jump
PADDING = 32  # pixels; the margin already keeps calcium away from the border
Made = TypeVar("Made")
MOST_TRIES = 100  # to make something of a block
REACH = 2  # slices above and below a window that may move into it


@dataclass(frozen=True)
class WindowSettings:
    """Which windows are drawn, and how they move."""

    size: int = 64
    moved: Literal["afresh", "stored"] = "afresh"
    calcium_share: float = 0.85  # windows centred on a slice that holds calcium
    rest_share: float = 0.05  # windows whose calcium does not move at all
    random_start_share: float = 0.25  # scans that start at any angle; the others start at 0
    centred: bool = False
    flips: bool = True  # mirror and transpose the still block first
    motions: Literal["found", "near"] = "found"  # of ``prodm.training.findings``
    carried_share: float = 0.3  # of findings whose tissue moves with its calcium
    swapped_share: float = 0.0  # of findings with the calcium of another block
    offsets: bool = True  # the window lies anywhere in its block, else in the middle

    def __post_init__(self) -> None:
        largest = min(STORED_SHAPE[1:])
        if not 0 < self.size <= largest:
            raise ProdmError(f"windows can be 1 to {largest} pixels wide, got {self.size}")
        for name in (
            "calcium_share",
            "rest_share",
            "random_start_share",
            "carried_share",
            "swapped_share",
        ):
            if not 0 <= getattr(self, name) <= 1:
                raise ProdmError(f"{name} must lie between 0 and 1, got {getattr(self, name)}")


@dataclass(frozen=True, eq=False)
class Block:
    """One stored block in memory, margin included."""

    row: BlockRow
    still: NDArray[np.int16]
    background: NDArray[np.int16]
    calcium: NDArray[np.bool_]
    num_motions: int

    @property
    def calcium_slices(self) -> NDArray[np.intp]:
        """Indices of the slices that hold calcium."""
        return np.flatnonzero(self.calcium.any(axis=(1, 2)))


def load_blocks(pairs: Pairs, split: Split) -> list[Block]:
    """Read the still blocks of one part of a store."""
    num_motions: dict[str, int] = {}
    for motion in pairs.motions:
        num_motions[motion.scan] = num_motions.get(motion.scan, 0) + 1
    loaded = [
        Block(
            row,
            pairs.read("still", row),
            pairs.read("background", row),
            pairs.read("calcium", row) > 0,
            num_motions.get(row.scan, 0),
        )
        for row in pairs.blocks
        if row.split == split
    ]
    if not any(len(block.calcium_slices) for block in loaded):
        raise ProdmError(f"{pairs.folder} has no block with calcium in its {split} part")
    return loaded


@dataclass(frozen=True, eq=False)
class _Window:
    """One sample before it is cropped: slices [Z, Y, X] with margins, the window in the middle."""

    still: NDArray[np.float32]
    background: NDArray[np.float32]
    calcium: NDArray[np.bool_]
    stored: tuple[NDArray[np.float32], Trajectory] | None  # as it moves, and how
    spacing_mm: tuple[float, float, float]
    corner: tuple[int, int]  # of the crop


def draw_batch(
    pairs: Pairs,
    blocks: Sequence[Block],
    settings: WindowSettings,
    *,
    num_slices: int,
    batch_size: int,
    seed: Sequence[int],
    radius_pixels: int,
) -> Batch:
    """Draw one batch of windows of ``num_slices``; the same seed gives the same batch."""
    rngs = [np.random.default_rng([*seed, n]) for n in range(batch_size)]
    with_calcium = [block for block in blocks if len(block.calcium_slices)]
    windows = [
        _draw_window(
            pairs,
            with_calcium if rng.random() < settings.calcium_share else blocks,
            settings,
            num_slices,
            rng,
        )
        for rng in rngs
    ]
    trajectories = [
        window.stored[1] if window.stored else draw_trajectory(window.spacing_mm[2], settings, rng)
        for window, rng in zip(windows, rngs, strict=True)
    ]
    displacement, start_rad = _motions(windows, trajectories, settings, rngs)
    moving = [window.stored[0] for window in windows if window.stored]
    if not moving:
        moving = list(_move(windows, displacement, start_rad).numpy())
    calcium = _crop([window.calcium for window in windows], windows, settings.size)
    return Batch(
        still=_as_input(_crop([window.still for window in windows], windows, settings.size)),
        moving=_as_input(_crop(moving, windows, settings.size)),
        calcium=torch.from_numpy(calcium),
        lesions=torch.from_numpy(lesion_neighbourhoods(calcium, radius_pixels)),
        spacing_mm=torch.tensor([window.spacing_mm for window in windows]),
        background=_as_input(_crop([w.background for w in windows], windows, settings.size)),
        displacement=displacement,
        start_rad=start_rad,
    )


def _draw_window(
    pairs: Pairs,
    pool: Sequence[Block],
    settings: WindowSettings,
    num_slices: int,
    rng: np.random.Generator,
) -> _Window:
    block = pool[int(rng.integers(len(pool)))]
    slices = block.calcium_slices if len(block.calcium_slices) else np.arange(STORED_SHAPE[0])
    half = num_slices // 2 + REACH
    wanted = int(rng.choice(slices)) + np.arange(-half, half + 1)
    indices = np.clip(wanted, 0, STORED_SHAPE[0] - 1)
    corner = tuple(int(n) for n in rng.integers(0, 2 * np.array(MARGIN[1:]) + 1))
    if not settings.offsets:
        middle = (STORED_SHAPE[1] - settings.size) // 2
        corner = (middle, middle)
    mirrors = rng.random(3) < 0.5
    moves_afresh = settings.moved == "afresh"

    def place(array: NDArray[Any]) -> NDArray[Any]:
        # A mirrored scan would turn the other way, so stored motions stay as they are.
        placed = array[indices]
        return mirror(placed, mirrors) if settings.flips and moves_afresh else placed

    still, background = place(block.still), place(block.background)
    calcium = place(block.calcium)
    beyond = wanted != indices  # slices repeated beyond the ends have no calcium of their own
    still[beyond], calcium[beyond] = background[beyond], False
    stored = None
    if not moves_afresh:
        if not block.num_motions:
            raise ProdmError(
                f"scan {block.row.scan} of {pairs.folder} has no stored motions; build with "
                "--moving all, or train with moved = 'afresh'"
            )
        motion = int(rng.integers(block.num_motions))
        moving = place(pairs.read_moving_again(block.row, motion)).astype(np.float32)
        stored = moving, Trajectory.from_dict(pairs.trajectories(block.row.scan)[motion])
    return _Window(
        still.astype(np.float32),
        background.astype(np.float32),
        calcium,
        stored,
        block.row.spacing_mm,
        (corner[0], corner[1]),
    )


def mirror(images: NDArray[Any], mirrors: NDArray[np.bool_]) -> NDArray[Any]:
    """Mirror images [..., Y, X] along y, along x, and along the diagonal."""
    if mirrors[0]:
        images = images[..., ::-1, :]
    if mirrors[1]:
        images = images[..., ::-1]
    return np.ascontiguousarray(images.swapaxes(-1, -2) if mirrors[2] else images)


def _crop(arrays: Sequence[NDArray[Any]], windows: Sequence[_Window], size: int) -> NDArray[Any]:
    """Cut each sample's window out of its margins, as [B, k, Y, X]."""
    parts = []
    for array, window in zip(arrays, windows, strict=True):
        y, x = (min(start, STORED_SHAPE[1] - size) for start in window.corner)
        parts.append(array[REACH : len(array) - REACH, y : y + size, x : x + size])
    return np.stack(parts)


def _as_input(hu: NDArray[np.float32]) -> torch.Tensor:
    image: torch.Tensor = normalise(torch.from_numpy(hu))
    return image


def draw_trajectory(
    pixel_spacing_mm: float, settings: WindowSettings, rng: np.random.Generator
) -> Trajectory:
    """Draw one of the simulator's motions, any profile as likely as another."""
    return draw(
        PROFILES[rng.integers(len(PROFILES))],
        rng,
        pixel_spacing_mm=pixel_spacing_mm,
        num_angles=NUM_VIEWS,
        start_deg=None if rng.random() < settings.random_start_share else 0.0,
        centred=settings.centred,
    )


def drawn_motion(block: Block, settings: WindowSettings, rng: np.random.Generator) -> FoundMotion:
    """Draw one of the simulator's motions of a block, as a search would find it."""
    spacing_z, _, spacing_x = block.row.spacing_mm
    trajectory = draw_trajectory(spacing_x, settings, rng)
    path_mm = trajectory.displacement(np.arange(SHIFT_VIEWS) / SHIFT_VIEWS)
    displacement = torch.from_numpy(path_mm / (spacing_x, spacing_x, spacing_z)).float()
    start_rad = float(np.deg2rad(trajectory.start_deg))
    angles = phase.view_angles_rad(SHIFT_VIEWS, start_rad=start_rad)
    shift_px = phase.shift_of(displacement[:, :2], angles)
    return FoundMotion(shift_px, start_rad, displacement[:, 2])


def until_made(
    blocks: Sequence[Block],
    settings: WindowSettings,
    seed: Sequence[int],
    make: Callable[[Block, np.random.Generator], Made | None],
) -> Made:
    """Return the first thing that can be made of blocks that are drawn at random.

    ``settings.calcium_share`` is kept among what is made, not among the blocks that are tried.
    """
    with_calcium = [block for block in blocks if len(block.calcium_slices)]
    without = [block for block in blocks if not len(block.calcium_slices)]
    wanted = np.random.default_rng(seed).random() >= settings.calcium_share
    for attempt in range(MOST_TRIES):
        rng = np.random.default_rng([*seed, attempt])
        pool = without if wanted and without and attempt < MOST_TRIES // 2 else with_calcium
        made = make(pool[int(rng.integers(len(pool)))], rng)
        if made is not None:
            return made
    raise ProdmError(f"nothing moved in {MOST_TRIES} blocks; is this the right separator?")


def _motions(
    windows: Sequence[_Window],
    trajectories: Sequence[Trajectory],
    settings: WindowSettings,
    rngs: Sequence[np.random.Generator],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return how each window moves, [B, M, 3] in pixels and slices, and its first angle [B]."""
    displacements = []
    for window, trajectory, rng in zip(windows, trajectories, rngs, strict=True):
        spacing_z, _, spacing_x = window.spacing_mm
        path_mm = trajectory.displacement(np.arange(NUM_VIEWS) / NUM_VIEWS)
        if not window.stored and rng.random() < settings.rest_share:
            path_mm = np.zeros_like(path_mm)
        displacements.append(path_mm / (spacing_x, spacing_x, spacing_z))
    starts = np.deg2rad([trajectory.start_deg for trajectory in trajectories])
    values = (np.array(displacements), starts)
    displacement, start_rad = (torch.tensor(value, dtype=torch.float32) for value in values)
    return displacement, start_rad


def _move(
    windows: Sequence[_Window], displacement: torch.Tensor, start_rad: torch.Tensor
) -> torch.Tensor:
    """Move the calcium of each window; HU [B, Z, Y, X]."""
    background = torch.from_numpy(np.stack([window.background for window in windows]))
    excess = torch.from_numpy(np.stack([window.still for window in windows])) - background
    moving = background.clone()
    moves = [n for n, one in enumerate(excess) if one.any()]
    if moves:
        moving[moves] += phase.move(
            excess[moves], displacement[moves], start_rad=start_rad[moves], padding=PADDING
        )
    return moving

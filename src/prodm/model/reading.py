"""Read the motion off what moves: a small network that looks at its projections.

Each projection of what moves is that of the lesion at rest, shifted by s(theta)
(``prodm.physics.phase``). Side by side they show a trace, and the network reads from it

    path[:, 0]    s in pixels at ``NUM_ANGLES`` angles over 180 degrees, from 0 on
    path[:, 1]    the displacement along z in slices at the same angles

The place, a translation of what moves, shows in no image of it. That a drift starts at rest and an
oscillation swings about it is learnt from the simulator's motions, and where calcium may rest at
all is told by a separator (``prodm.model.separation``), through which the reader looks.
"""

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from prodm.errors import ProdmError
from prodm.model.losses import Batch, Parts
from prodm.model.network import NetworkSettings
from prodm.model.separation import RESTS, smoothed, where_calcium_passes

NUM_ANGLES = 30
SIZE_PX = 64  # of the square around the lesion that is projected
NUM_BINS = 90  # of a projection, one pixel wide: the square's diagonal
STRIDES = ((1, 2), (2, 2), (2, 2), (2, 2))  # of angles and bins, level by level
NUM_HEARD = 40  # images that the head listens to; of more it had learnt to leave out the others
NUM_NARROW = 96  # values that the head passes on; wider ones had learnt no more than 64 to 96
NUM_HIDDEN = 512
SHIFT_SCALE_PX = 5.0  # so that the network's own values are about 1
REST_SCALE = 5.0  # likewise; the odds of a few pixels in a row
SHIFT_WEIGHT = 0.5
SHAPE_WEIGHT = 2.0  # of s up to a translation, which shows; the place is found otherwise too
SLICE_WEIGHT = 2.0
NUM_READ = 3  # slices of a block whose windows are read


class MotionReader(nn.Module):
    """Projections of what moves, through a few convolutions, to its path."""

    def __init__(self, settings: NetworkSettings) -> None:
        super().__init__()
        if len(settings.channels) != len(STRIDES):
            raise ProdmError(
                f"a reader has {len(STRIDES)} levels of channels, got {list(settings.channels)}"
            )
        self.settings = settings
        widths = (2 * settings.num_slices, *settings.channels)
        self.levels = nn.Sequential(
            *(
                _level(num_in, num_out, stride)
                for num_in, num_out, stride in zip(widths[:-1], widths[1:], STRIDES, strict=True)
            )
        )
        size = torch.tensor([NUM_ANGLES, NUM_BINS])
        for stride in STRIDES:
            size = -(-size // torch.tensor(stride))
        num_heard = min(NUM_HEARD, settings.channels[-1])
        self.head = nn.Sequential(
            nn.Conv2d(settings.channels[-1], num_heard, 1, bias=False),
            nn.Flatten(),
            nn.Linear(num_heard * int(size.prod()), NUM_NARROW, bias=False),
            nn.Linear(NUM_NARROW, NUM_HIDDEN),
            nn.SiLU(),
            nn.Linear(NUM_HIDDEN, NUM_NARROW, bias=False),
            nn.Linear(NUM_NARROW, NUM_HIDDEN),
            nn.SiLU(),
            nn.Linear(NUM_HIDDEN, 2 * NUM_ANGLES),
        )

    def forward(self, xt: Tensor, y: Tensor, t: Tensor) -> Tensor:
        """Return the paths [B, 2, NUM_ANGLES] of windows ``y`` [B, 2 k, Y, X].

        They hold what moves, and then the odds of calcium at rest.
        """
        num_slices = self.settings.num_slices
        if y.shape[1] != 2 * num_slices:
            raise ProdmError(
                f"this reader takes windows of 2 x {num_slices} slices, got {y.shape[1]}"
            )
        traces, rests = projections(around_lesion(y, num_slices)).chunk(2, dim=1)
        largest = traces.flatten(1).abs().amax(dim=1).clamp(min=1e-6)[:, None, None, None]
        seen = torch.cat([traces / largest, rests / REST_SCALE], dim=1)
        answer: Tensor = self.head(self.levels(seen))
        return answer.reshape(-1, 2, NUM_ANGLES) * answer.new_tensor([[SHIFT_SCALE_PX], [1.0]])


def _level(num_in: int, num_out: int, stride: tuple[int, int]) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(num_in, num_out, (3, 5), stride=stride, padding=(1, 2)),
        nn.GroupNorm(8, num_out),
        nn.SiLU(),
        nn.Conv2d(num_out, num_out, 3, padding=1),
        nn.GroupNorm(8, num_out),
        nn.SiLU(),
    )


def read_path(
    moving: Tensor, rests: Tensor, predict: Callable[..., Tensor], num_slices: int
) -> Tensor:
    """Return the path [2, NUM_ANGLES] that a trained reader sees in what moves [Z, Y, X].

    ``rests`` [Z, Y, X] are the odds of calcium at rest. The reader looks at the slices that hold
    most of what moves, and their answers count by their energy.
    """
    energy = (moving**2).sum(dim=(1, 2))
    strongest = energy.argsort(descending=True)[:NUM_READ]
    generator = torch.Generator()  # a reader draws nothing
    half = num_slices // 2
    windows = []
    for image in (moving, rests):
        around = functional.pad(image, (0, 0, 0, 0, half, half))  # nothing is beyond the block
        windows.append(around.unfold(0, num_slices, 1).movedim(-1, 1)[strongest])
    paths = predict(torch.cat(windows, dim=1), generator)
    weights = energy[strongest] / energy[strongest].sum()
    return (weights[:, None, None] * paths).sum(dim=0)


def look_through(separate: Callable[..., Tensor], num_seen: int, windows: Tensor) -> Tensor:
    """Return what a separator of ``num_seen`` slices sees in windows [B, k, Y, X], [B, 2 k, Y, X].

    What moves, then the odds of calcium at rest. Slices in the middle of a window are seen in
    the middle, those at its ends as the ends of the first and the last.
    """
    num_slices = windows.shape[1]
    if num_slices < num_seen:
        raise ProdmError(f"a reader must take at least the {num_seen} slices of its separator")
    parts = windows.unfold(1, num_seen, 1).movedim(-1, 2)
    with torch.no_grad():
        seen = separate(parts.flatten(0, 1), torch.Generator())  # a separator draws nothing
    behind, rests = seen.reshape(*parts.shape[:2], *seen.shape[1:]).chunk(2, dim=2)
    half = num_seen // 2

    def middles(image: Tensor) -> Tensor:
        ends = image[:, 0, :half], image[:, -1, half + 1 :]
        return torch.cat([ends[0], image[:, :, half], ends[1]], dim=1)

    return torch.cat([windows - middles(behind), middles(rests)], dim=1)


def what_shows(moving: Tensor, background: Tensor) -> Tensor:
    """Return what moves [..., Y, X] as a good separator would see it, from the truth."""
    return where_calcium_passes(moving, background) * (moving - smoothed(background))


def reading_loss(path: Tensor, batch: Batch) -> tuple[Tensor, Parts]:
    """Return how far paths are from those of a batch, over its windows with calcium."""
    if batch.displacement is None or batch.start_rad is None or batch.background is None:
        raise ProdmError("a reader learns from batches that are moved afresh")
    true = true_path(batch.displacement, batch.start_rad)
    holds = ((batch.moving - batch.background).flatten(1).amax(dim=1) > RESTS).to(path)
    away = path - true
    parts = {
        "shift": away[:, 0].abs().mean(dim=1),
        "shape": without_translation(away[:, 0]).abs().mean(dim=1),
        "slices": away[:, 1].abs().mean(dim=1),
    }
    means = {
        name: (holds * value).sum() / holds.sum().clamp(min=1) for name, value in parts.items()
    }
    total = (
        SHIFT_WEIGHT * means["shift"]
        + SHAPE_WEIGHT * means["shape"]
        + SLICE_WEIGHT * means["slices"]
    )
    return total, {name: value.detach() for name, value in means.items()}


def true_path(displacement: Tensor, start_rad: Tensor) -> Tensor:
    """Return the paths [B, 2, NUM_ANGLES] of displacements [B, M, 3] over 180 degrees."""
    num_views = displacement.shape[1]
    angles = angles_rad().to(displacement)
    step = math.pi / num_views
    since_start = angles - start_rad[:, None] + step / 2
    since_start = since_start - math.pi * torch.floor(since_start / math.pi)
    position = since_start / step - 0.5
    lower = position.floor().clamp(0, num_views - 2).long()
    weight = (position - lower)[..., None]
    below, above = (
        displacement.gather(1, index[..., None].expand(-1, -1, 3)) for index in (lower, lower + 1)
    )
    there = below + (above - below) * weight
    shift = there[..., 0] * torch.cos(angles) + there[..., 1] * torch.sin(angles)
    return torch.stack([shift, there[..., 2]], dim=1)


def without_translation(shift: Tensor) -> Tensor:
    """Return s [..., NUM_ANGLES] without the part that a translation makes up, c cos + d sin."""
    angles = angles_rad().to(shift)
    normals = torch.stack([torch.cos(angles), torch.sin(angles)])
    fit = torch.linalg.pinv(normals)
    rest: Tensor = shift - (shift @ fit) @ normals
    return rest


def angles_rad() -> Tensor:
    """Return the angles at which paths are read."""
    return torch.arange(NUM_ANGLES) * (math.pi / NUM_ANGLES)


def around_lesion(image: Tensor, num_slices: int) -> Tensor:
    """Return squares of ``SIZE_PX`` of images [B, K, Y, X].

    They lie around the brightest part of the first ``num_slices`` slices.
    """
    bright = image[:, :num_slices].detach().clamp(min=0).sum(dim=1) ** 2
    total = bright.sum(dim=(1, 2)).clamp(min=1e-12)
    corners = []
    for axis, length in ((2, image.shape[2]), (1, image.shape[3])):
        along = torch.arange(length, device=image.device, dtype=image.dtype)
        centre = (bright.sum(dim=axis) * along).sum(dim=1) / total
        corners.append((centre.round().long() + SIZE_PX // 2).tolist())
    margin = SIZE_PX
    padded = functional.pad(image, (margin,) * 4)
    squares = [
        one[:, top : top + SIZE_PX, left : left + SIZE_PX]
        for one, top, left in zip(padded, *corners, strict=True)
    ]
    return torch.stack(squares)


def projections(squares: Tensor) -> Tensor:
    """Return the projections [B, k, NUM_ANGLES, NUM_BINS] of squares [B, k, Y, X]."""
    projected = squares.flatten(2) @ _projector().to(squares).T
    return projected.reshape(*squares.shape[:2], NUM_ANGLES, NUM_BINS)


@lru_cache(maxsize=1)
def _projector() -> Tensor:
    """Which bins each pixel of a square falls into, [NUM_ANGLES * NUM_BINS, pixels]."""
    middle = (SIZE_PX - 1) / 2
    y, x = (axis.ravel() - middle for axis in np.mgrid[:SIZE_PX, :SIZE_PX])
    weights = np.zeros((NUM_ANGLES, NUM_BINS, SIZE_PX**2), dtype=np.float32)
    pixels = np.arange(SIZE_PX**2)
    for one, angle in zip(weights, angles_rad().numpy(), strict=True):
        place = x * np.cos(angle) + y * np.sin(angle) + (NUM_BINS - 1) / 2
        below = np.clip(np.floor(place).astype(int), 0, NUM_BINS - 2)
        one[below, pixels] = 1 - (place - below)
        one[below + 1, pixels] = place - below
    return torch.from_numpy(weights.reshape(NUM_ANGLES * NUM_BINS, -1))

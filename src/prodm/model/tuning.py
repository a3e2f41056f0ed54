"""Tune a motion that was found: what is still wrong with it shows from moment to moment.

Cut into wedges, the Fourier plane gives partial-angle images, each of one moment of the scan
(``prodm.physics.wedges``). Undo the true motion, and a lesion lies at the same place in all of
them. Undo a slightly wrong one, and in the wedge at theta it lies off, along n(theta), by what is
missing of s(theta) there. A *tuner* reads it off, around the brightest points of what moves, once
its motion is undone: all else in the image, which drowns the lesion in its projections, lies
elsewhere. It sees, in each of ten wedges and in a frame that is turned with the wedge,

    detail    the fine detail of the image (``prodm.model.focusing.detail``)
    moving    what a separator took to move

of the slice of the point and of its two neighbours, as a share of how bright the point is, and says
for each wedge how far the lesion lies off and how sure that is. A lesion that is not round looks as
if it were off, too, so that one point tells little; but many lesions are not round in many
ways. Where a lesion lies is open, so that each point has a translation of its own, which is left
out:

    precision   M = P - P N (N' P N)^-1 N' P      P, how sure; N, what a translation makes up
    what is missing of s = (sum M + prior)^-1 sum M off

The sums run over the points of all blocks that move alike. A tuner learns to say how sure it is
from the likelihood of what is truly missing.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn import functional

from prodm.errors import ProdmError
from prodm.model.families import draw_motions
from prodm.model.focusing import detail
from prodm.model.losses import Batch, Parts
from prodm.model.motions import FoundMotion
from prodm.model.network import NetworkSettings
from prodm.physics import phase
from prodm.physics.fitting import NUM_VIEWS
from prodm.physics.wedges import partial_angle_images

NUM_WEDGES = 10
NUM_TUNED = 3  # slices of a block in which points are looked for, besides one more at each end
MOST_POINTS = 6  # of a block
APART_PX = 7  # width of the square in which a point is the brightest
LEAST_HU = 25.0  # of a point
FAINTEST_HU = 30.0  # what is fainter is not made brighter than this would be
ALONG_PX = tuple(n / 2 for n in range(-12, 13))  # from a point along n, where wedges are looked at
ACROSS_PX = (-4.0, -2.0, 0.0, 2.0, 4.0)
REACH_PX = 12  # of the square around a point in which all these lie
NUM_LINES = 2 * 3 * len(ACROSS_PX)  # of a wedge: two images of three slices
LARGEST = 3.0  # value that a network sees
SURENESS = (-8.0, 6.0)  # of an offset, as a logarithm
MARGIN_PX = 16  # by which images are mirrored: their borders must not drown the lesion
MOVING_HU = (-600.0, 1000.0)  # what moves; less and more are cut off
LOOSE = 1e-4  # keeps a translation solvable where nothing is sure
MOST_LOSS = 40.0  # of one block, so that one that fools a tuner does not count alone
TYPICAL_ERROR_PX = 0.35  # of s up to a translation: the median of what a search leaves,
ERROR_SPREAD = 0.8  # the standard deviation of its logarithm,
MOST_ERROR_PX = 2.5
OTHER_ERROR_PX = 0.14  # of any other shape
MOST_BLOCKS = 8
NUM_ROUNDS = 3
NUM_DRAWS = 4000


class Tuner(nn.Module):
    """Convolutions along n, the same for every wedge, and a few layers over all wedges."""

    def __init__(self, settings: NetworkSettings) -> None:
        super().__init__()
        if len(settings.channels) != 3 or settings.num_wedges != NUM_WEDGES:
            raise ProdmError(
                f"a tuner has three widths and {NUM_WEDGES} wedges, "
                f"got {list(settings.channels)} and {settings.num_wedges}"
            )
        self.settings = settings
        width, num_features, hidden = settings.channels
        groups = settings.norm_groups
        self.local = nn.Sequential(
            nn.Conv1d(NUM_LINES, width, 5, padding=2),
            nn.SiLU(),
            nn.GroupNorm(groups, width),
            nn.Conv1d(width, width, 5, padding=2),
            nn.SiLU(),
            nn.GroupNorm(groups, width),
            nn.Conv1d(width, width, 5, stride=2, padding=2),
            nn.SiLU(),
            nn.Flatten(),
            nn.Linear(width * (len(ALONG_PX) // 2 + 1), num_features),
        )
        self.own = nn.Linear(num_features, 2)
        self.mix = nn.Sequential(
            nn.SiLU(),
            nn.Linear(NUM_WEDGES * num_features + 1, hidden),
            nn.SiLU(),
            nn.Linear(hidden, hidden),
            nn.SiLU(),
            nn.Linear(hidden, 2 * NUM_WEDGES),
        )

    def forward(self, xt: Tensor, y: Tensor, t: Tensor) -> Tensor:
        """Return what points show [P, 2, wedges], of views [P, wedges, lines + 1, along].

        How far the lesion lies off in pixels, and how sure that is: one over its variance.
        """
        if y.shape[1:] != (NUM_WEDGES, NUM_LINES + 1, len(ALONG_PX)):
            raise ProdmError(
                f"a tuner takes views of {NUM_WEDGES} wedges, {NUM_LINES + 1} lines and "
                f"{len(ALONG_PX)} places, got {tuple(y.shape[1:])}"
            )
        features = self.local(y[:, :, :NUM_LINES].flatten(0, 1))
        bright = y[:, 0, NUM_LINES, :1]
        together = self.mix(torch.cat([features.reshape(len(y), -1), bright], dim=1))
        answer = self.own(features).reshape(len(y), NUM_WEDGES, 2).transpose(1, 2)
        off, sure = (answer + together.unflatten(1, (2, -1))).unbind(dim=1)
        return torch.stack([off, sure.clamp(*SURENESS).exp()], dim=1)


def centres_rad() -> Tensor:
    """Return the angles in the middle of the wedges."""
    return (torch.arange(NUM_WEDGES) + 0.5) * (math.pi / NUM_WEDGES)


@lru_cache(maxsize=1)
def translations() -> Tensor:
    """Return what translations along x and y make up of s at the wedges, [wedges, 2]."""
    return torch.stack([centres_rad().cos(), centres_rad().sin()], dim=1)


@lru_cache(maxsize=1)
def shapes() -> Tensor:
    """Return an orthonormal basis of what no translation makes up, [wedges, wedges - 2]."""
    whole, _ = torch.linalg.qr(translations(), mode="complete")
    basis: Tensor = whole[:, 2:].contiguous()
    return basis


def what_is_told(off_px: Tensor, sure: Tensor) -> tuple[Tensor, Tensor]:
    """Return the precisions [P, D, D] and the weighted values [P, D] of what points tell.

    Both in the basis of ``shapes``. ``off_px`` and ``sure`` are [P, wedges]. What a translation
    makes up of a point's offsets is its own affair. Both add up over points.
    """
    nuisance, basis = translations().to(sure), shapes().to(sure)
    weighed = nuisance.T * sure[:, None]
    own = weighed @ nuisance + LOOSE * torch.eye(2).to(sure)
    told = torch.diag_embed(sure) - weighed.transpose(1, 2) @ torch.linalg.solve(own, weighed)
    return basis.T @ told @ basis, (told @ off_px[..., None])[..., 0] @ basis


def draw_errors(count: int, generator: torch.Generator) -> Tensor:
    """Draw what a search leaves wrong with s, [N, views] of scans from 0 on, without translation.

    Motions of the simulator, made small.
    """
    drawn = draw_motions(count, 0.0, generator)
    shift = drawn.shift(drawn.displacement())
    angles = torch.from_numpy(phase.view_angles_rad(NUM_VIEWS)).float()
    normals = torch.stack([angles.cos(), angles.sin()])
    shift = shift - (shift @ torch.linalg.pinv(normals)) @ normals
    size_px = shift.square().mean(dim=1).sqrt()
    spread = ERROR_SPREAD * torch.randn(count, generator=generator)
    wanted_px = (TYPICAL_ERROR_PX * spread.exp()).clamp(max=MOST_ERROR_PX)
    errors: Tensor = shift * (wanted_px / size_px)[:, None]
    return errors


@lru_cache(maxsize=1)
def expected() -> Tensor:
    """Return the precision of what is known of what is missing, before anything is looked at."""
    at_wedges = (centres_rad() / math.pi * NUM_VIEWS).round().long()
    missing = draw_errors(NUM_DRAWS, torch.Generator().manual_seed(0))[:, at_wedges] @ shapes()
    covariance = missing.T @ missing / NUM_DRAWS
    covariance += OTHER_ERROR_PX**2 * torch.eye(len(covariance))
    precision: Tensor = torch.linalg.inv(covariance)
    return precision


def look_apart(
    detail_hu: Tensor, moving_hu: Tensor, shift_px: Tensor, start_rad: Tensor
) -> tuple[Tensor, Tensor]:
    """Return views [P, wedges, lines + 1, along] of points, and the block that each lies in [P].

    Blocks are [B, slices + 2, Y, X], ``shift_px`` [B, views] and ``start_rad`` [B] the motions that
    are undone, within the plane. The last line says how bright the point is.
    """
    apart = torch.stack(
        [_wedges(image, shift_px, start_rad) for image in (detail_hu, moving_hu)], dim=2
    )
    block, depth, row, column, bright_hu = _brightest(apart[:, :, 1].sum(dim=2))
    squares = _squares(apart, block, depth, row, column)
    lines = functional.grid_sample(
        squares.flatten(2, 3).flatten(0, 1),
        (_turned_grid() / REACH_PX).repeat(len(block), 1, 1, 1),
        mode="bicubic",
        align_corners=True,
    )
    shares = lines.reshape(len(block), NUM_WEDGES, NUM_LINES, len(ALONG_PX))
    shares = (shares / bright_hu.clamp(min=FAINTEST_HU)[:, None, None, None]).clamp(
        -LARGEST, LARGEST
    )
    bright = (bright_hu.log() - 4)[:, None, None, None].expand(-1, NUM_WEDGES, 1, shares.shape[-1])
    return torch.cat([shares, bright], dim=2), block


def _brightest(undone_hu: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the brightest points of blocks [B, slices + 2, Y, X], but in first and last slices.

    Block, slice, row and column of each, and how bright it is, over three pixels by three.
    """
    bright = functional.avg_pool2d(undone_hu[:, 1:-1], 3, stride=1, padding=1)
    around = functional.max_pool2d(bright, APART_PX, stride=1, padding=APART_PX // 2)
    points = torch.where((bright == around) & (bright > LEAST_HU), bright, 0.0).flatten(1)
    value, place = points.topk(MOST_POINTS, dim=1)
    block, nth = torch.nonzero(value > 0, as_tuple=True)
    height, width = undone_hu.shape[-2:]
    at = place[block, nth]
    return block, at // (height * width) + 1, at // width % height, at % width, value[block, nth]


def _squares(apart: Tensor, block: Tensor, depth: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """Return squares [P, wedges, 3, 2, side, side] around points, of three slices and two images.

    ``apart`` is [B, Z, 2, wedges, Y, X]; beyond the images there is nothing.
    """
    around = functional.pad(apart, (REACH_PX,) * 4)
    side = torch.arange(2 * REACH_PX + 1)
    rows, columns = row[:, None, None] + side[:, None], column[:, None, None] + side
    parts = [
        around[
            (
                block[:, None, None],
                (depth + step)[:, None, None],
                slice(None),
                slice(None),
                rows,
                columns,
            )
        ]
        for step in (-1, 0, 1)
    ]
    # Indexed like this, [P, side, side, 2, wedges].
    return torch.stack(parts, dim=1).permute(0, 5, 1, 4, 2, 3)


@lru_cache(maxsize=1)
def _turned_grid() -> Tensor:
    """Return where a wedge is looked at, (x, y) from a point, [wedges, across, along, 2]."""
    along, across = torch.tensor(ALONG_PX), torch.tensor(ACROSS_PX)[:, None]
    cosine, sine = (f(centres_rad())[:, None, None] for f in (torch.cos, torch.sin))
    return torch.stack([along * cosine - across * sine, along * sine + across * cosine], dim=-1)


def _wedges(image: Tensor, shift_px: Tensor, start_rad: Tensor) -> Tensor:
    """Return partial-angle images [B, Z, wedges, Y, X] of blocks [B, Z, Y, X], motions undone."""
    height, width = image.shape[-2:]
    mirrored = functional.pad(image, (MARGIN_PX,) * 4, mode="reflect")
    mover = phase.Mover(mirrored, shift_px, start_rad=start_rad, padding=0)
    apart: Tensor = partial_angle_images(mover.undo(mirrored), NUM_WEDGES, padding=0, wraps=False)
    return apart[..., MARGIN_PX : MARGIN_PX + height, MARGIN_PX : MARGIN_PX + width]


@dataclass(frozen=True, eq=False)
class Glimpse:
    """The slices of a block in which most seems to move, [slices + 2, Y, X], in HU."""

    detail: Tensor
    moving: Tensor

    @classmethod
    def of(cls, block_hu: Tensor, moving_hu: Tensor) -> "Glimpse":
        """Return those of a block [Z, Y, X]; slices beyond its ends are like the last ones."""
        wanted = NUM_TUNED + 2
        if len(block_hu) < wanted:
            indices = torch.arange(wanted).clamp(max=len(block_hu) - 1)
            block_hu, moving_hu = block_hu[indices], moving_hu[indices]
        part = strongest_slices(moving_hu)
        return cls(detail(block_hu[part]), moving_hu[part].clamp(*MOVING_HU))


def strongest_slices(moving_hu: Tensor) -> slice:
    """Return the slices that a tuner looks at: those of what moves [Z, Y, X] with most of it."""
    wanted = NUM_TUNED + 2
    energy = (moving_hu**2).sum(dim=(1, 2))
    first = int(energy.unfold(0, wanted, 1).sum(dim=1).argmax())
    return slice(first, first + wanted)


def tune(
    motion: FoundMotion,
    blocks: Sequence[tuple[Tensor, Tensor]],
    predict: Callable[..., Tensor],
) -> FoundMotion:
    """Return a motion with what is missing of it, as far as blocks that share it show that.

    ``blocks`` are images [Z, Y, X] and what moves in them, and ``predict`` is a trained tuner. Its
    place and its part along z stay.
    """
    strongest = sorted(blocks, key=lambda pair: -float((pair[1] ** 2).sum()))[:MOST_BLOCKS]
    seen = [Glimpse.of(*pair) for pair in strongest]
    fine = torch.stack([one.detail for one in seen])
    moving = torch.stack([one.moving for one in seen])
    found_shape = shape_of(motion)
    start_rad = torch.full((len(seen),), motion.start_rad)
    for _ in range(NUM_ROUNDS):
        shift_px = motion.shift_px.expand(len(seen), -1)
        views, _ = look_apart(fine, moving, shift_px, start_rad)
        if not len(views):
            return motion
        off_px, sure = predict(views, torch.Generator()).unbind(dim=1)
        precision, told = (part.sum(dim=0) for part in what_is_told(off_px, sure))
        away = expected() @ (found_shape - shape_of(motion))
        missing = shapes() @ torch.linalg.solve(precision + expected(), told + away)
        motion = replace(motion, shift_px=motion.shift_px + _at_views(missing, motion))
    return motion


def shape_of(motion: FoundMotion) -> Tensor:
    """Return s at the wedges without its translation, in the basis of ``shapes``."""
    return motion.shift_at(centres_rad()) @ shapes()


def _at_views(off_px: Tensor, motion: FoundMotion) -> Tensor:
    """Return what is missing at the wedges [K] at the views of a motion, linear in between.

    Views beyond 180 degrees see lines the other way round, where s changes its sign.
    """
    angles = torch.from_numpy(phase.view_angles_rad(NUM_VIEWS, start_rad=motion.start_rad))
    turns = torch.floor(angles / math.pi + 1e-6)
    position = ((angles / math.pi - turns) * NUM_WEDGES - 0.5).to(off_px)
    lower = position.floor().clamp(0, NUM_WEDGES - 2).long()
    there = off_px[lower] + (off_px[lower + 1] - off_px[lower]) * (position - lower)
    return torch.where(turns % 2 == 0, 1.0, -1.0).to(off_px) * there


def tuning_loss(answer: Tensor, batch: Batch) -> tuple[Tensor, Parts]:
    """Return how unlikely what is truly missing was, by what a tuner says of points [P, 2, wedges].

    ``batch.missing`` [B, wedges] is what is missing of s in each block, and ``batch.block`` [P]
    says in which block a point lies. It is minus the logarithm of a normal density.
    """
    if batch.missing is None or batch.block is None:
        raise ProdmError("a tuner learns from motions that are a little wrong")
    count, prior = len(batch.missing), expected().to(answer)
    precision, told = (
        part.new_zeros(count, *part.shape[1:]).index_add(0, batch.block, part)
        for part in what_is_told(*answer.unbind(dim=1))
    )
    whole = precision + prior
    left = batch.missing @ shapes().to(answer) - torch.linalg.solve(whole, told[..., None])[..., 0]
    square = (left[:, None] @ whole @ left[..., None]).flatten()
    lost = (square - torch.logdet(whole) + torch.logdet(prior)) / 2
    parts = {"left_px": left.square().mean().sqrt().detach()}
    return lost.clamp(max=MOST_LOSS).mean(), parts

"""Tune a motion that was found: what is still wrong with it shows from moment to moment.

Cut into wedges, the Fourier plane gives partial-angle images, each of one moment of the scan
(``prodm.physics.wedges``). Undo the true motion, and a lesion lies at the same place in all of
them. Undo a slightly wrong one, and in the wedge at theta it lies off, along n(theta), by what is
missing of s(theta) there. A *tuner* looks at these images and reads it off, where the lesion
is: all else in the image, which drowns the lesion in its projections, lies elsewhere.

For each slice of a block it sees, in ten wedges with the motion undone,

    detail    the fine detail of the image (``prodm.model.focusing.detail``)
    moving    what a separator took to move

of that slice and its two neighbours. For each wedge it says, at each place of the image, how far
the lesion lies off and how sure that is, likewise how far it has moved along z; means over all
places count by how sure they are. Where the lesion lies in the plane, and between which slices, is
open, so that each slice has a translation and a depth of its own, which are left out:

    precision   M = P - P N (N' P N)^-1 N' P      P, how sure; N, what a translation makes up
    what is missing of s = (sum M + prior)^-1 sum M off

The sums run over slices and blocks that move alike. A tuner learns to say how sure it is from the
likelihood of what is truly missing, so that lesions of any number tell a motion together.
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
NUM_TUNED = 3  # slices of a block that are looked at, besides one more at each end
NUM_VIEWED = 6 * NUM_WEDGES + 2  # images of a slice: of three slices, and two sums
BLOCKS_A_LEVEL = (2, 3)
MARGIN_PX = 16  # by which images are mirrored: their borders must not drown the lesion
DETAIL_SCALE_HU, MOVING_SCALE_HU = 60.0, 100.0
MOVING_HU = (-600.0, 1000.0)  # what moves; less and more are cut off
LARGEST = 6.0  # value that a network sees
SLICE_SCALE = 0.3  # so that the network's own values are about 1
SURENESS = (-12.0, 5.0)  # of one place, as a logarithm
FIRST_SURENESS = (-6.0, -8.0)  # of an untrained network, in the plane and along z
LOOSE = 1e-4  # keeps a translation solvable where nothing is sure
MOST_LOSS = 40.0  # of one block, so that one that fools a tuner does not count alone
TYPICAL_ERROR_PX = 0.35  # of s up to a translation: the median of what a search leaves,
ERROR_SPREAD = 0.8  # the standard deviation of its logarithm,
MOST_ERROR_PX = 2.5
OTHER_ERROR_PX = 0.14  # of any other shape
TYPICAL_SLICES = 0.2  # displacement along z,
OTHER_SLICES = 0.045  # and of any other shape
BLOCK_TRUST = 0.7  # of what a block is sure: blocks of a scan are fooled by the same things
MOST_BLOCKS = 8
NUM_ROUNDS = 3
NUM_DRAWS = 4000


class Tuner(nn.Module):
    """A few residual blocks on folded pixels, and sums over all places of an image."""

    def __init__(self, settings: NetworkSettings) -> None:
        super().__init__()
        if len(settings.channels) != len(BLOCKS_A_LEVEL) or settings.num_wedges != NUM_WEDGES:
            raise ProdmError(
                f"a tuner has {len(BLOCKS_A_LEVEL)} levels of channels and {NUM_WEDGES} wedges, "
                f"got {list(settings.channels)} and {settings.num_wedges}"
            )
        self.settings = settings
        wide, deep = settings.channels
        groups = settings.norm_groups
        self.first = nn.Conv2d(NUM_VIEWED * settings.fold**2, wide, 1)
        self.one = nn.Sequential(*(_Residual(wide, groups) for _ in range(BLOCKS_A_LEVEL[0])))
        self.down = nn.Conv2d(wide, deep, 3, stride=2, padding=1)
        self.two = nn.Sequential(
            *(_Residual(deep, groups) for _ in range(BLOCKS_A_LEVEL[1])),
            nn.GroupNorm(groups, deep),
            nn.SiLU(),
        )
        self.head = nn.Conv2d(deep, 4 * NUM_WEDGES, 1)
        with torch.no_grad():
            self.head.bias[2 * NUM_WEDGES :] = torch.tensor(FIRST_SURENESS).repeat_interleave(
                NUM_WEDGES
            )

    def forward(self, xt: Tensor, y: Tensor, t: Tensor) -> Tensor:
        """Return what slices show [B, slices, 4, wedges], of views [B, slices 62, Y, X].

        How far the lesion lies off in pixels, and along z in slices, and how sure that is: one over
        the variance of either.
        """
        divisor = 2 * self.settings.fold
        if y.shape[1] % NUM_VIEWED or y.shape[2] % divisor or y.shape[3] % divisor:
            raise ProdmError(
                f"this tuner takes {NUM_VIEWED} views of each slice whose height and width are "
                f"multiples of {divisor}, got {tuple(y.shape[1:])}"
            )
        slices = y.reshape(-1, NUM_VIEWED, *y.shape[2:])
        folded = functional.pixel_unshuffle(slices, self.settings.fold)
        maps = self.head(self.two(self.down(self.one(self.first(folded)))))
        off, along_z, *logs = maps.chunk(4, dim=1)
        values, sure = [], []
        for value, log in zip((off, SLICE_SCALE * along_z), logs, strict=True):
            weight = log.clamp(*SURENESS).exp()
            total = weight.sum(dim=(2, 3))
            values.append((weight * value).sum(dim=(2, 3)) / total)
            sure.append(total)
        answer = torch.stack([*values, *sure], dim=1)
        return answer.reshape(len(y), -1, 4, NUM_WEDGES)


class _Residual(nn.Module):
    def __init__(self, width: int, groups: int) -> None:
        super().__init__()
        self.a, self.b = (nn.Conv2d(width, width, 3, padding=1) for _ in range(2))
        self.n, self.m = (nn.GroupNorm(groups, width) for _ in range(2))
        nn.init.zeros_(self.b.weight)

    def forward(self, image: Tensor) -> Tensor:
        inner = self.a(functional.silu(self.n(image)))
        added: Tensor = self.b(functional.silu(self.m(inner)))
        return image + added


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
    return _complement(translations())


def _complement(columns: Tensor) -> Tensor:
    """Return an orthonormal basis [K, K - n] of what is orthogonal to columns [K, n]."""
    basis, _ = torch.linalg.qr(columns, mode="complete")
    return basis[:, columns.shape[1] :].contiguous()


@lru_cache(maxsize=1)
def depths() -> tuple[Tensor, Tensor]:
    """Return what a depth makes up of the displacement along z, and a basis of the rest."""
    constant = torch.ones(NUM_WEDGES, 1)
    return constant, _complement(constant)


def what_is_told(
    values: Tensor, sure: Tensor, nuisance: Tensor, basis: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the precision [..., D, D] and the weighted sum [..., D] of what slices tell.

    ``values`` and ``sure`` are [..., slices, wedges]. What ``nuisance`` [wedges, n] makes up of a
    slice's values is its own affair, and ``basis`` [wedges, D] spans the rest.
    """
    weighed = nuisance.T * sure[..., None, :]
    own = weighed @ nuisance + LOOSE * torch.eye(nuisance.shape[1])
    told = torch.diag_embed(sure) - weighed.transpose(-1, -2) @ torch.linalg.solve(own, weighed)
    together = (told @ values[..., None])[..., 0].sum(dim=-2)
    return basis.T @ told.sum(dim=-3) @ basis, together @ basis


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
    return shift * (wanted_px / size_px)[:, None]


@lru_cache(maxsize=1)
def expected() -> tuple[Tensor, Tensor]:
    """Return the precisions of what is known beforehand: of what is missing of s, and of z."""
    generator = torch.Generator().manual_seed(0)
    at_wedges = (centres_rad() / math.pi * NUM_VIEWS).round().long()
    missing = draw_errors(NUM_DRAWS, generator)[:, at_wedges] @ shapes()
    along = draw_motions(NUM_DRAWS, 0.0, generator).displacement()[:, at_wedges, 0] @ depths()[1]
    along = TYPICAL_SLICES * along / along.square().sum(dim=1).mean().div(NUM_WEDGES).sqrt()
    return _precision(missing, OTHER_ERROR_PX), _precision(along, OTHER_SLICES)


def _precision(samples: Tensor, other: float) -> Tensor:
    covariance = samples.T @ samples / len(samples)
    return torch.linalg.inv(covariance + other**2 * torch.eye(len(covariance)))


def look_apart(detail_hu: Tensor, moving_hu: Tensor, shift_px: Tensor, start_rad: Tensor) -> Tensor:
    """Return the views [B, slices 62, Y, X] of blocks [B, slices + 2, Y, X], motions undone.

    ``shift_px`` [B, views] and ``start_rad`` [B] are the motions. Those along z stay.
    """
    apart = torch.cat(
        [
            (_wedges(image, shift_px, start_rad) / scale).clamp(-LARGEST, LARGEST)
            for image, scale in ((detail_hu, DETAIL_SCALE_HU), (moving_hu, MOVING_SCALE_HU))
        ],
        dim=2,
    )
    middle = apart[:, 1:-1]
    fine, moving = middle[:, :, :NUM_WEDGES], middle[:, :, NUM_WEDGES:]
    sums = (part.sum(dim=2, keepdim=True).clamp(-LARGEST, LARGEST) for part in (fine, moving / 3))
    return torch.cat([apart[:, :-2], middle, apart[:, 2:], *sums], dim=2).flatten(1, 2)


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
        energy = (moving_hu**2).sum(dim=(1, 2))
        first = int(energy.unfold(0, wanted, 1).sum(dim=1).argmax())
        part = slice(first, first + wanted)
        return cls(detail(block_hu[part]), moving_hu[part].clamp(*MOVING_HU))


def tune(
    motion: FoundMotion,
    blocks: Sequence[tuple[Tensor, Tensor]],
    predict: Callable[..., Tensor],
) -> FoundMotion:
    """Return a motion with what is missing of it, as far as blocks that share it show that.

    ``blocks`` are images [Z, Y, X] and what moves in them, and ``predict`` is a trained tuner.
    The motion says how sure its shape is, and along z it is what was told, no more.
    """
    strongest = sorted(blocks, key=lambda pair: -float((pair[1] ** 2).sum()))[:MOST_BLOCKS]
    seen = [Glimpse.of(*pair) for pair in strongest]
    fine = torch.stack([one.detail for one in seen])
    moving = torch.stack([one.moving for one in seen])
    prior, prior_z = expected()
    found_shape = shape_of(motion)
    start_rad = torch.full((len(seen),), motion.start_rad)
    for _ in range(NUM_ROUNDS):
        shift_px = motion.shift_px.expand(len(seen), -1)
        views = look_apart(fine, moving, shift_px, start_rad)
        off, along_z, sure, sure_z = predict(views, torch.Generator()).unbind(dim=2)
        precision, told = (
            BLOCK_TRUST * part.sum(dim=0)
            for part in what_is_told(off, sure, translations(), shapes())
        )
        away = prior @ (found_shape - shape_of(motion))
        missing = shapes() @ torch.linalg.solve(precision + prior, told + away)
        motion = replace(motion, shift_px=motion.shift_px + _at_views(missing, motion, True))
    precision_z, told_z = (
        BLOCK_TRUST * part.sum(dim=0) for part in what_is_told(along_z, sure_z, *depths())
    )
    depth = depths()[1] @ torch.linalg.solve(precision_z + prior_z, told_z)
    return replace(
        motion,
        slice_shift=_at_views(depth, motion, False),
        precision=precision + prior,
    )


def tune_motions(
    motions: Sequence[FoundMotion | None],
    blocks_hu: Tensor,
    moving_hu: Tensor,
    predict: Callable[..., Tensor],
) -> list[FoundMotion | None]:
    """Return the motions of the blocks [N, Z, Y, X] of a scan, tuned.

    Blocks that share one object go on to do so. What rests stays.
    """
    tuned: dict[int, FoundMotion] = {}
    for motion in motions:
        if motion is None or motion.is_rest or id(motion) in tuned:
            continue
        members = [n for n, one in enumerate(motions) if one is motion]
        tuned[id(motion)] = tune(motion, [(blocks_hu[n], moving_hu[n]) for n in members], predict)
    return [None if motion is None else tuned.get(id(motion), motion) for motion in motions]


def shape_of(motion: FoundMotion) -> Tensor:
    """Return s at the wedges without its translation, in the basis of ``shapes``."""
    return motion.shift_at(centres_rad()) @ shapes()


def _at_views(values: Tensor, motion: FoundMotion, has_sign: bool) -> Tensor:
    """Return values at the wedges [K] at the views of a motion, linear in between.

    Views beyond 180 degrees see lines the other way round, where s changes its sign.
    """
    angles = torch.from_numpy(phase.view_angles_rad(NUM_VIEWS, start_rad=motion.start_rad))
    turns = torch.floor(angles / math.pi + 1e-6)
    position = ((angles / math.pi - turns) * NUM_WEDGES - 0.5).to(values)
    lower = position.floor().clamp(0, NUM_WEDGES - 2).long()
    there = values[lower] + (values[lower + 1] - values[lower]) * (position - lower)
    sign = torch.where(turns % 2 == 0, 1.0, -1.0).to(values) if has_sign else 1.0
    return sign * there


def tuning_loss(answer: Tensor, batch: Batch) -> tuple[Tensor, Parts]:
    """Return how unlikely what is truly missing was, by what a tuner says [B, slices, 4, wedges].

    ``batch.missing`` [B, 2, wedges] is what is missing of s, and the displacement along z.
    """
    if batch.missing is None:
        raise ProdmError("a tuner learns from motions that are a little wrong")
    off, along_z, sure, sure_z = answer.unbind(dim=2)
    prior, prior_z = expected()
    in_plane, left = _unlikeliness(
        *what_is_told(off, sure, translations(), shapes()), batch.missing[:, 0] @ shapes(), prior
    )
    depth, left_z = _unlikeliness(
        *what_is_told(along_z, sure_z, *depths()), batch.missing[:, 1] @ depths()[1], prior_z
    )
    parts = {
        "shift": in_plane.mean(),
        "slices": depth.mean(),
        "left_px": left.square().mean().sqrt(),
        "left_slices": left_z.square().mean().sqrt(),
    }
    total = in_plane.clamp(max=MOST_LOSS).mean() + depth.clamp(max=MOST_LOSS).mean()
    return total, {name: value.detach() for name, value in parts.items()}


def _unlikeliness(
    precision: Tensor, told: Tensor, true: Tensor, prior: Tensor
) -> tuple[Tensor, Tensor]:
    """Return minus the logarithm of a normal density, and what is left of the true values."""
    whole = precision + prior
    left = true - torch.linalg.solve(whole, told[..., None])[..., 0]
    square = (left[..., None, :] @ whole @ left[..., None])[..., 0, 0]
    return (square - torch.logdet(whole) + torch.logdet(prior)) / 2, left

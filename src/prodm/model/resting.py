"""Where a lesion rests, told from what lies around it: a small network that tries all places.

Once a motion was found, the image can be seen without the calcium that moves. Arteries run in
grooves of fat, calcium lies in arteries, and where it was taken away something is missing: edges
are blurred there, and the grain is another (``prodm.physics.inpainting``). A *placer* looks at
two images of a slice and its neighbours,

    clean     the image without the moving lesion, and its fine detail
    lesion    what moves, put back in focus (``FoundMotion.refocus``), where its motion puts it

turns the first into maps of what could rest where, and the second into what the lesion looks for;
the evidence of an offset is the sum of their products, the lesion moved by it. The first map are
log-odds that calcium was taken out here, which weigh with the lesion and what lies beside it.
All slices of a block rest together, so that the evidence of its strongest ones adds up.

What is left of a moving lesion in the clean image tells where it rests, too; but so does its
motion, in every block of a scan alike, and what is told by all blocks would count as often as
there are blocks. ``prodm.model.placing`` joins what the motion tells once. So a placer learns from
images in which what is left over lies anywhere (``prodm.training.findings``), and is shown no
separator's guess.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from prodm.errors import ProdmError
from prodm.model.focusing import detail
from prodm.model.losses import Batch, Parts
from prodm.model.motions import FoundMotion, without_grain
from prodm.model.network import NetworkSettings, folded_unet
from prodm.model.placing import FARTHEST_PX, LEAST_LOG_ODDS, agreement, offsets
from prodm.model.sampler import slice_windows

VIEWS = ("clean", "lesion")
NUM_PLACED = 3  # slices of a block that are looked at
NUM_MAPS = 9
MOST_WINDOWS = 64  # that are looked at together
MOST_LOOKS = 3  # at as many slices each, of a lesion that was seen in focus
TEMPLATE_CHANNELS = 24
CLEAN_HU = (-200.0, 300.0)  # what a network sees of the image
CLEAN_SCALE_HU = 200.0
FINE_HU = 80.0  # of its detail, which is seen on its own
FINE_SCALE_HU = 30.0
BRIGHTEST_HU = 800.0
LESION_SCALE_HU = 400.0
LESION_HU = 60.0  # a pixel of a lesion has more
BESIDE_PX = (1, 5, 9, 15)  # widths of the squares around a lesion's pixels that it looks at
MOST_PIXELS = 200.0  # of a lesion; what is larger is no surer of its place
TARGET_PX = 0.5  # spread of the true place
ODDS_WEIGHT = 10.0


class Placer(nn.Module):
    """MONAI's network for what lies around, a few convolutions for the lesion."""

    def __init__(self, settings: NetworkSettings) -> None:
        super().__init__()
        self.settings = settings
        num_slices = settings.num_slices
        self.body = folded_unet(settings, num_in=2 * num_slices, num_out=NUM_MAPS)
        self.template = nn.Sequential(
            nn.Conv2d(num_slices + len(BESIDE_PX), TEMPLATE_CHANNELS, 3, padding=1),
            nn.SiLU(),
            nn.Conv2d(TEMPLATE_CHANNELS, TEMPLATE_CHANNELS, 3, padding=1),
            nn.SiLU(),
            nn.Conv2d(TEMPLATE_CHANNELS, NUM_MAPS, 3, padding=1),
        )
        self.strength = nn.Parameter(torch.tensor([0.05, 0.02]))  # of the lesion, of its template

    def forward(self, xt: Tensor, y: Tensor, t: Tensor) -> Tensor:
        """Return the evidence [B, 33, 33] of views [B, slices 2 k, Y, X] (``look_around``)."""
        evidence, _ = self.evidence_and_odds(y)
        return evidence

    def evidence_and_odds(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the evidence, and the log-odds of calcium taken out [B, slices, Y, X]."""
        num_slices, divisor = self.settings.num_slices, self.settings.divisor
        if y.shape[1] != NUM_PLACED * len(VIEWS) * num_slices or any(
            n % divisor for n in y.shape[2:]
        ):
            raise ProdmError(
                f"this placer takes {len(VIEWS)} views of {NUM_PLACED} x {num_slices} slices whose "
                f"height and width are multiples of {divisor}, got {tuple(y.shape[1:])}"
            )
        views = y.reshape(-1, len(VIEWS), num_slices, *y.shape[2:])
        clean, lesion = views.unbind(dim=1)
        maps = self._maps(clean)
        pixels = (lesion[:, num_slices // 2, None] > LESION_HU).float()
        beside = [functional.max_pool2d(pixels, px, 1, px // 2) for px in BESIDE_PX]
        looks = torch.cat([lesion.clamp(0, BRIGHTEST_HU) / LESION_SCALE_HU, *beside], dim=1)
        template = beside[-1] * self.template(looks)
        looked_for = torch.cat([self.strength[0] * beside[1], self.strength[1] * template], dim=1)
        out = maps[:, :1].clamp(min=LEAST_LOG_ODDS) - LEAST_LOG_ODDS  # the least beyond the image
        evidence = agreement(looked_for, torch.cat([out, maps], dim=1)).sum(dim=1)
        share = (MOST_PIXELS / beside[1].flatten(1).sum(dim=1).clamp(min=1)).clamp(max=1)
        weighed = (share[:, None, None] * evidence).reshape(len(y), NUM_PLACED, *evidence.shape[1:])
        return weighed.sum(dim=1), maps[:, 0].reshape(len(y), NUM_PLACED, *y.shape[2:])

    @torch.no_grad()
    def gaps(self, clean_hu: Tensor) -> Tensor:
        """Return the log-odds of calcium taken out, of blocks [N, Z, Y, X] without a lesion."""
        windows = slice_windows(clean_hu, self.settings.num_slices)
        parts = [self._maps(part)[:, 0] for part in torch.split(windows, MOST_WINDOWS)]
        return torch.cat(parts).view_as(clean_hu)

    def _maps(self, clean_hu: Tensor) -> Tensor:
        """Return the maps [N, 9, Y, X] of windows [N, k, Y, X] without a lesion."""
        seen = clean_hu.clamp(*CLEAN_HU)
        fine = detail(clean_hu, CLEAN_HU, FINE_HU)
        around = torch.cat([seen / CLEAN_SCALE_HU, fine / FINE_SCALE_HU], dim=1)
        folded = functional.pixel_unshuffle(around, self.settings.fold)
        maps = self.body(folded, torch.zeros(len(folded), device=clean_hu.device))
        return functional.pixel_shuffle(maps, self.settings.fold)


def clean(block_hu: Tensor, refocused_hu: Tensor, motion: FoundMotion) -> Tensor:
    """Return a block [Z, Y, X] without the lesion that moves in it."""
    return block_hu - motion.apply(without_grain(refocused_hu))


def look_around(clean_hu: Tensor, refocused_hu: Tensor, num_slices: int) -> Tensor:
    """Return the views [slices 2 k, Y, X] of a block [Z, Y, X]: its strongest slices.

    Where the lesion has fewer, others fill up, which say nothing.
    """
    strongest = strongest_slices(refocused_hu)
    views = torch.stack([clean_hu, refocused_hu])
    depth = views.shape[1]
    windows = slice_windows(views, num_slices).reshape(len(VIEWS), depth, -1, *views.shape[2:])
    seen = windows[:, strongest].transpose(0, 1)
    if len(strongest) < NUM_PLACED:
        empty = torch.zeros_like(seen[:1]).expand(NUM_PLACED - len(strongest), *seen.shape[1:])
        seen = torch.cat([seen, empty])
    return seen.flatten(0, 2)


def strongest_slices(refocused_hu: Tensor) -> Tensor:
    """Return the numbers of the slices of a block [Z, Y, X] with most of a lesion."""
    energy = (refocused_hu.clamp(max=BRIGHTEST_HU) ** 2).sum(dim=(1, 2))
    return energy.argsort(descending=True)[:NUM_PLACED]


def placer_evidence(
    clean_hu: Tensor,
    refocused_hu: Tensor,
    placer: tuple[Callable[..., Tensor], int],
) -> Tensor:
    """Return the evidence [33, 33] of what a trained placer sees around a lesion."""
    predict, num_slices = placer
    views = look_around(clean_hu, refocused_hu, num_slices)
    evidence: Tensor = predict(views[None], torch.Generator())[0]  # a placer draws nothing
    return evidence


def evidence_of_all(
    clean_hu: Tensor,
    lesion_hu: Tensor,
    placer: tuple[Callable[..., Tensor], int],
) -> Tensor:
    """Return the evidence [33, 33] of all slices of a lesion, a few at a time.

    A placer looks at the lesion as it is and along the diagonal: the errors of the two differ.
    """
    left = lesion_hu.clone()
    total = torch.zeros_like(offsets()[0])
    for _ in range(MOST_LOOKS):
        if float(left.max()) <= LESION_HU:
            break
        total += placer_evidence(clean_hu, left, placer) / 2
        mirrored, left_mirrored = (image.transpose(-1, -2) for image in (clean_hu, left))
        total += placer_evidence(mirrored, left_mirrored, placer).T / 2
        left[strongest_slices(left)] = 0.0
    return total


def placing_loss(evidence: Tensor, log_odds: Tensor, batch: Batch) -> tuple[Tensor, Parts]:
    """Return the cross-entropy of the true place, and of where calcium was taken out.

    ``batch.place`` [B, 2] is the true offset in rows and columns, and ``batch.calcium``
    [B, slices, Y, X] where calcium was taken out.
    """
    if batch.place is None:
        raise ProdmError("a placer learns from motions that were found")
    x_px, y_px = (offset.to(evidence) for offset in offsets())
    rows, columns = (batch.place[:, n, None, None] for n in (0, 1))
    target = torch.softmax(
        (-((y_px - rows) ** 2 + (x_px - columns) ** 2) / (2 * TARGET_PX**2)).flatten(1), dim=1
    )
    score = evidence.flatten(1)
    place = -(target * torch.log_softmax(score, dim=1)).sum(dim=1).mean()
    taken_out = functional.binary_cross_entropy_with_logits(log_odds, batch.calcium.to(log_odds))
    best = score.argmax(dim=1)
    width = 2 * FARTHEST_PX + 1
    off = torch.stack([best // width, best % width], dim=1) - FARTHEST_PX - batch.place
    off_px = off.float().norm(dim=1).mean()
    parts = {"place": place.detach(), "taken_out": taken_out.detach(), "off_px": off_px}
    return place + ODDS_WEIGHT * taken_out, parts

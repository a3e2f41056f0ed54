"""ProDM after the phase: a bridge that ends where the calcium was, not where a motion puts it.

The phase puts calcium back in focus, in the place that all blocks of a scan agree on, and can tell
neither how far a lesion reaches nor, within a pixel or two, where it lies: its motion was found
with an error, and a separator's errors are in it. The image without the moving lesion shows that:
fat and artery go on around a lesion, and where calcium was taken out something is missing
(``prodm.model.resting``). So the bridge is walked with six images of each slice beside its state,

    seen      the moving image, where the bridge begins
    clean     the image without the lesion that moves in it
    lesion    what the phase put back in focus, where it put it
    detail    the fine detail of the image, with the motion undone
    gap       a placer's log-odds that calcium was taken out here
    odds      a separator's odds that calcium rests here

and each estimate is the clean image with the calcium that the network sees in it,

    x0^ = clean + calcium      calcium = gate (lesion + added), never negative

so that tissue keeps its grain, and an untrained network leaves what the phase found. All of it
holds where tissue rests while its calcium moves. In a patient nothing is missing anywhere, and the
phase has the last word.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from prodm.calcium import CALCIUM_THRESHOLD_HU
from prodm.errors import ProdmError
from prodm.model import HIGH_HU, LOW_HU, to_hu
from prodm.model.focusing import without_grid
from prodm.model.losses import Batch, LossSettings, Parts, agatston_loss
from prodm.model.network import NetworkSettings, folded_unet

VIEWS = ("seen", "clean", "lesion", "detail", "gap", "odds")
CLEAN, LESION = VIEWS.index("clean"), VIEWS.index("lesion")
LOWEST = torch.tensor([-200.0, -200.0, 0.0, -120.0, -12.0, 0.0])  # of each view; HU, odds none
HIGHEST = torch.tensor([800.0, 300.0, 1500.0, 600.0, 12.0, 1.0])
SCALE = torch.tensor([500.0, 200.0, 500.0, 100.0, 4.0, 1.0])
ADDED_HU = 500.0
GATE_GAIN, GATE_START = 4.0, 4.0  # an untrained network leaves nearly all of the lesion
STATE_SHARE = 0.1  # of the state, most of which is noise, so that it does not drown the views
SHOWS_HU = 20.0  # calcium that counts in the loss
LESION_HU = 60.0
ERROR_HU = 100.0  # so that all parts of the loss are of the same size
ABSOLUTE_WEIGHT = 0.5
OVERLAP_WEIGHT = 1.5
OVERLAP_TAU_HU = 20.0
FAINT_PIXELS = 4.0  # added to both masks, so that a pixel or two count little


class Finisher(nn.Module):
    """MONAI's network between folding and unfolding, from state and views to calcium."""

    def __init__(self, settings: NetworkSettings) -> None:
        super().__init__()
        self.settings = settings
        num_slices = settings.num_slices
        self.body = folded_unet(
            settings, num_in=(1 + len(VIEWS)) * num_slices, num_out=2 * num_slices
        )

    def forward(self, xt: Tensor, y: Tensor, t: Tensor) -> Tensor:
        """Return x0^ [B, k, Y, X] of states in [0, 1] and views [B, 6 k, Y, X], not clipped."""
        num_slices, divisor = self.settings.num_slices, self.settings.divisor
        if y.shape[1] != len(VIEWS) * num_slices or y.shape[2] % divisor or y.shape[3] % divisor:
            raise ProdmError(
                f"this network takes {len(VIEWS)} views of {num_slices} slices whose height and "
                f"width are multiples of {divisor}, got {tuple(y.shape[1:])}"
            )
        views = y.reshape(len(y), len(VIEWS), num_slices, *y.shape[2:])
        low, high, scale = (limit.to(y)[:, None, None, None] for limit in (LOWEST, HIGHEST, SCALE))
        seen = (views.clamp(low, high) / scale).flatten(1, 2)
        folded = functional.pixel_unshuffle(
            torch.cat([STATE_SHARE * xt, seen], dim=1), self.settings.fold
        )
        maps = functional.pixel_shuffle(self.body(folded, t), self.settings.fold)
        added, gate = without_grid(maps).chunk(2, dim=1)
        calcium = (views[:, LESION] + ADDED_HU * added).clamp(min=0)
        calcium = calcium * torch.sigmoid(GATE_GAIN * gate + GATE_START)
        estimate: Tensor = (views[:, CLEAN] + calcium - LOW_HU) / (HIGH_HU - LOW_HU)
        return estimate


def finishing_loss(estimate: Tensor, batch: Batch, settings: LossSettings) -> tuple[Tensor, Parts]:
    """Return how wrong x0^ [B, k, Y, X] is: pixel by pixel, in its score, and in its overlap."""
    if batch.views is None or batch.background is None:
        raise ProdmError("this network learns from scans that were corrected by phase")
    views = batch.views.reshape(len(batch.views), len(VIEWS), -1, *batch.views.shape[2:])
    lesion_hu, clean_hu = views[:, LESION], views[:, CLEAN]
    hu, true_hu = to_hu(estimate), to_hu(batch.still)
    excess = true_hu - to_hu(batch.background)
    calcium_hu = hu - clean_hu
    counts = (excess > SHOWS_HU) | (calcium_hu > SHOWS_HU) | (lesion_hu > LESION_HU)
    wrong = torch.where(counts, (calcium_hu - excess).abs(), calcium_hu)  # faint calcium elsewhere
    away = wrong.sum() / counts.sum().clamp(min=1) / ERROR_HU
    score = agatston_loss(estimate, batch, settings)
    overlap = overlap_loss(hu, batch.calcium, counts)
    parts = {"absolute": away.detach(), "calcium": score.detach(), "overlap": overlap.detach()}
    total = ABSOLUTE_WEIGHT * away + settings.weight * score + OVERLAP_WEIGHT * overlap
    return total, parts


def overlap_loss(hu: Tensor, calcium: Tensor, counts: Tensor) -> Tensor:
    """Return the soft Dice loss of what reaches 130 HU, of pixels that count [B, k, Y, X].

    Elsewhere tissue would add up to more than any lesion.
    """
    mask = counts * torch.sigmoid((hu - CALCIUM_THRESHOLD_HU) / OVERLAP_TAU_HU)
    true = (counts & calcium).to(mask)
    both = (mask * true).flatten(1).sum(dim=1)
    all_of_them = (mask + true).flatten(1).sum(dim=1)
    return (1 - (2 * both + FAINT_PIXELS) / (all_of_them + FAINT_PIXELS)).mean()

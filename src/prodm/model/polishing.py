"""A last look at lesions that were put in focus: what they leave behind tells what is wrong.

Take a lesion away as it moves, and tissue is left, with whatever the lesion has too much or too
little. With the motion undone, that lies in focus, on the lesion. It is used twice.

    weigh     Tissue has little fine detail. What is left is taken to be tissue, with the power that
              it has at each frequency, plus the lesion's error, which is large where the lesion is;
              the likeliest error is the solution of a linear system. Any convolution leaves a
              motion as it is, since both are products in the Fourier plane.
    polish    A *polisher* network looks at the image without the moving lesion, at the fine and the
              coarser detail of what is left with the motion undone, at the weighed lesion and at
              the one it came from, and says what is missing of the weighed one.

A focuser is shown everything at once, dense lesions beside faint ones, and makes small lesions too
large. A polisher is shown what is left to do.
"""

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn import functional

from prodm.calcium import CALCIUM_THRESHOLD_HU
from prodm.errors import ProdmError
from prodm.model import HIGH_HU, LOW_HU
from prodm.model.focusing import detail, focus, undone, without_grid
from prodm.model.losses import Batch, LossSettings, Parts, soft_agatston
from prodm.model.motions import PADDING, FoundMotion, padding_for, put_back
from prodm.model.network import NetworkSettings

VIEWS = ("clean", "fine", "coarse", "weighed", "lesion")
CLEAN, WEIGHED = VIEWS.index("clean"), VIEWS.index("weighed")
LOWEST_HU = torch.tensor([-200.0, -200.0, -120.0, 0.0, 0.0])  # of each view; networks see no less
HIGHEST_HU = torch.tensor([300.0, 300.0, 120.0, 1200.0, 1200.0])  # and no more
SCALE_HU = torch.tensor([200.0, 60.0, 40.0, 400.0, 400.0])
COARSE_PX = (7, 15)  # coarse detail lies between squares so wide
MOST_COARSE_HU = 80.0
TISSUE_HU = (-120.0, 300.0)  # what counts of tissue there
NUM_MAPS = 2
ADDED_HU = 300.0
GATE_GAIN, GATE_START = 20.0, 4.0  # an untrained network leaves nearly all that was weighed
BRIGHTER = 1.05  # what is not sure is told too faint; chosen on the patients for choices

POWER_HU = (-150.0, 250.0)  # tissue whose power is measured
NUM_RINGS = 25  # of frequencies
FAINT_HU = 20.0  # a lesion may be wrong where it has more, and beside it,
ERROR_HU, ERROR_SHARE = 30.0, 0.25  # by so much (a standard deviation), and a share of what it has
MOST_SURPRISE = 2.0  # deviations of tissue; edges are cut to that
NUM_STEPS = 12  # of conjugate gradients

SHOWS_HU = 20.0  # calcium that counts in the loss
GRAIN_HU = 60.0  # and what was weighed and is more
SUSPECT_HU = (40.0, 80.0)  # true calcium, and weighed one, that has a score in the loss
LOSS_HU = 100.0  # so that the parts of the loss are of the same size


class Polisher(nn.Module):
    """MONAI's plain network between folding and unfolding, from views to calcium at rest."""

    def __init__(self, settings: NetworkSettings) -> None:
        from monai.networks.nets import UNet  # late: the import takes seconds

        super().__init__()
        self.settings = settings
        fold = settings.fold**2
        self.body = UNet(
            spatial_dims=2,
            in_channels=len(VIEWS) * settings.num_slices * fold,
            out_channels=NUM_MAPS * fold,
            channels=settings.channels,
            strides=[2] * (len(settings.channels) - 1),
            num_res_units=settings.num_res_blocks,
            norm=("group", {"num_groups": settings.norm_groups}),
            act="SWISH",
        )
        self.scale = nn.Parameter(torch.full((NUM_MAPS,), 0.1))

    def forward(self, xt: Tensor, y: Tensor, t: Tensor) -> Tensor:
        """Return calcium at rest in HU, [B, 1, Y, X], of windows of views [B, 5 k, Y, X]."""
        num_slices, divisor = self.settings.num_slices, self.settings.divisor
        if y.shape[1] != len(VIEWS) * num_slices or y.shape[2] % divisor or y.shape[3] % divisor:
            raise ProdmError(
                f"this polisher takes {len(VIEWS)} views of {num_slices} slices whose height and "
                f"width are multiples of {divisor}, got {tuple(y.shape[1:])}"
            )
        views = y.reshape(len(y), len(VIEWS), num_slices, *y.shape[2:])
        low, high, scale = (
            limit.to(y)[:, None, None, None] for limit in (LOWEST_HU, HIGHEST_HU, SCALE_HU)
        )
        seen = (views.clamp(low, high) / scale).flatten(1, 2)
        maps = self.body(functional.pixel_unshuffle(seen, self.settings.fold))
        unfolded = without_grid(functional.pixel_shuffle(maps, self.settings.fold))
        added, gate = (unfolded * self.scale[:, None, None]).chunk(NUM_MAPS, dim=1)
        weighed = views[:, WEIGHED, num_slices // 2, None]
        still = (weighed + ADDED_HU * added).clamp(min=0)
        calcium: Tensor = still * torch.sigmoid(GATE_GAIN * gate + GATE_START)
        return calcium


def polish(
    block_hu: Tensor,
    moving_hu: Tensor,
    motion: FoundMotion,
    lesion_hu: Tensor,
    polisher: tuple[Callable[..., Tensor], int],
) -> Tensor:
    """Return a lesion at rest [Z, Y, X] that a focuser saw in a block, as a polisher has it.

    It is polished in the slices that it lies in, and has no others.
    """
    views = look_closer(block_hu, moving_hu, motion, lesion_hu)
    held = (lesion_hu > FAINT_HU).flatten(1).any(dim=1)
    return BRIGHTER * focus(views, *polisher, held)


def look_closer(
    block_hu: Tensor, moving_hu: Tensor, motion: FoundMotion, lesion_hu: Tensor
) -> Tensor:
    """Return the views [5, Z, Y, X] of a lesion at rest that was seen in a block [Z, Y, X]."""
    weighed = weigh(block_hu, motion, lesion_hu)
    left = block_hu - motion.apply(weighed)
    tissue = left.clamp(*TISSUE_HU)
    fine, coarse = (_smooth(tissue, width) for width in COARSE_PX)
    views = {
        "clean": put_back(block_hu, moving_hu, weighed, motion) - weighed,
        "fine": undone(detail(left), motion),
        "coarse": undone((fine - coarse).clamp(-MOST_COARSE_HU, MOST_COARSE_HU), motion),
        "weighed": weighed,
        "lesion": lesion_hu,
    }
    return torch.stack([views[name] for name in VIEWS])


def weigh(block_hu: Tensor, motion: FoundMotion, lesion_hu: Tensor) -> Tensor:
    """Return a lesion at rest [Z, Y, X] with its likeliest error taken away, without negatives.

    error = argmin |left + move(error)|^2 / tissue's power + |error|^2 / its variance, on the
    lesion's pixels and those beside it; all else of it stays as it is.
    """
    held = torch.nonzero((lesion_hu > FAINT_HU).any(dim=2).any(dim=1)).flatten()
    if not len(held):
        return lesion_hu
    near = slice(max(0, int(held[0]) - 1), int(held[-1]) + 2)
    image, lesion = block_hu[near], lesion_hu[near]
    mover = motion.mover(lesion)
    left = image - mover.apply(lesion)
    power = tissue_power(left)
    surprise = _filtered(left, power**-0.5)
    most = MOST_SURPRISE * 1.4826 * float(surprise.abs().median())  # that of a normal density
    surprise = surprise.clamp(-most, most)
    deviation = likely_error(lesion)

    def system(scaled: Tensor) -> Tensor:
        moved = mover.apply(deviation * scaled)
        back: Tensor = mover.undo(_padded_filter(moved, 1 / power))
        return deviation * back + scaled

    wanted = deviation * mover.undo(_filtered(surprise, power**-0.5))
    weighed = lesion_hu.clone()
    weighed[near] = (lesion + deviation * _solve(system, wanted)).clamp(min=0)
    return weighed


def likely_error(lesion_hu: Tensor) -> Tensor:
    """Return how wrong a lesion [Z, Y, X] may be, as standard deviations: on it and beside it."""
    beside = functional.max_pool2d((lesion_hu > FAINT_HU).float(), 3, 1, 1)
    return beside * (ERROR_HU + ERROR_SHARE * lesion_hu)


def tissue_power(image_hu: Tensor) -> Tensor:
    """Return the power of tissue [Z, Y, X] in rings of frequencies, in HU^2 for each pixel."""
    height, width = image_hu.shape[-2:]
    window = torch.outer(
        torch.hann_window(height, periodic=False), torch.hann_window(width, periodic=False)
    )
    tissue = image_hu.clamp(*POWER_HU)
    tissue = tissue - tissue.mean(dim=(-1, -2), keepdim=True)
    power = (torch.fft.rfft2(tissue * window).abs() ** 2 / (window**2).sum()).mean(dim=0)
    rings = _rings((height, width)).flatten()
    count = torch.bincount(rings, minlength=NUM_RINGS)
    total = torch.bincount(rings, weights=power.flatten().double(), minlength=NUM_RINGS)
    return (total / count.clamp(min=1)).clamp(min=1.0).float()


def polishing_loss(
    calcium_hu: Tensor, batch: Batch, settings: LossSettings
) -> tuple[Tensor, Parts]:
    """Return how wrong calcium at rest [B, 1, Y, X] is: its pixels, its score, what reaches 130 HU.

    The score is that of all calcium near which any was seen or truly is, also where none of it
    should reach the threshold: a lesion that reaches into one slice too many costs something.
    """
    if batch.views is None or batch.background is None:
        raise ProdmError("a polisher learns from what a focuser saw")
    num_slices = batch.views.shape[1] // len(VIEWS)
    clean, weighed = (
        batch.views[:, view * num_slices + num_slices // 2, None] for view in (CLEAN, WEIGHED)
    )
    true_hu = (HIGH_HU - LOW_HU) * (batch.still - batch.background)
    still_hu = LOW_HU + (HIGH_HU - LOW_HU) * batch.still
    counts = (true_hu > SHOWS_HU) | (calcium_hu > SHOWS_HU) | (weighed > GRAIN_HU)
    total = counts.sum().clamp(min=1)
    away = (counts * (calcium_hu - true_hu).abs()).sum() / total / LOSS_HU
    made, _ = soft_agatston(clean + calcium_hu, batch.lesions, batch.spacing_mm, settings.tau_hu)
    true, _ = soft_agatston(still_hu, batch.lesions, batch.spacing_mm, settings.tau_hu)
    score = ((made.log1p() - true.log1p()) ** 2).sum() / max(len(true), 1)
    over = (clean + calcium_hu - CALCIUM_THRESHOLD_HU) / settings.tau_hu
    reaches = (still_hu >= CALCIUM_THRESHOLD_HU).to(over)
    wrong = functional.binary_cross_entropy_with_logits(over, reaches, reduction="none")
    reached = (counts * wrong).sum() / total
    parts = {"absolute": away.detach(), "calcium": score.detach(), "reached": reached.detach()}
    return away + settings.weight * (score + reached), parts


def _solve(system: Callable[[Tensor], Tensor], wanted: Tensor) -> Tensor:
    """Return x with system(x) = wanted, nearly, by conjugate gradients."""
    found = torch.zeros_like(wanted)
    left = direction = wanted
    size = (left**2).sum()
    enough = 1e-6 * float(size)
    for _ in range(NUM_STEPS):
        if float(size) <= enough:
            break
        along = system(direction)
        step = size / (direction * along).sum()
        found = found + step * direction
        left = left - step * along
        size, before = (left**2).sum(), size
        direction = left + size / before * direction
    return found


def _filtered(image: Tensor, gain: Tensor) -> Tensor:
    """Return images [Z, Y, X] with each ring of frequencies made so much stronger, mirrored."""
    top, left = image.shape[-2] // 2, image.shape[-1] // 2
    mirrored = functional.pad(image[None], (left, left, top, top), mode="reflect")[0]
    shape = (mirrored.shape[-2], mirrored.shape[-1])
    back: Tensor = torch.fft.irfft2(torch.fft.rfft2(mirrored) * gain[_rings(shape)], s=shape)
    return back[..., top : top + image.shape[-2], left : left + image.shape[-1]]


def _padded_filter(image: Tensor, gain: Tensor) -> Tensor:
    """Return the same of images with nothing beyond them."""
    padding = padding_for(image, PADDING)
    shape = (image.shape[-2] + padding, image.shape[-1] + padding)
    back: Tensor = torch.fft.irfft2(torch.fft.rfft2(image, s=shape) * gain[_rings(shape)], s=shape)
    return back[..., : image.shape[-2], : image.shape[-1]]


@lru_cache(maxsize=16)
def _rings(shape: tuple[int, int]) -> Tensor:
    """Return the ring that each frequency of an rfft2 lies in, [Y, X // 2 + 1]."""
    along_y, along_x = torch.fft.fftfreq(shape[0])[:, None], torch.fft.rfftfreq(shape[1])
    return (torch.hypot(along_y, along_x) * (2 * (NUM_RINGS - 1))).long().clamp(max=NUM_RINGS - 1)


def _smooth(image: Tensor, width_px: int) -> Tensor:
    around = functional.pad(image, (width_px // 2,) * 4, mode="reflect")
    return functional.avg_pool2d(around, width_px, stride=1)

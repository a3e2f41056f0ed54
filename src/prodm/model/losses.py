"""What training minimises: the error of the image, and the error of its calcium.

The image loss is the mean squared error of x0^ in [0, 1]. Calcium losses compare soft scores of
x0^ and x0, in HU. Every threshold h becomes sigmoid((x - h) / tau), and a score S enters as
log(1 + S), so that a large plaque does not drown a small one. Three of them:

    volume          the paper's: voxel volume x sum of soft masks over the whole window. At its
                    tau of 60 HU soft tissue of 40 HU counts 0.18 per voxel, so that most of
                    the score is no calcium at all.
    neighbourhood   the same sum over the dilated calcium of the truth, meant for small tau.
    agatston        per lesion and slice, soft area x soft density weight x spacing / 3 mm:
                    area = pixel area x sum of soft masks, weight = the sum of the four
                    sigmoids at 130, 200, 300 and 400 HU of the soft peak, and the soft peak is
                    the mean of the voxels weighted by exp(x / tau), which never exceeds the peak.

The density weight belongs to a lesion, hence to its peak, so the soft Agatston score needs to
know which voxels form one lesion: ``lesion_neighbourhoods`` gives each lesion of the truth the
voxels that are near it and nearer to it than to any other. As tau goes to 0 the score of x0
becomes the real one (without a smallest lesion), as long as what reaches 130 HU in the
neighbourhoods is the labelled calcium, and no voxel lies exactly on a threshold. For x0^, two
pieces inside one neighbourhood share their peak; that is the price of smoothness.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import ndimage
from torch import Tensor
from torch.nn import functional

from prodm.calcium import CALCIUM_THRESHOLD_HU, REFERENCE_SPACING_MM, WEIGHT_STEPS_HU
from prodm.errors import ProdmError
from prodm.model import to_hu

Calcium = Literal["none", "volume", "neighbourhood", "agatston"]
Parts = dict[str, Tensor]  # the terms of a loss, detached, for the log


@dataclass(frozen=True, eq=False)
class Batch:
    """Windows of k slices to learn from; everything a loss may need.

    ``still`` and ``moving`` are [B, k, Y, X] in [0, 1], ``calcium`` is the still calcium (bool) and
    ``lesions`` its ``lesion_neighbourhoods`` (int), ``spacing_mm`` is [B, 3] as (z, y, x).
    ``background`` is the image without calcium, in [0, 1]: what a separator learns to see.
    ``displacement`` [B, M, 3] is the motion, (x in pixels, y in pixels, z in slices) at M views
    over 180 degrees, and ``start_rad`` [B] its first angle, where they are known. ``views``
    [B, V k, Y, X] are what a focuser, a placer or a polisher sees of the windows' slices; ``place``
    [B, 2] is where a lesion rests (``prodm.model.focusing``, ``prodm.model.resting``,
    ``prodm.model.polishing``).
    """

    still: Tensor
    moving: Tensor
    calcium: Tensor
    lesions: Tensor
    spacing_mm: Tensor
    background: Tensor | None = None
    displacement: Tensor | None = None
    start_rad: Tensor | None = None
    views: Tensor | None = None
    place: Tensor | None = None

    def __post_init__(self) -> None:
        images = [self.still, self.moving, self.calcium, self.lesions]
        images += [] if self.background is None else [self.background]
        if any(image.shape != self.still.shape for image in images) or self.still.ndim != 4:
            raise ProdmError(
                "the images of a batch must all be [B, k, Y, X], got "
                + ", ".join(str(tuple(image.shape)) for image in images)
            )
        if self.spacing_mm.shape != (len(self.still), 3):
            raise ProdmError(
                f"a batch of {len(self.still)} windows needs as many spacings (z, y, x), "
                f"got {tuple(self.spacing_mm.shape)}"
            )

    def to(self, device: torch.device | str) -> "Batch":
        """Return the batch on a device."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{n: v.to(device) for n, v in values.items() if v is not None})


@dataclass(frozen=True)
class LossSettings:
    """Which calcium loss is added to the image loss; the defaults are the paper's."""

    calcium: Calcium = "volume"
    weight: float = 20.0
    tau_hu: float = 60.0
    radius_pixels: int = 6  # of the neighbourhood of calcium

    def __post_init__(self) -> None:
        if self.calcium not in CALCIUM_LOSSES:
            raise ProdmError(
                f"the calcium loss must be one of {', '.join(CALCIUM_LOSSES)}, got {self.calcium!r}"
            )
        if not self.weight >= 0 or not self.tau_hu > 0 or self.radius_pixels < 0:
            raise ProdmError(
                "a loss needs weight >= 0, tau_hu > 0 and radius_pixels >= 0, "
                f"got {self.weight}, {self.tau_hu} and {self.radius_pixels}"
            )


def total_loss(estimate: Tensor, batch: Batch, settings: LossSettings) -> tuple[Tensor, Parts]:
    """Return image loss + weight x calcium loss of an estimate of x0 [B, k, Y, X], and both."""
    image = functional.mse_loss(estimate, batch.still)
    calcium = CALCIUM_LOSSES[settings.calcium](estimate, batch, settings)
    total = image + settings.weight * calcium
    return total, {"image": image.detach(), "calcium": calcium.detach()}


def volume_loss(estimate: Tensor, batch: Batch, settings: LossSettings) -> Tensor:
    """Squared error of log(1 + soft volume) over the whole window, as the paper prints it."""
    return _volume_error(estimate, batch, settings.tau_hu, torch.ones_like(estimate))


def neighbourhood_loss(estimate: Tensor, batch: Batch, settings: LossSettings) -> Tensor:
    """Squared error of log(1 + soft volume) near the calcium of the truth."""
    near = dilate(batch.calcium, settings.radius_pixels).to(estimate.dtype)
    return _volume_error(estimate, batch, settings.tau_hu, near)


def agatston_loss(estimate: Tensor, batch: Batch, settings: LossSettings) -> Tensor:
    """Squared error of log(1 + soft Agatston), averaged over a window's lesions, then windows."""
    predicted, window = soft_agatston(
        to_hu(estimate), batch.lesions, batch.spacing_mm, settings.tau_hu
    )
    true, _ = soft_agatston(to_hu(batch.still), batch.lesions, batch.spacing_mm, settings.tau_hu)
    error = (predicted.log1p() - true.log1p()) ** 2
    sums = error.new_zeros(len(estimate)).index_add(0, window, error)
    return (sums / window.bincount(minlength=len(estimate)).clamp(min=1)).mean()


def no_calcium_loss(estimate: Tensor, batch: Batch, settings: LossSettings) -> Tensor:
    """Nothing."""
    return estimate.new_zeros(())


CALCIUM_LOSSES: dict[str, Callable[[Tensor, Batch, LossSettings], Tensor]] = {
    "none": no_calcium_loss,
    "volume": volume_loss,
    "neighbourhood": neighbourhood_loss,
    "agatston": agatston_loss,
}


def soft_volume_mm3(hu: Tensor, spacing_mm: Tensor, tau_hu: float, inside: Tensor) -> Tensor:
    """Soft volume [B] of what reaches 130 HU, over the voxels weighted by ``inside``."""
    mask = torch.sigmoid((hu - CALCIUM_THRESHOLD_HU) / tau_hu) * inside
    return spacing_mm.prod(dim=1) * mask.flatten(1).sum(dim=1)


def soft_agatston(
    hu: Tensor, lesions: Tensor, spacing_mm: Tensor, tau_hu: float
) -> tuple[Tensor, Tensor]:
    """Return the soft score of each lesion [L] and the window [L] that it lies in.

    ``lesions`` [B, k, Y, X] labels neighbourhoods slice by slice, 0 outside; equal labels in two
    slices or windows are two lesions.
    """
    at = lesions > 0
    window, slice_index, _, _ = at.nonzero(as_tuple=True)
    place = torch.stack([window, slice_index, lesions[at].long()], dim=1)
    found, lesion = torch.unique(place, dim=0, return_inverse=True)
    x = hu[at]
    zeros = x.new_zeros(len(found))

    pixel_area_mm2 = spacing_mm[:, 1] * spacing_mm[:, 2]
    soft_mask = torch.sigmoid((x - CALCIUM_THRESHOLD_HU) / tau_hu)
    area_mm2 = pixel_area_mm2[found[:, 0]] * zeros.index_add(0, lesion, soft_mask)

    peak = zeros.scatter_reduce(0, lesion, x.detach(), "amax", include_self=False)
    share = torch.exp((x - peak[lesion]) / tau_hu)
    soft_peak = zeros.index_add(0, lesion, share * x) / zeros.index_add(0, lesion, share)
    steps = hu.new_tensor((CALCIUM_THRESHOLD_HU, *WEIGHT_STEPS_HU))
    weight = torch.sigmoid((soft_peak[:, None] - steps) / tau_hu).sum(dim=1)

    slices = spacing_mm[found[:, 0], 0] / REFERENCE_SPACING_MM
    return area_mm2 * weight * slices, found[:, 0]


def dilate(mask: Tensor, radius_pixels: int) -> Tensor:
    """Grow a mask [B, k, Y, X] in the plane by a square of this radius."""
    width = 2 * radius_pixels + 1
    rows = functional.max_pool2d(mask.float(), (width, 1), stride=1, padding=(radius_pixels, 0))
    grown: Tensor = functional.max_pool2d(rows, (1, width), stride=1, padding=(0, radius_pixels))
    return grown > 0


def lesion_neighbourhoods(calcium: NDArray[np.bool_], radius_pixels: int) -> NDArray[np.int32]:
    """Label, slice by slice, the voxels near each lesion of a mask [..., Y, X].

    Lesions are pieces of calcium whose pixels touch, also diagonally. A voxel belongs to the
    nearest lesion, if that is at most ``radius_pixels`` away.

    >>> row = np.zeros((1, 9), dtype=bool)
    >>> row[0, [1, 2, 7]] = True
    >>> lesion_neighbourhoods(row, radius_pixels=2).tolist()
    [[1, 1, 1, 1, 1, 2, 2, 2, 2]]
    """
    labels = np.zeros(calcium.shape, dtype=np.int32)
    for index in np.ndindex(calcium.shape[:-2]):
        if not calcium[index].any():
            continue
        lesions, _ = ndimage.label(calcium[index], structure=np.ones((3, 3)))
        distance, (row, column) = ndimage.distance_transform_edt(
            ~calcium[index], return_indices=True
        )
        labels[index] = np.where(distance <= radius_pixels, lesions[row, column], 0)
    return labels


def _volume_error(estimate: Tensor, batch: Batch, tau_hu: float, inside: Tensor) -> Tensor:
    predicted = soft_volume_mm3(to_hu(estimate), batch.spacing_mm, tau_hu, inside)
    true = soft_volume_mm3(to_hu(batch.still), batch.spacing_mm, tau_hu, inside)
    return functional.mse_loss(predicted.log1p(), true.log1p())

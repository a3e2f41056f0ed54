"""What a motion leaves behind: the image without the lesion that moves in it.

Which motion makes calcium sharpest is told from what a separator took to move, with all its
errors, and they are at home in the motion that they come with. The image itself knows better.
A lesion that is taken away as it moved leaves tissue, which is smooth but for its grain. With
a slightly wrong motion, streaks are left, bright and dark, also where a separator saw nothing:

    rough(y - move(x))      x, the lesion, refocused by that motion from what seems to move

So the motion whose lesion leaves the smoothest image is the likeliest. Roughness is what lies
between squares of three and of seven pixels, the grain being finer and tissue coarser, and
counts as its amount: edges of tissue do not drown streaks.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from prodm.model.motions import padding_for, refocused
from prodm.physics import phase

FINE_PX, COARSE_PX = 3, 7
SMOOTH_HU = 10.0  # roughness below it counts by its square
LOWEST_HU = -200.0  # what is darker is lung, whose edges tell of no lesion
AROUND_PX = 15  # square whose roughness is that of a pixel's surroundings,
LEAST_ROUGH_HU = 5.0  # and what is added to it
LESION_HU = 120.0  # what is refocused and has no such pixel beside it is left out,
LESION_EDGE_HU = 20.0  # gradually, so that a gradient passes
FAINT_SHARE = 0.02  # of the energy of the strongest slice
MOST_SLICES = 8
PADDING = 16  # blocks of 64 pixels become 81, which transform fast; those with a margin 105


@dataclass(frozen=True, eq=False)
class Scene:
    """What seems to move in a block, and the image that it moves in, where there is most of it."""

    moving: Tensor  # [Z, Y, X]
    image: Tensor

    @classmethod
    def of(cls, moving: Tensor, image: Tensor) -> "Scene":
        """Return the slices of a block that what moves lies in, and those beside it."""
        energy = (moving**2).sum(dim=(1, 2))
        held = torch.nonzero(energy > FAINT_SHARE * energy.max()).flatten()
        first, last = max(0, int(held[0]) - 1), int(held[-1]) + 2
        if last - first > MOST_SLICES:
            first = int(energy.unfold(0, MOST_SLICES, 1).sum(dim=1).argmax())
            last = first + MOST_SLICES
        return cls(moving[first:last], image[first:last])

    @property
    def strength(self) -> float:
        """How rough the image would be of what moves alone."""
        return float(_between(self.moving).abs().sum())

    def left(self, shift_px: Tensor, slice_shift: Tensor, start_rad: float | Tensor) -> Tensor:
        """Return how rough motions [N, M] leave the image, less than it is, as shares [N].

        -1 would be all that what moves could add to it, and more than 0 makes it rougher.
        """
        moving = self.moving.expand(len(shift_px), *self.moving.shape)
        mover = phase.Mover(
            moving,
            shift_px,
            slice_shift=slice_shift,
            start_rad=start_rad,
            padding=padding_for(moving, PADDING),
        )
        lesion = refocused(mover, moving)
        beside = functional.max_pool2d(lesion, 3, stride=1, padding=1)
        lesion = lesion * torch.sigmoid((beside - LESION_HU) / LESION_EDGE_HU)
        left = roughness(self.image - mover.apply(lesion)) - roughness(self.image)
        return left / self.strength


def roughness(image: Tensor) -> Tensor:
    """Return how rough images [..., Z, Y, X] are, in HU, summed over their pixels."""
    return _rough(image).sum(dim=(-3, -2, -1))


def smoother_for_its_tissue(image: Tensor, left: Tensor) -> float:
    """Return by how much an image [Z, Y, X] is smoother without what was taken from it.

    Each pixel counts by how rough its surroundings are: an edge of lung or bone that became
    smoother tells less than a streak in the heart. In pixels whose roughness is gone.
    """
    before, after = (_rough(one.clamp(min=LOWEST_HU)) for one in (image, left))
    around = _mean_around(torch.minimum(before, after), AROUND_PX)
    return float(((before - after) / (around + LEAST_ROUGH_HU)).sum())


def _mean_around(images: Tensor, width_px: int) -> Tensor:
    """Return the mean of images [Z, Y, X] over the part of a square that lies inside of them.

    Along y, then along x: that is several times as fast as all at once.
    """
    for window in ((width_px, 1), (1, width_px)):
        padding = (window[0] // 2, window[1] // 2)
        images = functional.avg_pool2d(images, window, 1, padding, count_include_pad=False)
    return images


def smoother(image: Tensor, taken: Tensor) -> tuple[float, float]:
    """Return by how much an image [Z, Y, X] is smoother without what is taken from it.

    In HU, and as a share of what that could add: 1, were it all there was, and less than 0 where
    the image becomes rougher.
    """
    gained = float(roughness(image) - roughness(image - taken))
    return gained, gained / max(float(_between(taken).abs().sum()), 1.0)


def _rough(image: Tensor) -> Tensor:
    return (_between(image) ** 2 + SMOOTH_HU**2).sqrt() - SMOOTH_HU


def _between(image: Tensor) -> Tensor:
    """Return what is coarser than grain and finer than tissue."""
    fine, coarse = (
        functional.avg_pool2d(image, width, stride=1, padding=width // 2)
        for width in (FINE_PX, COARSE_PX)
    )
    return fine - coarse

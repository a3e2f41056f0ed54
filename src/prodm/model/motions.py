"""A motion that was found: what it does to an image, how to undo it, and where it puts a lesion.

All of a rigid motion within the plane is one function s(theta) (``prodm.physics.phase``): the
spectrum of what moves is turned by exp(-2 pi i w s(theta)), and magnitudes stay. Along z,
neighbouring slices blend. ``prodm.model.search`` finds motions; here is what they are good for:

    apply     how a still lesion is seen
    undo      the phases turned back: exact within the plane, a little blurred along z
    refocus   the lesion that has no negative values and is seen as what was observed, by least
              squares: sharp along z too
    place     the translation s = c cos(theta) + d sin(theta), which shows in no image of what
              moves, taken from a guess of the still lesion

All slices of a block share the motion. Images are [Z, Y, X].
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from prodm.physics import phase
from prodm.physics.fitting import NUM_VIEWS

PADDING = 32
LEAST_PADDING = 9  # of blocks so large that they have a margin, in which what leaves may come round
WITH_MARGIN_PX = 80
NUM_FITTED = 10  # steps of ``refocus``
SHUT_WEIGHT = 0.5  # of what was not taken to move at all: streaks end where a gate is shut
FIT_STEP = 0.9  # no motion makes an image larger, so that less than 1 is safe
CALCIUM_HU = 80.0  # once in focus; what has no such pixel beside it is grain, its bright half
PASSES_HU = 10.0  # a lesion passes where it changes the image by more than this
BESIDE_PX = 5  # width of the square around each such pixel
LEFT_HU = 20.0  # what may be left over there, grain
DIP_WEIGHT = 0.3  # chosen on validation patients: less blurs still calcium, more keeps it moving


@dataclass(frozen=True, eq=False)
class FoundMotion:
    """s(theta) in pixels at ``NUM_VIEWS`` angles over 180 degrees from ``start_rad`` on.

    ``slice_shift`` is the displacement along z, in slices, where it is known.
    """

    shift_px: Tensor  # [M]
    start_rad: float
    slice_shift: Tensor | None = None  # [M]
    cost: float = 0.0  # the less, the likelier; of motions of the same image

    @classmethod
    def from_path(cls, path: Tensor) -> "FoundMotion":
        """Return the motion of a path [2, N]: s and z at N angles over 180 degrees, from 0 on."""
        shift_px, slice_shift = _at_views(path)
        return cls(shift_px, 0.0, slice_shift)

    def undo(self, moving: Tensor, padding: int | None = None) -> Tensor:
        """Return images [..., Z, Y, X] with the motion undone; along z, that blurs."""
        undone: Tensor = self.mover(moving, padding).undo(moving)
        return undone

    def apply(self, still: Tensor) -> Tensor:
        """Return images [..., Z, Y, X] as the motion shows them."""
        seen: Tensor = self.mover(still).apply(still)
        return seen

    @property
    def is_rest(self) -> bool:
        """Whether nothing moves."""
        return not bool(self.shift_px.any())

    def refocus(self, moving: Tensor) -> Tensor:
        """Return the image [..., Z, Y, X] without negative values that moves into what was seen.

        Without motion, what was seen is what is.
        """
        if self.is_rest:
            return moving
        return refocused(self.mover(moving), moving)

    def focused(self, moving: Tensor) -> Tensor:
        """Return what is put in the place of what moves, in HU: refocused, without the grain.

        What is neither calcium nor beside it (``CALCIUM_HU``) is left out. It counts for how much
        a motion explains, since what moves has grain too.
        """
        if self.is_rest:
            return moving
        return without_grain(self.refocus(moving))

    def shift_at(self, angles_rad: Tensor) -> Tensor:
        """Return s in pixels along n(theta) at angles from 0 to 180 degrees, the nearest view's.

        Views beyond 180 degrees see the same lines the other way round.
        """
        views, turns = views_at(angles_rad, self.start_rad)
        return self.shift_px[views] * torch.where(turns % 2 == 0, 1.0, -1.0)

    def along_z_at(self, angles_rad: Tensor) -> Tensor:
        """Return the displacement along z in slices at angles, the nearest view's."""
        views, _ = views_at(angles_rad, self.start_rad)
        return torch.zeros(len(views)) if self.slice_shift is None else self.slice_shift[views]

    def mean(self, other: "FoundMotion", share: float = 0.5) -> "FoundMotion":
        """Return the mean with another motion, of a scan that starts where this one does.

        ``share`` is what this one counts.
        """
        angles = torch.from_numpy(phase.view_angles_rad(NUM_VIEWS, start_rad=self.start_rad))
        views, _ = views_at(angles, other.start_rad)
        ours, theirs = (
            torch.zeros(NUM_VIEWS) if part is None else part
            for part in (self.slice_shift, other.slice_shift)
        )
        shift_px = torch.lerp(other.shift_at(angles).to(self.shift_px), self.shift_px, share)
        along_z = torch.lerp(theirs[views], ours, share)
        return replace(self, shift_px=shift_px, slice_shift=along_z)

    def translated(self, x_px: float, y_px: float) -> "FoundMotion":
        """Return the motion with a constant displacement added."""
        angles = torch.from_numpy(phase.view_angles_rad(NUM_VIEWS, start_rad=self.start_rad))
        added = x_px * torch.cos(angles) + y_px * torch.sin(angles)
        return replace(self, shift_px=self.shift_px + added.to(self.shift_px))

    def mover(self, image: Tensor, padding: int | None = None) -> phase.Mover:
        """Return what moves many images of the size of one [..., Z, Y, X], and back."""
        if padding is None:
            padding = padding_for(image, PADDING)
        shift, along_z = (
            None if part is None else part.to(image).expand(*image.shape[:-3], NUM_VIEWS)
            for part in (self.shift_px, self.slice_shift)
        )
        return phase.Mover(
            image, shift, slice_shift=along_z, start_rad=self.start_rad, padding=padding
        )


def views_at(angles_rad: Tensor, start_rad: float | Tensor) -> tuple[Tensor, Tensor]:
    """Return the views nearest to angles, and by how many half turns those are earlier."""
    since_start = (angles_rad - start_rad) / math.pi
    turns = (since_start + 0.5 / NUM_VIEWS).floor()
    views = ((since_start - turns) * NUM_VIEWS).round().long().clamp(0, NUM_VIEWS - 1)
    return views, turns


def padding_for(image: Tensor, usual_px: int) -> int:
    """Return how many pixels to pad images [..., Y, X] by: less where they have a margin.

    >>> [padding_for(torch.zeros(length, length), 32) for length in (64, 96)]
    [32, 9]
    """
    return usual_px if max(image.shape[-2:]) < WITH_MARGIN_PX else LEAST_PADDING


def refocused(mover: phase.Mover, moving: Tensor) -> Tensor:
    """Return the images [..., Z, Y, X] without negative values that move into what was seen.

    By least squares: a few projected gradient steps with momentum (FISTA; Beck and
    Teboulle, 2009). More would fit the noise.
    Where nothing at all was taken to move, calcium may still have passed: that counts less.
    """
    still: Tensor = mover.undo(moving).clamp(min=0)
    before = ahead = still
    momentum = 1.0
    weight = torch.where(moving == 0, SHUT_WEIGHT, 1.0)
    for _ in range(NUM_FITTED):
        error = mover.undo(weight * (mover.apply(ahead) - moving))
        before, still = still, (ahead - FIT_STEP * error).clamp(min=0)
        next_momentum = (1 + math.sqrt(1 + 4 * momentum**2)) / 2
        ahead = still + (momentum - 1) / next_momentum * (still - before)
        momentum = next_momentum
    return still


def without_grain(still: Tensor) -> Tensor:
    """Return what was refocused [..., Z, Y, X] where it is calcium, or beside it."""
    beside = functional.max_pool2d(still.flatten(0, -3), 3, stride=1, padding=1)
    return torch.where(beside.view_as(still) > CALCIUM_HU, still, torch.zeros_like(still))


def put_back(block_hu: Tensor, moving_hu: Tensor, still_hu: Tensor, motion: FoundMotion) -> Tensor:
    """Return a block with a lesion at rest in the place of the moving one.

    What moves and the lesion does not explain is left as it is, but where the lesion passes no
    more than the grain of the image is: the rest is what a slightly wrong motion leaves over.
    """
    seen = motion.apply(still_hu)
    left_over = moving_hu - seen
    passes = functional.max_pool2d((seen.abs() > PASSES_HU).float(), BESIDE_PX, 1, BESIDE_PX // 2)
    too_much = left_over - left_over.clamp(-LEFT_HU, LEFT_HU)
    return block_hu - seen + still_hu - passes * too_much


def _at_views(path: Tensor) -> Tensor:
    """Samples [2, N] at N equal steps over 180 degrees, as [2, NUM_VIEWS], linear in between."""
    num_samples = path.shape[-1]
    position = torch.arange(NUM_VIEWS) * (num_samples / NUM_VIEWS)
    lower = position.floor().clamp(max=num_samples - 2).long()
    below, above = path[:, lower], path[:, lower + 1]
    return below + (above - below) * (position - lower).to(path)


def place(
    motion: FoundMotion, moving: Tensor, guess: Tensor, largest_px: float = 15.0
) -> FoundMotion:
    """Add the translation that brings what moves, its motion undone, closest to a guess.

    Both are correlated over all translations up to ``largest_px``, all slices together.
    """
    found = motion.undo(moving).clamp(min=0)
    height, width = found.shape[-2:]
    shape = (2 * height, 2 * width)
    spectra = (torch.fft.rfft2(image, s=shape) for image in (found, guess.clamp(min=0)))
    first, second = spectra
    agreement = torch.fft.irfft2((first.conj() * second).sum(dim=0), s=shape)
    y, x = (torch.fft.fftfreq(n, 1 / n) for n in shape)
    is_far = y[:, None] ** 2 + x[None, :] ** 2 > largest_px**2
    agreement = agreement.masked_fill(is_far.to(agreement.device), -math.inf)
    if not float(agreement.max()) > 0:
        return motion
    row, column = divmod(int(agreement.argmax()), shape[1])
    y_px = float(y[row]) + between_samples(agreement[:, column].roll(-row)[[-1, 0, 1]])
    x_px = float(x[column]) + between_samples(agreement[row].roll(-column)[[-1, 0, 1]])
    return motion.translated(-x_px, -y_px)


def between_samples(around: Tensor) -> float:
    """Place of the top of a parabola through three samples, relative to the middle one."""
    low, middle, high = around.tolist()
    bend = low - 2 * middle + high
    return 0.5 * (low - high) / bend if math.isfinite(bend) and bend < 0 else 0.0


def explained_share(moving: Tensor, still: Tensor, motion: FoundMotion) -> float:
    """Return how much of the energy of what moves the still lesion and the motion explain.

    1 is all of it; 0 and less mean that the pair explains nothing.
    """
    total = float((moving**2).sum())
    if total == 0:
        return 1.0
    return 1 - float(((moving - motion.apply(still)) ** 2).sum()) / total


def lack_of_peak(images: Tensor) -> Tensor:
    """Return how far each of images [N, Z, Y, X] is from sharp: minus its peak, plus its dips."""
    peak = (images.clamp(min=0) ** 4).sum(dim=(1, 2, 3)) ** 0.25
    dip = (images.clamp(max=0) ** 2).sum(dim=(1, 2, 3)).clamp(min=1e-6) ** 0.5
    return DIP_WEIGHT * dip - peak

"""Find the motion that a smeared lesion has undergone, from the image alone.

All of a rigid motion within the plane is one function s(theta) (``prodm.physics.phase``): the
spectrum of what moves is turned by exp(-2 pi i w s(theta)), and magnitudes stay. So the right s
is one that, undone, gives an image a lesion could have: sparse and not negative. The sum of an
image does not change when its phases turn, hence

    sum |e| = sum e + 2 sum max(-e, 0)

is least where nothing is negative, and that is what ``search_blind`` minimises: it draws many
smooth motions, keeps the few that fit best, and rest, and improves those by gradient. A translation
s = c cos(theta) + d sin(theta) shows in no image, so it is left out; the lesion stays where the
centre of what was observed lies. Where what moves is known only in part, by its bright part or
by a network that also takes some tissue for calcium, absolute values say little; then the sum of
fourth powers, which is largest for the sharpest image, takes their place, less a part of what
is negative: a long lesion at rest could be made sharper, but not without dips around it.

    s(theta) is sampled at M angles from the start of the scan on: smooth, with one jump where
    the scan starts and ends. Where the start is not known, it is drawn too.

``search_guided`` needs a first guess of the still lesion instead, from any source, and fits the
motion that leads from it to what was seen (``prodm.physics.fitting``). It does see translations,
since the guess has a place.

All slices of a block share the motion and vote together. Images are [Z, Y, X].
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from prodm.errors import ProdmError
from prodm.physics import phase
from prodm.physics.fitting import NUM_VIEWS, fit_motion

PADDING = 32
DIP_WEIGHT = 0.3  # chosen on validation patients: less blurs still calcium, more keeps it moving


@dataclass(frozen=True)
class SearchSettings:
    """How hard to look."""

    num_cosines: int = 9  # smoothness of s
    num_draws: int = 96
    num_kept: int = 4
    num_steps: int = 60
    step_px: float = 0.3
    amplitude_px: float = 5.0  # scale of the motions drawn
    max_slices: int = 4  # those that hold most of what moves
    start_rad: float | None = None  # where the scan starts; None where it is not known
    objective: Literal["not negative", "peaked"] = "not negative"

    def __post_init__(self) -> None:
        counts = (self.num_draws, self.num_kept, self.max_slices)
        if min(counts) < 1 or self.num_kept > self.num_draws or self.num_cosines < 4:
            raise ProdmError(
                "a search needs num_draws >= num_kept >= 1, max_slices >= 1 and at least "
                f"4 cosines, got {self}"
            )


@dataclass(frozen=True, eq=False)
class FoundMotion:
    """s(theta) in pixels at ``NUM_VIEWS`` angles over 180 degrees from ``start_rad`` on."""

    shift_px: Tensor  # [M]
    start_rad: float

    def undo(self, moving: Tensor) -> Tensor:
        """Return images [..., Z, Y, X] with the motion undone."""
        still: Tensor = phase.undo(
            moving, self._like(moving), start_rad=self.start_rad, padding=PADDING
        )
        return still

    def apply(self, still: Tensor) -> Tensor:
        """Return images [..., Z, Y, X] as the motion shows them."""
        moving: Tensor = phase.apply(
            still, self._like(still), start_rad=self.start_rad, padding=PADDING
        )
        return moving

    def translated(self, x_px: float, y_px: float) -> "FoundMotion":
        """Return the motion with a constant displacement added."""
        angles = torch.from_numpy(phase.view_angles_rad(NUM_VIEWS, start_rad=self.start_rad))
        added = x_px * torch.cos(angles) + y_px * torch.sin(angles)
        return FoundMotion(self.shift_px + added.to(self.shift_px), self.start_rad)

    def _like(self, image: Tensor) -> Tensor:
        return self.shift_px.to(image).expand(*image.shape[:-3], NUM_VIEWS)


def search_blind(
    moving: Tensor, settings: SearchSettings, generator: torch.Generator
) -> FoundMotion:
    """Find the motion of what moves [Z, Y, X], up to a translation."""
    seen = _strongest_slices(moving, settings.max_slices)
    basis = torch.from_numpy(smooth_basis(settings.num_cosines)).to(seen)
    paths = _draw_paths(settings, generator).to(seen)
    coefficients = paths @ basis / NUM_VIEWS
    if settings.start_rad is None:
        starts = torch.rand(settings.num_draws, generator=generator).to(seen) * (2 * math.pi)
    else:
        starts = torch.full((settings.num_draws,), settings.start_rad).to(seen)
    cost_of = COSTS[settings.objective]
    with torch.no_grad():
        costs = cost_of(_undoing(seen, starts)(coefficients @ basis.T))
    kept = costs.argsort()[: settings.num_kept]
    rest = torch.zeros_like(coefficients[:1])
    coefficients = torch.cat([coefficients[kept], rest]).requires_grad_()
    starts = starts[[*kept.tolist(), int(kept[0])]]
    undone = _undoing(seen, starts)
    optimiser = torch.optim.Adam([coefficients], lr=settings.step_px)
    for step in range(settings.num_steps):
        optimiser.param_groups[0]["lr"] = settings.step_px * (1 - step / settings.num_steps)
        with torch.enable_grad():
            cost = cost_of(undone(coefficients @ basis.T)).sum()
        (coefficients.grad,) = torch.autograd.grad(cost, coefficients)
        optimiser.step()
    with torch.no_grad():
        shifts = coefficients @ basis.T
        best = int(cost_of(undone(shifts)).argmin())
    return FoundMotion(shifts[best].detach(), float(starts[best]))


def search_guided(moving: Tensor, guess: Tensor) -> FoundMotion:
    """Find the motion that leads from a guess of the still lesion to what moves [Z, Y, X]."""
    seen, still = (image.detach().cpu().numpy().astype(np.float32) for image in (moving, guess))
    fitted = fit_motion(seen, still)
    return FoundMotion(torch.from_numpy(fitted.shift_px).to(moving), fitted.start_rad)


def choose(blind: FoundMotion, moving: Tensor, guess: Tensor) -> FoundMotion:
    """Return the motion, placed by a guess of the still lesion, that undoes what moves best.

    Two are tried: the one found blindly, and the one that the guess leads to. The better one
    gives the sharper image.
    """
    found = (place(blind, moving, guess), search_guided(moving, guess.clamp(min=0)))
    costs = [float(_lack_of_peak(motion.undo(moving)[None])) for motion in found]
    return found[costs.index(min(costs))]


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
    y_px = float(y[row]) + _between_samples(agreement[:, column].roll(-row)[[-1, 0, 1]])
    x_px = float(x[column]) + _between_samples(agreement[row].roll(-column)[[-1, 0, 1]])
    return motion.translated(-x_px, -y_px)


def _between_samples(around: Tensor) -> float:
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


def smooth_basis(num_cosines: int) -> NDArray[np.float64]:
    """Return cosines over the scan [M, n] without translations, orthogonal with mean square 1.

    A cosine series over [0, pi) does not come round, so it can jump where the scan starts.
    """
    angle = phase.view_angles_rad(NUM_VIEWS)
    cosines = np.cos(np.outer(angle, np.arange(num_cosines)))
    shifts = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    without = cosines - shifts @ np.linalg.lstsq(shifts, cosines, rcond=None)[0]
    vectors, sizes, _ = np.linalg.svd(without, full_matrices=False)
    basis: NDArray[np.float64] = vectors[:, sizes > 1e-6] * math.sqrt(NUM_VIEWS)
    return basis


def _undoing(moving: Tensor, starts: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the function that undoes N motions [N, M] of what moves [Z, Y, X], [N, Z, Y, X]."""
    turn = phase.turner(moving, NUM_VIEWS, start_rad=starts, padding=PADDING)
    return lambda shifts: turn(-shifts, None)


def _absolute_sum(images: Tensor) -> Tensor:
    return images.abs().sum(dim=(1, 2, 3))


def _lack_of_peak(images: Tensor) -> Tensor:
    peak = (images.clamp(min=0) ** 4).sum(dim=(1, 2, 3)) ** 0.25
    dip = (images.clamp(max=0) ** 2).sum(dim=(1, 2, 3)).clamp(min=1e-6) ** 0.5
    return DIP_WEIGHT * dip - peak


COSTS: dict[str, Callable[[Tensor], Tensor]] = {
    "not negative": _absolute_sum,
    "peaked": _lack_of_peak,
}


def _draw_paths(settings: SearchSettings, generator: torch.Generator) -> Tensor:
    """s(theta) [N, M] of motions that drift and swing, in random directions."""
    time = torch.arange(NUM_VIEWS) / NUM_VIEWS
    waves = [time - 0.5]
    for order in (1, 2, 3):
        waves += [torch.cos(2 * math.pi * order * time), torch.sin(2 * math.pi * order * time)]
    sizes = torch.tensor([1.5, *(1 / order for order in (1, 1, 2, 2, 3, 3))])
    drawn = torch.randn(settings.num_draws, 2, len(waves), generator=generator)
    # Most motions are mainly of one kind, so a few of the terms are made to matter.
    emphasis = torch.rand(settings.num_draws, 1, len(waves), generator=generator) ** 3
    path = settings.amplitude_px * (drawn * emphasis * sizes) @ torch.stack(waves)
    angles = torch.from_numpy(phase.view_angles_rad(NUM_VIEWS)).float()
    return path[:, 0] * torch.cos(angles) + path[:, 1] * torch.sin(angles)


def _strongest_slices(moving: Tensor, count: int) -> Tensor:
    energy = (moving.detach() ** 2).sum(dim=(1, 2))
    return moving.detach()[energy.argsort(descending=True)[:count]]

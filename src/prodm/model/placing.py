"""Where a lesion rests: what its motion makes likely, and what the image shows.

A translation shows in no image of what moves, which tells s(theta) only up to
c cos(theta) + d sin(theta). Two things tell the place (c, d):

    the motion   The simulator's motions of the same shape, which is s without its translation,
                 rest in few places, in the fewer where it is known at which angle the scan
                 starts. For a drift it is one. For an oscillation with one period in
                 the scan it is a circle: sin(2 theta + q) <w, n> is half a wave of three periods,
                 which shows, and half a translation, whose direction depends on that of w.
    the image    What a trained placer makes of all that lies around (``prodm.model.resting``) or,
                 without one, a separator's odds that calcium rests, over the lesion's pixels.

Both hold where the tissue rests while its calcium moves, as the simulator has it. In a patient it
moves along: nothing tells, nothing is missing anywhere, and calcium is best put where it was seen
on average, as the tissue around it was (``centred``).

The place is where the two together are likeliest. The first is a density over motions that the
simulator may have drawn (``prodm.model.likely``). Both are maps [33, 33] of how far, in rows and
columns of pixels, a lesion rests from where its motion puts it.
"""

import math
from dataclasses import replace

import torch
from torch import Tensor

from prodm.model.likely import likely_motions
from prodm.model.motions import FoundMotion, between_samples
from prodm.model.reading import angles_rad

NUM_STARTS = 12  # that are tried where it is not known; half of all scans start at 0
PLACE_ERROR_PX = 0.4  # what a likely motion spreads over
ELSEWHERE = 1e-5  # density where no motion of the shape rests
SHAPE_TRUST = 2.5  # of the density, as an exponent, against what the image shows
SHAPE_TRUST_IN_FOCUS = 2.0  # the same, once the lesion was seen in focus, all slices of it
EVIDENCE = 6.0  # what the mean log-odds over a lesion count
LEAST_LOG_ODDS = -9.0
FARTHEST_PX = 16
LESION_HU = 60.0
BRIGHTEST_HU = 500.0  # more counts no more


def settle(
    motion: FoundMotion,
    evidence: Tensor,
    start_rad: float | None = None,
    trust: float = SHAPE_TRUST,
) -> FoundMotion:
    """Return a motion with its likeliest translation.

    ``evidence`` is a map of the log-likelihood of what the image shows, were the lesion there,
    ``start_rad`` the angle at which the scan starts, where that is known, and ``trust`` what the
    density of likely motions counts.
    """
    score = trust * log_density(motion, start_rad) + evidence
    inside = score[1:-1, 1:-1]
    row, column = (n + 1 for n in divmod(int(inside.argmax()), inside.shape[1]))
    x_px = column - FARTHEST_PX + between_samples(score[row, column - 1 : column + 2])
    y_px = row - FARTHEST_PX + between_samples(score[row - 1 : row + 2, column])
    return motion.translated(-x_px, -y_px)


def centred(motion: FoundMotion) -> FoundMotion:
    """Return a motion about the place where the lesion was seen on average."""
    x_px, y_px = place_of(motion).tolist()
    along_z = motion.slice_shift
    middle = replace(motion, slice_shift=None if along_z is None else along_z - along_z.mean())
    return middle.translated(-x_px, -y_px)


def place_of(motion: FoundMotion) -> Tensor:
    """Return the translation (x, y) of a motion in pixels."""
    return translation(motion.shift_at(angles_rad()))


def offsets() -> tuple[Tensor, Tensor]:
    """All whole offsets along x and along y, [33, 33] each."""
    along = torch.arange(-FARTHEST_PX, FARTHEST_PX + 1).float()
    x_px, y_px = torch.meshgrid(along, along, indexing="xy")
    return x_px, y_px


def translation(path: Tensor) -> Tensor:
    """Return (c, d) of paths [..., N]: what c cos + d sin makes up of them."""
    angles = angles_rad().to(path)
    found: Tensor = path @ torch.linalg.pinv(torch.stack([angles.cos(), angles.sin()]))
    return found


def log_density(motion: FoundMotion, start_rad: float | None = None) -> Tensor:
    """Return a map of how many motions of this shape rest there, as a logarithm.

    Of those that start at ``start_rad``, or anywhere where that is not known.
    """
    starts = {0.0 if start_rad is None else start_rad: 1.0}
    if start_rad is None:
        others = [n * math.pi / NUM_STARTS for n in range(1, NUM_STARTS)]
        starts |= dict.fromkeys(others, 1 / len(others))
    places, weights = [], []
    for start, share in starts.items():
        likely = likely_motions(motion, start)
        places.append(likely.place)
        weights.append(likely.evidence + math.log(share))
    weight = torch.softmax(torch.cat(weights), dim=0)
    # A lesion that rests farther along x has a motion with less of a translation along x.
    x_px, y_px = (
        (there - offset).reshape(-1, 1)
        for there, offset in zip(place_of(motion), offsets(), strict=True)
    )
    x, y = torch.cat(places).T
    spread = torch.exp(-((x_px - x) ** 2 + (y_px - y) ** 2) / (2 * PLACE_ERROR_PX**2))
    return (spread @ weight + ELSEWHERE).log().reshape(offsets()[0].shape)


def odds_evidence(lesion_hu: Tensor, odds: Tensor) -> Tensor:
    """Return the evidence of a separator's odds, 0 to 1, that calcium rests in a pixel.

    It is the mean of their logarithms over the lesion [Z, Y, X], were it there.
    """
    lesion = torch.where(lesion_hu > LESION_HU, lesion_hu.clamp(max=BRIGHTEST_HU).sqrt(), 0.0)
    lesion = lesion / lesion.sum().clamp(min=1e-6)
    log_odds = torch.logit(odds, eps=1e-6).clamp(min=LEAST_LOG_ODDS) - LEAST_LOG_ODDS
    return EVIDENCE * agreement(lesion, log_odds).sum(dim=0)


def agreement(lesion: Tensor, surroundings: Tensor) -> Tensor:
    """Return the sum of products of images [..., Y, X], the first one moved by all offsets."""
    shape = tuple(length + FARTHEST_PX for length in lesion.shape[-2:])  # none comes round
    first, second = (torch.fft.rfft2(image, s=shape) for image in (lesion, surroundings))
    products = torch.fft.irfft2(first.conj() * second, s=shape)
    along = torch.arange(-FARTHEST_PX, FARTHEST_PX + 1, device=products.device)
    at_offsets: Tensor = products[..., along[:, None] % shape[0], along % shape[1]]
    return at_offsets

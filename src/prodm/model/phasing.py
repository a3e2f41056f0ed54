"""Correction by phase: tell what moves from what lies behind it, find its motion, undo it.

    x = refocus(e)                   e = y - b, what moves; b, the background
    corrected = y - move(x) + x

Calcium is put back in focus, and what is taken away is how that calcium is seen when it moves: none
can be invented, and all else stays as it is, the grain of the tissue included. The whole difficulty
is e, since the faint negative and streaky parts of a moving lesion tell the motion. A separator
network, trained on the simulator's exact answer, tells it (``separate_by_network``). It also
guesses the calcium at rest, blurred where it is not sure, which tells its place. A focuser, where
there is one, then takes a second look, at the image with the motion undone, and its answer takes
the place of x (``prodm.model.focusing``). How far one comes without a network is in
``prodm.model.classical``.

Without a guess the lesion stays at the centre of what was observed, because a translation
shows in no image of what moves; only the anatomy around it tells.

Here is what is done to one block; ``prodm.model.scan`` corrects those of a scan together.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from prodm.model import normalise, to_hu
from prodm.model.baselines import Predict
from prodm.model.clearing import smoother
from prodm.model.focusing import REFOCUSED, focus, look_again
from prodm.model.motions import FoundMotion, explained_share, put_back, without_grain
from prodm.model.placing import LESION_HU, centred, odds_evidence, settle
from prodm.model.reading import look_through, read_path
from prodm.model.resting import clean, placer_evidence
from prodm.model.sampler import may_hold_calcium, slice_windows
from prodm.model.search import SearchSettings, search

LEAST_MOVING_HU = 60.0  # below it, what seems to move is noise
LEAST_VOXELS = 14  # of a lesion in focus; what has fewer may be grain
LEAST_PEAK_HU = 240.0  # of the same over its background; what is fainter may be tissue
SMOOTHER_HU = 700.0  # what the image gains without a lesion that moves in it,
SMOOTHER_PRODUCT_HU = 70.0  # times what that is of all that it could add: streaks may be long
SEARCH_SEED = 0  # of motions that are drawn beside those that were read
MOST_WINDOWS = 256  # that a network sees at a time
STILL_HU = 300.0  # what calcium at rest has over its background, where a separator is sure of it
SIMULATED_START_RAD = 0.0  # where scans whose tissue rests start, those of the paper too


@dataclass(frozen=True, eq=False)
class Phased:
    """A block [Z, Y, X] corrected by phase, in HU."""

    corrected_hu: Tensor
    moving_hu: Tensor  # what was taken to move
    motion: FoundMotion | None  # None where nothing was found to move
    refocused_hu: Tensor | None = None  # what moves, in focus, where that is known already
    lesion_hu: Tensor | None = None  # what a focuser saw and was put in its place

    @property
    def explained(self) -> float:
        """Share of what moves that the motion of its focused, positive part explains."""
        if self.motion is None:
            return 1.0
        still = self.refocused_hu
        if still is None:
            still = self.motion.refocus(self.moving_hu).clamp(min=0)
        return explained_share(self.moving_hu, still, self.motion)


@dataclass(frozen=True)
class Separator:
    """A trained separator in use, with the number of slices that it sees."""

    predict: Predict
    num_slices: int
    reader: tuple[Predict, int] | None = None  # a trained reader, likewise
    placer: tuple[Predict, int] | None = None  # a placer
    focuser: tuple[Predict, int] | None = None  # a focuser
    polisher: tuple[Predict, int] | None = None  # and a polisher
    gaps: Callable[[Tensor], Tensor] | None = None  # where calcium was taken out, for a placer
    tissue_rests: bool = True  # and so tells where calcium belongs; see ``prodm.model.placing``

    def look(self, windows: Tensor) -> Tensor:
        """Return what a reader is shown of windows [B, k, Y, X] (``look_through``)."""
        return look_through(self.predict, self.num_slices, windows)

    def read(self, moving_hu: Tensor, still_hu: Tensor) -> Tensor | None:
        """Return the path of what moves [Z, Y, X], where there is a reader."""
        if self.reader is None:
            return None
        return read_path(moving_hu, still_hu / STILL_HU, *self.reader)


def both_ways(predict: Predict) -> Predict:
    """Return the mean of what a method says of images, and of the same turned by half.

    A scan over 180 degrees measures the same lines of both, so that one is as likely as the other;
    the errors differ. What is returned must be images, too.
    """

    def corrected(y: Tensor, generator: torch.Generator, num_jumps: int | None = None) -> Tensor:
        turned = predict(y.flip(-2, -1), generator, num_jumps).flip(-2, -1)
        return (predict(y, generator, num_jumps) + turned) / 2

    return corrected


@dataclass(frozen=True, eq=False)
class Separation:
    """What a separator sees in blocks [..., Z, Y, X], in HU."""

    background_hu: Tensor
    still_hu: Tensor  # the calcium over its background, at rest, fainter where it is not sure


def correct_by_phase(
    block_hu: Tensor,
    background_hu: Tensor,
    settings: SearchSettings,
    generator: torch.Generator,
    guess_hu: Tensor | None = None,
    separator: Separator | None = None,
) -> Phased:
    """Correct one block [Z, Y, X] whose background is known.

    ``guess_hu`` is a first guess of the calcium at rest over its background, and ``separator``
    the one that told both. Its reader tells how what moves does so, for the search to start from,
    its placer where it rests and its focuser what it is, once the motion was found.
    """
    moving = block_hu - background_hu
    motion = find_motion(moving, settings, generator, guess_hu, separator)
    if guess_hu is None or separator is None:
        if motion is None:
            return Phased(block_hu, torch.zeros_like(moving), None)
        return Phased(in_focus(block_hu, moving, motion), moving, motion)
    odds = guess_hu / STILL_HU
    if motion is not None and not motion.is_rest:
        motion = settle_block(block_hu, moving, odds, motion, separator)
    return put_in_focus(block_hu, moving, odds, motion, separator)


def put_in_focus(
    block_hu: Tensor,
    moving_hu: Tensor,
    odds: Tensor,
    motion: FoundMotion | None,
    separator: Separator,
) -> Phased:
    """Correct a block [Z, Y, X] by a motion that was found and has its place.

    A separator's focuser tells what the calcium is, where there is one.
    """
    if motion is None:
        return Phased(block_hu, torch.zeros_like(moving_hu), None)
    if motion.is_rest or separator.focuser is None:
        return Phased(in_focus(block_hu, moving_hu, motion), moving_hu, motion)
    views = look_again(block_hu, moving_hu, odds, motion)
    still = without_grain(focus(views, *separator.focuser))
    if not moves_here(block_hu, still, motion.apply(still)):
        return Phased(block_hu, moving_hu, None)
    corrected = put_back(block_hu, moving_hu, still, motion)
    return Phased(corrected, moving_hu, motion, views[REFOCUSED], still)


def moves_here(block_hu: Tensor, still_hu: Tensor, seen_hu: Tensor) -> bool:
    """Tell whether a lesion, given at rest and as it would be seen, moves in a block [Z, Y, X].

    It does where it is more than grain, bright enough, and the image is smoother without it
    (``prodm.model.clearing``).
    """
    if int((still_hu > LESION_HU).sum()) < LEAST_VOXELS or float(still_hu.max()) < LEAST_PEAK_HU:
        return False
    gained_hu, share = smoother(block_hu, seen_hu)
    return gained_hu >= SMOOTHER_HU and gained_hu * share >= SMOOTHER_PRODUCT_HU


def may_move(moving_hu: Tensor) -> bool:
    """Tell whether what seems to move [Z, Y, X] is more than noise."""
    return float(moving_hu.max()) >= LEAST_MOVING_HU


def find_motion(
    moving_hu: Tensor,
    settings: SearchSettings,
    generator: torch.Generator,
    guess_hu: Tensor | None = None,
    separator: Separator | None = None,
) -> FoundMotion | None:
    """Return the motion of what moves [Z, Y, X]; None where nothing does.

    ``guess_hu`` and ``separator`` are as in ``correct_by_phase``. Its place is not known yet. Where
    there is a reader, all blocks are searched with the same draws, so that each has one motion.
    """
    if not may_move(moving_hu):
        return None
    path = None
    if guess_hu is not None and separator is not None:
        path = separator.read(moving_hu, guess_hu)
    if path is not None:
        generator = torch.Generator().manual_seed(SEARCH_SEED)
    return search(moving_hu, settings, generator, path)[0]


def settle_block(
    block_hu: Tensor, moving_hu: Tensor, odds: Tensor, motion: FoundMotion, separator: Separator
) -> FoundMotion:
    """Return the motion that was found in a block [Z, Y, X] with its likeliest place."""
    if not separator.tissue_rests:
        return centred(motion)
    evidence = place_evidence(block_hu, moving_hu, odds, motion, separator)
    return settle(motion, evidence, SIMULATED_START_RAD)


def place_evidence(
    block_hu: Tensor, moving_hu: Tensor, odds: Tensor, motion: FoundMotion, separator: Separator
) -> Tensor:
    """Return the evidence [33, 33] of where a block's lesion rests.

    A separator's placer tells it, or else the ``odds`` of calcium at rest.
    """
    if separator.placer is None:
        return odds_evidence(motion.undo(moving_hu), odds)
    refocused = motion.refocus(moving_hu)
    without_lesion = clean(block_hu, refocused, motion)
    return placer_evidence(without_lesion, refocused, separator.placer)


def in_focus(
    block_hu: Tensor, moving_hu: Tensor, motion: FoundMotion, share: float = 1.0
) -> Tensor:
    """Return a block with what moves put back in focus, or a ``share`` of it."""
    if motion.is_rest:
        return block_hu
    still = motion.focused(moving_hu)
    return block_hu + share * (still - motion.apply(still))


def trust(explained: float, trusted: tuple[float, float]) -> float:
    """Weight of the phase, from 0 to 1, for the share of what moves that it explains.

    ``trusted`` are the shares at which it begins to count, and counts fully.

    >>> [round(trust(share, (0.3, 0.8)), 2) for share in (0.0, 0.55, 1.0)]
    [0.0, 0.5, 1.0]
    """
    low, high = trusted
    return min(max((explained - low) / (high - low), 0.0), 1.0)


def separate_by_network(blocks_hu: Tensor, separator: Separator) -> Separation:
    """Return what a separator network sees in blocks [N, Z, Y, X] in HU.

    Beyond the range that networks see, the background keeps what the clip took away only
    where it is dark: what is too bright is calcium.
    """
    image, num_slices = normalise(blocks_hu), separator.num_slices
    generator = torch.Generator()  # a separator draws nothing
    behind, still = image.clone(), torch.zeros_like(image)
    wanted = may_hold_calcium(image)
    if wanted.any():
        with torch.inference_mode():
            windows = slice_windows(image, num_slices)[wanted]
            parts = [
                separator.predict(part, generator) for part in torch.split(windows, MOST_WINDOWS)
            ]
            seen = torch.cat(parts)[:, [num_slices // 2, num_slices + num_slices // 2]]
        behind.flatten(0, 1)[wanted], still.flatten(0, 1)[wanted] = seen[:, 0], seen[:, 1]
    background = to_hu(behind) + (blocks_hu - to_hu(image)).clamp(max=0)
    return Separation(background, still * STILL_HU)

"""The blocks of a scan, corrected by phase together.

Its calcium moves alike, or nearly so: what moves in all blocks tells the motion far better than
what moves in one (``prodm.model.finding``). Where tissue moves along, as in a patient, calcium is
then put in focus where it was seen on average. Where tissue rests, as in the simulator, its scan is
gone through once more:

    settle    the place where the calcium rests, by the motion and by the gaps in the tissue
    focus     what a focuser sees there
    refit     the motion, by what the focuser saw (``prodm.model.refitting``), and settle again
    polish    what a focuser sees there, by what it leaves behind (``prodm.model.polishing``)
    refit     and settle once more, since all is cleaner now, until the motion stays as it is
    polish    what it sees in all blocks, also those in which nothing was seen to go along

and each lesion is put back that can be believed.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from prodm.model.baselines import Predict
from prodm.model.believing import believed
from prodm.model.finding import find_motions, settle_motions, with_each
from prodm.model.focusing import REFOCUSED, focus, look_again
from prodm.model.likely import as_drawn
from prodm.model.motions import FoundMotion, put_back, without_grain
from prodm.model.phasing import (
    SEARCH_SEED,
    SIMULATED_START_RAD,
    STILL_HU,
    Phased,
    Separator,
    may_move,
    moves_here,
    place_evidence,
    put_in_focus,
    separate_by_network,
)
from prodm.model.placing import LESION_HU, SHAPE_TRUST_IN_FOCUS, centred, place_of
from prodm.model.polishing import polish
from prodm.model.reading import angles_rad
from prodm.model.refitting import refit
from prodm.model.resting import evidence_of_all
from prodm.model.search import SearchSettings
from prodm.model.sharpness import LEAST_DIPS, dips
from prodm.runs import Progress, no_progress

MOST_SETTLINGS = 3  # of what was seen in focus, after the first
SETTLED_PX = 0.15  # root mean square of s, by which a motion that stays may change
MOST_AT_ONCE = 4  # blocks, which take a few hundred megabytes each

Margin = tuple[int, int, int]  # voxels (z, y, x) that blocks have more, on each side
NO_MARGIN: Margin = (0, 0, 0)


def correct_hu_by_phase(
    blocks_hu: NDArray[np.float32],
    separator: Separator,
    *,
    seed: int,
    settings: SearchSettings | None = None,
    progress: Progress = no_progress,
    margin: Margin = NO_MARGIN,
) -> NDArray[np.float32]:
    """Correct the blocks [N, Z, Y, X] of one scan, in HU, and the margin that they come with."""
    settings = SearchSettings() if settings is None else settings
    generator = torch.Generator().manual_seed(seed)
    blocks = torch.from_numpy(blocks_hu)
    phased = correct_scan(blocks, separator, settings, generator, progress, margin)
    corrected: NDArray[np.float32] = torch.stack([one.corrected_hu for one in phased]).numpy()
    return corrected


def correct_scan(
    blocks_hu: Tensor,
    separator: Separator,
    settings: SearchSettings,
    generator: torch.Generator,
    progress: Progress = no_progress,
    margin: Margin = NO_MARGIN,
) -> list[Phased]:
    """Correct the blocks [N, Z, Y, X] of one scan with what a separator and its helpers see.

    Blocks may come with a ``margin``, so that calcium that moves in and out of them is seen whole.
    The motion is told by what moves inside of it: bone beside the heart tells nothing.
    """
    seen = separate_by_network(blocks_hu, separator)
    moving, odds = blocks_hu - seen.background_hu, seen.still_hu / STILL_HU
    inner, inner_still = (within(image, margin) for image in (moving, seen.still_hu))
    shown = [n for n in range(len(blocks_hu)) if may_move(inner[n])]
    paths = {n: separator.read(inner[n], inner_still[n]) for n in shown}
    if separator.reader is not None:
        generator = torch.Generator().manual_seed(SEARCH_SEED)
    if separator.tissue_rests and settings.start_rad is None:
        settings = replace(settings, start_rad=SIMULATED_START_RAD)
    motions = find_motions(
        [inner[n] if n in paths else None for n in range(len(blocks_hu))],
        [paths.get(n) for n in range(len(blocks_hu))],
        settings,
        generator,
        progress,
        list(within(blocks_hu, margin)),
        alike=separator.tissue_rests,
    )
    return correct_in_place(blocks_hu, moving, odds, motions, separator, margin)


def within(blocks: Tensor, margin: Margin) -> Tensor:
    """Return blocks [N, Z, Y, X] without their margin."""
    z, y, x = (slice(m, n - m) for m, n in zip(margin, blocks.shape[-3:], strict=True))
    return blocks[..., z, y, x]


def inside(block: Tensor, margin: Margin) -> Tensor:
    """Return a block [Z, Y, X] with nothing in its margin."""
    kept = torch.zeros_like(block)
    within(kept, margin)[...] = within(block, margin)
    return kept


def correct_in_place(
    blocks_hu: Tensor,
    moving: Tensor,
    odds: Tensor,
    motions: Sequence[FoundMotion | None],
    separator: Separator,
    margin: Margin = NO_MARGIN,
) -> list[Phased]:
    """Correct the blocks [N, Z, Y, X] of one scan by motions whose places are not known yet."""

    def evidence(n: int, motion: FoundMotion) -> Tensor:
        block, moves, rests = (within(image[n], margin) for image in (blocks_hu, moving, odds))
        return place_evidence(block, moves, rests, motion, separator)

    if not separator.tissue_rests:
        centred_motions = [None if motion is None else centred(motion) for motion in motions]
        return of_each_block(
            lambda n: put_in_focus(blocks_hu[n], moving[n], odds[n], centred_motions[n], separator),
            len(blocks_hu),
        )
    motions = with_each(motions, lambda motion, _: as_drawn(motion, SIMULATED_START_RAD))
    motions = settle_motions(motions, evidence, SIMULATED_START_RAD)
    goes_along = [motion is not None and not motion.is_rest for motion in motions]
    phased = of_each_block(
        lambda n: put_in_focus(blocks_hu[n], moving[n], odds[n], motions[n], separator),
        len(blocks_hu),
    )
    if separator.focuser is None:
        return phased
    if separator.placer is not None:
        motions = settle_again(blocks_hu, phased, separator.placer, margin)
    shared = _most_common(motions)
    if shared is None:
        return phased
    num_alike = sum(motion is shared for motion in motions)

    def look_at(n: int, motion: FoundMotion) -> Phased:
        images = blocks_hu[n], moving[n], odds[n]
        return look_again_at(
            *images, motion, separator, goes_along=goes_along[n], num_alike=num_alike
        )

    if separator.placer is not None:
        seen = [n for n, motion in enumerate(motions) if motion is not None]
        shared = settle_for_good(
            shared,
            blocks_hu[seen],
            lambda motion: of_each_block(lambda at: look_at(seen[at], motion), len(seen)),
            separator.placer,
            margin,
        )
    return of_each_block(lambda n: look_at(n, shared), len(blocks_hu))


def settle_for_good(
    motion: FoundMotion,
    blocks_hu: Tensor,
    look: Callable[[FoundMotion], list[Phased]],
    placer: tuple[Predict, int],
    margin: Margin = NO_MARGIN,
) -> FoundMotion:
    """Return the motion that blocks [N, Z, Y, X] settle on, looked at again until it stays.

    Where nothing is seen by a motion, it is the one before.
    """
    for _ in range(MOST_SETTLINGS):
        again = _most_common(settle_again(blocks_hu, look(motion), placer, margin))
        if again is None:
            break
        away = again.shift_at(angles_rad()) - motion.shift_at(angles_rad())
        motion = again
        if float(away.square().mean().sqrt()) < SETTLED_PX:
            break
    return motion


def of_each_block(make: Callable[[int], Phased], count: int) -> list[Phased]:
    """Return what is made of each of so many blocks, a few at a time where torch has the threads.

    Each block then has one thread: the threads of torch itself are for larger images than these.
    """
    threads = torch.get_num_threads()
    if min(threads, count) < 2:
        return [make(n) for n in range(count)]
    torch.set_num_threads(1)
    try:
        at_once = min(threads, MOST_AT_ONCE)
        with ThreadPoolExecutor(at_once, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            return list(pool.map(make, range(count)))
    finally:
        torch.set_num_threads(threads)


def look_again_at(
    block_hu: Tensor,
    moving_hu: Tensor,
    odds: Tensor,
    motion: FoundMotion,
    separator: Separator,
    *,
    goes_along: bool,
    num_alike: int = 1,
) -> Phased:
    """Correct a block [Z, Y, X] by the motion of its scan, whose tissue rests.

    A small lesion may fall apart so far that a separator does not see it go along. With the motion
    undone it is sharp again, and a focuser can tell it from what is smeared then. All else rests,
    and so does bright calcium without dark streaks, that of valves and of the aorta.
    ``num_alike`` is in how many blocks the motion was seen.
    """
    at_rest = Phased(block_hu, moving_hu, None)
    rests = may_move(moving_hu) and dips(moving_hu) < LEAST_DIPS
    if separator.focuser is None or (rests and not goes_along):
        return at_rest
    views = look_again(block_hu, moving_hu, odds, motion)
    still = without_grain(focus(views, *separator.focuser))
    if float(still.max()) <= LESION_HU:
        return at_rest
    if separator.polisher is not None:
        still = without_grain(polish(block_hu, moving_hu, motion, still, separator.polisher))
    if separator.gaps is not None:
        still = believed(block_hu, still, motion, separator.gaps, num_alike)
        is_there = bool(still.any())
    else:
        is_there = moves_here(block_hu, still, motion.apply(still))
    if not is_there:
        return at_rest
    if goes_along:
        corrected = put_back(block_hu, moving_hu, still, motion)
        return Phased(corrected, moving_hu, motion, views[REFOCUSED], still)
    seen = motion.apply(still)
    return Phased(block_hu - seen + still, seen, motion, still, still)


def settle_again(
    blocks_hu: Tensor,
    phased: Sequence[Phased],
    placer: tuple[Predict, int],
    margin: Margin = NO_MARGIN,
) -> list[FoundMotion | None]:
    """Return the motions of lesions that were seen in focus, with shapes and places told by these.

    A focuser's lesion leaves a cleaner image behind than what was refocused of a separator's, and
    so both show better. None where no lesion was put back. What lies in the margin tells no place:
    other blocks have it inside.
    """

    def lesion_of(n: int) -> Tensor:
        lesion_hu = phased[n].lesion_hu
        if lesion_hu is None:
            raise RuntimeError("a motion without a lesion is not settled again")
        return lesion_hu

    def fitted(motion: FoundMotion, members: list[int]) -> FoundMotion:
        again = refit(motion, [(blocks_hu[n], lesion_of(n)) for n in members])
        if again is motion:
            return motion
        drawn = as_drawn(again, SIMULATED_START_RAD)
        return drawn.translated(*(place_of(motion) - place_of(drawn)).tolist())

    def evidence(n: int, motion: FoundMotion) -> Tensor:
        lesion = lesion_of(n)
        return evidence_of_all(phased[n].corrected_hu - lesion, inside(lesion, margin), placer)

    motions = [None if one.lesion_hu is None else one.motion for one in phased]
    motions = with_each(motions, fitted)
    return settle_motions(motions, evidence, SIMULATED_START_RAD, SHAPE_TRUST_IN_FOCUS)


def _most_common(motions: Sequence[FoundMotion | None]) -> FoundMotion | None:
    """Return the motion that most blocks share; None where all rest."""
    moving = [motion for motion in motions if motion is not None and not motion.is_rest]
    return max(moving, key=lambda one: sum(other is one for other in moving), default=None)

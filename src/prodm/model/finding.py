"""The motions of all blocks of a scan: calcium that moves alike is looked at together.

One block shows its motion through all the errors of its separation. Several blocks with the same
motion show it far better, and where one of them alone could rest in many places, together they
fit the tissue in few. Dark streaks tell a motion best: dense calcium has few of them for its size,
and hardly changes in a small motion. So what moves in the blocks whose dark streaks tell most is
searched together first, beginning with what a reader saw in all blocks on average, those counting
most that have dark streaks and were read to move. Then each block is asked:

    goes along    the shared motion brings calcium into focus
    moves alone   a motion of its own makes it much sharper than the shared one and than rest
    rests         neither does

In the simulator, as in the paper, all calcium of a scan moves alike, and the second answer is not
asked for in its scans. In a patient it need not, and some arteries may go their own way. It has to
be much better, because a motion that a block finds alone also sharpens what is noise, or bone.

What is in focus is calcium where it is sharp, or where there is much of it: a lesion beside
something that rests may be no sharper than before, but what is wrongly taken to move falls apart.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from prodm.model.motions import FoundMotion
from prodm.model.placing import LESION_HU, SHAPE_TRUST, settle
from prodm.model.reading import without_translation
from prodm.model.search import SearchSettings, search, search_together
from prodm.model.sharpness import dips, sharpness_cost
from prodm.runs import Progress, no_progress

MOST_TOGETHER = 4  # blocks that are searched together
SHARPER = -1.0  # cost of a shared motion below which no other is looked for; rest costs -1
ALONE_PRICE = 0.5  # what a motion of its own must cost less than the shared one
RESTLESS_PRICE = 0.15  # and less than rest
ENOUGH_VOXELS = 60  # in focus; what has fewer must be sharper than at rest, what has more need not
LENIENCE = 0.7  # of the cost, for each factor e of voxels
MOST_BLURRED = -0.7  # cost of any calcium at most
MOST_VOXELS = 3000  # with more, it is bone, unless it is sharper than at rest

Evidence = Callable[[int, FoundMotion], Tensor]  # of a block's places, were a motion its own


def find_motions(
    moving: Sequence[Tensor | None],
    paths: Sequence[Tensor | None],
    settings: SearchSettings,
    generator: torch.Generator,
    progress: Progress = no_progress,
    images: Sequence[Tensor] | None = None,
    *,
    alike: bool = False,
) -> list[FoundMotion | None]:
    """Return the motion of what moves in each block [Z, Y, X] of a scan.

    None where nothing seems to move. Blocks that move together share one object. ``paths`` are what
    a reader saw, where there is one, and ``images`` the blocks themselves, which tell the shared
    motion best. All searches draw the same motions beside it. Where all calcium is known to move
    ``alike``, no block moves alone.
    """
    seed = int(torch.randint(2**31, (1,), generator=generator))
    seen = {n: block for n, block in enumerate(moving) if block is not None}
    found: list[FoundMotion | None] = [None] * len(moving)
    if not seen:
        return found
    may_move = [n for n, block in seen.items() if dips(block) >= settings.least_dips]
    telling = sorted(may_move, key=lambda n: -_darkness(seen[n]) * dips(seen[n]))[:MOST_TOGETHER]
    path = _read_together(seen, paths)
    shared = search_together(
        [seen[n] for n in telling],
        settings,
        _seeded(seed),
        path,
        None if images is None else [images[n] for n in telling],
        [read for n in telling if (read := paths[n]) is not None] if len(telling) > 1 else [],
    )[0]
    for n, block in seen.items():
        progress(n, len(moving))
        motions = [shared]
        if len(seen) > 1 and not alike and sharpness_cost(block, shared) >= SHARPER:
            motions += search(block, settings, _seeded(seed), paths[n])
        found[n] = _choose(block, motions)
    return found


def _darkness(moving: Tensor) -> float:
    """Return how dark the streaks of what moves are, all together."""
    return float(moving.clamp(max=0).norm())


def _read_together(moving: Mapping[int, Tensor], paths: Sequence[Tensor | None]) -> Tensor | None:
    """Return the mean of what a reader saw in blocks; None without a reader."""
    read = {n: path for n in moving if (path := paths[n]) is not None}
    if not read:
        return None
    weights = torch.tensor(
        [
            _darkness(moving[n]) * float(without_translation(path[0]).norm())
            for n, path in read.items()
        ]
    )
    if not weights.any():
        weights = torch.ones(len(read))
    together: Tensor = torch.einsum(
        "b,bcn->cn", weights / weights.sum(), torch.stack([*read.values()])
    )
    return together


def _choose(moving: Tensor, motions: Sequence[FoundMotion]) -> FoundMotion:
    """Return the motion of a block: the shared one, which comes first, one of its own, or rest."""
    shared, *alone = motions
    if alone:
        rest_cost = next(motion.cost for motion in alone if motion.is_rest)
        shared_cost = sharpness_cost(moving, shared)
        limit = min(shared_cost - ALONE_PRICE, rest_cost - RESTLESS_PRICE)
        if alone[0].cost < limit and is_calcium(moving, alone[0]):
            return alone[0]
    if is_calcium(moving, shared):
        return shared
    return FoundMotion(torch.zeros_like(shared.shift_px), shared.start_rad)


def is_calcium(moving: Tensor, motion: FoundMotion) -> bool:
    """Tell whether a motion brings what moves [Z, Y, X] into focus as it would calcium."""
    num_voxels = int((motion.undo(moving) > LESION_HU).sum())
    most = min(-1 + LENIENCE * math.log((1 + num_voxels) / ENOUGH_VOXELS), MOST_BLURRED)
    if num_voxels > MOST_VOXELS:
        most = SHARPER
    return not motion.is_rest and sharpness_cost(moving, motion) < most


def _seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def with_each(
    motions: Sequence[FoundMotion | None],
    change: Callable[[FoundMotion, list[int]], FoundMotion],
) -> list[FoundMotion | None]:
    """Return the motions of blocks with each one that is not rest changed, once.

    ``change`` is given the motion and the numbers of the blocks that share it, and go on to do so.
    """
    changed: list[FoundMotion | None] = list(motions)
    for motion in {id(one): one for one in motions if one is not None}.values():
        if motion.is_rest:
            continue
        members = [n for n, one in enumerate(motions) if one is motion]
        other = change(motion, members)
        for n in members:
            changed[n] = other
    return changed


def settle_motions(
    motions: Sequence[FoundMotion | None],
    evidence: Evidence,
    start_rad: float | None = None,
    trust: float = SHAPE_TRUST,
) -> list[FoundMotion | None]:
    """Return motions with their likeliest places, of a scan that starts at a known angle or not.

    Blocks that move together rest together, so that the evidence of all of them adds up; ``trust``
    is what the density of likely motions counts.
    """

    def settled(motion: FoundMotion, blocks: list[int]) -> FoundMotion:
        maps = torch.stack([evidence(n, motion) for n in blocks])
        return settle(motion, maps.sum(dim=0), start_rad, trust)

    return with_each(motions, settled)

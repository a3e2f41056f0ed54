"""The motions of all blocks of a scan: calcium that moves alike is looked at together.

One block shows its motion through all the errors of its separation. Several blocks with the same
motion show it far better, and where one of them alone could rest in many places, together they
fit the tissue in few. So what moves in the strongest blocks is searched together first. Then
each block is asked:

    goes along    the shared motion leaves it about as sharp as rest does, or sharper
    moves alone   a motion of its own makes it much sharper than the shared one and than rest
    rests         neither does

In the simulator, as in the paper, all calcium of a scan moves alike. In a patient it need not, and
the second answer is for arteries that go their own way. It has to be much better, because a
motion that a block finds alone also sharpens what is noise, or bone.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from prodm.model.motions import FoundMotion, lack_of_peak
from prodm.model.placing import settle
from prodm.model.search import SearchSettings, search, search_together, sharpness_cost
from prodm.runs import Progress, no_progress

MOST_TOGETHER = 6  # blocks that are searched together
ALONG = -0.9  # cost of the shared motion in a block that goes along; rest costs -1
SHARPER = -1.0  # at less than this, no other motion is looked for
ALONE_PRICE = 0.5  # what a motion of its own must cost less than the shared one
RESTLESS_PRICE = 0.15  # and less than rest

Evidence = Callable[[int, FoundMotion], Tensor]  # of a block's places, were a motion its own


def find_motions(
    moving: Sequence[Tensor | None],
    paths: Sequence[Tensor | None],
    settings: SearchSettings,
    generator: torch.Generator,
    progress: Progress = no_progress,
) -> list[FoundMotion | None]:
    """Return the motion of what moves in each block [Z, Y, X] of a scan.

    None where nothing seems to move. Blocks that move together share one object. ``paths`` are what
    a reader saw, where there is one. All searches draw the same motions beside it.
    """
    seed = int(torch.randint(2**31, (1,), generator=generator))
    shown = [n for n, block in enumerate(moving) if block is not None]
    found: list[FoundMotion | None] = [None] * len(moving)
    if not shown:
        return found
    seen = {n: block for n, block in enumerate(moving) if block is not None}
    strongest = sorted(shown, key=lambda n: float(lack_of_peak(seen[n][None])[0]))[:MOST_TOGETHER]
    shared = search_together(
        [seen[n] for n in strongest], settings, _seeded(seed), [paths[n] for n in strongest]
    )
    if len(shown) == 1:
        found[shown[0]] = shared[0]
        return found
    for n in shown:
        progress(n, len(moving))
        found[n] = _of_block(seen[n], paths[n], shared[0], settings, _seeded(seed))
    return found


def _of_block(
    moving: Tensor,
    path: Tensor | None,
    shared: FoundMotion,
    settings: SearchSettings,
    generator: torch.Generator,
) -> FoundMotion:
    cost = 0.0 if shared.is_rest else sharpness_cost(moving, shared)
    if cost < SHARPER:
        return shared
    alone = search(moving, settings, generator, path)
    rest = next(motion for motion in alone if motion.is_rest)
    best = alone[0]
    if best.cost < min(cost - ALONE_PRICE, rest.cost - RESTLESS_PRICE):
        return best
    return shared if cost < ALONG else rest


def _seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def settle_motions(
    motions: Sequence[FoundMotion | None], evidence: Evidence
) -> list[FoundMotion | None]:
    """Return motions with their likeliest places.

    Blocks that move together rest together, so that the evidence of all of them adds up.
    """
    settled: list[FoundMotion | None] = list(motions)
    for motion in {id(one): one for one in motions if one is not None}.values():
        if motion.is_rest:
            continue
        members = [n for n, one in enumerate(motions) if one is motion]
        maps = torch.stack([evidence(n, motion) for n in members])
        place = settle(motion, maps.sum(dim=0))
        for n in members:
            settled[n] = place
    return settled

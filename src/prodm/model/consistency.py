"""ProDM held to its physics: whatever the network says, the calcium is the one that was observed.

A network may blur calcium, lose some, or make some up. The phase (``prodm.model.phasing``) can do
neither, but does not know where the calcium was at rest, and fails where its motion is not
rigid. So after each network call the estimate x0^ and the observation y are brought together:

    motion     of what moves: a few are found, once per block, and the one that agrees best with
               a guess of the still calcium is chosen; the guess is the mean of x0^ and what the
               separator takes to be at rest
    phased     background + what moves, put back in focus
    x0^        <- (1 - w) x0^ + w phased

w rises with the share of what moves that the motion explains: no switch, and none of the phase
where no motion explains what is seen. Windows of one block share its motion. A block in which
the separator sees nothing move, or whose motion is rest, stays as it is, whatever the network
would paint into it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from prodm.model import HIGH_HU, LOW_HU, normalise
from prodm.model.baselines import ModelSettings, build_predict
from prodm.model.motions import FoundMotion, choose
from prodm.model.network import Network
from prodm.model.phasing import (
    LEAST_MOVING_HU,
    Phased,
    Separation,
    Separator,
    separate_by_network,
    trust,
)
from prodm.model.sampler import may_hold_calcium, slice_windows
from prodm.model.search import SearchSettings
from prodm.model.search import search as search_motion

MOST_BLOCKS = 16  # that are walked together
TRUSTED = (0.3, 0.8)  # share explained at which the phase begins to count, and counts fully


@dataclass(eq=False)
class Consistency:
    """The step between network calls, for the blocks of one walk."""

    blocks_hu: Tensor  # [N, Z, Y, X]
    separation: Separation
    motions: Sequence[Sequence[FoundMotion]]  # that each may have had; none where nothing moves
    num_slices: int
    wanted: Tensor  # [N * Z], the slices that the network sees
    result_hu: Tensor | None = None  # of the last step [N, Z, Y, X]
    _undone_of: dict[int, list[Tensor]] = field(default_factory=dict)
    _phased_by: dict[tuple[int, FoundMotion], tuple[Tensor, float]] = field(default_factory=dict)

    def __call__(self, windows: Tensor) -> Tensor:
        """Return estimates [n, k, Y, X] in [0, 1], brought together with the observation.

        There is one window for each slice that is ``wanted``.
        """
        change = torch.zeros_like(self.blocks_hu)
        image = normalise(self.blocks_hu)
        middles = windows[:, self.num_slices // 2] - image.flatten(0, 1)[self.wanted]
        change.flatten(0, 1)[self.wanted] = (HIGH_HU - LOW_HU) * middles
        self.result_hu = self._together(self.blocks_hu + change)
        together = (self.result_hu - LOW_HU) / (HIGH_HU - LOW_HU)
        return slice_windows(together, self.num_slices)[self.wanted]

    def _together(self, estimate_hu: Tensor) -> Tensor:
        """Return an estimate and the phase in one, in HU [N, Z, Y, X]."""
        results = []
        for n, motions in enumerate(self.motions):
            estimate = estimate_hu[n]
            if not motions:  # nothing moves, so there is nothing to correct
                results.append(self.blocks_hu[n])
                continue
            background = self.separation.background_hu[n]
            guess = (estimate - background + self.separation.still_hu[n]) / 2
            motion = choose(motions, self._undone(n), guess)
            phased, share = self._phased(n, motion)
            results.append((1 - share) * estimate + share * phased)
        return torch.stack(results)

    def _undone(self, n: int) -> list[Tensor]:
        """What moves in a block with each of its motions undone; worked out once."""
        if n not in self._undone_of:
            moving = self.blocks_hu[n] - self.separation.background_hu[n]
            self._undone_of[n] = [motion.undo(moving) for motion in self.motions[n]]
        return self._undone_of[n]

    def _phased(self, n: int, motion: FoundMotion) -> tuple[Tensor, float]:
        """A block corrected by one of its motions, and how far to trust it; worked out once."""
        if (n, motion) not in self._phased_by:
            background = self.separation.background_hu[n]
            moving = self.blocks_hu[n] - background
            phased = Phased(background + motion.focused(moving), moving, motion)
            share = 1.0 if motion.is_rest else trust(phased.explained, TRUSTED)
            self._phased_by[n, motion] = phased.corrected_hu, share
        return self._phased_by[n, motion]


def correct_consistently(
    blocks_hu: NDArray[np.float32],
    model: tuple[ModelSettings, Network],
    separator: Separator,
    *,
    seed: int,
    num_jumps: int | None = None,
    search: SearchSettings | None = None,
) -> NDArray[np.float32]:
    """Correct blocks [N, Z, Y, X] in HU with a network and the phase together.

    ``model`` is a trained network that walks, with its settings.
    """
    search = SearchSettings() if search is None else search
    generator = torch.Generator().manual_seed(seed)
    settings, network = model
    results = []
    for blocks in torch.split(torch.from_numpy(blocks_hu), MOST_BLOCKS):
        separation = separate_by_network(blocks, separator)
        motions = [
            search_motion(moving, search, generator, separator.read(moving))
            if float(moving.max()) >= LEAST_MOVING_HU
            else []
            for moving in blocks - separation.background_hu
        ]
        image, num_slices = normalise(blocks), settings.network.num_slices
        wanted = may_hold_calcium(image)
        if not wanted.any():
            results.append(blocks)
            continue
        step = Consistency(blocks, separation, motions, num_slices, wanted)
        predict = build_predict(settings, network, between=step)
        with torch.inference_mode():
            predict(slice_windows(image, num_slices)[wanted], generator, num_jumps)
        if step.result_hu is None:
            raise RuntimeError("the walk made no network call")
        results.append(step.result_hu)
    corrected: NDArray[np.float32] = torch.cat(results).numpy()
    return corrected

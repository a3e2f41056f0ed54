"""ProDM held to its physics: whatever the network says, the calcium is the one that was observed.

A network may blur calcium, lose some, or make some up. The phase (``prodm.model.phasing``) can do
neither, but does not know where the calcium was at rest, and fails where its motion is not
rigid. So after each network call the estimate x0^ and the observation y are brought together:

    phased     what moves, put back in focus; worked out once per scan
    x0^        <- (1 - w) x0^ + w phased

w rises with the share of what moves that the motion explains: no switch, and none of the phase
where no motion explains what is seen. It also rises where x0^ has more calcium than moves, since a
motion keeps the sum: a network that paints is not believed. Windows of one block share its motion.
A block in which the separator sees nothing move, or whose motion is rest, stays as it is, whatever
the network would paint into it.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from prodm.model import HIGH_HU, LOW_HU, normalise
from prodm.model.baselines import ModelSettings, build_predict
from prodm.model.network import Network
from prodm.model.phasing import LEAST_MOVING_HU, Phased, Separator, trust
from prodm.model.sampler import may_hold_calcium, slice_windows
from prodm.model.scan import NO_MARGIN, Margin, correct_scan
from prodm.model.search import SearchSettings
from prodm.runs import Progress, no_progress

MOST_BLOCKS = 16  # that are walked together
TRUSTED = (0.1, 0.5)  # share explained at which the phase begins to count, and counts fully


@dataclass(eq=False)
class Consistency:
    """The step between network calls, for the blocks of one walk."""

    blocks_hu: Tensor  # [N, Z, Y, X]
    phased: Sequence[Phased]
    num_slices: int
    wanted: Tensor  # [N * Z], the slices that the network sees
    result_hu: Tensor | None = None  # of the last step [N, Z, Y, X]

    def __post_init__(self) -> None:
        self._shares = [_share(one) for one in self.phased]

    def __call__(self, windows: Tensor) -> Tensor:
        """Return estimates [n, k, Y, X] in [0, 1], brought together with the observation.

        There is one window for each slice that is ``wanted``.
        """
        change = torch.zeros_like(self.blocks_hu)
        image = normalise(self.blocks_hu)
        middles = windows[:, self.num_slices // 2] - image.flatten(0, 1)[self.wanted]
        change.flatten(0, 1)[self.wanted] = (HIGH_HU - LOW_HU) * middles
        self.result_hu = torch.stack(
            [
                torch.lerp(one.corrected_hu, block + wanted, (1 - share) * _belief(wanted, one))
                for block, wanted, one, share in zip(
                    self.blocks_hu, change, self.phased, self._shares, strict=True
                )
            ]
        )
        together = (self.result_hu - LOW_HU) / (HIGH_HU - LOW_HU)
        return slice_windows(together, self.num_slices)[self.wanted]


def _belief(change_hu: Tensor, phased: Phased) -> Tensor:
    """How far to believe a network that wants a change, from 0 to 1.

    It is the calcium that moves over the calcium that there would be, where that is more.
    """
    over_tissue = phased.moving_hu + change_hu
    painted = over_tissue[over_tissue > LEAST_MOVING_HU].sum()
    moving: Tensor = phased.moving_hu.clamp(min=0).sum()
    return (moving / painted.clamp(min=1)).clamp(max=1)


def _share(phased: Phased) -> float:
    """How far a correction by phase is trusted; fully where nothing moves."""
    if phased.motion is None or phased.motion.is_rest:
        return 1.0
    return trust(phased.explained, TRUSTED)


class Phases:
    """The blocks of a scan corrected by phase, once while it is remembered: samples share it."""

    def __init__(self, separator: Separator, search: SearchSettings | None = None) -> None:
        self.separator = separator
        self._search = SearchSettings() if search is None else search
        self._known: tuple[bytes, list[Phased]] | None = None

    def __call__(
        self,
        blocks_hu: Tensor,
        generator: torch.Generator,
        progress: Progress = no_progress,
        margin: Margin = NO_MARGIN,
    ) -> list[Phased]:
        """Return the phases of the blocks [N, Z, Y, X] of one scan, and of their margin.

        The generator is for motions that are drawn, where there is no reader.
        """
        key = hashlib.sha256(blocks_hu.numpy().tobytes()).digest()
        if self._known is None or self._known[0] != key or self.separator.reader is None:
            how = self._search, generator, progress, margin
            scan = correct_scan(blocks_hu, self.separator, *how)
            self._known = key, scan
        return self._known[1]


def correct_consistently(
    blocks_hu: NDArray[np.float32],
    model: tuple[ModelSettings, Network],
    phases: Phases,
    *,
    seed: int,
    num_jumps: int | None = None,
    progress: Progress = no_progress,
    margin: Margin = NO_MARGIN,
) -> NDArray[np.float32]:
    """Correct the blocks [N, Z, Y, X] of one scan, in HU, with a network and the phase together.

    ``model`` is a trained network that walks, with its settings.
    """
    generator = torch.Generator().manual_seed(seed)
    settings, network = model
    results = []
    scan = torch.from_numpy(blocks_hu)
    all_phased = phases(scan, generator, progress, margin)
    for first, blocks in zip(
        range(0, len(scan), MOST_BLOCKS), torch.split(scan, MOST_BLOCKS), strict=True
    ):
        phased = all_phased[first : first + MOST_BLOCKS]
        image, num_slices = normalise(blocks), settings.network.num_slices
        wanted = may_hold_calcium(image)
        if not wanted.any():
            results.append(blocks)
            continue
        if all(_share(one) == 1 for one in phased):  # nobody would listen to the network
            results.append(torch.stack([one.corrected_hu for one in phased]))
            continue
        step = Consistency(blocks, phased, num_slices, wanted)
        predict = build_predict(settings, network, between=step)
        with torch.inference_mode():
            predict(slice_windows(image, num_slices)[wanted], generator, num_jumps)
        if step.result_hu is None:
            raise RuntimeError("the walk made no network call")
        results.append(step.result_hu)
    corrected: NDArray[np.float32] = torch.cat(results).numpy()
    return corrected

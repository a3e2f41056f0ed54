"""What corrects blocks: one calling convention for networks, physics and test doubles.

A corrector maps the blocks [N, Z, Y, X] of a scan, in HU, to corrected ones. It knows nothing of
how they were cut and will be put back, and that plumbing nothing of it but the facts below.
"""

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from prodm.correction.calibration import Calibration
from prodm.correction.geometry import Blocks, SpacingRange
from prodm.pairs.blocks import NO_MARGIN, margin_of
from prodm.runs import Progress, no_progress
from prodm.volume import Index, Vector


class Corrector(Protocol):
    """A method in use."""

    @property
    def name(self) -> str:
        """What it is called in results."""
        ...

    @property
    def sha256(self) -> str | None:
        """Hash of its weights; None where it has none."""
        ...

    @property
    def draws(self) -> bool:
        """Whether its answer depends on the seed, so that several samples say something."""
        ...

    @property
    def num_slices(self) -> int:
        """Number of slices that it looks at together."""
        ...

    @property
    def known(self) -> SpacingRange:
        """Spacings that it was made for."""
        ...

    @property
    def margin(self) -> Index:
        """Voxels that it wants to see on each side of a block, besides those of the block."""
        ...

    @property
    def calibration(self) -> Calibration | None:
        """How its samples become an interval of a scan's score, where that was measured."""
        ...

    def __call__(
        self,
        blocks_hu: Blocks,
        spacing_mm: Vector,
        *,
        steps: int | None,
        seed: int,
        progress: Progress = no_progress,
    ) -> Blocks:
        """Return the corrected blocks [N, Z, Y, X], in HU; all blocks of a scan come together.

        Blocks may come with a margin, which is corrected like the rest, and then not used.
        ``progress`` is called with (blocks done, blocks in all) where that takes long.
        """
        ...


@dataclass(frozen=True)
class Identity:
    """Changes nothing: for a look at region, candidates and scores, and for tests."""

    name: str = "identity"
    sha256: str | None = None
    draws: bool = False
    num_slices: int = 1
    known: SpacingRange = field(default_factory=SpacingRange)
    margin: Index = NO_MARGIN
    calibration: Calibration | None = None

    def __call__(
        self,
        blocks_hu: Blocks,
        spacing_mm: Vector,
        *,
        steps: int | None,
        seed: int,
        progress: Progress = no_progress,
    ) -> Blocks:
        """Return the blocks as they are."""
        return blocks_hu


@dataclass(frozen=True, eq=False)
class PhaseCorrector:
    """Finds the motion of each block and undoes it, with a trained separator or without weights."""

    separator: Any = None  # a prodm.model.phasing.Separator, or None
    name: str = "phase"
    sha256: str | None = None
    num_slices: int = 1
    known: SpacingRange = field(default_factory=SpacingRange)
    margin: Index = NO_MARGIN
    draws: bool = True  # the search starts at random, where there is no reader
    calibration: Calibration | None = None

    def __call__(
        self,
        blocks_hu: Blocks,
        spacing_mm: Vector,
        *,
        steps: int | None,
        seed: int,
        progress: Progress = no_progress,
    ) -> Blocks:
        """Return the corrected blocks; there are no steps to choose."""
        if self.separator is None:
            from prodm.model.classical import correct_hu_without_weights

            return correct_hu_without_weights(blocks_hu, seed=seed)
        from prodm.model.scan import correct_hu_by_phase

        return correct_hu_by_phase(
            blocks_hu, self.separator, seed=seed, progress=progress, margin=margin_of(blocks_hu)
        )


@dataclass(frozen=True, eq=False)
class NetworkCorrector:
    """A trained network: windows of k slices slide over the blocks, central slices are kept.

    Networks see -200 to 800 HU. What is returned is input + (corrected - clipped input), so a
    voxel beyond that range keeps its excess and is never lowered by the clip.
    """

    predict: Any  # prodm.model.baselines.Predict
    num_slices: int
    name: str
    sha256: str | None
    draws: bool
    max_windows: int
    known: SpacingRange = field(default_factory=SpacingRange)
    margin: Index = NO_MARGIN
    device: str = "cpu"
    calibration: Calibration | None = None

    def __call__(
        self,
        blocks_hu: Blocks,
        spacing_mm: Vector,
        *,
        steps: int | None,
        seed: int,
        progress: Progress = no_progress,
    ) -> Blocks:
        """Return the corrected blocks; the same seed and blocks give the same answer."""
        import torch

        from prodm.model import normalise, to_hu
        from prodm.model.sampler import correct_blocks

        generator = torch.Generator().manual_seed(seed)
        at_once = max(1, self.max_windows // blocks_hu.shape[1])
        corrected_hu = np.empty_like(blocks_hu)
        for first in range(0, len(blocks_hu), at_once):
            part = slice(first, first + at_once)
            moving = torch.from_numpy(blocks_hu[part]).to(self.device)
            image = normalise(moving)
            with torch.inference_mode():
                corrected = correct_blocks(
                    lambda windows: self.predict(windows, generator, steps),
                    image,
                    self.num_slices,
                    self.max_windows,
                )
            corrected_hu[part] = (moving + (to_hu(corrected) - to_hu(image))).cpu().numpy()
            progress(min(first + at_once, len(blocks_hu)), len(blocks_hu))
        return corrected_hu


@dataclass(frozen=True, eq=False)
class ConsistentCorrector:
    """A network that walks, held to the phase between its calls (``prodm.model.consistency``)."""

    model: Any  # (prodm.model.baselines.ModelSettings, network)
    phases: Any  # prodm.model.consistency.Phases
    num_slices: int
    name: str
    sha256: str | None
    known: SpacingRange = field(default_factory=SpacingRange)
    margin: Index = NO_MARGIN
    calibration: Calibration | None = None  # of the score of a scan
    draws: bool = True

    def __call__(
        self,
        blocks_hu: Blocks,
        spacing_mm: Vector,
        *,
        steps: int | None,
        seed: int,
        progress: Progress = no_progress,
    ) -> Blocks:
        """Return the corrected blocks; the same seed and blocks give the same answer."""
        from prodm.model.consistency import correct_consistently

        return correct_consistently(
            blocks_hu,
            self.model,
            self.phases,
            seed=seed,
            num_jumps=steps,
            progress=progress,
            margin=margin_of(blocks_hu),
        )

"""What corrects blocks: one calling convention for networks, physics and test doubles.

A corrector maps the blocks [N, Z, Y, X] of a scan, in HU, to corrected ones. It knows nothing of
how they were cut and will be put back, and that plumbing nothing of it but the facts below.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from prodm.correction.calibration import Calibration, read_calibration
from prodm.correction.geometry import Blocks, SpacingRange
from prodm.errors import ProdmError
from prodm.runs import Progress, no_progress
from prodm.volume import Vector

if TYPE_CHECKING:
    from prodm.model.checkpoint import Trained

WINDOW_BUDGET_BYTES = 2**30  # for what a network holds while it works

MOST_WINDOWS = 32  # one core works best on 8 to 32 windows at a time


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
        from prodm.model.phasing import correct_hu_by_phase

        return correct_hu_by_phase(blocks_hu, self.separator, seed=seed, progress=progress)


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
            blocks_hu, self.model, self.phases, seed=seed, num_jumps=steps, progress=progress
        )


def load_consistent(weights: Path, *parts: Path, tissue_rests: bool = True) -> ConsistentCorrector:
    """Return the corrector of a network that walks and the ``parts`` of ``load_phase``.

    What does not fit is refused by name.
    """
    from prodm.model.baselines import METHODS as TRAINED
    from prodm.model.checkpoint import load_network
    from prodm.model.consistency import Phases

    walking = load_network(weights)
    phased = load_phase(*parts, tissue_rests=tissue_rests)
    method = walking.settings.method
    if not TRAINED[method].walks:
        raise ProdmError(f"{weights} holds a {method}, which does not walk; the phase joins a walk")
    _check_size(walking, weights.name)
    return ConsistentCorrector(
        model=(walking.settings, walking.network),
        phases=Phases(phased.separator),
        num_slices=max(walking.settings.network.num_slices, phased.num_slices),
        name=str(walking.info.get("name") or f"{method} and phase, {weights.stem}"),
        sha256=_all_of(walking.sha256, phased.sha256),
        known=_known_spacing(walking.info, weights.name),
        calibration=read_calibration(walking.info, "scan", weights.name),
    )


def load_phase(
    separator: Path,
    reader: Path | None = None,
    focuser: Path | None = None,
    placer: Path | None = None,
    *,
    tissue_rests: bool = True,
) -> PhaseCorrector:
    """Return the corrector by phase of a separator.

    With a ``reader`` the search for motions starts from what it reads; once a motion was found, a
    ``placer`` tells where the lesion rests, if the tissue does, and a ``focuser`` takes a second
    look.
    """
    from prodm.model.baselines import build_predict
    from prodm.model.checkpoint import load_network
    from prodm.model.phasing import Separator

    separating = load_network(separator)
    if separating.settings.method != "separator":
        raise ProdmError(f"{separator} holds a {separating.settings.method} and no separator")
    _check_size(separating, separator.name)
    sha256, helpers = separating.sha256, {}
    for name, file in (("reader", reader), ("focuser", focuser), ("placer", placer)):
        if file is None:
            continue
        helper = load_network(file)
        if helper.settings.method != name:
            raise ProdmError(f"{file} holds a {helper.settings.method} and no {name}")
        predict = build_predict(helper.settings, helper.network)
        helpers[name] = (predict, helper.settings.network.num_slices)
        sha256 = _all_of(sha256, helper.sha256)
    num_slices = separating.settings.network.num_slices
    return PhaseCorrector(
        Separator(
            build_predict(separating.settings, separating.network),
            num_slices,
            **helpers,
            tissue_rests=tissue_rests,
        ),
        str(separating.info.get("name") or f"phase-net, {separator.stem}"),
        sha256,
        num_slices,
        _known_spacing(separating.info, separator.name),
        draws="reader" not in helpers,
    )


def _all_of(*sha256: str | None) -> str:
    """One hash for several files."""
    return hashlib.sha256("".join(str(one) for one in sha256).encode()).hexdigest()


def _check_size(trained: "Trained", file_name: str) -> None:
    from prodm.pairs.blocks import BLOCK_SHAPE

    divisor = trained.settings.network.divisor
    if BLOCK_SHAPE[1] % divisor:
        raise ProdmError(
            f"{file_name} holds a network for images whose size is a multiple of {divisor}, and "
            f"blocks have {BLOCK_SHAPE[1]} pixels a side"
        )


def load_corrector(weights: Path, *, device: str = "cpu") -> Corrector:
    """Return the corrector of a weights file, or refuse the file by what does not fit."""
    from prodm.model.checkpoint import load_network

    trained = load_network(weights)
    if trained.settings.method == "separator":
        return load_phase(weights)
    return as_corrector(trained, weights.stem, device=device)


def as_corrector(trained: "Trained", file_name: str, *, device: str = "cpu") -> Corrector:
    """Return the corrector of a network in memory; ``file_name`` stands for a missing name."""
    from prodm.model.baselines import build_predict

    settings = trained.settings
    _check_size(trained, file_name)
    if settings.method in ("separator", "reader", "focuser", "placer"):
        raise ProdmError(f"{file_name} holds a {settings.method}, which corrects nothing by itself")
    draws = settings.method not in ("unet", "cgan")
    if settings.method != "ddpm":
        draws = draws and settings.sampling.fresh_noise and settings.bridge.noise_scale > 0
    return NetworkCorrector(
        predict=build_predict(settings, trained.network.to(device)),
        num_slices=settings.network.num_slices,
        name=str(trained.info.get("name") or f"{settings.method}, {file_name}"),
        sha256=trained.sha256,
        draws=draws,
        max_windows=_max_windows(settings.network),
        known=_known_spacing(trained.info, file_name),
        device=device,
    )


def _max_windows(network: Any) -> int:  # noqa: ANN401 (NetworkSettings, whose import loads torch)
    """Number of windows whose features fit the budget, by the size of the network alone.

    The memory that happens to be free is not asked: batches, and with them the noise that
    each window gets, must be the same on every machine.
    """
    from prodm.pairs.blocks import BLOCK_SHAPE

    num_pixels = BLOCK_SHAPE[1] * BLOCK_SHAPE[2] // network.fold**2
    values = sum(width * num_pixels / 4**level for level, width in enumerate(network.channels))
    held_bytes = 4 * values * 6 * (network.num_res_blocks + 1)
    return int(min(MOST_WINDOWS, max(1, WINDOW_BUDGET_BYTES // held_bytes)))


def _known_spacing(info: dict[str, Any], file_name: str) -> SpacingRange:
    """Return the range that a weights file states under ``spacing_range_mm``, or the usual one."""
    stated = info.get("spacing_range_mm")
    if stated is None:
        return SpacingRange()
    try:
        slices, pixels = stated["slice"], stated["pixel"]
        return SpacingRange(
            (float(slices[0]), float(slices[1])), (float(pixels[0]), float(pixels[1]))
        )
    except (KeyError, TypeError, ValueError, IndexError):
        raise ProdmError(
            f"{file_name} states its spacing_range_mm as {stated!r} instead of "
            "{'slice': [low, high], 'pixel': [low, high]}"
        ) from None


Maker = Callable[[Path | None, bool], Corrector]


def _from_weights(weights: Path | None, tissue_rests: bool) -> Corrector:
    return load_corrector(weights or shipped_weights())


def _prodm(weights: Path | None, tissue_rests: bool) -> Corrector:
    return load_consistent(weights or shipped_weights(), *_parts(), tissue_rests=tissue_rests)


def _phase_net(weights: Path | None, tissue_rests: bool) -> Corrector:
    separator, *others = _parts()
    return load_phase(weights or separator, *others, tissue_rests=tissue_rests)


def _parts() -> list[Path]:
    return [shipped_weights(name) for name in ("separator", "reader", "focuser", "placer")]


def _identity(weights: Path | None, tissue_rests: bool) -> Corrector:
    return Identity()


def _phase(weights: Path | None, tissue_rests: bool) -> Corrector:
    if weights is not None:
        raise ProdmError("--method phase needs no weights; phase-net is the one with a separator")
    return PhaseCorrector()


METHODS: dict[str, Maker] = {
    "prodm": _prodm,
    "network": _from_weights,
    "phase-net": _phase_net,
    "phase": _phase,
    "identity": _identity,
}


def make_corrector(method: str, weights: Path | None, *, tissue_rests: bool) -> Corrector:
    """Return the corrector of a method by name; ``weights`` None are the ones that ship.

    ``tissue_rests`` says that the tissue rests while its calcium moves, as in the simulator. Then
    it tells where the calcium belongs. In a patient it moves along.
    """
    if method not in METHODS:
        raise ProdmError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
    return METHODS[method](weights, tissue_rests)


def shipped_weights(name: str = "compact") -> Path:
    """Return a weights file in the package, or say how to name one."""
    path = Path(__file__).parents[1] / "weights" / f"{name}.safetensors"
    if not path.is_file():
        raise ProdmError(
            f"this copy of prodm ships without {path.name}; name a file with --weights, such "
            "as best.safetensors of a run of prodm train"
        )
    return path

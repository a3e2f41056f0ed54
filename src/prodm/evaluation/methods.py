"""What can be put into the comparison: trained networks, named methods, and other people's.

A method corrects blocks. Where it comes from is one of

    a run folder      the best network of a training, ``best.safetensors`` in it
    a weights file    any network that prodm saved
    A+B, A+B+C+D+E+F  a network that walks, a separator and, where wanted, a reader, a focuser, a
                      placer and a polisher, each a folder or file as above: the walk with the
                      consistency step (``prodm.model.consistency``)
    B+C, B+C+D+E+F    the same without a network that walks: the correction by phase alone
    a name            a method without weights, one of ``BY_NAME``
    module:function   somebody else's Python function, with this protocol

        correct(block) -> block

    block: HU, float32 [Z, Y, X], 16 x 64 x 64 voxels, slices ascending towards the head. The
    result has the same shape and unit. A function that also takes ``spacing_mm`` is given the
    distances (z, y, x) between voxels by that name.
"""

import importlib
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prodm.correction.calibration import Calibration, read_calibration
from prodm.correction.geometry import SpacingRange
from prodm.errors import ProdmError
from prodm.pairs.blocks import NO_MARGIN
from prodm.runs import Progress, no_progress
from prodm.volume import Index, Vector

Blocks = NDArray[np.float32]  # HU [N, Z, Y, X]
Correct = Callable[[Blocks, Vector, int], Blocks]  # (blocks, spacing_mm, seed) -> corrected
CallCount = Callable[[], int]  # network calls so far, counted window by window

BEST = "best.safetensors"


@dataclass(frozen=True, eq=False)
class Method:
    """One way to correct blocks, and where it comes from."""

    name: str
    correct: Correct
    kind: str  # prodm, unet, ...; "external"; or the name of a method without weights
    source: str
    sha256: str | None = None
    is_random: bool = False  # whether another seed gives another answer
    calls: CallCount | None = None
    margin: Index = NO_MARGIN  # voxels that it wants to see on each side of a block
    info: dict[str, Any] = field(default_factory=dict)
    calibration: dict[str, Calibration] = field(default_factory=dict)  # for patch and scan


def leave_alone(blocks: Blocks, spacing_mm: Vector, seed: int) -> Blocks:
    """Return the blocks as they are."""
    return blocks


def no_correction() -> Method:
    """Return the method that every other is compared with."""
    return Method("no correction", leave_alone, "none", "none")


def of_corrector(name: str) -> Method:
    """Return a method that ``prodm correct`` knows by name and that needs no weights."""
    from prodm.correction import make_corrector

    corrector = make_corrector(name, None, tissue_rests=True)

    def correct(blocks: Blocks, spacing_mm: Vector, seed: int) -> Blocks:
        return corrector(blocks, spacing_mm, steps=None, seed=seed)

    return Method(
        name, correct, name, name, corrector.sha256, corrector.draws, margin=corrector.margin
    )


# A method without weights enters every table by one line here.
BY_NAME: dict[str, Callable[[], Method]] = {
    "none": no_correction,
    "identity": partial(of_corrector, "identity"),
    "phase": partial(of_corrector, "phase"),
}


def find_method(
    source: str,
    *,
    num_jumps: int | None = None,
    name: str | None = None,
    tissue_rests: bool = True,
) -> Method:
    """Return the method of a run folder, a weights file, or one of ``BY_NAME``.

    ``num_jumps`` takes the place of the network calls that the run's own settings ask for.
    ``tissue_rests`` holds for scans of the simulator (``prodm.model.placing``).
    """
    if source in BY_NAME and not Path(source).exists():
        return BY_NAME[source]()
    weights = _weights(source)
    if weights is not None:
        return _trained(weights, name or _short(source), source, num_jumps, tissue_rests)
    parts = source.split("+")
    files = [file for file in map(_weights, parts) if file is not None]
    if 2 <= len(files) == len(parts):
        together = name or " + ".join(_short(part) for part in parts)
        return _together(files, together, source, num_jumps, tissue_rests)
    raise ProdmError(
        f"{source} is neither a run folder, nor a weights file, nor one of the methods "
        f"{', '.join(BY_NAME)}"
    )


def _weights(source: str) -> Path | None:
    """Return the weights file that a source names, or None."""
    path = Path(source)
    if not source or not path.is_dir():
        return path if source and path.is_file() else None
    if not (path / BEST).is_file():
        raise ProdmError(f"{path} holds no {BEST}; finish its training with prodm train")
    return path / BEST


def _short(source: str) -> str:
    path = Path(source)
    return path.name if path.is_dir() else path.stem


def external_method(spec: str) -> Method:
    """Return the method that ``module:function`` names; the current folder is searched first."""
    module_name, colon, function_name = spec.partition(":")
    if not (colon and module_name and function_name):
        raise ProdmError(f"--external takes module:function, got {spec!r}")
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ProdmError(f"cannot import {module_name} for --external {spec}: {error}") from error
    finally:
        sys.path.remove(here)
    function = getattr(module, function_name, None)
    if not callable(function):
        raise ProdmError(f"the module {module_name} has no function {function_name}")
    file = getattr(module, "__file__", None)
    return Method(
        name=spec,
        correct=one_by_one(function, spec),
        kind="external",
        source=spec,
        sha256=_sha256(Path(file)) if file else None,
    )


def one_by_one(function: Callable[..., Any], name: str) -> Correct:
    """Return a function of many blocks that calls ``correct(block)`` for each."""
    with_spacing = "spacing_mm" in inspect.signature(function).parameters

    def correct(blocks: Blocks, spacing_mm: Vector, seed: int) -> Blocks:
        given = {"spacing_mm": spacing_mm} if with_spacing else {}
        corrected = []
        for block in blocks:
            answer = np.asarray(function(block.copy(), **given))
            if answer.shape != block.shape:
                raise ProdmError(
                    f"{name} must return a block of shape {block.shape}, got {answer.shape}"
                )
            if answer.dtype.kind not in "fiu" or not np.isfinite(answer).all():
                raise ProdmError(f"{name} must return finite numbers, in HU")
            corrected.append(answer.astype(np.float32))
        return np.stack(corrected)

    return correct


@dataclass(frozen=True, eq=False)
class MethodCorrector:
    """A method as the correction of whole scans calls it; ``steps`` are the method's own."""

    method: Method
    num_slices: int = 1
    calibration: Calibration | None = None
    known: SpacingRange = field(default_factory=SpacingRange)

    @property
    def name(self) -> str:
        """Name of the method."""
        return self.method.name

    @property
    def sha256(self) -> str | None:
        """Hash of its weights."""
        return self.method.sha256

    @property
    def draws(self) -> bool:
        """Whether its answer depends on the seed."""
        return self.method.is_random

    @property
    def margin(self) -> Index:
        """Voxels that it wants to see on each side of a block."""
        return self.method.margin

    def __call__(
        self,
        blocks_hu: Blocks,
        spacing_mm: Vector,
        *,
        steps: int | None,
        seed: int,
        progress: Progress = no_progress,
    ) -> Blocks:
        """Return the corrected blocks [N, Z, Y, X], in HU."""
        return self.method.correct(blocks_hu, spacing_mm, seed)


def _trained(
    weights: Path, name: str, source: str, num_jumps: int | None, tissue_rests: bool
) -> Method:
    from prodm.evaluation.validation import correct_hu
    from prodm.model.baselines import METHODS, build_predict
    from prodm.model.checkpoint import load_network

    trained = load_network(weights)
    if trained.settings.method == "separator":
        return _phased([weights], name, source, tissue_rests)
    if trained.settings.method in ("reader", "focuser", "placer", "polisher"):
        raise ProdmError(
            f"{source} holds a {trained.settings.method}, which corrects nothing by itself"
        )
    network = _Counted(trained.network)
    settings = trained.settings
    predict = build_predict(settings, network)

    def correct(blocks: Blocks, spacing_mm: Vector, seed: int) -> Blocks:
        num_slices = settings.network.num_slices
        return correct_hu(predict, blocks, num_slices, num_jumps=num_jumps, seed=seed)

    walks = METHODS[settings.method].walks
    return Method(
        name=name,
        correct=correct,
        kind=settings.method,
        source=source,
        sha256=trained.sha256,
        is_random=walks and (settings.sampling.fresh_noise or settings.method == "ddpm"),
        calls=lambda: network.count,
        info={"num_slices": settings.network.num_slices, "training": trained.info},
    )


def _calibration(info: dict[str, Any], source: str) -> dict[str, Calibration]:
    read = {level: read_calibration(info, level, source) for level in ("patch", "scan")}
    return {level: calibration for level, calibration in read.items() if calibration is not None}


def _together(
    files: list[Path], name: str, source: str, num_jumps: int | None, tissue_rests: bool
) -> Method:
    """Return the method of a separator with what comes before and after it."""
    from prodm.model.checkpoint import load_network

    phase_alone = load_network(files[0]).settings.method == "separator"
    if len(files) > (5 if phase_alone else 6):
        raise ProdmError(
            "after a separator come a reader, a focuser, a placer, a polisher and nothing else, "
            f"got {source}"
        )
    if phase_alone:
        return _phased(files, name, source, tissue_rests)
    return _consistent(files, name, source, num_jumps, tissue_rests)


def _phased(files: list[Path], name: str, source: str, tissue_rests: bool) -> Method:
    from prodm.correction.loading import load_phase

    corrector = load_phase(*files, tissue_rests=tissue_rests)

    def correct(blocks: Blocks, spacing_mm: Vector, seed: int) -> Blocks:
        return corrector(blocks, spacing_mm, steps=None, seed=seed)

    return Method(
        name=name,
        correct=correct,
        kind="separator",
        source=source,
        sha256=corrector.sha256,
        is_random=corrector.draws,
        margin=corrector.margin,
        info={"num_slices": corrector.num_slices},
    )


def _consistent(
    files: list[Path], name: str, source: str, num_jumps: int | None, tissue_rests: bool
) -> Method:
    from prodm.correction.loading import load_consistent
    from prodm.model.checkpoint import load_info

    corrector = load_consistent(*files, tissue_rests=tissue_rests)
    counted = _Counted(corrector.model[1])
    corrector = replace(corrector, model=(corrector.model[0], counted))

    def correct(blocks: Blocks, spacing_mm: Vector, seed: int) -> Blocks:
        return corrector(blocks, spacing_mm, steps=num_jumps, seed=seed)

    settings = corrector.model[0]
    return Method(
        name=name,
        correct=correct,
        kind=settings.method,
        source=source,
        sha256=corrector.sha256,
        is_random=True,
        calls=lambda: counted.count,
        margin=corrector.margin,
        info={"num_slices": settings.network.num_slices},
        calibration=_calibration(load_info(files[0]), source),
    )


class _Counted:
    """A network that counts for how many windows it was called."""

    def __init__(self, network: Any) -> None:  # noqa: ANN401
        self.network = network
        self.count = 0

    def __call__(self, xt: Any, y: Any, t: Any) -> Any:  # noqa: ANN401
        self.count += len(y)
        return self.network(xt, y, t)


def _sha256(path: Path) -> str | None:
    from prodm.runs import hash_files

    return hash_files([path]) if path.is_file() else None

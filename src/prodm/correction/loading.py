"""Correctors from weights on disk: those that ship, and those that users name.

What does not fit is refused by name. Importing this module loads no torch.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prodm.correction.calibration import read_calibration
from prodm.correction.correctors import (
    ConsistentCorrector,
    Corrector,
    Identity,
    NetworkCorrector,
    PhaseCorrector,
)
from prodm.correction.geometry import SpacingRange
from prodm.errors import ProdmError
from prodm.pairs.blocks import BLOCK_SHAPE, MARGIN, NO_MARGIN

if TYPE_CHECKING:
    from prodm.model.checkpoint import Trained

WINDOW_BUDGET_BYTES = 2**30  # for what a network holds while it works
MOST_WINDOWS = 32  # one core works best on 8 to 32 windows at a time
ANSWERS_WITH_IMAGES = ("focuser", "polisher")  # as a separator does


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
        margin=phased.margin,
        calibration=read_calibration(walking.info, "scan", weights.name),
    )


def load_phase(
    separator: Path,
    reader: Path | None = None,
    focuser: Path | None = None,
    placer: Path | None = None,
    polisher: Path | None = None,
    *,
    tissue_rests: bool = True,
) -> PhaseCorrector:
    """Return the corrector by phase of a separator.

    With a ``reader`` the search for motions starts from what it reads; once a motion was found, a
    ``focuser`` takes a second look, and, if the tissue rests, a ``placer`` tells where the lesion
    does and a ``polisher`` takes a last look. Then it also sees the scan around each block, because
    calcium moves in and out; where tissue moves too, that brings more tissue into focus.
    """
    from prodm.model.baselines import build_predict
    from prodm.model.checkpoint import load_network
    from prodm.model.phasing import Separator, both_ways
    from prodm.model.resting import Placer

    separating = load_network(separator)
    if separating.settings.method != "separator":
        raise ProdmError(f"{separator} holds a {separating.settings.method} and no separator")
    _check_size(separating, separator.name)
    sha256 = separating.sha256
    helpers: dict[str, Any] = {}
    given = {"reader": reader, "focuser": focuser, "placer": placer, "polisher": polisher}
    for name, file in given.items():
        if file is None:
            continue
        helper = load_network(file)
        if helper.settings.method != name:
            raise ProdmError(f"{file} holds a {helper.settings.method} and no {name}")
        predict = build_predict(helper.settings, helper.network)
        if name in ANSWERS_WITH_IMAGES:
            predict = both_ways(predict)
        helpers[name] = (predict, helper.settings.network.num_slices)
        if isinstance(helper.network, Placer):
            helpers["gaps"] = helper.network.gaps
        sha256 = _all_of(sha256, helper.sha256)
    num_slices = separating.settings.network.num_slices
    return PhaseCorrector(
        Separator(
            both_ways(build_predict(separating.settings, separating.network)),
            num_slices,
            **helpers,
            tissue_rests=tissue_rests,
        ),
        str(separating.info.get("name") or f"phase-net, {separator.stem}"),
        sha256,
        num_slices,
        _known_spacing(separating.info, separator.name),
        margin=MARGIN if tissue_rests else NO_MARGIN,
        draws="reader" not in helpers,
    )


def _all_of(*sha256: str | None) -> str:
    """One hash for several files."""
    return hashlib.sha256("".join(str(one) for one in sha256).encode()).hexdigest()


def _check_size(trained: "Trained", file_name: str) -> None:
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
    if settings.method in ("separator", "reader", "focuser", "placer", "polisher"):
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


PARTS = ("separator", "reader", "focuser", "placer", "polisher")  # in the order of ``load_phase``


def _parts() -> list[Path]:
    return [shipped_weights(name) for name in PARTS]


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

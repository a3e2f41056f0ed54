"""Trained networks on disk: safetensors, whose header tells what they are. No pickle.

One JSON text in the header, under the key ``prodm``, holds the format, the settings that build the
network, and whatever is worth knowing of its training: the hash of the data, metrics,
versions. A file is refused by the name of what does not fit.
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from prodm import runs
from prodm.errors import ProdmError
from prodm.model.baselines import AnyNetwork, ModelSettings, build_network

FORMAT = "prodm network 1"


@dataclass(frozen=True, eq=False)
class Trained:
    """A network from disk, in fp32, ready for use."""

    network: AnyNetwork
    settings: ModelSettings
    info: dict[str, Any]
    sha256: str


def save_checkpoint(
    path: Path,
    state: Mapping[str, Tensor],
    settings: ModelSettings,
    info: Mapping[str, Any],
    *,
    half: bool = False,
) -> None:
    """Write a network's state, whole or not at all; ``half`` stores fp16, for shipping.

    ``info`` is anything JSON can hold: hash of the data, metrics, number of steps. Weights that
    are all zero are named in the header and take no space.
    """
    zeros = {name: list(value.shape) for name, value in state.items() if not value.any()}
    content = {
        "format": FORMAT,
        "settings": dataclasses.asdict(settings),
        "info": dict(info),
        "zeros": zeros,
    }
    kind = torch.float16 if half else torch.float32
    kept = {name: value.to(kind) for name, value in state.items() if name not in zeros}
    write_tensors(path, kept, content)


def load_network(path: Path) -> Trained:
    """Read a network that ``save_checkpoint`` wrote, or refuse it by name of the mismatch."""
    tensors, content = read_tensors(path)
    if content.get("format") != FORMAT:
        raise ProdmError(
            f"{path} is not a network of this version of prodm: its format is "
            f"{content.get('format')!r} instead of {FORMAT!r}"
        )
    settings = runs.fill(ModelSettings, content["settings"], f"the settings in {path}")
    network = build_network(settings, seed=0)
    for name, shape in content.get("zeros", {}).items():
        tensors[name] = torch.zeros(shape)
    _check_fit(path, tensors, network.state_dict())
    network.load_state_dict({name: value.float() for name, value in tensors.items()})
    return Trained(network.eval(), settings, content["info"], _sha256(path))


def load_info(path: Path) -> dict[str, Any]:
    """Return what a network's file says of its training."""
    info: dict[str, Any] = read_tensors(path)[1].get("info", {})
    return info


def write_tensors(path: Path, tensors: Mapping[str, Tensor], content: Mapping[str, Any]) -> None:
    """Write tensors with a JSON content in the header, whole or not at all."""
    header = {"prodm": json.dumps(content, sort_keys=True, allow_nan=False)}
    on_disk = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    with runs.replacing(path) as partial:
        save_file(on_disk, partial, metadata=header)


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and the JSON content of a file that ``write_tensors`` wrote."""
    if not path.is_file():
        raise ProdmError(f"there is no weights file {path}")
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ProdmError(
            f"{path} is not a safetensors file, or it is cut short ({error}); copy it again"
        ) from error
    if "prodm" not in header:
        raise ProdmError(f"{path} was not written by prodm: its header has no entry 'prodm'")
    content: dict[str, Any] = json.loads(header["prodm"])
    return tensors, content


def _check_fit(path: Path, found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    for name in sorted(wanted.keys() - found.keys()):
        raise ProdmError(f"{path} lacks the weights {name!r} that its settings ask for")
    for name in sorted(found.keys() - wanted.keys()):
        raise ProdmError(f"{path} has weights {name!r} that its settings do not ask for")
    for name, value in found.items():
        if value.shape != wanted[name].shape:
            raise ProdmError(
                f"the weights {name!r} in {path} are {tuple(value.shape)}, but its settings "
                f"ask for {tuple(wanted[name].shape)}"
            )
        if not torch.isfinite(value).all():
            raise ProdmError(f"the weights {name!r} in {path} hold values that are not finite")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

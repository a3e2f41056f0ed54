"""Put a trained network and what helps it into the package, with their intervals.

    python benchmarks/ship_weights.py --network RUN --separator RUN --reader RUN --focuser RUN \
        --placer RUN --polisher RUN --pairs CALIBRATION

What is not named is taken as it ships, so that ``--pairs CALIBRATION`` alone calibrates the
intervals anew. All are stored in half precision. Those that are called at no step of a bridge
forget what steps would add. How far the interval of a score must reach is learnt from the patients
of a store of their own, which neither trained the networks nor test them: they correct the moving
blocks of these patients together, several times each, and the errors are kept with the weights
(``prodm.correction.calibration``).
"""

import argparse
import tempfile
from functools import partial
from pathlib import Path
from typing import cast

import torch
from monai.networks.nets.diffusion_model_unet import (
    DiffusionModelUNet,
    DiffusionUNetResnetBlock,
    get_timestep_embedding,
)

from prodm.correction.calibration import fit_calibration
from prodm.correction.geometry import SpacingRange
from prodm.correction.loading import PARTS, shipped_weights
from prodm.evaluation.methods import Method, find_method
from prodm.evaluation.patches import select
from prodm.evaluation.workers import compare_with_workers
from prodm.model.checkpoint import load_network, save_checkpoint
from prodm.pairs.store import Pairs

STEPLESS = ("separator", "focuser", "placer")  # methods whose networks are called at step 0 alone
TITLES = {"compact": "ProDM compact"}
WEIGHTS = Path(__file__).parents[1] / "src" / "prodm" / "weights"


def main() -> None:
    """Calibrate and write the files."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("network", *PARTS):
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--pairs", type=Path, required=True)
    parser.add_argument("--output", type=Path, default=WEIGHTS)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--jumps", type=int, default=4)
    parser.add_argument("--max-patches", type=int, default=None)
    parser.add_argument("--workers", type=int, default=1)
    arguments = parser.parse_args()
    arguments.output.mkdir(exist_ok=True)
    runs = {"compact": arguments.network, **{name: getattr(arguments, name) for name in PARTS}}
    titles = {name: f"{TITLES.get(name, name)}, trained on phantoms" for name in runs}
    files = [arguments.output / f"{name}.safetensors" for name in runs]
    with tempfile.TemporaryDirectory() as scratch:
        halves = [Path(scratch) / file.name for file in files]
        for (name, run), half in zip(runs.items(), halves, strict=True):
            source = shipped_weights(name) if run is None else run / "best.safetensors"
            _store(source, half, {"name": titles[name]})
        calibration = _calibrate(halves, arguments)
        for n, (half, file) in enumerate(zip(halves, files, strict=True)):
            _store(half, file, {} if n else {"calibration": calibration})
    for file in files:
        print(f"{file.name}: {file.stat().st_size / 1e6:.2f} MB")


def _store(source: Path, place: Path, added: dict[str, object]) -> None:
    trained = load_network(source)
    known = SpacingRange()
    spacing = {"slice": list(known.slice_mm), "pixel": list(known.pixel_mm)}
    info = {**trained.info, "spacing_range_mm": spacing, **added}
    if trained.settings.method in STEPLESS:
        forget_steps(cast("DiffusionModelUNet", trained.network.body))
    save_checkpoint(place, trained.network.state_dict(), trained.settings, info, half=True)


@torch.no_grad()
def forget_steps(body: DiffusionModelUNet) -> None:
    """Put what step 0 adds to each block of MONAI's network into the block's own biases."""
    embedding = body.time_embed(get_timestep_embedding(torch.zeros(1), body.block_out_channels[0]))
    blocks = [part for part in body.modules() if isinstance(part, DiffusionUNetResnetBlock)]
    for block in blocks:
        block.conv1.conv.bias += block.time_emb_proj(block.nonlinearity(embedding))[0]
    for part in [body.time_embed, *(block.time_emb_proj for block in blocks)]:
        for weights in part.parameters():
            weights.zero_()


def _calibrate(halves: list[Path], arguments: argparse.Namespace) -> dict[str, list[float]]:
    make = partial(_make_methods, halves, arguments.jumps)
    pairs = Pairs(arguments.pairs)
    selection = select(pairs, None, max_patches=arguments.max_patches, seed=1)
    comparison = compare_with_workers(
        selection, make(), make, workers=arguments.workers, num_samples=arguments.samples, seed=1
    )
    (results,) = comparison.results
    by_level = {
        "patch": (results.patch_samples, comparison.patches),
        "scan": (results.scan_samples, comparison.scans),
    }
    calibration = {}
    for level, (samples, cases) in by_level.items():
        truths, patients = zip(*((case.agatston, case.patient) for case in cases), strict=True)
        fitted = fit_calibration(samples, truths, patients)
        calibration[level] = [round(value, 4) for value in fitted.quantiles]
        print(f"{level}: calibrated on {len(cases)} cases of {len(set(patients))} patients")
    return calibration


def _make_methods(files: list[Path], num_jumps: int) -> list[Method]:
    return [find_method("+".join(map(str, files)), num_jumps=num_jumps)]


if __name__ == "__main__":
    main()

"""How long a whole scan takes to correct, beside the same work window by window.

The scan is made up: 512 x 512 x 135 voxels of tissue with five moving plaques, one block each.
Raced are the network alone, in batches and window by window, and the network held to the phase,
which is what ``prodm correct`` does. Each runs in a process of its own, so that its peak memory is
its own. The error by the number of steps is measured on moved phantoms, whose true score is known.
"""

import multiprocessing
import os
import resource
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from prodm.runs import Progress, no_progress
from prodm.volume import Grid, Volume

SHAPE = (135, 512, 512)
SPACING_MM = (3.0, 0.7, 0.7)
PLAQUES_ZYX = ((40, 200, 200), (40, 300, 300), (64, 220, 330), (88, 200, 200), (88, 300, 300))
STEPS = (1, 2, 4, 10)
METHODS = ("network", "prodm")


def race(
    weights: Path | None,
    *,
    steps: int = 10,
    samples: int = 8,
    phantoms: int = 4,
    progress: Progress = no_progress,
) -> dict[str, Any]:
    """Measure the correction of one large scan; return numbers fit for JSON.

    ``weights`` None are the ones that ship. The work window by window is done for one sample, and
    counted as many times as there are samples.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # idle threads must not take the cores
    jobs = len(METHODS) + 1 + phantoms
    progress(0, jobs)
    rows = []
    for method in METHODS:
        rows.append(_apart(_measure, method, weights, steps, samples, None))
        progress(len(rows), jobs)
    single = _apart(_measure, "network", weights, steps, 1, 1)
    alone_s = single["corrector_s"] * samples + single["rest_s"]
    errors = []
    for number in range(phantoms):
        progress(len(METHODS) + 1 + number, jobs)
        errors.append(_apart(_errors, weights, number))
    progress(jobs, jobs)
    return {
        "shape": list(SHAPE),
        "steps": steps,
        "samples": samples,
        "rows": rows,
        "window_by_window_s": alone_s,
        "times_faster": alone_s / rows[0]["seconds"],
        "errors": _mean_errors(errors),
    }


def _apart(function: Any, *arguments: Any) -> Any:  # noqa: ANN401
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def _measure(
    method: str, weights: Path | None, steps: int, samples: int, max_windows: int | None
) -> dict[str, Any]:
    from prodm.correction import correct, make_corrector
    from prodm.model.consistency import Phases

    corrector: Any = make_corrector(method, weights, tissue_rests=True)
    if max_windows is not None:
        corrector = replace(corrector, max_windows=max_windows)
    clocks = []
    if method == "network":
        clocks = [_Timed(corrector.predict)]
        corrector = replace(corrector, predict=clocks[0])
    else:
        settings, network = corrector.model
        separator = corrector.phases.separator
        clocks = [_Timed(network), _Timed(separator.predict)]
        phases = Phases(replace(separator, predict=clocks[1]))
        corrector = replace(corrector, model=(settings, clocks[0]), phases=phases)
    volume, region = made_up_scan()
    base_mib = _peak_mib()
    started = time.perf_counter()
    result = correct(volume, region, corrector, steps=steps, samples=samples)
    seconds = time.perf_counter() - started
    return {
        "method": method,
        "model": corrector.name,
        "blocks": len(result.rois),
        "seconds": seconds,
        "corrector_s": result.corrector_seconds,
        "rest_s": seconds - result.corrector_seconds,
        "network_share": sum(clock.seconds for clock in clocks) / seconds,
        "memory_mib": _peak_mib(),
        "memory_before_mib": base_mib,
    }


class _Timed:
    """A network that notes how long its calls take."""

    def __init__(self, network: Any) -> None:  # noqa: ANN401
        self.network = network
        self.seconds = 0.0

    def __call__(self, *arguments: Any) -> Any:  # noqa: ANN401
        started = time.perf_counter()
        answer = self.network(*arguments)
        self.seconds += time.perf_counter() - started
        return answer


def made_up_scan() -> tuple[Volume, Any]:
    """Return a scan of tissue with five plaques far apart, and the region around them."""
    rng = np.random.default_rng(0)
    noise = rng.normal(40, 10, (8, *SHAPE[1:])).astype(np.int16)
    hu = np.concatenate([noise] * (SHAPE[0] // 8 + 1))[: SHAPE[0]].copy()
    for z, y, x in PLAQUES_ZYX:
        hu[z : z + 2, y : y + 3, x : x + 6] = 300
    region = np.zeros(SHAPE, dtype=bool)
    region[20:110, 150:400, 150:400] = True
    return Volume(hu, Grid(SHAPE, SPACING_MM)), region


def _errors(weights: Path | None, number: int) -> dict[str, float] | None:
    """Return the absolute score errors of one moved phantom, uncorrected, by method and steps."""
    from prodm import agatston
    from prodm.anatomy.phantom import PhantomSettings, make_phantom
    from prodm.anatomy.plaques import PlaqueSettings
    from prodm.correction import correct, make_corrector
    from prodm.motion.profiles import PROFILES, draw
    from prodm.pairs.simulate import simulate

    settings = PhantomSettings(
        num_pixels=320, gated_fraction=0.0, plaques=PlaqueSettings(zero_calcium_fraction=0.0)
    )
    phantom = make_phantom(70_000 + number, settings)
    if not phantom.calcium.any():
        return None
    rng = np.random.default_rng(number)
    profile = list(PROFILES)[(5 * number) % len(PROFILES)]
    path = draw(profile, rng, pixel_spacing_mm=phantom.still.spacing_mm[1], num_angles=360)
    moving = simulate(phantom.still, phantom.calcium, path, rng=rng).moving
    scan = moving.with_hu(np.rint(moving.hu).astype(np.int16))
    true = agatston.score(phantom.still, phantom.heart).agatston
    errors = {"uncorrected": abs(agatston.score(scan, phantom.heart).agatston - true)}
    for method in METHODS:
        corrector = make_corrector(method, weights, tissue_rests=True)
        for steps in STEPS:
            result = correct(scan, phantom.heart, corrector, steps=steps, samples=1)
            errors[f"{method}, {steps}"] = abs(result.after.agatston - true)
    return errors


def _mean_errors(errors: list[dict[str, float] | None]) -> dict[str, float]:
    known = [entry for entry in errors if entry is not None]
    if not known:
        return {}
    return {key: float(np.mean([entry[key] for entry in known])) for key in known[0]}


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

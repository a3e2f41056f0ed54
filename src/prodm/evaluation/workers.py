"""The comparison of methods shared out among processes, one scan under one motion at a time.

Seeds are those of the scan, the motion and the sample, so that the result is the same whatever
the number of workers. Methods hold networks and cannot be sent, so each worker makes its own.
"""

import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from multiprocessing import get_context

from prodm.evaluation.comparison import Comparison, MethodResults, Wanted, choose_examples, compare
from prodm.evaluation.methods import Method, no_correction
from prodm.evaluation.patches import Selection
from prodm.runs import Progress, no_progress

MakeMethods = Callable[[], Sequence[Method]]

_methods: Sequence[Method] = ()  # of this worker


def compare_with_workers(
    selection: Selection,
    methods: Sequence[Method],
    make_methods: MakeMethods,
    *,
    workers: int,
    num_samples: int = 1,
    seed: int = 0,
    progress: Progress = no_progress,
) -> Comparison:
    """Return what ``compare`` returns of the same methods, which each worker makes for itself."""
    parts = [
        replace(selection, motions={scan: (motion,)}, rows={scan: selection.rows[scan]})
        for scan, motions in selection.motions.items()
        for motion in motions
    ]
    wanted = choose_examples(selection)
    done, total = 0, selection.num_patches * len(methods)
    compared: dict[int, Comparison] = {}
    pool = ProcessPoolExecutor(workers, get_context("spawn"), _start, (make_methods,))
    try:
        futures = {
            pool.submit(_compare, part, num_samples, seed, wanted): n
            for n, part in enumerate(parts)
        }
        for future in as_completed(futures):
            n = futures[future]
            compared[n] = future.result()
            done += parts[n].num_patches * len(methods)
            progress(done, total)
    finally:
        pool.shutdown(cancel_futures=True)
    whole = Comparison([MethodResults(method) for method in methods], num_samples, seed)
    for n in range(len(parts)):
        _add(whole, compared[n])
    whole.examples.sort(key=lambda example: example.case.profile)
    return whole


def _start(make_methods: MakeMethods) -> None:
    """Prepare a worker: one thread, methods of its own, and no word on an interrupt."""
    global _methods
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    import torch

    torch.set_num_threads(1)
    _methods = make_methods()


def _compare(part: Selection, num_samples: int, seed: int, wanted: Wanted) -> Comparison:
    compared = compare(part, _methods, num_samples=num_samples, seed=seed, wanted=wanted)
    for results in compared.results:
        results.method = no_correction()  # one that can be sent; it is known by its place
    return compared


def _add(whole: Comparison, part: Comparison) -> None:
    """Add the cases of a part to those of the whole."""
    whole.patches += part.patches
    whole.scans += part.scans
    whole.num_free_blocks += part.num_free_blocks
    whole.examples += part.examples
    for results, other in zip(whole.results, part.results, strict=True):
        results.patches += other.patches
        results.scans += other.scans
        results.patch_samples += other.patch_samples
        results.scan_samples += other.scan_samples
        results.invented += other.invented
        results.num_corrected += other.num_corrected
        results.seconds += other.seconds
        if other.num_calls is not None:
            results.num_calls = (results.num_calls or 0) + other.num_calls

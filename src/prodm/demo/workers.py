"""Patients side by side in processes of their own, with one progress for all."""

import multiprocessing
import os
import signal
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from queue import Empty
from typing import Any

from prodm.calcium import GRADES
from prodm.correction import Corrector, make_corrector
from prodm.demo.patients import Case, DemoSettings, Outcome, run_case
from prodm.errors import ProdmError
from prodm.runs import Progress, no_progress

LOOK_EVERY_S = 0.2
WORK = {"none": 1, "minimal": 1, "mild": 1, "moderate": 2, "severe": 6}  # about, by grade
# Memory that arrays free is kept for the next ones: to give it back and ask again took a tenth of
# the time. C libraries other than glibc know no such variables.
KEEP_MEMORY = dict.fromkeys(("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"), str(2**32))
Reports = Any  # a queue of (seed, percent), or None

_reports: Reports = None  # of this process, where it is a worker
_num_threads = 1  # of a network: the last patient has the cores of the others to itself


def run_demo(settings: DemoSettings, progress: Progress = no_progress) -> list[Outcome]:
    """Return the outcome of each case, in the order of the cases; progress is in percent.

    One worker works in this process. Those with most calcium take longest and go first.
    """
    if settings.workers == 1:
        return _one_by_one(settings, progress)
    context = multiprocessing.get_context("spawn")  # forked threads of libraries may hang
    reports = context.Queue()
    heaviest_first = sorted(settings.cases, key=lambda case: -GRADES.index(case.grade))
    with _pool(settings.workers, context, reports) as pool:
        futures = {case.seed: pool.submit(_work, case, settings) for case in heaviest_first}
        _watch(futures, reports, progress, {case.seed: WORK[case.grade] for case in heaviest_first})
        return [futures[case.seed].result() for case in settings.cases]


def _one_by_one(settings: DemoSettings, progress: Progress) -> list[Outcome]:
    corrector = make_corrector(settings.method, settings.weights, tissue_rests=True)
    total = 100 * len(settings.cases)
    outcomes = []
    for number, case in enumerate(settings.cases):
        report = partial(_add, progress, 100 * number, total)
        outcomes.append(run_case(case, settings, corrector, report))
    return outcomes


def _add(progress: Progress, before: int, total: int, done: int, _: int) -> None:
    progress(round(100 * (before + done) / total), 100)


@contextmanager
def _pool(workers: int, context: Any, reports: Reports) -> Iterator[ProcessPoolExecutor]:  # noqa: ANN401
    """Give a pool whose processes end at once when something goes wrong or is interrupted."""
    for name, value in KEEP_MEMORY.items():
        os.environ.setdefault(name, value)  # a process reads them when it starts
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(workers, context, _start, (reports, workers))
    try:
        yield pool
    except BaseException as error:
        for child in set(multiprocessing.active_children()) - others:
            child.terminate()
        pool.shutdown(cancel_futures=True)
        if isinstance(error, BrokenProcessPool):
            raise ProdmError(
                "a worker process ended early, perhaps for want of memory; close other programs "
                "and run the demo again"
            ) from error
        raise
    pool.shutdown()


def _watch(
    futures: dict[int, Future[Outcome]],
    reports: Reports,
    progress: Progress,
    work: dict[int, int],
) -> None:
    """Pass on the progress of all the work until it is done; a failure is raised at once."""
    percents = dict.fromkeys(futures, 0)
    left = set(futures.values())
    while left:
        done, left = wait(left, timeout=LOOK_EVERY_S)
        for future in done:
            future.result()
        while True:
            try:
                seed, percent = reports.get_nowait()
            except Empty:
                break
            percents[seed] = percent
        done_work = sum(work[seed] * percent for seed, percent in percents.items())
        progress(done_work // sum(work.values()), 100)


def _start(reports: Reports, num_threads: int) -> None:
    """Prepare a worker, which an interrupt is to end without a word."""
    global _reports, _num_threads
    _reports, _num_threads = reports, num_threads
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    import numba

    numba.set_num_threads(1)


def _work(case: Case, settings: DemoSettings) -> Outcome:
    corrector = _corrector(settings.method, settings.weights)

    def report(done: int, total: int) -> None:
        _reports.put((case.seed, round(100 * done / total)))

    return run_case(case, settings, corrector, report)


@cache
def _corrector(method: str, weights: Path | None) -> Corrector:
    """Load the weights once in each worker."""
    corrector = make_corrector(method, weights, tissue_rests=True)
    if method != "identity":
        import torch

        torch.set_num_threads(_num_threads)
    return corrector

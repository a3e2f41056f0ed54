"""What takes longer to make than to learn from: made once and kept, one file for each.

What is made depends on the seed and the number of the file alone, so that files may be made in any
order, by several processes, and after a kill the missing ones.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar
from zipfile import BadZipFile

import numpy as np
import torch

from prodm.errors import ProdmError
from prodm.model.phasing import Separator
from prodm.pairs.store import Pairs
from prodm.runs import Progress, replacing
from prodm.training.windows import WindowSettings, load_blocks

FOLDER = "findings"  # in a run
Kept = TypeVar("Kept")
LoadSeparator = Callable[[], Separator]  # must be one that processes can be handed
Make = Callable[..., Any]  # (blocks, separator, settings, seed=(seed, n)) -> a dataclass of arrays


def make_missing(
    folder: Path,
    pairs: Pairs,
    make: Make,
    load: LoadSeparator,
    settings: WindowSettings,
    *,
    count: int,
    seed: int,
    workers: int,
    progress: Progress,
) -> None:
    """Make ``count`` things of training blocks; files that are there already stay.

    ``load`` gives each process the separator, with its reader, that it looks through.
    """
    folder.mkdir(exist_ok=True)
    missing = [n for n in range(count) if not _file(folder, n).exists()]
    start = partial(_start, pairs.folder, make, load, settings, folder, seed)
    progress(count - len(missing), count)
    for done, _ in enumerate(_run(start, missing, workers), start=count - len(missing) + 1):
        progress(done, count)


def _run(start: Any, missing: Sequence[int], workers: int) -> Iterator[None]:  # noqa: ANN401
    if workers == 1 or len(missing) < 2:
        start()
        yield from map(_make, missing)
        return
    # Spawned, because forked threads of numerical libraries may hang.
    with ProcessPoolExecutor(workers, get_context("spawn"), start) as pool:
        futures = [pool.submit(_make, n) for n in missing]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)


_WORK: dict[str, Any] = {}  # of a process that makes things


def _start(
    pairs_folder: Path,
    make: Make,
    load: LoadSeparator,
    settings: WindowSettings,
    folder: Path,
    seed: int,
) -> None:
    torch.set_num_threads(1)
    _WORK.update(
        blocks=load_blocks(Pairs(pairs_folder), "train"),
        make=make,
        separator=load(),
        settings=settings,
        folder=folder,
        seed=seed,
    )


def _make(n: int) -> None:
    made = _WORK["make"](
        _WORK["blocks"], _WORK["separator"], _WORK["settings"], seed=(_WORK["seed"], n)
    )
    with replacing(_file(_WORK["folder"], n)) as partial_file, partial_file.open("wb") as file:
        np.savez(file, **vars(made))


def _file(folder: Path, n: int) -> Path:
    return folder / f"{n:06d}.npz"


def load_kept(folder: Path, kind: type[Kept]) -> list[Kept]:
    """Read all that a folder holds into memory, in order; each is one ``kind``."""
    kept = []
    for file in sorted(folder.glob("*.npz")):
        try:
            with file.open("rb") as opened, np.load(opened) as arrays:
                kept.append(kind(**arrays))
        except (OSError, ValueError, TypeError, EOFError, BadZipFile) as error:
            raise ProdmError(f"{file} is damaged ({error}); delete it and resume") from error
    if not kept:
        raise ProdmError(f"{folder} holds no findings")
    return kept

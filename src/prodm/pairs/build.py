"""Build a store of pairs from many scans: each scan is one task, the same on any machine.

A task reads one still scan with its calcium, chooses blocks, draws one trajectory per motion,
moves the calcium, and writes the blocks. What it draws depends on the seed, the scan's name
and the profile alone, so that the store is the same whatever the number of workers, and after
a kill and a resume. Tasks run here, in worker processes, or on a Dask cluster.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from prodm.anatomy.phantom import PhantomSettings, make_phantom
from prodm.errors import ProdmError
from prodm.motion.profiles import PROFILES, draw
from prodm.motion.trajectory import Trajectory
from prodm.pairs import blocks
from prodm.pairs.simulate import Background, StillScan, move, moving_excess, prepare
from prodm.pairs.store import ScanPairs, finish, scan_is_stored, split_of, write_scan
from prodm.runs import Progress, no_progress, write_json
from prodm.volume import Hounsfield, Volume, Window

LEAST_FREE_BLOCKS = 2  # per scan, where there is room for them
Still = tuple[Volume, NDArray[np.uint8], NDArray[np.bool_] | None]  # scan, calcium, heart


@dataclass(frozen=True)
class Source:
    """One still scan that a task can read anywhere."""

    scan: str  # names its folder in the store
    patient: str
    kind: Literal["coca", "files", "phantom"]
    place: str  # COCA root, path of the scan, or seed of the phantom
    mask: str = ""  # path of the calcium mask, where it is a file of its own
    heart: str = ""  # path of the heart mask, where there is one; else the heart is found


@dataclass(frozen=True)
class BuildSettings:
    """What makes one store differ from another."""

    seed: int = 0
    per_scan: int = 21  # motions of each scan; the profiles take turns
    moving: Literal["all", "held-out"] = "all"  # whose motions are stored; train may move afresh
    free_share: float = 0.25  # calcium-free blocks, as a share of those with calcium
    num_angles: int | None = None  # None draws from the paper's list
    span_deg: float = 180.0
    random_start: bool = False
    centred: bool = False
    background: Background = "kept"
    phantom: PhantomSettings = field(default_factory=PhantomSettings)


def build(
    sources: Sequence[Source],
    store: Path,
    settings: BuildSettings,
    *,
    workers: int = 1,
    dask_address: str | None = None,
    progress: Progress = no_progress,
) -> dict[str, Any]:
    """Build or finish the store; return the content of its ``store.json``."""
    _begin(store, settings, sources)
    left = [source for source in sources if not scan_is_stored(store, source.scan)]
    task = partial(_build_or_say_why, store=store.resolve(), settings=settings)
    run = partial(_on_dask, dask_address) if dask_address else partial(_here, workers)
    done = len(sources) - len(left)
    skipped = []
    progress(done, len(sources))
    for scan, problem in run(task, left):
        done += 1
        progress(done, len(sources))
        if problem is not None:
            skipped.append((scan, problem))
    return finish(store, asdict(settings), skipped)


def build_scan(source: Source, store: Path, settings: BuildSettings) -> None:
    """Build the pairs of one scan and write them."""
    still, calcium, heart = read_still(source, settings)
    rng = _rng(settings.seed, source.scan, "blocks")
    windows = [blocks.grow(w) for w in _choose_windows(still, calcium, heart, settings, rng)]
    trajectories = list(_draw_trajectories(source, settings, still.spacing_mm[2]))
    background, moving = _move_blocks(source, still, calcium, windows, trajectories, settings)
    pairs = ScanPairs(
        scan=source.scan,
        patient=source.patient,
        spacing_mm=still.spacing_mm,
        corners=tuple((z.start, y.start, x.start) for z, y, x in windows),
        trajectories=tuple(trajectory.to_dict() for trajectory in trajectories),
        amplitudes_px=tuple(_amplitude_px(t, still.spacing_mm[2]) for t in trajectories),
        still=np.stack([_as_int16(blocks.cut(still.hu, w)) for w in windows]),
        background=background,
        calcium=np.stack([blocks.cut(calcium, w) for w in windows]),
        moving=moving,
    )
    write_scan(store, pairs)


def _move_blocks(
    source: Source,
    still: Volume,
    calcium: NDArray[np.uint8],
    windows: Sequence[Window],
    trajectories: Sequence[Trajectory],
    settings: BuildSettings,
) -> tuple[NDArray[np.int16], NDArray[np.int16]]:
    """Return the blocks without calcium [B, Z, Y, X] and as they move [B, M, Z, Y, X]."""
    moving = np.empty((len(windows), len(trajectories), *blocks.STORED_SHAPE), np.int16)
    if not calcium.any():  # nothing moves
        background = np.stack([_as_int16(blocks.cut(still.hu, w)) for w in windows])
        moving[:] = background[:, None]
        return background, moving
    prepared = prepare(still, calcium, _rng(settings.seed, source.scan, "grain"))
    background = np.stack([_as_int16(blocks.cut(prepared.background.hu, w)) for w in windows])
    inner = [blocks.inside(window, still.shape)[1] for window in windows]
    for m, trajectory in enumerate(trajectories):
        for b, part in enumerate(_moved_parts(prepared, trajectory, inner, settings)):
            shifted = [
                slice(w.start - i.start, w.stop - i.start)
                for w, i in zip(windows[b], inner[b], strict=True)
            ]
            moving[b, m] = _as_int16(blocks.cut(part, (shifted[0], shifted[1], shifted[2])))
    return background, moving


def _moved_parts(
    prepared: StillScan,
    trajectory: Trajectory,
    windows: Sequence[Window],
    settings: BuildSettings,
) -> Iterator[Hounsfield]:
    """Yield the moving scan, in HU, inside each window."""
    if settings.background == "reprojected":
        for window in windows:
            yield move(prepared, trajectory, background="reprojected", window=window).moving.hu
        return
    excesses = moving_excess(prepared, trajectory, windows)
    for window, excess in zip(windows, excesses, strict=True):
        yield prepared.background.hu[window] + excess


def read_still(source: Source, settings: BuildSettings) -> Still:
    """Return a source's still scan, its calcium and, where known, its heart."""
    if source.kind == "phantom":
        phantom = make_phantom(int(source.place), settings.phantom)
        return phantom.still, phantom.calcium, phantom.heart
    if source.kind == "coca":
        from prodm.files import coca

        scan, labels = coca.read_gated(coca.find_patient(Path(source.place), source.patient))
        return scan.volume, labels, None
    from prodm.files.masks import read_mask
    from prodm.files.scans import read_scan

    volume = read_scan(Path(source.place)).volume
    heart = read_mask(Path(source.heart), volume.grid) > 0 if source.heart else None
    return volume, read_mask(Path(source.mask), volume.grid), heart


def _choose_windows(
    still: Volume,
    calcium: NDArray[np.uint8],
    heart: NDArray[np.bool_] | None,
    settings: BuildSettings,
    rng: np.random.Generator,
) -> list[Window]:
    """Blocks over all calcium, and some without any from the heart."""
    if heart is None:
        from prodm.anatomy.heart import find_heart

        heart = find_heart(still).mask
    with_calcium = blocks.cover(calcium > 0)
    num_free = max(LEAST_FREE_BLOCKS, round(settings.free_share * len(with_calcium)))
    return with_calcium + blocks.draw_calcium_free(calcium > 0, heart, num_free, rng)


def _draw_trajectories(
    source: Source, settings: BuildSettings, pixel_spacing_mm: float
) -> Iterator[Trajectory]:
    if settings.moving == "held-out" and split_of(source.patient) == "train":
        return
    order = _rng(settings.seed, source.scan, "order").permutation(len(PROFILES))
    names = list(PROFILES)
    for n in range(settings.per_scan):
        profile = names[order[n % len(names)]]
        rng = _rng(settings.seed, source.scan, f"{profile}/{n // len(names)}")
        yield draw(
            profile,
            rng,
            pixel_spacing_mm=pixel_spacing_mm,
            num_angles=settings.num_angles,
            span_deg=settings.span_deg,
            start_deg=None if settings.random_start else 0.0,
            centred=settings.centred,
        )


def _amplitude_px(trajectory: Trajectory, pixel_spacing_mm: float) -> float:
    path_mm = trajectory.displacement(trajectory.times)
    return float(np.linalg.norm(path_mm, axis=1).max() / pixel_spacing_mm)


def _rng(seed: int, scan: str, purpose: str) -> np.random.Generator:
    """Return a stream of its own for each scan and purpose, the same on every machine."""
    digest = hashlib.sha256(f"{seed}/{scan}/{purpose}".encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:16], "big"))


def _as_int16(hu: NDArray[Any]) -> NDArray[np.int16]:
    limits = np.iinfo(np.int16)
    rounded: NDArray[np.int16] = np.clip(np.rint(hu), limits.min, limits.max).astype(np.int16)
    return rounded


def _begin(store: Path, settings: BuildSettings, sources: Sequence[Source]) -> None:
    """Start a store, or see that an unfinished one was begun with the same settings."""
    if not sources:
        raise ProdmError("there is no scan with calcium to build from")
    names = [source.scan for source in sources]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ProdmError(f"two scans are both called {twice!r}; rename one of them")
    plan = {"settings": asdict(settings), "scans": [asdict(source) for source in sources]}
    path = store / "plan.json"
    if path.exists():
        if json.loads(path.read_text(encoding="utf-8")) != json.loads(json.dumps(plan)):
            raise ProdmError(
                f"{store} was begun with other scans or settings; finish it with those of "
                f"{path}, or choose another place"
            )
        return
    if store.exists() and any(store.iterdir()):
        raise ProdmError(f"{store} exists and is not a store of pairs; choose another place")
    (store / "scans").mkdir(parents=True)
    write_json(path, plan)


def _build_or_say_why(
    source: Source, *, store: Path, settings: BuildSettings
) -> tuple[str, str | None]:
    try:
        build_scan(source, store, settings)
    except ProdmError as error:
        return source.scan, str(error)
    return source.scan, None


Task = Callable[[Source], tuple[str, str | None]]


def _here(workers: int, task: Task, sources: Sequence[Source]) -> Iterator[tuple[str, str | None]]:
    if workers == 1 or len(sources) < 2:
        yield from map(task, sources)
        return
    # Spawned, because forked threads of numerical libraries may hang.
    with ProcessPoolExecutor(workers, get_context("spawn"), _use_one_thread) as pool:
        futures = [pool.submit(task, source) for source in sources]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _use_one_thread() -> None:
    import numba

    numba.set_num_threads(1)


def _on_dask(
    address: str, task: Task, sources: Sequence[Source]
) -> Iterator[tuple[str, str | None]]:
    try:
        from distributed import Client
        from distributed import as_completed as as_computed
    except ImportError:
        raise ProdmError("a Dask cluster needs the extra: pip install 'prodm[cluster]'") from None
    try:
        client = Client(address, timeout="10s")
    except OSError as error:
        raise ProdmError(f"no Dask scheduler answers at {address}: {error}") from error
    with client:
        futures = client.map(task, sources, pure=False, retries=2)
        for future in as_computed(futures):
            yield future.result()

"""``prodm simulate``: one scan whose calcium moves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from prodm.errors import ProdmError

if TYPE_CHECKING:
    from prodm.files.scans import Scan
    from prodm.motion.trajectory import Trajectory
    from prodm.volume import Volume

FILTERS = ("ramp", "shepp-logan", "cosine", "hamming", "hann")


@click.command()
@click.argument("scan", type=click.Path(path_type=Path), required=False)
@click.option(
    "--calcium", type=click.Path(path_type=Path), metavar="MASK", help="Calcium on the scan's grid."
)
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="DIR")
@click.option("--series", help="Which DICOM series, where SCAN holds several.")
@click.option("--profile", help="One of the 21 motions; drawn from the seed if not given.")
@click.option(
    "--trajectory",
    "trajectory_path",
    type=click.Path(path_type=Path),
    metavar="JSON",
    help="Replay a trajectory that an earlier run wrote, instead of drawing one.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option("--angles", type=click.IntRange(8), help="Number of views; drawn if not given.")
@click.option(
    "--span",
    type=click.Choice(["180", "360"]),
    default="180",
    show_default=True,
    help="Degrees that the views cover.",
)
@click.option(
    "--start", default="0", show_default=True, help="First angle in degrees, or `random`."
)
@click.option("--centred", is_flag=True, help="Take the mean displacement away.")
@click.option(
    "--engine",
    type=click.Choice(["back-projection", "phase"]),
    default="back-projection",
    show_default=True,
)
@click.option(
    "--background",
    type=click.Choice(["kept", "reprojected"]),
    default="kept",
    show_default=True,
    help="Leave the background as scanned, or project and reconstruct it too.",
)
@click.option(
    "--filter", "filter_window", type=click.Choice(FILTERS), default="ramp", show_default=True
)
@click.option(
    "--show-profiles",
    type=click.Path(path_type=Path),
    metavar="PNG",
    help="Only draw the 21 motions into a picture.",
)
@click.option("--overwrite", is_flag=True, help="Replace DIR if it exists.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def simulate(
    scan: Path | None,
    calcium: Path | None,
    output: Path | None,
    show_profiles: Path | None,
    overwrite: bool,
    as_json: bool,
    **options: Any,  # noqa: ANN401
) -> None:
    """Move the calcium of SCAN as a scan without gating would see it.

    Writes the moving scan in the input's format (DICOM in, DICOM out), the trajectory as JSON, a
    picture of before and after, and run.json.

    Example: prodm simulate scans/0042 --calcium 0042_calcium.nii.gz -o moved --profile jitter-large
    """
    if show_profiles is not None:
        from prodm.pairs.pictures import save_profiles

        save_profiles(show_profiles, seed=options["seed"])
        click.echo(f"drew the 21 motions into {show_profiles}", err=True)
        return
    if scan is None or calcium is None or output is None:
        raise click.UsageError("give SCAN, --calcium MASK and -o DIR, or --show-profiles PNG")
    result = _run(scan, calcium, output, options, overwrite=overwrite)
    if as_json:
        click.echo(json.dumps(result, indent=2))
        return
    for name, value in result.items():
        click.echo(f"{name.replace('_', ' '):<22} {value}")


def _run(
    scan_path: Path, mask_path: Path, output: Path, options: dict[str, Any], *, overwrite: bool
) -> dict[str, Any]:
    import numpy as np

    from prodm import agatston
    from prodm.files.masks import read_mask
    from prodm.files.scans import read_scan
    from prodm.pairs.pictures import save_before_and_after
    from prodm.pairs.simulate import move, prepare
    from prodm.runs import hash_files, new_folder, write_run_json

    scan = read_scan(scan_path, options["series"])
    labels = read_mask(mask_path, scan.volume.grid)
    for warning in scan.warnings:
        click.echo(f"warning: {warning}", err=True)
    trajectory = _trajectory(options, scan.volume.spacing_mm[1])
    still = prepare(scan.volume, labels, np.random.default_rng([options["seed"], 1]))
    moved = move(
        still,
        trajectory,
        engine=options["engine"],
        background=options["background"],
        filter_window=options["filter_window"],
    )
    moving = scan.volume.with_hu(_as_stored(moved.moving.hu, scan.volume.hu.dtype))
    settings = {name: value for name, value in options.items() if value is not None}
    settings = {name: str(v) if isinstance(v, Path) else v for name, v in settings.items()}
    settings["profile"] = trajectory.profile
    inputs = {str(scan_path): hash_files(scan.files)}
    if mask_path.is_file():
        inputs[str(mask_path)] = hash_files([mask_path])
    with new_folder(output, overwrite=overwrite) as folder:
        name = _write_scan(scan, moving, folder, settings)
        (folder / "trajectory.json").write_text(
            json.dumps(trajectory.to_dict(), indent=2) + "\n", encoding="utf-8"
        )
        save_before_and_after(folder / "before-after.png", still, moved, trajectory)
        write_run_json(folder, settings, inputs)
    region = _swept(labels > 0, still, trajectory)
    before, after = (agatston.score(volume, region).agatston for volume in (scan.volume, moving))
    return {
        "profile": trajectory.profile,
        "num_angles": trajectory.num_angles,
        "largest_displacement_mm": round(_largest_mm(trajectory), 2),
        "agatston_still": round(before, 1),
        "agatston_moving": round(after, 1),
        "moving_scan": str(output / name),
        "trajectory": str(output / "trajectory.json"),
        "picture": str(output / "before-after.png"),
    }


def _trajectory(options: dict[str, Any], pixel_spacing_mm: float) -> Trajectory:
    import numpy as np

    from prodm.motion.profiles import PROFILES, draw
    from prodm.motion.trajectory import Trajectory

    path: Path | None = options["trajectory_path"]
    if path is not None:
        try:
            return Trajectory.from_json(path.read_text(encoding="utf-8"))
        except (FileNotFoundError, IsADirectoryError, UnicodeDecodeError) as error:
            raise ProdmError(f"cannot read the trajectory {path}: {error}") from error
    start = options["start"]
    try:
        start_deg = None if start == "random" else float(start)
    except ValueError:
        raise ProdmError(f"--start must be degrees or `random`, got {start!r}") from None
    rng = np.random.default_rng([options["seed"], 0])
    drawn = str(rng.choice(PROFILES))
    return draw(
        options["profile"] or drawn,
        rng,
        pixel_spacing_mm=pixel_spacing_mm,
        num_angles=options["angles"],
        span_deg=float(options["span"]),
        start_deg=start_deg,
        centred=options["centred"],
    )


def _write_scan(scan: Scan, moving: Volume, folder: Path, settings: dict[str, Any]) -> str:
    """Write the moving scan in the input's format and return the name of what was written."""
    if scan.is_dicom:
        from prodm.files.derived import write_derived_series

        write_derived_series(
            scan, moving, folder / "moving", description="prodm simulated motion", settings=settings
        )
        return "moving"
    from prodm.files.nifti import write_nifti

    write_nifti(folder / "moving.nii.gz", moving)
    return "moving.nii.gz"


def _as_stored(hu: Any, dtype: Any) -> Any:  # noqa: ANN401
    """Round to whole HU where the input has whole HU."""
    import numpy as np

    if dtype != np.int16:
        return hu
    return np.clip(np.rint(hu), -32768, 32767).astype(np.int16)


def _swept(mask: Any, still: Any, trajectory: Trajectory) -> Any:  # noqa: ANN401
    """Grow the mask by all that the motion covers: where moving calcium is to be looked for."""
    import numpy as np
    from scipy import ndimage

    from prodm.pairs.simulate import displacement_px

    path = displacement_px(trajectory, still.volume.spacing_mm)
    reach = int(np.ceil(np.hypot(path[:, 0], path[:, 1]).max())) + 3
    slices = int(np.ceil(np.abs(path[:, 2]).max()))
    return ndimage.maximum_filter(mask, size=(2 * slices + 1, 2 * reach + 1, 2 * reach + 1))


def _largest_mm(trajectory: Trajectory) -> float:
    import numpy as np

    return float(np.linalg.norm(trajectory.displacement(trajectory.times), axis=1).max())

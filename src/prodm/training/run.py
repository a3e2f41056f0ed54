"""The folder of a training run: begun once, resumed only with the settings it was begun with."""

import json
from dataclasses import asdict
from pathlib import Path

from prodm.errors import ProdmError
from prodm.pairs.store import Pairs
from prodm.runs import write_json, write_run_json
from prodm.training.loop import TrainingSettings

WHAT = {"settings": "other settings", "data_sha256": "other pairs"}


def open_run(
    run: Path,
    settings: TrainingSettings,
    pairs: Pairs,
    *,
    resume: bool,
    inputs: dict[str, str | None] | None = None,
) -> None:
    """Begin a run, or see that an old one may go on; ``inputs`` are hashes of other files."""
    wanted = {"settings": asdict(settings), "data_sha256": pairs.summary["sha256"]}
    wanted |= {f"{name}_sha256": sha256 for name, sha256 in (inputs or {}).items()}
    path = run / "settings.json"
    if not resume:
        if run.exists() and any(run.iterdir()):
            raise ProdmError(f"{run} exists already; choose another place or add --resume")
        run.mkdir(parents=True, exist_ok=True)
        write_json(path, wanted)
        write_run_json(run, asdict(settings), {"pairs": pairs.summary["sha256"], **(inputs or {})})
        return
    if not path.exists():
        raise ProdmError(f"there is no run in {run} to resume; start it without --resume")
    begun = json.loads(path.read_text(encoding="utf-8"))
    for key, value in json.loads(json.dumps(wanted)).items():
        if begun.get(key) != value:
            what = WHAT.get(key, "another separator")
            raise ProdmError(f"{run} was begun with {what}; resume it with those of {path}")

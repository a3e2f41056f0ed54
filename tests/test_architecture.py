"""Data flows one way: a layer may import only the layers listed for it."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "prodm"
BASE = {"errors", "volume", "calcium", "runs"}
MAY_IMPORT: dict[str, set[str]] = {
    "files": BASE,
    "anatomy": BASE,
    "motion": BASE,
    "physics": BASE,
    "pairs": BASE | {"files", "anatomy", "motion", "physics"},
    "model": BASE | {"physics.phase", "physics.wedges", "physics.fitting"},
    "agatston": BASE,
    "training": BASE | {"motion", "physics", "pairs", "model"},
    "correction": BASE | {"anatomy", "physics", "model", "agatston", "pairs.blocks"},
    "evaluation": BASE | {"pairs", "model", "agatston", "correction"},
    "study": BASE | {"files", "evaluation"},
    "benchmarks": BASE
    | {"anatomy", "motion", "physics", "pairs", "agatston", "model", "training", "correction"},
    "demo": BASE | {"anatomy", "motion", "pairs", "agatston", "correction"},
}


def imported_modules(path: Path) -> set[str]:
    """Dotted names, below prodm, of what one file imports at any depth of its code."""
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return {name.removeprefix("prodm.") for name in names if name.startswith("prodm.")}


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: p.relative_to(PACKAGE).as_posix()
)
def test_imports_point_downwards(path: Path) -> None:
    layer = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if layer in {"cli", "__init__", "__main__"}:
        return
    allowed = MAY_IMPORT.get(layer, BASE) | {layer}
    for module in imported_modules(path):
        parts = module.split(".")
        prefixes = {".".join(parts[:n]) for n in range(1, len(parts) + 1)}
        assert prefixes & allowed, f"{path.name} imports {module}; it may use {sorted(allowed)}"

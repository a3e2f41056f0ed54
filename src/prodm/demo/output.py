"""What the demo leaves behind: a page, a picture, the numbers, and what to type next."""

from collections.abc import Sequence
from dataclasses import asdict
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from prodm.calcium import grade
from prodm.demo.patients import DemoSettings, Outcome
from prodm.demo.pictures import row_picture, save_picture
from prodm.runs import write_json, write_run_json

RESEARCH_ONLY = "Research use only. Not for diagnosis or treatment."
STYLE = """
.wide { overflow-x: auto; }
table.scores { font-size: 14px; }
table.scores td, table.scores th { padding: 6px 9px; }
table.scores td:first-child, table.scores th:first-child { text-align: left; }
.smaller { color: #23714a; font-weight: 600; } .larger { color: var(--warm); font-weight: 600; }
.total { margin: 12px 0 0; font-weight: 600; }
pre { background: #10151b; color: #f2f5f8; padding: 12px; white-space: pre-wrap; }
"""
WHAT_IT_IS = (
    "Five made-up patients, one of each grade. Each was made from a seed, its coronary calcium was "
    "set in motion by simulated back-projection, and the moving scan was corrected.",
    "The patients were chosen by their still scans alone, the first of each grade from seed 960001 "
    "on whose calcium is coronary, and their motions in turn from a list, before any correction "
    "of them was seen.",
    "All three scores count the calcium inside the heart, by the clinical rule. What the "
    "correction makes worse is shown as it is.",
)
WHAT_IT_IS_NOT = (
    "No patient, and no proof for patients: phantoms are simpler than chests, and simulated motion "
    "is simpler than a heartbeat.",
    "No evaluation: five patients show what prodm does, not how well. prodm evaluate measures "
    "that on many.",
    "The interval tells what the model leaves open. Errors that all of its samples share are "
    "outside it.",
)


def write_demo(folder: Path, outcomes: Sequence[Outcome], settings: DemoSettings) -> dict[str, Any]:
    """Write report.html, demo.png, demo.json and run.json; return the content of demo.json."""
    content = {
        "patients": [outcome.to_json() for outcome in outcomes],
        "summary": summary(outcomes),
        "next_commands": next_commands(settings),
    }
    save_picture(folder / "demo.png", outcomes)
    (folder / "report.html").write_text(report_html(outcomes, settings), encoding="utf-8")
    write_json(folder / "demo.json", content)
    recorded = asdict(settings) | {"weights": str(settings.weights) if settings.weights else None}
    sha256 = outcomes[0].model_sha256
    write_run_json(folder, recorded, {outcomes[0].model: sha256} if sha256 else None)
    return content


def summary(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return the mean error and the right grades before and after, and how intervals did."""
    still = np.array([outcome.still for outcome in outcomes])
    content: dict[str, Any] = {"patients": len(outcomes)}
    for name in ("moving", "corrected"):
        scores = [getattr(outcome, name) for outcome in outcomes]
        content[f"mean_absolute_error_{name}"] = float(np.mean(np.abs(np.array(scores) - still)))
        content[f"right_grades_{name}"] = sum(
            grade(score) == grade(outcome.still)
            for score, outcome in zip(scores, outcomes, strict=True)
        )
    held = [outcome.held for outcome in outcomes if outcome.held is not None]
    return content | {"intervals": len(held), "intervals_that_hold_truth": sum(held)}


def summary_sentence(outcomes: Sequence[Outcome]) -> str:
    """Say the summary."""
    content = summary(outcomes)
    number = content["patients"]
    sentence = (
        f"Mean error of the score: {content['mean_absolute_error_moving']:.0f} moving, "
        f"{content['mean_absolute_error_corrected']:.0f} corrected. "
        f"Right grades: {content['right_grades_moving']} of {number} moving, "
        f"{content['right_grades_corrected']} of {number} corrected."
    )
    if content["intervals"]:
        held, all_intervals = content["intervals_that_hold_truth"], content["intervals"]
        sentence += f" The truth lies in {held} of {all_intervals} intervals."
    return sentence


def next_commands(settings: DemoSettings) -> list[str]:
    """Return three commands that do the patient of the lowest seed again, step by step."""
    case = min(settings.cases, key=lambda case: case.seed)
    name = f"phantoms/phantom-{case.seed:05d}"
    correct = (
        f"prodm correct moved/moving.nii.gz --region {name}_heart.nii.gz -o corrected "
        f"--tissue still --method {settings.method} "
        f"--steps {settings.steps} --samples {settings.samples}"
    )
    if settings.weights is not None:
        correct += f" --weights {settings.weights}"
    return [
        f"prodm phantom -o phantoms --count 1 --seed {case.seed}",
        f"prodm simulate {name}.nii.gz --calcium {name}_calcium.nii.gz -o moved "
        f"--profile {case.profile} --seed {case.seed}",
        correct,
    ]


def interval_text(outcome: Outcome) -> str:
    """Say the interval, or why there is none."""
    if outcome.interval_90 is not None:
        low, high = outcome.interval_90
        return f"{low:.0f} to {high:.0f}"
    return "one sample" if outcome.num_blocks else "unchanged"


def report_html(outcomes: Sequence[Outcome], settings: DemoSettings) -> str:
    """Return the page. Nothing in it refers to another file or to the network."""
    style = (files("prodm.correction") / "report.css").read_text(encoding="utf-8") + STYLE
    title = "Five made-up patients, corrected for motion"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{style}</style></head><body><main>"
        f'<header><h1>{title}</h1><p class="research">{RESEARCH_ONLY}</p></header>'
        + _table(outcomes)
        + _pictures(outcomes)
        + _about(outcomes[0], settings)
        + _next(settings)
        + f"<footer>{RESEARCH_ONLY}</footer></main></body></html>\n"
    )


def _table(outcomes: Sequence[Outcome]) -> str:
    rows = "".join(
        f"<tr><td>{outcome.patient}</td><td>{_motion(outcome)}</td>"
        f"<td>{_score(outcome.still)}</td><td>{_score(outcome.moving)}</td>"
        f"<td>{_score(outcome.corrected)}</td><td>{interval_text(outcome)}</td>"
        f'<td class="{outcome.verdict}">{outcome.verdict}</td></tr>'
        for outcome in outcomes
    )
    return (
        '<section><h2>Agatston score</h2><div class="wide"><table class="scores"><thead><tr>'
        "<th>patient</th><th>motion</th><th>truth, still</th><th>moving</th><th>corrected</th>"
        "<th>90 % interval</th><th>error</th></tr></thead>"
        f'<tbody>{rows}</tbody></table></div><p class="total">'
        f"{summary_sentence(outcomes)}</p></section>"
    )


def _motion(outcome: Outcome) -> str:
    return outcome.case.profile if outcome.largest_shift_mm else "nothing moves"


def _score(agatston: float) -> str:
    return f"{agatston:.0f}, {grade(agatston)}"


def _pictures(outcomes: Sequence[Outcome]) -> str:
    figures = ""
    for outcome in outcomes:
        place = "largest coronary lesion" if outcome.largest_shift_mm else "left edge of the heart"
        title = (
            f"{outcome.patient}: {outcome.moving:.0f} moving, {outcome.corrected:.0f} corrected, "
            f"{outcome.still:.0f} in truth"
        )
        facts = [f"{place}, slice {outcome.slice_index + 1} from below"]
        if outcome.largest_shift_mm:
            facts.append(f"motion {outcome.case.profile}, up to {outcome.largest_shift_mm:.1f} mm")
        if outcome.not_coronary >= 0.5:
            facts.append(
                f"{outcome.not_coronary:.0f} of the true score is not coronary and stays at rest"
            )
        facts += outcome.warnings
        figures += (
            f"<figure><figcaption>{title}</figcaption>"
            f'<p class="key">{escape(_sentences(facts))}</p>'
            f'<img alt="{title}" src="{row_picture(outcome)}"></figure>'
        )
    key = (
        '<p class="key">Lines mark 130 HU inside the heart, from where on calcium counts; '
        "the bar is 10 mm.</p>"
    )
    return f"<section><h2>Moving, corrected, truth</h2>{key}{figures}</section>"


def _sentences(texts: Sequence[str]) -> str:
    return " ".join(f"{text[:1].upper()}{text[1:]}." for text in texts)


def _about(outcome: Outcome, settings: DemoSettings) -> str:
    model = outcome.model
    if outcome.model_sha256:
        model += f" (SHA-256 {outcome.model_sha256[:12]}…)"
    model = f"Model: {model}; {settings.steps} steps, {settings.samples} samples."
    parts = []
    for title, sentences in (
        ("What this is", (*WHAT_IT_IS, model)),
        ("What this is not", WHAT_IT_IS_NOT),
    ):
        items = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
        parts.append(f"<div><h2>{title}</h2><ul>{items}</ul></div>")
    return f'<section class="done">{"".join(parts)}</section>'


def _next(settings: DemoSettings) -> str:
    commands = "\n".join(escape(command) for command in next_commands(settings))
    return (
        "<section><h2>Next: one of these patients step by step; then a scan of your own, "
        "without --tissue still</h2>"
        f"<pre>{commands}</pre></section>"
    )

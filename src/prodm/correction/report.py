"""One HTML file, complete in itself, that tells a radiologist what a correction did."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from itertools import pairwise

from prodm.agatston import Score
from prodm.calcium import GRADE_EDGES, GRADES
from prodm.correction.correct import Corrected, Roi
from prodm.correction.explanation import UNEXPLAINED
from prodm.correction.pictures import curve_picture, pick_views, view_picture
from prodm.volume import Volume

RESEARCH_ONLY = "Research use only. Not for diagnosis or treatment."
SCALE_ENDS = (0.0, 10.0, 100.0, 400.0, 2000.0)  # of the picture; each grade is equally wide


@dataclass(frozen=True)
class About:
    """What the report says of the scan besides the result."""

    scan: str
    region: str  # how it was come by
    steps_taken: tuple[str, ...] = ()  # what was done, a sentence each
    left_out: tuple[str, ...] = ()  # what was not


def report_html(corrected: Corrected, original: Volume, about: About) -> str:
    """Return the report. Nothing in it refers to another file or to the network."""
    parts = [
        _scores(corrected),
        _warnings(corrected.warnings),
        _strip(corrected, original),
        _explained(corrected.rois),
        _lesions(corrected.before, corrected.after),
        _done(about, corrected),
    ]
    style = (files("prodm.correction") / "report.css").read_text(encoding="utf-8")
    title = f"Coronary calcium of {escape(about.scan)}"
    return (
        "<!doctype html>\n"
        '<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{style}</style></head><body><main>"
        f'<header><h1>Coronary calcium, corrected for motion</h1><p class="scan">'
        f"{escape(about.scan)}</p>"
        f'<p class="research">{RESEARCH_ONLY}</p></header>'
        + "".join(parts)
        + f"<footer>{RESEARCH_ONLY}</footer></main></body></html>\n"
    )


def _scores(corrected: Corrected) -> str:
    before, after, spread = corrected.before, corrected.after, corrected.spread
    interval = "one sample, no interval"
    if spread is not None:
        low, high = spread.interval_90
        interval = f"90 % interval {low:.0f} to {high:.0f}"
    if not corrected.rois:
        interval = "unchanged"
    cards = (
        f'<div class="card"><h2>Before</h2><p class="number" id="before">{before.agatston:.0f}</p>'
        f"<p>{escape(before.grade)}</p></div>"
        '<div class="arrow" aria-hidden="true">→</div>'
        f'<div class="card after"><h2>After</h2><p class="number" id="after">{after.agatston:.0f}'
        f'</p><p>{escape(after.grade)}</p><p class="interval" id="interval">{interval}</p></div>'
    )
    grades = ""
    if spread is not None:
        rows = "".join(
            f'<div class="grade"><span>{name}</span><span class="bar"><i style="width:'
            f'{share:.0%}"></i></span><span>{share:.0%}</span></div>'
            for name, share in spread.grade_probabilities.items()
        )
        grades = f'<div class="grades"><h2>Probability of each grade</h2>{rows}</div>'
    return (
        f'<section class="scores"><p class="unit">Agatston score</p><div class="cards">{cards}'
        f"{grades}</div>{_scale(corrected)}</section>"
    )


def _scale(corrected: Corrected) -> str:
    """Draw both scores and the interval on a line of grades, each of them equally wide."""
    zones = ""
    for n, name in enumerate(GRADES[1:]):
        edge = f"{GRADE_EDGES[n]:g}"
        zones += (
            f'<rect x="{200 * n}" y="26" width="200" height="16" class="zone{n}"/>'
            f'<text x="{200 * n + 100}" y="58" class="name">{name}</text>'
            f'<text x="{200 * n + 2}" y="20" class="edge">{edge}</text>'
        )
    band = ""
    if corrected.spread is not None:
        low, high = (_along(end) for end in corrected.spread.interval_90)
        width = max(2.0, high - low)
        band = f'<rect x="{low:.1f}" y="30" width="{width:.1f}" height="8" class="band"/>'
    before, after = (_along(score.agatston) for score in (corrected.before, corrected.after))
    return (
        '<svg viewBox="-8 0 816 64" role="img" aria-label="scores on the scale of grades">'
        f'{zones}{band}<circle cx="{before:.1f}" cy="34" r="7" class="was"/>'
        f'<circle cx="{after:.1f}" cy="34" r="7" class="is"/></svg>'
        '<p class="key"><b class="was"></b> before <b class="is"></b> after '
        '<b class="band"></b> 90 % interval; more than 400 is severe</p>'
    )


def _along(agatston: float) -> float:
    """Place of a score on the line, 0 to 800."""
    for n, (low, high) in enumerate(pairwise(SCALE_ENDS)):
        if agatston <= high:
            return 200 * (n + (agatston - low) / (high - low))
    return 800.0


def _warnings(warnings: Sequence[str]) -> str:
    if not warnings:
        sentence = "Nothing about this correction calls for caution."
        return f'<section class="fine"><p>{sentence}</p></section>'
    items = "".join(f"<li>{escape(_sentence(warning))}</li>" for warning in warnings)
    return f'<section class="warnings"><h2>Look twice</h2><ul>{items}</ul></section>'


def _strip(corrected: Corrected, original: Volume) -> str:
    views = pick_views(corrected)
    if not views:
        return ""
    rows = ""
    for view in views:
        title = (
            f"slice {view.slice_index + 1} of {original.shape[0]} from below, "
            f"block {corrected.rois.index(view.roi) + 1}: "
            f"{view.agatston_before:.0f} → {view.agatston_after:.0f}"
        )
        source = view_picture(corrected, original, view)
        rows += (
            f'<figure><figcaption>{title}</figcaption><img alt="{title}: place, before, after, '
            f'difference" src="{source}"></figure>'
        )
    return f"<section><h2>Slices that matter</h2>{rows}</section>"


def _explained(rois: Sequence[Roi]) -> str:
    """Show the motion that leads from the corrected calcium to the input, block by block."""
    rows = ""
    for number, roi in enumerate(rois, start=1):
        found = roi.explained
        if found is None:
            continue
        if found.residual > UNEXPLAINED:
            kind, said = ' class="doubt"', f"no motion explains it, {found.residual:.0%} is left"
        else:
            kind = ""
            said = f"moving by up to {found.largest_mm:.1f} mm explains {1 - found.residual:.0%}"
        slices = roi.window[0]
        rows += (
            f"<figure{kind}><figcaption>block {number}, slices {slices.start + 1} to {slices.stop}:"
            f' {said}</figcaption><img alt="motion of block {number}" src="{curve_picture(found)}">'
            "</figure>"
        )
    if not rows:
        return ""
    return (
        '<section class="motion"><h2>Does a motion explain the change?</h2>'
        "<p>If the calcium lay as corrected, and moved along this curve while it was scanned, the "
        "scanner would have seen the given share of what it saw. A right correction leaves "
        f"little; more than {UNEXPLAINED:.0%} is a reason for doubt.</p>"
        f"<div>{rows}</div></section>"
    )


def _lesions(before: Score, after: Score) -> str:
    return (
        '<section class="tables"><h2>Lesions</h2><div class="pair">'
        f"{_lesion_table('Before', before)}{_lesion_table('After', after)}</div></section>"
    )


def _lesion_table(title: str, score: Score) -> str:
    rows = "".join(
        f"<tr><td>{lesion.slice_index + 1}</td><td>{_position(lesion.position_xyz_mm)}</td>"
        f"<td>{lesion.area_mm2:.1f}</td><td>{lesion.peak_hu:.0f}</td><td>{lesion.weight}</td>"
        f"<td>{escape(lesion.vessel.lower() if lesion.vessel == 'UNSPECIFIED' else lesion.vessel)}"
        f"</td><td>{lesion.agatston:.1f}</td></tr>"
        for lesion in score.lesions
    )
    if not rows:
        rows = '<tr><td colspan="7">none</td></tr>'
    return (
        f"<table><caption>{title}: {len(score.lesions)} lesions, {score.volume_mm3:.0f} mm³"
        "</caption><thead><tr><th>slice</th><th>x, y, z mm</th><th>mm²</th><th>peak HU</th>"
        f"<th>weight</th><th>vessel</th><th>Agatston</th></tr></thead><tbody>{rows}</tbody></table>"
    )


def _position(xyz_mm: Sequence[float]) -> str:
    return ", ".join(f"{value:.0f}" for value in xyz_mm)


def _done(about: About, corrected: Corrected) -> str:
    model = corrected.model_name
    if corrected.model_sha256:
        model += f" (SHA-256 {corrected.model_sha256[:12]}…)"
    done = [
        f"Region: {about.region}.",
        f"Possible calcifications from 100 HU on, found in it: {corrected.candidates.count}; "
        f"blocks that cover them: {len(corrected.rois)}.",
        f"Model: {model}; {_settings(corrected)}.",
        f"Scored by the rule {corrected.after.rule.name}: from "
        f"{corrected.after.rule.threshold_hu:g} HU on.",
        *about.steps_taken,
    ]
    not_done = [
        "Voxels outside the blocks are bit for bit those of the input.",
        "Bone and calcium outside the region were not touched.",
        "Nobody has checked which calcium in the region is coronary.",
        *about.left_out,
    ]
    return (
        '<section class="done"><div><h2>What was done</h2><ul>'
        + "".join(f"<li>{escape(_sentence(text))}</li>" for text in done)
        + "</ul></div><div><h2>What was not</h2><ul>"
        + "".join(f"<li>{escape(_sentence(text))}</li>" for text in not_done)
        + "</ul></div></section>"
    )


def _settings(corrected: Corrected) -> str:
    settings = corrected.settings
    steps = settings.get("steps")
    return (
        f"{'its own number of' if steps is None else steps} steps, "
        f"{settings.get('samples')} samples, seed {settings.get('seed')}"
    )


def _sentence(text: str) -> str:
    text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "!", "?")) else text + "."

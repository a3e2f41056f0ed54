"""The main job on made-up patients: five phantoms, moved, corrected and scored.

    from prodm.demo import DEMO, run_demo, write_demo
    write_demo(folder, run_demo(DEMO), DEMO)

Importing this package loads no torch.
"""

from prodm.demo.output import next_commands, summary, write_demo
from prodm.demo.patients import CASES, DEMO, Case, DemoSettings, Outcome, run_case
from prodm.demo.workers import run_demo

__all__ = [
    "CASES",
    "DEMO",
    "Case",
    "DemoSettings",
    "Outcome",
    "next_commands",
    "run_case",
    "run_demo",
    "summary",
    "write_demo",
]

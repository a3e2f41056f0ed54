"""What people see while a command works: a bar on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from prodm.runs import Progress

PLAIN_LINE_EVERY_S = 10.0


@contextmanager
def progress_bar(label: str) -> Iterator[Progress]:
    """Give a function to call with (done, total); it draws on standard error."""
    if not sys.stderr.isatty():
        yield _plain_lines(label)
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _plain_lines(label: str) -> Progress:
    started = last = time.monotonic()

    def report(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last < PLAIN_LINE_EVERY_S or done == 0:
            return
        last = now
        left_s = (now - started) / done * (total - done)
        print(f"{label}: {done} of {total}, about {left_s:.0f} s left", file=sys.stderr)

    return report


@contextmanager
def training_report() -> Iterator[Callable[[str, int, int], None]]:
    """Give a function to call with (text, step, steps): a bar, or plain lines."""
    with progress_bar("training") as progress:
        last = time.monotonic()

        def report(text: str, step: int, steps: int) -> None:
            nonlocal last
            progress(step, steps)
            now = time.monotonic()
            if now - last >= PLAIN_LINE_EVERY_S:
                last = now
                print(f"step {step} of about {steps}: {text}", file=sys.stderr)

        yield report

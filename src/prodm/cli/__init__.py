"""The command line: each command parses, calls the library, and prints.

Command modules import the library inside their functions, so that ``--help`` stays quick and
a command loads only what it needs.
"""

import errno
import sys

import click

from prodm.cli.ablate import ablate
from prodm.cli.bench import bench
from prodm.cli.build import build
from prodm.cli.coca import coca
from prodm.cli.correct import correct
from prodm.cli.demo import demo
from prodm.cli.evaluate import evaluate
from prodm.cli.phantom import phantom
from prodm.cli.score import score
from prodm.cli.simulate import simulate
from prodm.cli.study import study
from prodm.cli.train import train
from prodm.errors import ProdmError

OS_ERROR_SENTENCES = {
    errno.ENOSPC: "the disk is full; free some space and run the command again",
    errno.EDQUOT: "the disk quota is used up; free some space and run the command again",
    errno.EACCES: "permission denied",
    errno.EROFS: "the place to write to is read-only",
}


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="prodm")
def cli() -> None:
    """Restore and score coronary calcium in routine chest CT. Research use only."""


cli.add_command(bench)
cli.add_command(build)
cli.add_command(coca)
cli.add_command(phantom)
cli.add_command(simulate)
cli.add_command(study)
cli.add_command(train)
cli.add_command(score)
cli.add_command(correct)
cli.add_command(evaluate)
cli.add_command(ablate)
cli.add_command(demo)


def main() -> None:
    """Run the command line: exit 0 done, 1 the input or settings are wrong, 2 usage."""
    try:
        cli(standalone_mode=False)
    except click.exceptions.Abort:
        _stop("interrupted; nothing half-written was left behind", 130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except ProdmError as error:
        _stop(str(error), 1)
    except OSError as error:
        if error.errno not in OS_ERROR_SENTENCES:
            raise
        where = f"{error.filename}: " if error.filename else ""
        _stop(where + OS_ERROR_SENTENCES[error.errno], 1)
    except MemoryError:
        _stop("there is not enough memory for this scan; close other programs or crop it", 1)


def _stop(sentence: str, exit_code: int) -> None:
    click.echo(f"prodm: {sentence}", err=True)
    sys.exit(exit_code)

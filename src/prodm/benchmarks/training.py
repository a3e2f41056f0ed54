"""How fast a network learns, beside a plain U-Net with as many parameters.

Each contender takes the same steps (forward, backward, Adam) on random windows, in a process
of its own, so that its peak memory is its own. Times are core-seconds, because cores are
often shared; the plain U-Net is MONAI's, with the same levels and scaled in width until it has
about as many parameters.
"""

import multiprocessing
import resource
import time
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from typing import Any

from prodm.runs import Progress, fill, no_progress

SHIPPED = ("compact", "paper")
NUM_STEPS = {"compact": 12, "paper": 2}
BATCH_SIZE = {"compact": 16, "paper": 4}


@dataclass(frozen=True)
class Speed:
    """What one contender reached."""

    name: str
    parameters: int
    samples_per_core_s: float
    memory_mib: float


def race(*, progress: Progress = no_progress) -> dict[str, Any]:
    """Measure the shipped settings and their plain twins; return rows fit for JSON."""
    jobs = [(name, plain) for name in SHIPPED for plain in (False, True)]
    rows = []
    context = multiprocessing.get_context("spawn")
    for done, job in enumerate(jobs):
        progress(done, len(jobs))
        with context.Pool(1) as pool:
            rows.append(pool.apply(_measure, job))
    progress(len(jobs), len(jobs))
    return {"rows": [vars(row) for row in rows], "threads": 1, "window": [3, 64, 64]}


def _measure(name: str, plain: bool) -> Speed:
    import torch

    torch.set_num_threads(1)
    network, step = _plain(name) if plain else _ours(name)
    optimiser = torch.optim.Adam(network.parameters())

    def learn() -> None:
        optimiser.zero_grad()
        step(BATCH_SIZE[name]).backward()
        optimiser.step()

    learn()  # the first step allocates
    start = time.process_time()
    for _ in range(NUM_STEPS[name]):
        learn()
    core_s = time.process_time() - start
    parameters = sum(parameter.numel() for parameter in network.parameters())
    return Speed(
        f"plain U-Net like {name}" if plain else name,
        parameters,
        BATCH_SIZE[name] * NUM_STEPS[name] / core_s,
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    )


def _settings(name: str) -> Any:  # noqa: ANN401 (torch is imported late)
    from prodm.training.loop import TrainingSettings

    text = (resources.files("prodm") / "settings" / f"{name}.toml").read_text(encoding="utf-8")
    return fill(TrainingSettings, tomllib.loads(text), name).model


def _ours(name: str) -> tuple[Any, Callable[[int], Any]]:
    import torch

    from prodm.model.baselines import build_network

    network = build_network(_settings(name), seed=0)

    def step(batch_size: int) -> Any:  # noqa: ANN401
        xt, y, x0 = torch.rand(3, batch_size, 3, 64, 64)
        return (y - network(xt, y, torch.full((batch_size,), 500)) - x0).square().mean()

    return network, step


def _plain(name: str) -> tuple[Any, Callable[[int], Any]]:
    import torch
    from monai.networks.nets import BasicUNet

    from prodm.model.network import num_parameters

    wanted = num_parameters(_ours(name)[0])
    network = None
    for width in range(8, 257, 4):
        features = (width, width, 2 * width, 4 * width, 8 * width, width)
        network = BasicUNet(2, in_channels=6, out_channels=3, features=features)
        if num_parameters(network) >= wanted:
            break

    def step(batch_size: int) -> Any:  # noqa: ANN401
        xt, y, x0 = torch.rand(3, batch_size, 3, 64, 64)
        return (y - network(torch.cat([xt, y], dim=1)) - x0).square().mean()  # type: ignore[misc]

    return network, step

"""Core-seconds per block of each method, networks included.

    python benchmarks/phase_cost.py PAIRS METHOD [METHOD ...]

METHOD is what ``prodm evaluate --run`` takes. One thread, 16 validation blocks, four jumps.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import torch

from prodm.evaluation.methods import find_method
from prodm.evaluation.patches import load_patches
from prodm.pairs.store import Pairs


def main() -> None:
    """Print one line per method."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pairs", type=Path)
    parser.add_argument("methods", nargs="+")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    pairs = Pairs(arguments.pairs)
    patches = load_patches(pairs, "validation", with_calcium=True, count=16, seed=3)
    blocks = np.stack([patch.moving for patch in patches]).astype(np.float32)
    for source in arguments.methods:
        correct = find_method(source, num_jumps=4).correct
        correct(blocks[:1], (3.0, 0.5, 0.5), 0)  # the first call loads and compiles
        started = time.process_time()
        correct(blocks, (3.0, 0.5, 0.5), 0)
        print(f"{source}: {(time.process_time() - started) / len(blocks):.2f}", flush=True)


if __name__ == "__main__":
    main()

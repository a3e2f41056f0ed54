"""Motion-free coronary calcium from non-gated chest CT: simulate, correct, score."""

from importlib.metadata import version

__version__ = version("prodm")

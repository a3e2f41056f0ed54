"""The numbers printed in the paper, to lay beside ours.

Other data give other absolute values: what can be compared is the ratio to "no correction".
The printed ± are standard errors; the paper tested 13,813 patches.
"""

from dataclasses import dataclass

NUM_PATCHES = 13_813


@dataclass(frozen=True)
class PaperRow:
    """One row of the paper's Table 2; the accuracy is in per cent."""

    title: str
    agatston_mae: float
    agatston_mae_se: float
    grade_accuracy_percent: float
    grade_accuracy_percent_se: float
    dice_loss: float
    dice_loss_se: float
    pearson_r: float


TABLE_2: dict[str, PaperRow] = {
    "none": PaperRow("no correction", 37.876, 0.588, 42.614, 0.544, 0.853, 0.002, 0.953),
    "unet": PaperRow("UNet", 45.163, 0.829, 68.146, 0.512, 0.403, 0.002, 0.929),
    "cgan": PaperRow("cGAN", 59.729, 8.256, 35.431, 2.309, 0.806, 0.011, 0.748),
    "ddpm": PaperRow("DDPM", 33.659, 0.985, 82.571, 0.530, 0.210, 0.002, 0.942),
    "bbdm": PaperRow("BBDM", 10.644, 0.261, 92.735, 0.285, 0.131, 0.001, 0.992),
    "prodm": PaperRow("ProDM", 9.391, 0.257, 95.334, 0.232, 0.078, 0.001, 0.993),
}
SAME_AS = {"prodm-paper": "prodm"}  # kinds of ours that the paper knows by another name

# Table 3: precision, recall and F1 by grade.
TABLE_3: dict[str, dict[str, tuple[float, float, float]]] = {
    "no correction": {
        "minimal": (0.150, 0.104, 0.123),
        "mild": (0.711, 0.481, 0.574),
        "moderate": (0.863, 0.614, 0.717),
        "severe": (0.847, 0.722, 0.780),
    },
    "ProDM without calcium loss": {
        "minimal": (0.932, 0.914, 0.923),
        "mild": (0.953, 0.945, 0.949),
        "moderate": (0.940, 0.929, 0.934),
        "severe": (0.957, 0.853, 0.902),
    },
    "ProDM": {
        "minimal": (0.972, 0.961, 0.966),
        "mild": (0.956, 0.967, 0.961),
        "moderate": (0.936, 0.947, 0.941),
        "severe": (0.959, 0.853, 0.903),
    },
}


def paper_row(kind: str) -> PaperRow | None:
    """Return the paper's row for one kind of method; None where it has none."""
    return TABLE_2.get(SAME_AS.get(kind, kind))

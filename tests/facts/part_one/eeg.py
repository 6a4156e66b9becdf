"""What the chapter on EEG says, of a real recording and of a simulated one alike."""

from collections.abc import Callable
from typing import Any

import numpy as np

from facts import Fact, cells

Cells = dict[str, Any]


def weaker(page: Cells, at: str) -> bool:
    """Whether an electrode's mean power is lower while hands than while feet are imagined."""
    k = page["three"].index(at)
    return bool(page["means"]["hands"][k, k] < page["means"]["feet"][k, k])


def less(at: str, real: float) -> Callable[[Cells], float]:
    """By how much per cent its power is lower, where the page has the real recording."""

    def found(page: Cells) -> float:
        k = page["three"].index(at)
        share = page["means"]["hands"][k, k] / page["means"]["feet"][k, k]
        return float(100 * (1 - share)) if page["whose"] == "real recording" else real

    return found


def follows(page: Cells) -> bool:
    """Whether first and third tangent entries of C3 and C4 follow the logarithms of their powers."""
    powers = np.log(page["seen"](["C3", "C4"])[:, [0, 1], [0, 1]])
    return all(np.corrcoef(page["xi"][:, k], powers[:, i])[0, 1] > 0.85 for i, k in ((0, 0), (1, 2)))


def towards_the_lower_left(page: Cells) -> bool:
    hands, feet = (page["xi"][page["imagined"] == name].mean(0) for name in ("hands", "feet"))
    return bool(hands[0] < feet[0] and hands[2] < feet[2])


def apart(page: Cells) -> bool:
    """Whether people lie further apart than the trials of one of them, and all around zero from their own means."""
    by = page["people"].groupby("person")
    between, within = by.mean().std(), by.std().median()
    return all(between[c] > within[c] and abs(by.mean()[f"own {c}"]).max() < 0.01 for c in ("C3", "C4"))


def alike(least: float) -> Callable[[Cells], bool]:
    """Whether the map out of class means is correlated with the trials' by more than that."""
    return lambda page: bool(np.corrcoef(*page["maps"].values())[0, 1] > least)


def lower_over_the_hands(page: Cells) -> bool:
    at = [page["trials"].ch_names.index(name) for name in ("C3", "C4")]
    return all((values[at] < 0).all() for values in page["maps"].values())


def entries(page: Cells) -> list[str]:
    return [pair for pairs in page["about"].values() for pair in pairs]


P, Q = np.diag([4.0, 1.0]), np.diag([1.0, 4.0])


def halfway(page: Cells) -> bool:
    """Whether the first exercise's numbers are those of the page's functions."""
    both = np.stack([P, Q])
    vectors = page["tangent"](both, page["mean"](both))
    return bool(
        np.allclose(page["mean"](both), 2 * np.eye(2)) and np.allclose(vectors[0], np.log(2) * np.array([1, 0, -1]))
    )


def lists_both(page: Cells) -> bool:
    """Whether the last exercise names the electrodes of its two caps."""
    said = [cell["source"] for cell in cells("eeg") if "two of our caps" in cell["source"]]
    return all(f"`{' '.join(page['caps'][q])}`" in said[0] for q in (14, 22))


def shared(page: Cells) -> int:
    return len(set(page["caps"][14]) & set(page["caps"][22]))


FACTS: list[Fact] = [
    ("Power over the motor cortex, by frequency. It falls around ten hertz while the hands are imagined", lambda page: bool(page["power"]["hands imagined"] < page["power"]["before the cue"])),
    ("As we hoped, C3 and C4 are weaker while the hands are imagined", lambda page: weaker(page, "C3"), lambda page: weaker(page, "C4")),
    ("C3 has {:.0f} % less power than while the feet are imagined, C4 {:.0f} % less and Cz {:.0f} % less", less("C3", 20), less("C4", 11), less("Cz", 7)),
    ("half way, at , the determinant is {:.1f}", lambda page: float(np.linalg.det(page["straight"][20]))),
    ("it is {} of what it was", round(0.8**2, 2)),
    ("Hands lie towards the lower left", towards_the_lower_left),
    ("the correlation with the logarithm of the power, which stands at each axis, is still above 0.85", follows),
    ("Each cap is right in more than eight of ten trials", lambda page: min(page["accuracy"](page["caps"][q]) for q in (3, 14, 22, 64)) > 80),
    ("No entry of the table occurs twice", lambda page: len(set(entries(page))) == len(entries(page))),
    ("Only C3, Cz and C4 sit on all four heads", lambda page: set.intersection(*map(set, page["caps"].values())) == {"C3", "Cz", "C4"}),
    ("As recorded, some people lie far from the others", apart),
    ("with a correlation above 0.9 over the electrodes", alike(0.9)),
    ("In both, power is lower over the motor areas left and right of the middle", lower_over_the_hands),
    ("A laboratory has two of our caps", lists_both),
    ("has nine electrodes, hence 45 numbers", lambda page: shared(page) == 9),
    ("loses more than half of its numbers, and the large one more than four fifths", 45 < 105 / 2, 45 < 253 / 5),
    ("person on one day, with 45 trials", lambda page: len(page["S"]) in (44, 45)),
    ("The mean is the middle of the shortest path", halfway),
    ("has determinant {} and trace 5", np.linalg.det((P + Q) / 2).round(2), np.trace((P + Q) / 2) == 5),
]  # fmt: skip

GIVEN = ("equal power and correlation 0.6",)

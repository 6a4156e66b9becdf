"""What is compared on: federations by name, each made of a seed in two sizes."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Literal, get_args

import numpy as np
import torch

from hetfl_book.datasets import fedgen, flic_bci, solids
from hetfl_core import checks
from hetfl_core.clients import Client, altered
from hetfl_core.datasets import blocks, digits, eeg, eeg_people, femnist, heart, liver, pooled, registry, thyroid, toy
from hetfl_core.datasets.fewer import tenth_of
from hetfl_core.federation import Federation, map_blocks
from hetfl_core.rng import numpy_stream

Size = Literal["all", "tenth"]
SIZES: tuple[Size, ...] = get_args(Size)

MOST = 300
"""Training rows of a client of pictures or made rows, and test rows."""


@dataclass(frozen=True)
class Setting:
    """A federation of the comparison.

    Parameters
    ----------
    title : str
        What it is, in a line.
    make : callable
        ``make(seed)`` gives the federation with all training rows.
    kind : {"tables", "EEG", "pictures", "made"}
    real : bool
        Whether its clients differ because somebody measured different things.
    ratio : float
        Test rows for each training row, where every seed splits the same rows anew: the overlap that intervals allow
        for. 0 where every seed makes its own rows, or where the split is fixed.
    data : str
        Name of the data set in the registry whose files it needs; empty where it needs none.
    sized : callable, optional
        ``sized(seed)`` gives the federation with a tenth of the training rows, where more is done than to leave rows
        out, as where gaps are filled by what training rows say.
    common : callable, optional
        ``common(size, seed)`` gives what all clients have in common, where that is more than columns of one name.
    source : tuple of str
        Licence and citation of real rows that come with a package, so that `data` is empty.
    """

    title: str
    make: Callable[[int], Federation]
    kind: Literal["tables", "EEG", "pictures", "made"]
    real: bool
    ratio: float
    data: str = ""
    sized: Callable[[int], Federation] | None = None
    common: Callable[[Size, int], Federation] | None = None
    source: tuple[str, str] = ("", "")

    @property
    def seeds(self) -> tuple[int, ...]:
        """Those of the finals."""
        return tuple(range(5 if self.kind == "pictures" else 10))

    @property
    def available(self) -> bool:
        """Whether its files are at hand."""
        return not self.data or registry.available(self.data)


@lru_cache(maxsize=24)
def data_of(name: str, seed: int, size: Size = "all", *, common: bool = False) -> Federation:
    """The data of a federation, which are kept for the runs that follow.

    Parameters
    ----------
    name : str
        One of `FEDERATIONS`.
    seed : int
        Of the split, and of what is made up.
    size : {"all", "tenth"}
        Whether clients have all their training rows, or a tenth of each class
        (`hetfl_core.datasets.fewer.tenth_of`).
    common : bool
        Only what all clients have in common, where the federation says what that is.

    Returns
    -------
    Federation

    Raises
    ------
    ValueError
        For another name or size.
    hetfl_core.datasets.DataError
        If files are missing.
    """
    setting = FEDERATIONS[checks.choice("federations", name, tuple(FEDERATIONS))]
    with warnings.catch_warnings(action="ignore"):  # classes that a client is tested on and lacks are part of the task
        checks.choice("size", size, SIZES)
        if common and setting.common:
            return setting.common(size, seed)
        if size == "all":
            return setting.make(seed)
        return setting.sized(seed) if setting.sized else tenth_of(setting.make(seed), seed)


def at_most(data: Federation, seed: int, n: int = MOST) -> Federation:
    """Every client with at most n training and n test rows, the classes in proportion.

    Parameters
    ----------
    data : Federation
    seed : int
        Of the draw.
    n : int

    Returns
    -------
    Federation
    """

    def cut(client: Client) -> Client:
        parts: dict[str, Any] = {}
        for split in ("train", "test"):
            x, y = getattr(client, f"x_{split}"), getattr(client, f"y_{split}")
            share = min(1.0, n / max(len(y), 1))
            kept = _kept(y, numpy_stream(seed, client.name, 0, f"at most:{split}"), share)
            parts |= {f"x_{split}": map_blocks(lambda t: t[kept], x), f"y_{split}": y[kept]}  # noqa: B023
        return altered(client, **parts)

    return altered(data, clients=tuple(map(cut, data)), x_test=None, y_test=None)


def _kept(labels: torch.Tensor, rng: np.random.Generator, share: float) -> torch.Tensor:
    """Places of the rows that stay, a share of each class, but one row of it at least."""
    y = labels.numpy()
    groups = [rng.permutation(np.flatnonzero(y == c)) for c in np.unique(y)]
    rows = [group[: max(1, round(len(group) * share))] for group in groups]
    return torch.from_numpy(np.sort(np.concatenate(rows)) if rows else np.empty(0, int))


def _some(make: Callable[..., Federation], **options: Any) -> Callable[[int], Federation]:
    """Made of a seed, with at most `MOST` rows a client."""
    return lambda seed: at_most(make(seed=seed, **options), seed)


def _table(title: str, make: Callable[..., Federation], data: str) -> Setting:
    """Patients of several places, two fifths of whom are tested; gaps are filled by the training rows of a size."""
    whole, few = (lambda seed, size=size: make(test_size=0.4, seed=seed, size=size) for size in SIZES)
    return Setting(title, whole, "tables", True, 0.4 / 0.6, data, few)


FASHION = {"n_clients": 20, "per_client": 700}

FEDERATIONS: dict[str, Setting] = {
    "heart": _table("four hospitals with different columns", heart.hospitals, "heart.hospitals"),
    "thyroid": _table("five referral sources and a second laboratory", thyroid.laboratories, "thyroid.laboratories"),
    "liver": _table("two clinics with overlapping blood panels", liver.clinics, "liver.clinics"),
    "eeg-caps": Setting(
        "EEG of eight people with three kinds of caps",
        lambda seed: eeg_people.eight_people(seed=seed),
        "EEG",
        real=True,
        ratio=1 / 3,
        data="eeg.eight_people",
        sized=lambda seed: eeg_people.eight_people(seed=seed, size="tenth"),
        common=lambda size, seed: eeg_people.eight_people("common", seed=seed, size=size),
    ),
    "eeg-common": Setting(
        "EEG of 40 people of five recordings, three electrodes",
        lambda seed: flic_bci.common40(3),
        "EEG",
        real=True,
        ratio=0.0,
        data="flic_bci.common40",
    ),
    "digits": Setting(
        "MNIST and USPS at their own sizes",
        _some(digits.mnist_usps, n_clients=20, classes_per_client=3),
        "pictures",
        real=True,
        ratio=1 / 3,
        data="digits.mnist_usps",
    ),
    "fashion-quadrants": Setting(
        "Fashion-MNIST in quadrants",
        lambda seed: blocks.fashion_mnist(per_class=60, test_per_class=50, seed=seed),
        "pictures",
        real=False,
        ratio=50 / 60,
        data="blocks.fashion_mnist",
    ),
    "cifar-blocks": Setting(
        "CIFAR-10 in quadrants of single colours",
        lambda seed: blocks.cifar10(
            assignment="9 clients", cut="quadrants and colours", per_class=60, test_per_class=50, seed=seed
        ),
        "pictures",
        real=False,
        ratio=50 / 60,
        data="blocks.cifar10",
    ),
    "solids": Setting(
        "four views of made solids",
        lambda seed: solids.views(assignment="4 views", n_views=4, per_class=60, test_per_class=50, seed=seed),
        "pictures",
        real=False,
        ratio=0.0,
    ),
    "noisy-features": Setting(
        "classes in five columns, and columns of noise",
        _some(toy.noisy_features, n_clients=20),
        "made",
        real=False,
        ratio=0.0,
    ),
    "linear-mapping": Setting(
        "classes in five columns, seen through random maps",
        _some(toy.linear_mapping, n_clients=20),
        "made",
        real=False,
        ratio=0.0,
    ),
    "simulated-caps": Setting(
        "simulated EEG of six laboratories' caps",
        lambda seed: eeg.simulated(subjects=2, progress=False),
        "EEG",
        real=False,
        ratio=0.0,
    ),
    "fashion-classes": Setting(
        "Fashion-MNIST, five classes each",
        _some(pooled.fashion_mnist, **FASHION),
        "pictures",
        real=False,
        ratio=3 / 7,
        data="pooled.fashion_mnist",
    ),
    "fashion-shares": Setting(
        "Fashion-MNIST, classes in other proportions",
        _some(pooled.fashion_mnist, split="non-iid_2", **FASHION),
        "pictures",
        real=False,
        ratio=3 / 7,
        data="pooled.fashion_mnist",
    ),
    "writers": Setting(
        "FEMNIST's digits, a writer each",
        _some(partial(femnist.digits, 30)),
        "pictures",
        real=False,
        ratio=1 / 9,
        data="femnist.digits",
    ),
    "mnist-shares": Setting(
        "MNIST, proportions Dirichlet(0.1)",
        _some(fedgen.mnist, n_clients=20, alpha=0.1),
        "pictures",
        real=False,
        ratio=1 / 3,
        data="fedgen.mnist",
    ),
}
"""By name; those of one kind that are real first, then the cheaper ones."""

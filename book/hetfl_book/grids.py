"""What if …: results for every setting of a few sliders, stored, so that a reader steers through them offline.

``python -m hetfl_book.grids fedavg`` makes a grid anew and writes ``data/grids/fedavg.json``: the stops of each slider,
the results of every combination and seed, and where they come from. `hetfl_book.figures.steered` draws it.

References
----------
.. [1] M. Yurochkin, M. Agrawal, S. Ghosh, K. Greenewald, N. Hoang, Y. Khazaeni. Bayesian nonparametric federated
   learning of neural networks. ICML 2019.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from hetfl_book.attacks.defences import Guard, guarded, releases
from hetfl_book.figures import anchors as places
from hetfl_book.papers.privacy import CLIPS, DELTA, HONEST, PARTICIPATION, attacked, digits_and_colluder, everyone
from hetfl_book.papers.privacy import ROUNDS as ROUNDS_ATTACKED
from hetfl_core import Client, Federation, Partition, checks, files, simulate, simulate_seeds
from hetfl_core.datasets import heart
from hetfl_core.errors import WrongValue
from hetfl_core.methods import FedAvgFT, Local
from hetfl_core.methods.privacy import noise_multiplier
from hetfl_core.networks import MLP, Model
from hetfl_core.records.provenance import environment
from hetfl_core.rng import numpy_stream


@dataclass(frozen=True)
class Grid:
    """Results of every combination of some settings.

    Attributes
    ----------
    sliders : dict of str to list
        The stops of each setting.
    results : dict of str to nested lists
        By series: a list for each slider, one in the other, then one number a seed.
    seeds : list of int
    about : dict
        What was run, in words and settings, and in which environment.
    drawn : nested lists, optional
        What else a figure shows: a list for each slider, one in the other, then anything.
    """

    sliders: dict[str, list[Any]]
    results: dict[str, Any]
    seeds: list[int]
    about: dict[str, Any]
    drawn: Any = None

    def array(self, series: str) -> NDArray[np.float64]:
        """Results of one series, an axis for each slider and the last one for seeds.

        Raises
        ------
        ValueError
            If there is no such series, or its shape is not that of the sliders.
        """
        found = np.array(self.results[checks.choice("series", series, list(self.results))], dtype=np.float64)
        shape = (*map(len, self.sliders.values()), len(self.seeds))
        if found.shape != shape:
            raise WrongValue(
                f"results of {series!r} must have the shape {shape} of sliders and seeds, got {found.shape}"
            )
        return found

    def at(self, series: str, *stops: float | str) -> NDArray[np.float64]:
        """Results of one series at one stop of each slider, a number a seed.

        Raises
        ------
        ValueError
            If there is not one known stop for each slider.
        """
        if len(stops) != len(self.sliders):
            raise WrongValue(f"stops must be one for each of {list(self.sliders)}, got {len(stops)}")
        place = []
        for (name, known), stop in zip(self.sliders.items(), stops, strict=True):
            if stop not in known:
                raise WrongValue(f"{name} must be one of {known}, got {stop!r}")
            place.append(known.index(stop))
        return np.asarray(self.array(series)[tuple(place)])


def stored(name: str) -> Grid:
    """A stored grid.

    Raises
    ------
    FileNotFoundError
        If there is none of that name.
    """
    return Grid(**json.loads(files.data_path("grids", f"{name}.json").read_text("utf8")))


# --- FedAvg on digits whose classes are shared out unevenly -----------------------------------------------------------

ALPHAS = (0.05, 0.1, 0.3, 1.0, 10.0)
EPOCHS = (1, 3, 9)
ACTIVE = (2, 5, 10)
"""Of ten clients, in a round."""

ROUNDS = 15
SEEDS = tuple(range(10))
SETTINGS: dict[str, Any] = {"model": Model(MLP((32,), 16)), "batch_size": 50, "lr": 5e-3}


def digits() -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]:
    """Scikit-learn's handwritten digits, cut into training and test images: x, y, x_test, y_test.

    Returns
    -------
    x, y : array, shape (1347, 64) and (1347,)
        8 × 8 pixels with values in 0 … 1, and what they show.
    x_test, y_test : array, shape (450, 64) and (450,)
    """
    images, shown = load_digits(return_X_y=True)
    x, x_test, y, y_test = train_test_split(images / 16, shown, test_size=0.25, stratify=shown, random_state=0)
    return x, y, x_test, y_test


def uneven_digits(seed: int, alpha: float, n_clients: int = 10) -> Federation:
    """`digits`, of each of which clients hold shares drawn from a Dirichlet distribution ([1]_).

    A client is tested on the classes that it trains on, in the same proportions.

    Parameters
    ----------
    seed : int
        Seed of the shares. What is a test image is the same for all seeds.
    alpha : float
        Large for clients that are nearly alike, small for clients with a few classes each.
    n_clients : int

    Returns
    -------
    Federation
        10 classes, inputs of shape (64,) with values in 0 … 1.
    """
    x, y, x_test, y_test = digits()
    rng = numpy_stream(seed, "dealer", 0, f"dirichlet {alpha}")
    held = Partition(n_clients, alpha=alpha, min_size=20).deal(y, rng, y_test)
    clients = [
        Client(x[rows], y[rows], x_test[tested], y_test[tested], f"client-{i}")
        for i, (rows, tested) in enumerate(zip(*held, strict=True))
    ]
    return Federation(clients, 10, f"digits, α = {alpha:g}")


def fedavg(
    alphas: Sequence[float] = ALPHAS,
    epochs: Sequence[int] = EPOCHS,
    active: Sequence[int] = ACTIVE,
    seeds: Sequence[int] = SEEDS,
) -> Grid:
    """FedAvg before and after fine-tuning against training alone: accuracy in %, mean over clients.

    FedAvg's number is that of the common model, the fine-tuned one's that after as many epochs as in a round. Clients
    alone train in the same rounds, and once more at the end, so that all three have taken as many steps of their own.
    """
    found: dict[str, list[NDArray[np.float64]]] = {"FedAvg": [], "FedAvg, fine-tuned": [], "alone": []}
    for alpha, n_epochs, n_active in product(alphas, epochs, active):
        told = {"seeds": seeds, "rounds": ROUNDS, "participation": n_active / 10, "evaluate_every": ROUNDS}
        tuned, alone = (
            simulate_seeds(partial(uneven_digits, alpha=alpha), method, progress=False, device="cpu", **told)  # type: ignore[arg-type]
            for method in (
                FedAvgFT(local_epochs=n_epochs, finetune_epochs=None, **SETTINGS),
                Local(local_epochs=n_epochs, **SETTINGS),
            )
        )
        found["FedAvg"].append(np.array([run.history["accuracy"].iloc[-1] for run in tuned.values()]))
        found["FedAvg, fine-tuned"].append(np.array([run.final["accuracy"] for run in tuned.values()]))
        found["alone"].append(np.array([run.final["accuracy"] for run in alone.values()]))
    shape = (len(alphas), len(epochs), len(active), len(seeds))
    results = {name: (100 * np.stack(each)).round(2).reshape(shape).tolist() for name, each in found.items()}
    sliders: dict[str, list[Any]] = {
        "α of the split": [*alphas],
        "local epochs": [*epochs],
        "clients in a round, of ten": [*active],
    }
    about = {"data": "digits, ten clients", "measure": "test accuracy in %, mean over clients", "rounds": ROUNDS}
    about |= {"network": str(SETTINGS["model"])} | {k: v for k, v in SETTINGS.items() if k != "model"}
    return Grid(sliders, results, [*seeds], about)


# --- FLIC's maps where an anchor stands elsewhere ---------------------------------------------------------------------

HOSPITALS = ("Cleveland", "Budapest")


def anchors(stops: Sequence[float] = places.PLACES, seeds: Sequence[int] = tuple(range(5)), made: bool = False) -> Grid:
    """Two hospitals' maps for each place of the anchor of the ill: balanced accuracy in %, and patients' places.

    A patient is called ill who lies nearer to that anchor than to the one of the healthy. Drawn are the
    first test patients of each class, of the first seed. `made` takes made patients.
    """
    scores: dict[str, list[float]] = {name: [] for name in HOSPITALS}
    clouds: list[dict[str, Any]] = []
    federations = {seed: heart.hospitals(made=made, seed=seed).subset(HOSPITALS) for seed in seeds}
    for (right, up), (seed, federation) in product(product(stops, stops), federations.items()):
        put = [places.HEALTHY, (right, up)]
        found = places.places(federation, put, seed, places.MAP)
        labels = {client.name: client.y_test.numpy() for client in federation}
        for name, z in found.items():
            scores[name].append(round(places.balanced(places.nearest(z, put), labels[name]), 2))
        if seed == seeds[0]:
            few = {n: [z[labels[n] == c][: places.SHOWN].round(1).tolist() for c in range(2)] for n, z in found.items()}
            clouds.append(few)
    n = len(stops)
    results: dict[str, Any] = {name: np.reshape(each, (n, n, -1)).tolist() for name, each in scores.items()}
    drawn = [clouds[i * n : (i + 1) * n] for i in range(n)]
    about = {"data": "four hospitals", "measure": "balanced accuracy on test patients in %", "method": str(places.MAP)}
    return Grid({"to the right": [*stops], "upwards": [*stops]}, results, [*seeds], about, drawn)


# --- what a promise of privacy costs, and what a curious server still learns ------------------------------------------

EPSILONS = (4096.0, 1024.0, 256.0, 64.0, 16.0)
SEEN = {"sums": HONEST, "single messages": 1}
"""What the server sees, and over how many clients the noise is shared so that ε holds for it."""


def privacy(
    epsilons: Sequence[float] = EPSILONS, seeds: Sequence[int] = SEEDS[:5], rounds: int = ROUNDS_ATTACKED
) -> Grid:
    """FedAvg under a promise ε for each client: accuracy in %, and the AUC, in %, of reading a client's classes.

    The federation, its attacker and the clipping are those of `hetfl_book.papers.privacy`; noise is what ε asks for in
    as many rounds as the busiest client of a seed takes part in.
    """
    names = ("FedAvg", "FedAvg, then tuned at home", "each client alone", "the attacker")
    found: dict[str, list[list[float]]] = {name: [] for name in names}
    plain = everyone()
    told: dict[str, Any] = {"rounds": rounds, "participation": PARTICIPATION, "evaluate_every": rounds}
    told |= {"progress": False, "device": "cpu"}
    federations = {seed: digits_and_colluder(seed) for seed in seeds}
    alone = [
        100 * simulate(fed, plain["Local"], seed=seed, **told).final["accuracy"] for seed, fed in federations.items()
    ]
    unguarded = {seed: attacked(fed, plain["FedAvg-FT"], seed=seed, **told) for seed, fed in federations.items()}
    for (sees, shared), promise in product(SEEN.items(), (None, *epsilons)):
        each: list[list[float]] = []
        for seed, fed in federations.items():
            run = unguarded[seed]  # whatever the server sees
            if promise is not None:
                sent = releases([client.name for client in fed], PARTICIPATION, seed, rounds)
                guard = Guard(CLIPS["FedAvg"], noise_multiplier(promise, DELTA, sent), shared)
                run = attacked(fed, guarded(plain["FedAvg-FT"], guard), seed=seed, **told)
            read = run.final["presence_direct_summed" if sees == "sums" else "presence_direct"]
            each.append([100 * run.history["accuracy"].iloc[-1], 100 * run.final["accuracy"], 100 * read])
        common, tuned, attack = map(list, zip(*each, strict=True))
        for name, values in zip(names, (common, tuned, alone, attack), strict=True):
            found[name].append(values)
    sliders: dict[str, list[Any]] = {"the server sees": [*SEEN], "promised ε": ["none", *epsilons]}
    shape = (len(SEEN), 1 + len(epsilons), len(seeds))
    results = {name: np.round(values, 2).reshape(shape).tolist() for name, values in found.items()}
    about = {"data": "digits, 20 clients of 40 and a colluder", "method": "FedAvg-FT", "rounds": rounds, "delta": DELTA}
    about |= {"measure": "test accuracy in %, mean over clients; AUC in % of telling the classes that a client holds"}
    return Grid(sliders, results, [*seeds], about)


MAKERS: dict[str, Callable[[], Grid]] = {"fedavg": fedavg, "anchors": anchors, "privacy": privacy}


def make(name: str) -> Grid:
    """Make a grid anew, and write it with the seconds that it took and the environment it was made in.

    Raises
    ------
    ValueError
        If nobody knows how to make it.
    """
    maker = MAKERS[checks.choice("name", name, list(MAKERS))]
    made_in, began = environment(), time.perf_counter()
    grid = maker()
    grid.about.update(command=f"python -m hetfl_book.grids {name}", seconds=round(time.perf_counter() - began))
    grid.about.update(made_in)
    text = json.dumps(asdict(grid), ensure_ascii=False, separators=(",", ":"))
    files.write_atomically(files.kept_results().with_name("grids") / f"{name}.json", f"{text}\n".encode())
    return grid


if __name__ == "__main__":
    for asked in sys.argv[1:] or MAKERS:
        print(asked, make(asked).about["seconds"], "s")

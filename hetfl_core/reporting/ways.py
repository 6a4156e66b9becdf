"""Ways to learn from the tables of several sites: each alone, and together by methods that need no equal columns.

Their settings are fixed here and not chosen on the tables: a small network, as suits some hundred rows, of which every
site takes `STEPS` steps a round. Only logistic regression chooses its penalty, on the site's own training rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar
from warnings import catch_warnings

import numpy as np
from numpy.typing import NDArray

from hetfl_core import checks
from hetfl_core.baselines import Alone
from hetfl_core.errors import WrongValue
from hetfl_core.federation import Federation
from hetfl_core.methods import CATALOGUE, FedAvg, HyFEM, LateFusion, Local, Method
from hetfl_core.networks import MLP, Blocks, Model
from hetfl_core.rng import numpy_stream
from hetfl_core.views import columns_of_each, view_of

BASE = "logistic"
"""The way to stay alone that is advised where no other is shown to be better."""

ALONE = (BASE, "boosting", "network")
"""The ways in which nothing leaves a site: learning together has to beat the best of them."""

STEPS = 8
TRAINING: Mapping[str, Any] = MappingProxyType({"local_steps": STEPS, "batch_size": 32, "lr": 0.004})
KINDS = {"network": Local, "common": FedAvg, "zeros": FedAvg, "fusion": LateFusion, "hyfem": HyFEM}
"""The class of method of each way that trains networks."""
PENALTIES = (0.01, 0.1, 1.0, 10.0)
"""Among which logistic regression chooses its C."""


@dataclass(frozen=True)
class Logistic(Alone):
    """Logistic regression whose ridge penalty is chosen by log loss over five folds of the training rows."""

    deterministic: ClassVar[bool] = True

    def fitted(self, x: NDArray[Any], y: NDArray[Any], where: str = "", seed: int = 0) -> Any:
        """The fitted `LogisticRegression` of scikit-learn, with C = 1 where a class has a single row."""
        from sklearn.linear_model import LogisticRegression
        from sklearn.model_selection import GridSearchCV, StratifiedKFold

        rarest, model = int(np.unique(y, return_counts=True)[1].min()), LogisticRegression(max_iter=5000)
        if rarest < 2:
            return model.fit(x, y)
        folds = StratifiedKFold(min(5, rarest))
        return GridSearchCV(model, {"C": PENALTIES}, scoring="neg_log_loss", cv=folds).fit(x, y).best_estimator_


@dataclass(frozen=True)
class Boosting(Alone):
    """Gradient boosting: 50 trees of depth 2, each on 80 % of the rows, at a rate of 0.1."""

    def fitted(self, x: NDArray[Any], y: NDArray[Any], where: str = "", seed: int = 0) -> Any:
        """The fitted `GradientBoostingClassifier` of scikit-learn, whose random state is drawn from the seed."""
        from sklearn.ensemble import GradientBoostingClassifier

        state = int(numpy_stream(seed, where, 0, "boosting").integers(2**32))
        return GradientBoostingClassifier(n_estimators=50, max_depth=2, subsample=0.8, random_state=state).fit(x, y)


@dataclass(frozen=True)
class Way:
    """One way to learn.

    Parameters
    ----------
    key : str
        Its name on the command line.
    label : str
        Its name in the report.
    view : str
        How it sees the tables; see `hetfl_core.views.VIEWS`.
    text : str
        What it does, in a sentence; of `WAYS` the template of the page says that.
    apart : str
        The method that each site runs by itself, with nothing exchanged; empty where that is not so.
    """

    key: str
    label: str
    view: str = "own"
    text: str = ""
    apart: str = ""

    @property
    def short(self) -> str:
        """The label without what comes before its colon."""
        return self.label.partition(": ")[2]

    @property
    def alone(self) -> bool:
        """Whether nothing leaves a site."""
        return self.key in ALONE or bool(self.apart) or isinstance(CATALOGUE.get(self.key), Local)

    def made_for(self, federation: Federation) -> tuple[Federation, Any, dict[str, Any]]:
        """What it sees of a federation, its method, and options of `simulate`.

        Raises
        ------
        ValueError
            Where it cannot work on these tables.
        """
        seen, small = view_of(federation, self.view), MLP((16,), 8)
        if self.key in ("logistic", "boosting"):
            return seen, {"logistic": Logistic(), "boosting": Boosting()}[self.key], {}
        method = CATALOGUE.get(self.apart or self.key)
        if method is None:
            phi = Blocks.alike(seen[0].x_train, small, out=32) if self.view == "blocks" else small
            method = KINDS[self.key](Model(phi), **TRAINING)
        method.check(seen.specs())
        return seen, method, {"last_step": "own"} if self.key in KINDS and not self.alone else {}

    def source(self, federation: Federation) -> str:
        """The file ``federation/methods.py`` of a deployment that trains in this way.

        Parameters
        ----------
        federation : Federation

        Returns
        -------
        str
            Source code.
        """
        if self.key not in KINDS:
            return f'from hetfl_core.methods import CATALOGUE\n\nMETHODS = {{"{self.key}": CATALOGUE["{self.key}"]}}\n'
        name, model = KINDS[self.key].__name__, "MLP((16,), 8)"
        if self.view == "blocks":
            model = f"Blocks.alike({list(federation.in_blocks()[0].x_train)!r}, MLP((16,), 8), out=32)"
        settings = ", ".join(f"{key}={value!r}" for key, value in TRAINING.items())
        return (
            f"from hetfl_core.methods import {name}\nfrom hetfl_core.networks import MLP, Blocks, Model\n\n"
            f'METHODS = {{"{self.short}": {name}(Model({model}), {settings})}}\n'
        )


WAYS = {
    way.key: way
    for way in (
        Way("logistic", "Alone: logistic regression"),
        Way("boosting", "Alone: boosted trees"),
        Way("network", "Alone: small network"),
        Way("common", "Together: common columns", "common"),
        Way("zeros", "Together: zeros for missing columns", "zeros"),
        Way("fusion", "Together: late fusion", "blocks"),
        Way("hyfem", "Together: HyFEM", "blocks"),
    )
}
"""Those that are compared by default."""

SAME = frozenset({"common", "zeros", "fusion"})
"""Those that train one and the same network where all sites have the same columns."""


def ways_of(names: list[str] | None, federation: Federation) -> tuple[list[Way], dict[str, str]]:
    """The ways that are asked for, the base first, and why some cannot work on these tables.

    Parameters
    ----------
    names : list of str or None
        Keys of `WAYS` or names of methods; by default all of `WAYS`.
    federation : Federation

    Returns
    -------
    list of Way
    dict of str to str
        Of the default ones that are left out, by label, the reason: it cannot work here, or, where all sites have the
        same columns, it is another name for common columns, which must not count as a comparison more.

    Raises
    ------
    ValueError
        For an unknown name, and for one that is asked for and cannot work.
    """
    asked = [way for name in dict.fromkeys([BASE, *(names or WAYS)]) for way in _named(name, federation)]
    found, lost = [], dict[str, str]()
    for way in asked:
        try:
            with catch_warnings(action="ignore"):
                way.made_for(federation)
            found.append(way)
        except ValueError as error:
            if names:
                raise WrongValue(f"methods: {way.key} cannot be compared: {error}") from error
            lost[way.label] = str(error)
    if (
        not names
        and {way.key for way in found} >= SAME
        and len({*map(frozenset, columns_of_each(federation).values())}) == 1
    ):
        for way in [way for way in found if way.key in SAME - {"common"}]:
            found.remove(way)
            lost[way.label] = f"where every site has all columns, it is the same as “{WAYS['common'].label}”"
    return found, lost


def _named(name: str, federation: Federation) -> list[Way]:
    """A way by its name; before a method of the catalogue the same with nothing exchanged.

    Its network may be larger than that of the other ways, or be trained for longer, and that needs nobody else.
    """
    if name in WAYS:
        return [WAYS[name]]
    known = {key.lower(): key for key in CATALOGUE}
    if name.lower() not in known:
        raise WrongValue(f"methods: {checks.unknown('method', name, [*WAYS, *CATALOGUE], 'hetfl list')}")
    key = known[name.lower()]
    view, summary = _view_for(CATALOGUE[key], federation), CATALOGUE[key].summary
    if isinstance(CATALOGUE[key], Local):
        return [Way(key, f"Alone: {key}", view, summary)]
    by_itself = f"{summary} Here each site does so by itself, and nothing leaves it."
    return [
        Way(f"{key} alone", f"Alone: {key}, nothing exchanged", view, by_itself, apart=key),
        Way(key, f"Together: {key}", view, summary),
    ]


def _view_for(method: Method, federation: Federation) -> str:
    """The first view on which a method can work with the network that it has."""
    for view in ("own", "blocks", "zeros", "common"):
        with suppress(ValueError), catch_warnings(action="ignore"):
            method.check(view_of(federation, view).specs())
            return view
    return "own"

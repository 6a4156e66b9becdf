"""Names of arguments, settings and measures that nobody knows: what is meant by them, and a refusal that says so."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ParamSpec, TypeVar

from hetfl_core.errors import WrongType

P = ParamSpec("P")
R = TypeVar("R")

SYNONYMS = {
    "scoring": "metric",
    "scorer": "metric",
    "score": "metric",
    "metrics": "metric",
    "measure": "metric",
    "measures": "metric",
    "cv": "seeds folds",
    "n_splits": "seeds folds",
    "n_repeats": "seeds",
    "n_seeds": "seeds",
    "separator": "sep",
    "seperator": "sep",
    "random_state": "seed seeds",
    "seed": "seeds",
    "seeds": "seed",
    "param_grid": "grid",
    "param_distributions": "grid",
    "params": "grid",
    "estimator": "method methods",
    "estimators": "methods",
    "model": "method methods",
    "models": "methods",
    "data": "federation",
    "baseline": "base",
    "reference": "base",
    "control": "base",
    "epochs": "local_epochs rounds",
    "n_epochs": "local_epochs rounds",
    "n_rounds": "rounds",
    "num_rounds": "rounds",
    "max_iter": "rounds local_epochs",
    "fraction": "participation",
    "fraction_fit": "participation",
    "learning_rate": "lr",
    "learning_rate_init": "lr",
    "jobs": "n_jobs workers",
    "n_jobs": "workers",
    "workers": "n_jobs",
    "verbose": "progress",
    "callback": "on_round",
    "validation_fraction": "share test_size",
    "test_fraction": "test_size share",
    "test_size": "share test_fraction",
    "holdout": "test_size share",
    "label": "target",
    "labels": "target",
    "y": "target",
    "site": "client",
    "sites": "client",
    "groups": "group",
    "preprocess": "prepare",
    "preprocessor": "prepare",
    "pipeline": "prepare",
    "drop": "ignore",
    "n_class": "n_classes",
    "num_classes": "n_classes classes",
    "acc": "accuracy",
    "accuracy_score": "accuracy",
    "balanced_accuracy_score": "balanced_accuracy",
    "roc_auc": "auc",
    "roc_auc_score": "auc",
    "roc_auc_ovr": "auc",
    "auroc": "auc",
    "f1_macro": "f1",
    "f1_score": "f1",
    "neg_log_loss": "log_loss",
    "cross_entropy": "log_loss",
    "neg_brier_score": "brier",
    "brier_score": "brier",
    "brier_score_loss": "brier",
    "ece": "calibration_error",
    "neg_mean_squared_error": "mse",
    "mean_squared_error": "mse",
    "neg_root_mean_squared_error": "rmse",
    "root_mean_squared_error": "rmse",
    "neg_mean_absolute_error": "mae",
    "mean_absolute_error": "mae",
    "r2_score": "r2",
}
"""What others call things, scikit-learn first of all, and what may be called that here, the likeliest first."""


def _plain(word: str) -> str:
    """A word as it is compared: its letters and digits, all of them small."""
    return "".join(filter(str.isalnum, word.lower()))


_SYNONYMS = {_plain(word): names.split() for word, names in SYNONYMS.items()}


def synonyms(word: Any, known: Iterable[str]) -> list[str]:
    """Those of the known names that stand for a word of others (`SYNONYMS`)."""
    names = set(known)
    return [name for name in _SYNONYMS.get(_plain(str(word)), ()) if name in names]


def nearest(value: Any, allowed: Iterable[str]) -> str | None:
    """The name that a word is meant for, which is spelt nearly so or has it as a synonym; None where none is near."""
    plain = {_plain(word): word for word in allowed}
    if not isinstance(value, str) or not (text := _plain(value)):
        return None
    if text not in plain and (found := synonyms(value, plain.values())):
        return found[0]
    near = difflib.get_close_matches(text, plain, 1, 0.8)
    return plain[near[0]] if near else None


def meant(value: Any, allowed: Iterable[str]) -> str:
    """What ends an error for a word that is meant for one of those allowed; empty where none is near."""
    near = nearest(value, allowed)
    return "" if near is None else f" (did you mean {near!r}?)"


def check(where: str, given: Iterable[str], known: Sequence[str]) -> None:
    """Refuse keyword arguments that nobody knows, as Python does, with the name that is meant.

    Parameters
    ----------
    where : str
        What was called.
    given, known : iterable of str
        Names that came, and those that there are.

    Raises
    ------
    TypeError
    """
    for name in given:
        if name not in known:
            hint = meant(name, known) or f"; it takes {', '.join(known)}"
            raise WrongType(f"{where}() got an unexpected keyword argument {name!r}{hint}")


def hinting(*more: str, where: str = "") -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Have a function refuse unknown keyword arguments by `check`, whether or not it would swallow them.

    Parameters
    ----------
    *more : str
        Names that its ``**options`` may hold.
    where : str
        What it is called, where its own name does not say it.
    """

    def told(function: Callable[P, R]) -> Callable[P, R]:
        known = [*dict.fromkeys([*named(function), *more])]

        @functools.wraps(function)
        def call(*args: P.args, **options: P.kwargs) -> R:
            check(where or function.__qualname__, options, known)
            return function(*args, **options)

        return call

    return told


def named(function: Callable[..., Any]) -> list[str]:
    """Names of the arguments of a function, but for those that it would take as ``**options``, and ``self``."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.kind in kinds and p.name not in ("self", "cls")]

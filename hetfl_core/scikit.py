"""What scikit-learn's functions ask of an estimator that is none of its own classes."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hetfl_core import checks

Kind = Literal["classifier", "regressor"]


def tags(kind: Kind) -> Any:
    """Tags of a classifier or regressor of rows, as scikit-learn 1.6 and later reads them (``__sklearn_tags__``).

    Earlier versions read the attribute ``_estimator_type`` alone.

    Parameters
    ----------
    kind : {"classifier", "regressor"}

    Returns
    -------
    sklearn.utils.Tags
    """
    from sklearn.utils import ClassifierTags, RegressorTags, Tags, TargetTags

    classifier = ClassifierTags() if kind == "classifier" else None
    regressor = RegressorTags() if kind == "regressor" else None
    return Tags(kind, TargetTags(required=True), classifier_tags=classifier, regressor_tags=regressor)


def column_names(rows: Any) -> NDArray[Any] | None:
    """Names of the columns of a table, as scikit-learn keeps them (``feature_names_in_``); None where they have none.

    Parameters
    ----------
    rows : DataFrame or array_like

    Returns
    -------
    ndarray of object, shape (d,), or None
    """
    if not isinstance(rows, pd.DataFrame) or not all(isinstance(name, str) for name in rows.columns):
        return None
    return np.array(rows.columns, dtype=object)


def score(kind: Kind, y: Any, predicted: Any, sample_weight: Any = None) -> float:
    """Accuracy of a classifier, or R² of a regressor, as ``score`` of scikit-learn's estimators.

    Parameters
    ----------
    kind : {"classifier", "regressor"}
    y, predicted : array_like, shape (n,)
    sample_weight : array_like, shape (n,), optional

    Returns
    -------
    float
    """
    from sklearn.metrics import accuracy_score, r2_score

    checks.choice("kind", kind, ("classifier", "regressor"))
    measure = accuracy_score if kind == "classifier" else r2_score
    return float(measure(y, predicted, sample_weight=sample_weight))

"""Bad calls, for the tests that try them: what is put in an argument's place, and how such a call may end."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes

from hetfl_book.theory import fedcr
from hetfl_book.theory import flic as theory
from hetfl_core import Federation, Run


def generator() -> np.random.Generator:
    return np.random.default_rng(0)


@dataclass(frozen=True)
class Case:
    """A valid call, and by which other names an error may speak of an argument."""

    call: Callable[..., Any]
    valid: Mapping[str, Any]
    huge: bool = True
    """Whether sizes beyond all measure may be tried; not where they only mean a long time."""
    names: Mapping[str, str] = field(default_factory=dict)


class Odd:
    def __repr__(self) -> str:
        return "<an odd object>"


SCALARS = [
    None,
    True,
    False,
    math.nan,
    math.inf,
    -math.inf,
    -1,
    0,
    0.5,
    1.5,
    -0.5,
    3,
    1e308,
    -1e308,
    1e-320,
    2j,
    "x",
    "",
    b"x",
    Odd(),
    [],
    {},
    (),
    [[1], [2, 3]],
    np.int64(2),
    np.float32(0.5),
    np.nan,
    np.array([]),
    np.array(3),
    np.array([1.0, math.nan]),
    torch.tensor(math.nan),
    torch.zeros(0),
    pd.DataFrame(),
    print,
    range(3),
    torch.int32,
    torch.float16,
    "float32",
    "3",
]
HUGE = [10**9, 2**31, 2**62, 10**18, 10**30, (1, 10**12), (10**12, 10**12)]


def spoiled(array: Any) -> list[Any]:
    """An array or tensor with something wrong in it."""
    if isinstance(array, torch.Tensor):
        bad = [array.to(torch.int64), array.bool(), array.to(torch.complex64), array.numpy(), array.unsqueeze(0)]
        bad += [array.flatten()[:0], array.float(), -array, array * math.nan, 1e200 * array]
        bad += [array[..., :1], array[:1]] if array.dim() else []
        if array.numel():
            some = array.clone()
            some.view(-1)[0] = math.inf
            bad += [some, array.clone().index_fill_(0, torch.tensor([0]), -1.0) if array.dim() else -array - 1]
        return bad
    if not isinstance(array, np.ndarray):
        return [np.array([1, 2]), np.ma.array([1, 2, 3], mask=[0, 1, 0])]
    masked = np.ma.array(array, mask=np.arange(array.size).reshape(array.shape) % 2 == 0)
    bad = [masked, array.astype(complex), array.astype(object), array[:0], array[:1], array[None], array.astype(str)]
    if array.dtype == bool:
        return [*bad, ~array, array.astype(float) * math.nan, array.astype(float) + 0.5]
    return [*bad, -array - 1, array.astype(float) * math.nan, array + 2**62, array.astype(float) + 0.5, array > 0]


def bad_values(case: Case, argument: str) -> list[Any]:
    return [*SCALARS, *spoiled(case.valid[argument]), *(HUGE if case.huge else [])]


def complaint(case: Case, argument: str, value: Any) -> str | None:
    """What is wrong with how a bad call ended; None where nothing is."""
    call = dict(case.valid) | {argument: value}
    if "rng" in call and argument != "rng":
        call["rng"] = generator()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            result = case.call(**call)
        except (ValueError, TypeError, KeyError) as error:
            names = [argument, *case.names.get(argument, argument).split("|")]
            text = str(error)
            return None if any(name in text for name in names) else f"{type(error).__name__} names no argument: {text}"
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return nonsense(result)


def nonsense(result: Any) -> str | None:
    """What cannot be a result: NaN in numbers, tensors, inputs, limits of axes."""
    if isinstance(result, Federation):
        result = [x for one in result for x in (one.x_train, one.x_test, one.y_train, one.y_test)]
    if isinstance(result, theory.LinearFederation):
        result = [one.x for one in result.clients]
    if isinstance(result, Run):
        result = [params for params in result.params for params in params.values()]
    if isinstance(result, fedcr.AlignmentSides):
        result = vars(result)
    if isinstance(result, Mapping):
        result = list(result.values())
    if isinstance(result, Axes):
        result = [*result.get_xlim(), *result.get_ylim()]
    for one in result if isinstance(result, list | tuple) else [result]:
        if isinstance(one, float | torch.Tensor | np.ndarray) and np.isnan(np.asarray(one, dtype=float)).any():
            return "NaN was accepted or returned"
    return None

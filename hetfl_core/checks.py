"""Checks of arguments, where they enter the library: what came is named, with what was expected.

A call that cannot be meant shall end here, and not in another library's error or in a wrong result. Messages begin with
the argument's name, which a check of one value takes first. All raise `WrongValue`, a ValueError, but for the types of
arrays and objects (`WrongType`, a TypeError) and for columns that are not there (`UnknownName`, a KeyError).
"""

from __future__ import annotations

import difflib
import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from numbers import Integral, Real
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hetfl_core.errors import UnknownName, WrongType, WrongValue
from hetfl_core.keywords import meant, synonyms

MOST_THREADS = max(64, os.cpu_count() or 1)
"""More threads than that are a mistake, and very many end the process: PyTorch does not notice."""


def shown(value: Any) -> str:
    """A value as an error shows it: its ``repr`` on one line, cut where it is long."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 100 else text[:97] + "…"


def clients(names: Sequence[str]) -> str:
    """Which clients something is about, three of them at most by name."""
    return f"client{'s' * (len(names) > 1)} {', '.join(map(repr, names[:3]))}{' …' * (len(names) > 3)}"


def _no_number(value: Any, kind: type) -> bool:
    return not isinstance(value, kind) or isinstance(value, bool | np.bool_)


def integer(name: str, value: Any, least: int | None = None, most: int | None = None) -> int:
    """Check a whole number (Python's or NumPy's, no boolean), within bounds that are both included."""
    if _no_number(value, Integral) or (least is not None and value < least) or (most is not None and value > most):
        within = "" if least is None else f" of at least {least}" if most is None else f" in {least}…{most}"
        raise WrongValue(f"{name} must be a whole number{within}, got {shown(value)}")
    return int(value)


def ints(least: int, **numbers: Any) -> None:
    """Check several whole numbers of at least `least`, given by name."""
    for name, value in numbers.items():
        integer(name, value, least)


def threads(name: str, value: Any) -> None:
    """Check a number of threads: at least 1, and no more than can be meant."""
    if integer(name, value, 1) > MOST_THREADS:
        raise WrongValue(f"{name} must be at most {MOST_THREADS}, got {value}")


def seed(value: Any, name: str = "seed") -> int:
    """Check a seed: a whole number of at least 0."""
    return integer(name, value, 0)


def seeds(value: Any, least: int = 1) -> list[int]:
    """Check seeds, given by their number (0 … n − 1) or one by one: at least so many, none twice."""
    if not isinstance(value, Iterable):
        return list(range(integer("seeds", value, least)))
    found = [seed(one, "seeds") for one in sequence("seeds", value)]
    if len(found) < least or len(set(found)) < len(found):
        raise WrongValue(f"seeds must be at least {least}, each another one, got {shown(value)}")
    return found


def jobs(value: int | None) -> None:
    """Check a number of processes, as scikit-learn has it."""
    if value is not None and not integer("n_jobs", value):
        raise WrongValue("n_jobs must be a number of processes, or -1 for one a core, got 0")


def number(
    name: str,
    value: Any,
    least: float = -math.inf,
    most: float = math.inf,
    *,
    above: float | None = None,
    infinite: bool = False,
) -> float:
    """Check a real number within bounds: `least` and `most` included, `above` not. Never NaN.

    Infinity is refused unless `infinite` says otherwise.
    """
    right = not _no_number(value, Real) and (math.isfinite(value) or (infinite and not math.isnan(value)))
    right = right and least <= value <= most and (above is None or value > above)
    if not right:
        if not _no_number(value, Real) and not value > 0 and above == 0:
            raise WrongValue(f"{name} must be positive, got {shown(value)}")
        if not _no_number(value, Real) and not value >= 0 and least == 0:
            raise WrongValue(f"{name} must not be negative, got {shown(value)}")
        bounds = [
            f"greater than {above:g}" if above is not None else f"of at least {least:g}" if least > -math.inf else "",
            f"of at most {most:g}" if most < math.inf else "",
        ]
        kind = "a number" if infinite else "a finite number"
        wanted = " ".join([kind, " and ".join(bound for bound in bounds if bound)]).strip()
        raise WrongValue(f"{name} must be {wanted}, got {shown(value)}")
    return float(value)


def fraction(name: str, value: Any, interval: str = "(0, 1]") -> float:
    """Check a number in [0, 1], (0, 1], [0, 1) or (0, 1), as `interval` says."""
    within = not _no_number(value, Real) and 0 <= value <= 1
    if not within or (value == 0 and interval[0] == "(") or (value == 1 and interval[-1] == ")"):
        raise WrongValue(f"{name} must lie in {interval}, got {shown(value)}")
    return float(value)


def choice(name: str, value: Any, allowed: Sequence[str]) -> str:
    """Check that a value is one of several words."""
    if not isinstance(value, str) or value not in allowed:
        raise WrongValue(
            f"{name} must be one of {', '.join(map(repr, allowed))}, got {shown(value)}{meant(value, allowed)}"
        )
    return value


def unknown(kind: str, name: Any, known: Iterable[str], see: str = "") -> str:
    """Text of an error for a name that is not among the known ones: the nearest of them, five at most.

    `see` is a command that lists them all; it is named where some are left out.
    """
    names = list(dict.fromkeys(known))
    near = [*dict.fromkeys([*synonyms(name, names), *difflib.get_close_matches(str(name), names, 3, 0.4)])][:3]
    some = near or sorted(names)[:5]
    offer = f"did you mean {', '.join(some)}?" if near else f"there is {', '.join(some) or 'none'}"
    rest = f" (`{see}` shows all {len(names)})" if see and len(some) < len(names) else ""
    return f"no {kind} is called {shown(name)}; {offer}{rest}"


def flag(name: str, value: Any) -> bool:
    """Check a truth value, True or False."""
    if not isinstance(value, bool | np.bool_):
        raise WrongValue(f"{name} must be True or False, got {shown(value)}")
    return bool(value)


def _is_pair(value: Any, kind: type) -> bool:
    right = isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim == 1)
    return right and len(value) == 2 and not any(_no_number(end, kind) for end in value)


def int_range(name: str, value: Any, least: int) -> tuple[int, int]:
    """Check the smallest and the largest of a range of whole numbers."""
    if not _is_pair(value, Integral) or not least <= value[0] <= value[1]:
        raise WrongValue(
            f"{name} must be (smallest, largest), whole numbers with {least} <= smallest <= largest, got {shown(value)}"
        )
    return int(value[0]), int(value[1])


def frequency_band(name: str, value: Any) -> None:
    """Check a band of two frequencies in Hz, the lower first."""
    if not _is_pair(value, Real) or not 0 <= value[0] < value[1] < math.inf:
        raise WrongValue(f"{name} must be two frequencies in Hz, the lower first, got {shown(value)}")


def instance(name: str, value: Any, *kinds: type, such_as: str = "") -> None:
    """Check that an object is of one of these types; `such_as` is one, as it is typed.

    A class in its place lacks its brackets.
    """
    if not isinstance(value, kinds):
        wanted = " or ".join(kind.__name__ for kind in kinds) + f", such as {such_as}" * bool(such_as)
        bare = " (without brackets)" if isinstance(value, type) and issubclass(value, kinds) else ""
        article = "an" if wanted[0] in "AEIOU" else "a"
        raise WrongType(f"{name} must be {article} {wanted}, got {shown(value)} of type {type(value).__name__}{bare}")


def sequence(name: str, value: Any) -> list[Any]:
    """Check a sequence, or another iterable that is no text, and give its members."""
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        with suppress(TypeError):  # arrays of no axis call themselves iterable
            return list(value)
    raise WrongType(f"{name} must be a sequence, got {shown(value)} of type {type(value).__name__}")


def dense(name: str, value: Any) -> Any:
    """What is sparse in the way of SciPy or PyTorch as a whole array, if there is memory for it; others as they are."""
    if isinstance(value, Tensor) and value.layout != torch.strided:
        memory(value.element_size() * math.prod(value.shape), **{name: f"an array of shape {tuple(value.shape)}"})
        return value.to_dense()
    if callable(getattr(value, "toarray", None)) and hasattr(value, "nnz"):
        memory(value.dtype.itemsize * math.prod(value.shape), **{name: f"an array of shape {value.shape}"})
        return value.toarray()
    return value


def array(name: str, value: Any) -> np.ndarray:
    """Check what NumPy makes an array of, with nothing masked; what is sparse is made dense."""
    value = dense(name, value)
    unmasked(name, value)
    try:
        return np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:
        raise WrongValue(f"{name} must be an array, in which all rows have one length: {error}") from error


def nonempty_str(name: str, value: Any) -> None:
    """Check a text that is not empty."""
    if not isinstance(value, str) or not value:
        raise WrongValue(f"{name} must be a text that is not empty, got {shown(value)}")


def nonempty_strs(**named: Any) -> None:
    """Check several texts that are not empty, given by name."""
    for name, value in named.items():
        nonempty_str(name, value)


def names(name: str, value: Any) -> list[str]:
    """Check a sequence of texts, none of them empty."""
    found = sequence(name, value)
    for text in found:
        nonempty_str(name, text)
    return found


def mapping(name: str, value: Any) -> Mapping[Any, Any]:
    """Check a dict, or what is like one."""
    if not isinstance(value, Mapping):
        raise WrongType(f"{name} must be a mapping, got {shown(value)} of type {type(value).__name__}")
    return value


def path(name: str, value: Any) -> Path:
    """Check a path, or the text of one."""
    if not isinstance(value, str | os.PathLike) or value == "":
        raise WrongType(f"{name} must be a path, got {shown(value)} of type {type(value).__name__}")
    return Path(value)


def floats(name: str, value: Any, axes: int | None = None, *, gaps: bool = False, least: int = 1) -> np.ndarray:
    """Check real numbers, at least `least` (0 or 1), as an array of so many axes (any by default).

    They must be finite, unless `gaps` says that NaN and infinity stand for what is missing.
    """
    found = array(name, value)
    right = found.dtype.kind in "iuf" and found.size >= least and axes in (None, found.ndim)
    if not right or not (gaps or np.isfinite(found).all()):
        shape = "" if axes is None else f" of {axes} {'axis' if axes == 1 else 'axes'}"
        kind = "numbers" if gaps else "finite numbers"
        raise WrongValue(f"{name} must be {kind}{shape}{', at least one' * least}, got {shown(value)}")
    return found.astype(float)


def frame(name: str, value: Any, *columns: Any) -> None:
    """Check a pandas DataFrame that has these columns."""
    import pandas as pd  # on demand: torch comes without it

    instance(name, value, pd.DataFrame)
    missing = [column for column in columns if column not in value.columns]
    if missing:
        raise UnknownName(
            f"{name} must have the columns {list(columns)}, lacks {missing} and has {list(value.columns)}"
        )


def unmasked(name: str, value: Any) -> None:
    """Check an array of which nothing is masked: NumPy's conversions drop masks without a word."""
    if np.ma.isMaskedArray(value) and np.ma.count_masked(value):
        raise WrongValue(
            f"{name} must not be masked, got {np.ma.count_masked(value)} masked entries of {value.size}: "
            "leave these samples out"
        )


def tensors(**named: Any) -> None:
    """Check tensors of floating-point numbers."""
    for name, value in named.items():
        instance(name, value, Tensor)
        if not value.is_floating_point():
            raise WrongType(f"{name} must hold floating-point numbers, got dtype {value.dtype}")


def same_dtype(**named: Tensor) -> None:
    """Check that tensors are of one type."""
    if len({t.dtype for t in named.values()}) > 1:
        found = ", ".join(f"{name} of {t.dtype}" for name, t in named.items())
        raise WrongType(f"{' and '.join(named)} must have one dtype, got {found}")


def broadcastable(**shapes: Sequence[int]) -> None:
    """Check shapes that go together in one operation."""
    try:
        np.broadcast_shapes(*(tuple(shape) for shape in shapes.values()))
    except ValueError as error:
        found = ", ".join(f"{name} {tuple(shape)}" for name, shape in shapes.items())
        raise WrongValue(f"leading axes must broadcast, got {found}") from error


# --- memory ---------------------------------------------------------------------------------------------------------


def available_memory() -> float:
    """Bytes that this process can still have: of the machine, or of its control group; infinite where unknown."""
    found = [math.inf]
    with suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        found += [1024.0 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable")]
    with suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup")
        limit, used, stat = ((group / f"memory.{name}").read_text().strip() for name in ("max", "current", "stat"))
        cached = dict(line.split() for line in stat.splitlines()).get("file", "0")  # given up when it is asked for
        found.append(math.inf if limit == "max" else float(limit) - float(used) + float(cached))
    with suppress(OSError, ValueError, AttributeError):
        found.append(float(os.sysconf("SC_PAGE_SIZE")) * os.sysconf("SC_PHYS_PAGES"))
    return min(found)


def memory(n_bytes: float, **sizes: Any) -> None:
    """Refuse sizes whose arrays would not fit into the memory that is free; an estimate will do.

    Parameters
    ----------
    n_bytes : float
        What they need, at least.
    **sizes
        The arguments that are to blame, by name.
    """
    free = available_memory()
    if n_bytes > free:
        asked = ", ".join(f"{name}={shown(value)}" for name, value in sizes.items())
        raise WrongValue(
            f"{asked} would need {min(n_bytes, 1e300) / 2**30:,.3g} GiB of memory or more, "
            f"of which {free / 2**30:,.3g} GiB are free: choose less"
        )


def own_calls() -> int:
    """Calls of this package on top of the one from outside, to which a warning should point."""
    frame: FrameType | None = sys._getframe(1)
    depth = 0
    while frame is not None and str(frame.f_globals.get("__name__")).startswith("hetfl_core"):
        frame, depth = frame.f_back, depth + 1
    return depth

"""Settings: dataclasses that check their fields by the types they are declared with, and their plain form.

A method, a network or a stage of training is a frozen dataclass. `Checked` refuses what does not go with a field's
annotation, before anything is computed with it; `plain` turns settings into what JSON can hold, for records and
checkpoints; `changed` says in words where two such forms differ.
"""

from __future__ import annotations

import functools
import inspect
import math
import re
import sys
import types
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, is_dataclass
from numbers import Integral, Real
from typing import Annotated, Any, Literal, Self, TypeVar, Union, get_args, get_origin

import numpy as np

from hetfl_core import keywords
from hetfl_core.errors import WrongType, WrongValue

T = TypeVar("T")

Unbounded = Annotated[float, "may be infinite"]
"""The annotation of a field that may be infinite; one of `float` may not."""


@dataclass(frozen=True)
class Limit:
    """What a number is held to besides its type, said in its annotation: ``Annotated[int, Limit("even", is_even)]``.

    Parameters
    ----------
    words : str
        What it must be, for the error.
    holds : callable
        Whether a number of the right type is that.
    whole : bool
        Whether it is of a tuple or a mapping itself, and not of each thing in it.
    """

    words: str
    holds: Callable[[Any], bool]
    whole: bool = False


AT_LEAST_0, AT_LEAST_1 = Limit("at least 0", lambda x: x >= 0), Limit("at least 1", lambda x: x >= 1)
Count = Annotated[int, AT_LEAST_1]
Natural = Annotated[int, AT_LEAST_0]
NotNegative = Annotated[float, AT_LEAST_0]
Positive = Annotated[float, Limit("greater than 0", lambda x: x > 0)]
Share = Annotated[float, Limit("in [0, 1]", lambda x: 0 <= x <= 1)]
Dropout = Annotated[float, Limit("a probability of at least 0 and less than 1", lambda x: 0 <= x < 1)]
OpenShare = Annotated[float, Limit("in (0, 1)", lambda x: 0 < x < 1)]
SOME = Limit("one or more", bool, whole=True)
PositiveShare = Annotated[float, Limit("in (0, 1]", lambda x: 0 < x <= 1)]


def first_line(thing: Any) -> str:
    """The first line of a docstring as it is printed: without references, roles and marks.

    Parameters
    ----------
    thing : object

    Returns
    -------
    str
    """
    line = (thing.__doc__ or "").strip().split("\n")[0]
    line = re.sub(r"\s*\([^()]*\[\d+\]_(?:[^()]|\([^()]*\))*\)|\s*\[\d+\]_", "", line)
    return re.sub(r":[a-z]+:(?=`)|[`*]", "", line)


def made_once(owner: T, key: Hashable, make: Callable[[], T]) -> T:
    """What is made of settings, such as the method of one client: made when first asked for, kept as long as they live.

    By what object they are and not by what they are equal to, for ``1`` is equal to ``True``.

    Parameters
    ----------
    owner : object
        The settings.
    key : hashable
        Which of all that is made of them.
    make : callable
        Makes it.
    """
    known = _MADE.get(id(owner))
    if known is None:
        known = _MADE[id(owner)] = {}
        weakref.finalize(owner, _MADE.pop, id(owner), None).atexit = False
    if key not in known:
        made = make()
        known[key] = None if made is owner else made  # which would keep itself alive
    found = known[key]
    return owner if found is None else found


_MADE: dict[int, dict[Hashable, Any]] = {}


def later(default: Any) -> Any:
    """A field that settings got when there were records already: named alone, and not written where it is the default.

    So the plain form of settings that do not use it is the one that it always was.

    Parameters
    ----------
    default : object
        With which settings do what they did before.
    """
    return field(default=default, kw_only=True, metadata={LATER: True})


LATER = "later"


def _told(x: Any, f: Field[Any]) -> bool:
    """Whether a field of settings stands in their plain form."""
    return LATER not in f.metadata or getattr(x, f.name) != f.default


# --- checks -----------------------------------------------------------------------------------------------------------


@functools.cache
def _arguments(cls: type) -> list[str]:
    """Names of what a class is made of; none where it takes any."""
    parameters = [*inspect.signature(cls.__init__).parameters.values()][1:]  # type: ignore[misc]
    return [] if any(p.kind is p.VAR_KEYWORD for p in parameters) else [p.name for p in parameters]


class Hinting:
    """A class that refuses arguments which it does not know with the name of the one that is meant."""

    def __new__(cls, *args: Any, **given: Any) -> Self:
        """Refuse a name that is no field's, with the one that is meant."""
        known = _arguments(cls)  # type: ignore[arg-type]
        if known:
            keywords.check(cls.__name__, given, known)
        return super().__new__(cls)


class Checked(Hinting):
    """A dataclass whose fields are checked (`check`) when one is made.

    A subclass that adds checks of its own in ``__post_init__`` need not call its parent's: that runs first in any
    case.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        own: Callable[[Any], None] | None = cls.__dict__.get("__post_init__")
        if own is None:
            return

        @functools.wraps(own)
        def __post_init__(self: Any) -> None:
            super(cls, self).__post_init__()  # type: ignore[misc]
            own(self)

        cls.__post_init__ = __post_init__  # type: ignore[method-assign]

    def _converted(self) -> Mapping[str, Any]:
        """Fields in the form in which they are kept, where that is not how they are given."""
        return {}

    def __post_init__(self) -> None:
        for name, value in self._converted().items():
            object.__setattr__(self, name, value)
        check(self)
        cls: type = type(self)
        for name, value in vars(self).copy().items():  # settings that say the same are equal, and can be hashed
            if isinstance(value, list) and _wants_tuple(_hints(cls).get(name)):
                object.__setattr__(self, name, tuple(value))


def check(settings: Any) -> None:
    """Refuse a dataclass in which a field has a value that does not go with its annotation.

    Numbers and their limits (`Limit`), truth values, text, ``Literal``, ``None``, classes, callables, tuples and
    mappings of these, and unions are looked at; other annotations, and those that cannot be resolved (of a class within
    a function), are not.

    Parameters
    ----------
    settings : dataclass

    Raises
    ------
    ValueError
        Naming the field, what was expected and what was got.
    """
    for name, words, fits in _tests(type(settings)):  # type: ignore[arg-type]
        if not fits(value := getattr(settings, name)):
            asked = f" (the class; did you mean {value.__name__}()?)" if isinstance(value, type) else ""
            raise WrongValue(f"{name} must be {words}, got {value!r}{asked}")
    for name, limit in _limits(type(settings)):  # type: ignore[arg-type]
        given = getattr(settings, name)
        inside = given.values() if isinstance(given, Mapping) else given
        for value in inside if isinstance(given, Mapping | tuple | list) and not limit.whole else (given,):
            if value is not None and not limit.holds(value):
                raise WrongValue(f"{name} must be {limit.words}, got {value!r}")


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    """The annotations of a class and its parents as types; those that cannot be resolved are left out."""
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        for name, hint in inspect.get_annotations(base).items():
            found.pop(name, None)
            try:
                found[name] = eval(hint, vars(sys.modules[base.__module__])) if isinstance(hint, str) else hint
            except (NameError, AttributeError, TypeError, KeyError):
                continue
    return found


@functools.cache
def _tests(cls: type) -> list[tuple[str, str, Callable[[Any], bool]]]:
    """Fields of a dataclass, their types in words, and what says whether a value goes with that."""
    hints = _hints(cls)
    return [(f.name, *_kind(hints.get(f.name, Any))) for f in fields(cls)]


@functools.cache
def _limits(cls: type) -> list[tuple[str, Limit]]:
    """The limits of a dataclass's fields and of its parents', of the numbers there, or of those in a tuple."""
    bases = [base for base in reversed(cls.__mro__) if is_dataclass(base)]
    each = ((f.name, _limits_of(_hints(base).get(f.name))) for base in bases for f in fields(base))
    return list(dict.fromkeys((name, limit) for name, limits in each for limit in limits))


def _wants_tuple(hint: Any) -> bool:
    return get_origin(hint) is tuple or any(map(_wants_tuple, get_args(hint)))


def _limits_of(hint: Any) -> Iterator[Limit]:
    for part in get_args(hint):
        if isinstance(part, Limit):
            yield part
        else:
            yield from _limits_of(part)


def _kind(hint: Any) -> tuple[str, Callable[[Any], bool]]:
    """A type in words, ``"a whole number"`` or ``"a Model"``, and a test of whether a value goes with it.

    NumPy's numbers are numbers, True is none, and a list passes for a tuple.
    """
    origin, inner = get_origin(hint), get_args(hint)
    if hint in _SCALARS:
        return _SCALARS[hint]
    if origin is Annotated:
        return _kind(inner[0])
    if origin is Literal:
        words = f"one of {inner}" if len(inner) > 1 else repr(inner[0])
        return words, lambda value: any(type(value) is type(allowed) and value == allowed for allowed in inner)
    if origin in (Union, types.UnionType):
        kinds = [_kind(one) for one in inner]
        return " or ".join(words for words, _ in kinds), lambda value: any(fits(value) for _, fits in kinds)
    if origin is tuple and inner[-1] is ...:
        words, fits = _kind(inner[0])
        words = f"a tuple of any number of entries, each {words}"
        return words, lambda value: isinstance(value, tuple | list) and all(map(fits, value))
    if origin is tuple:
        kinds = [_kind(one) for one in inner]
        return (
            f"a tuple of {', '.join(words for words, _ in kinds)}",
            lambda value: (
                isinstance(value, tuple | list)
                and len(value) == len(kinds)
                and all(fits(v) for v, (_, fits) in zip(value, kinds))
            ),
        )
    if isinstance(origin, type) and issubclass(origin, Mapping):
        (key_words, key), (item_words, item) = map(_kind, inner)
        return (
            f"a mapping of {key_words} to {item_words}",
            lambda value: isinstance(value, Mapping) and all(key(k) and item(v) for k, v in value.items()),
        )
    kind = origin or hint
    words = "callable" if kind is Callable else _article(getattr(hint, "__name__", str(hint)))
    if not isinstance(kind, type):
        return words, lambda value: True
    return words, lambda value: isinstance(value, kind) and (kind is type or not isinstance(value, type))


def _is_int(value: Any) -> bool:
    return type(value) is int or (isinstance(value, Integral) and not isinstance(value, bool))


def _is_number(value: Any) -> bool:
    if type(value) is not float and (isinstance(value, bool) or not isinstance(value, Real)):
        return False
    return not math.isnan(value)


_SCALARS: dict[Any, tuple[str, Callable[[Any], bool]]] = {
    int: ("a whole number", _is_int),
    float: ("a finite number", lambda value: _is_number(value) and math.isfinite(value)),
    Unbounded: ("a number", _is_number),
    bool: ("True or False", lambda value: isinstance(value, bool | np.bool_) or (_is_int(value) and value in (0, 1))),
    str: ("text", lambda value: isinstance(value, str)),
    Any: ("anything", lambda value: True),
    type(None): ("None", lambda value: value is None),
}
"""Simple types: what is said of them, and what goes with them."""


def _article(name: str) -> str:
    return f"an {name}" if name[0] in "AEIO" or name in ("MLP", "MMD") else f"a {name}"


# --- their plain form -------------------------------------------------------------------------------------------------


def plain(x: Any, where: str = "value", digits: int | None = None, other: Callable[[Any], Any] | None = None) -> Any:
    """A value as JSON can hold it: dataclasses, NumPy scalars and arrays, tuples and mappings become plain Python.

    Parameters
    ----------
    x : object
    where : str
        Name of the value, for the error.
    digits : int, optional
        Significant digits to keep of floats.
    other : callable, optional
        What is made of a value that has no plain form; by default it is refused.

    Returns
    -------
    object
        Numbers that are not finite become None, for JSON has no NaN. A dataclass becomes a dict of its fields, with its
        ``class`` and without those that came `later` and have their default. An estimator of scikit-learn becomes one
        of its parameters.

    Raises
    ------
    TypeError
        If something in `x` has no plain form, e.g. a path (which would also tell about the machine).
    """
    if isinstance(x, np.generic | np.ndarray):
        x = x.tolist()
    if x is None or isinstance(x, bool | int | str):
        return x
    if isinstance(x, float):
        short = x if digits is None else float(f"{x:.{digits}g}")
        return short if math.isfinite(x) else None
    if is_dataclass(x) and not isinstance(x, type):
        inside = {
            f.name: plain(getattr(x, f.name), f"{where}.{f.name}", digits, other) for f in fields(x) if _told(x, f)
        }
        return {"class": type(x).__name__, **inside}
    if callable(getattr(x, "get_params", None)) and not isinstance(x, type):  # an estimator of scikit-learn
        return {"class": type(x).__name__, **plain(x.get_params(deep=False), where, digits, other)}
    if isinstance(x, Mapping):
        return {str(k): plain(v, f"{where}.{k}", digits, other) for k, v in x.items()}
    if isinstance(x, Sequence | set | frozenset):
        items = sorted(x) if isinstance(x, set | frozenset) else x
        return [plain(v, f"{where}[{i}]", digits, other) for i, v in enumerate(items)]
    if other is not None:
        return other(x)
    raise WrongType(f"{where}: a record holds numbers, text, lists and dicts only, got {type(x).__name__}")


def changed(old: Any, new: Any) -> list[str]:
    """Lines that say where two plain forms differ, one a place: ``"method.lr: 0.1 → 0.01"``.

    Parameters
    ----------
    old, new : object
        As `plain` makes them.

    Returns
    -------
    list of str
    """
    before, after = ({name: repr(value) for name, value in leaves(x)} for x in (old, new))
    each = [(name, before.get(name, "(none)"), after.get(name, "(none)")) for name in {**before, **after}]
    return [f"{name}: {was} → {now}" for name, was, now in each if was != now]


def leaves(x: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Ends of nested mappings, each under its dotted name; an empty mapping is an end.

    Parameters
    ----------
    x : object
    name : str
        What the dotted names begin with.

    Yields
    ------
    tuple of str and object
    """
    if not isinstance(x, Mapping) or not x:
        yield name, x
        return
    for key, value in x.items():
        yield from leaves(value, f"{name}.{key}" if name else key)

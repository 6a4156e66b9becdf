"""What the core computes and promises, beside what it computed and promised when `golden.json` was written.

Other tests say what is right. This one says that something has changed. `golden.json` keeps, one line each, a hundred
small examples (`golden.CASES`) as numbers that a person can read, the defaults of what users call, and between which
limits numbers may lie. What is new need not be in it: a new method, data set or experiment changes nothing here. Where
a change was meant, ``make values`` writes the file anew; what differs in it belongs in the commit's message. (Where
results of runs change, `numerics.REVISION` has to rise too: `test_numerics.py`.)

Of more than four numbers it has ``[how many, root mean square, a sum that knows their order]``. Whole numbers and words
are compared exactly, others to `golden.TOLERANCE` of the largest beside them.
"""

from __future__ import annotations

import importlib.util
import json
import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import golden
import numpy as np
import pytest

from hetfl_core.datasets import registry

KEPT = Path(__file__).with_name("golden.json")
MOST = 100
"""Examples: a file that nobody reads is no use."""


@cache
def kept() -> dict[str, Any]:
    return json.loads(KEPT.read_text("utf8"))


def computed(name: str) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return golden.readable(golden.CASES[name]())


def changes(was: Any, now: Any, name: str = "", tolerance: float = golden.TOLERANCE) -> Iterator[str]:
    """A line for each thing that is not as it was: its name, what it was and what it is. What is new is no change."""
    if isinstance(was, Mapping):
        for key, inner in was.items():
            place = f"{name} / {key}".removeprefix(" / ")
            if not isinstance(now, Mapping) or key not in now:
                yield f"{place}: {inner} -> gone"
            else:
                yield from changes(inner, now[key], place, tolerance)
    elif not alike(was, now, tolerance):
        yield f"{name}: {was} -> {now}"


def alike(was: Any, now: Any, tolerance: float) -> bool:
    """Whole numbers and words are equal, others lie within the tolerance times the largest of them."""
    if isinstance(was, list):
        scale = max([abs(x) for x in was if isinstance(x, float)], default=0.0)
        return isinstance(now, list) and len(was) == len(now) and all(
            near(x, y, tolerance * scale) for x, y in zip(was, now, strict=True)
        )  # fmt: skip
    return near(was, now, tolerance * abs(was) if isinstance(was, float) else 0.0)


def near(x: Any, y: Any, error: float) -> bool:
    if isinstance(x, float) and isinstance(y, int | float) and not isinstance(y, bool):
        return x == y or abs(x - y) <= error + 1e-9
    return type(x) is type(y) and x == y


def lacking(name: str) -> str | None:
    """What a case needs and is not here: a package, or the files of a data set."""
    for need in golden.NEEDS[name]:
        here = registry.available(need) if "." in need else importlib.util.find_spec(need)
        if not here:
            return need
    return None


@pytest.fixture(autouse=True)
def no_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HETFL_CACHE", str(tmp_path))


@pytest.mark.parametrize("name", golden.CASES)
def test_nothing_has_changed(name):
    """On any CPU, with any version of the libraries that are supported; skipped only where files or packages lack."""
    if missing := lacking(name):
        pytest.skip(f"{missing} is not here")
    found = [*changes(kept()["examples"][name], computed(name), name, golden.TOLERANCES[name])]
    assert not found, "\n".join([*found, "if that is meant: make values"])


@pytest.mark.parametrize("what", ["defaults", pytest.param("limits", marks=pytest.mark.nightly)])
def test_what_users_are_promised_is_as_it_was(what):
    found = [*changes(kept()[what], getattr(golden, what)())]
    assert not found, "\n".join([*found, "if that is meant: make values"])


def test_every_example_is_kept_and_no_other_and_they_are_few():
    assert kept()["examples"].keys() == golden.CASES.keys()
    assert len(golden.CASES) <= MOST


def test_what_is_new_changes_nothing_and_what_has_gone_or_moved_is_named():
    was = {"Local": {"lr": 0.1, "clip": None}, "sizes": "3 4", "x": [5, 1.0, 0.25]}
    assert [*changes(was, {**was, "FedNew": {"lr": 1.0}, "Local": {**was["Local"], "mu": 0.5}})] == []
    assert [*changes(was, {**was, "Local": {"lr": 0.2}})] == ["Local / lr: 0.1 -> 0.2", "Local / clip: None -> gone"]
    assert [*changes(was, {**was, "sizes": "4 3"})] == ["sizes: 3 4 -> 4 3"]
    for moved in ([5, 1.0, 0.25 + 1e-7], [5, 1.0 - 1e-6, 0.25]):
        assert [*changes(was, {**was, "x": moved})] == []
    for moved in ([5, 1.0, 0.2501], [6, 1.0, 0.25], [5, 1.0], 5, "x"):
        assert [*changes(was, {**was, "x": moved})] == [f"x: [5, 1.0, 0.25] -> {moved}"]
    assert not alike(1, True, 0.1)
    assert not alike(None, 0, 0.1)


def test_a_sketch_tells_values_places_and_sizes_apart():
    x = np.arange(6.0)
    every = [x, -x, x[::-1], np.append(x, 0.0), x * 1.0001, x + np.eye(6)[3] * 1e-3]
    sketches = [{"x": golden.readable(v)} for v in every]
    for i, one in enumerate(sketches):
        assert [bool([*changes(one, other)]) for other in sketches] == [i != j for j in range(len(every))]
    assert golden.readable({"a": (x[:2], [x[2:4]]), "b": "word", "c": np.float32(0.5), "d": True}) == {
        "a": [0.0, 1.0, 2.0, 3.0], "b": "word", "c": 0.5, "d": 1
    }  # fmt: skip


def written(before: Mapping[str, Any]) -> dict[str, Any]:
    """The file anew: values that are within the tolerance stay as they are, as do those of which data are lacking."""
    examples = {}
    for name in golden.CASES:
        old = before["examples"].get(name)
        if missing := lacking(name):
            print(f"{name} needs {missing}: its values stay" if old else f"{name} needs {missing}: left out")
            examples |= {name: old} if old else {}
            continue
        new = computed(name)
        told = [*changes(old or {}, new, name, golden.TOLERANCES[name])]
        same = old and not told and not [*changes(new, old, name, golden.TOLERANCES[name])]
        examples[name] = old if same else new
        print(*told, sep="\n", end="\n" if told else "")
    return {"examples": examples, "defaults": golden.defaults(), "limits": golden.limits()}


def text(found: Mapping[str, Mapping[str, Any]]) -> str:
    """One line for each example, function or class."""
    dump = lambda value: json.dumps(value, ensure_ascii=False)  # noqa: E731
    sections = [
        f"{dump(section)}: {{\n" + ",\n".join(f" {dump(name)}: {dump(each)}" for name, each in of.items()) + "\n}"
        for section, of in found.items()
    ]
    return "{\n" + ",\n".join(sections) + "\n}\n"


def main() -> None:
    before = json.loads(KEPT.read_text("utf8")) if KEPT.exists() else {"examples": {}}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HETFL_CACHE"] = folder
        found = text(written(before))
    KEPT.write_text(found, "utf8")


if __name__ == "__main__":
    main()

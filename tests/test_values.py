"""What the core computes and promises, beside what it computed when `values.json` was written.

Other tests say what is right. This one says that something has changed. It keeps the digest and three numbers of a
small example of each way through the code, and all defaults and constants. Where a change was meant, ``make values``
writes the file anew; what differs in it belongs in the commit's message. (Where results of runs change,
`numerics.REVISION` has to rise too: `test_numerics.py`.)
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib.util
import inspect
import json
import os
import tempfile
import warnings
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import values
from test_numerics import vendor

from hetfl_core import checks, numerics

KEPT = Path(__file__).with_name("values.json")


def parts(value, name=""):
    """The arrays of a nested result, each with its place, but for what took how long."""
    if isinstance(value, pd.DataFrame):
        value = {str(column): value[column].to_numpy() for column in value}
    if isinstance(value, torch.Tensor):
        value = value.detach().numpy()
    if dataclasses.is_dataclass(value):
        value = vars(value)
    if hasattr(value, "items"):
        for key, inner in value.items():
            if key != "seconds":
                yield from parts(inner, f"{name}/{key}")
    elif isinstance(value, list | tuple):
        for i, inner in enumerate(value):
            yield from parts(inner, f"{name}/{i}")
    else:
        yield name, np.asarray(value)


def summary(value):
    """Digest of all that is computed; how many numbers, their root mean square, and a sum that knows their order.

    Numbers of double precision count to a ten millionth of their array's size: how LAPACK rounds depends on where in
    memory a matrix lies.
    """
    digest, size, square, order = hashlib.blake2b(digest_size=8), 0, 0.0, 0.0
    for name, array in parts(value):
        digest.update(f"{name} {array.shape} {array.dtype.kind}".encode())
        if array.dtype.kind not in "fiub":
            digest.update(repr(array.tolist()).encode())
            continue
        x = np.nan_to_num(array.astype(np.float64).ravel(), nan=-7.0, posinf=7.0, neginf=-9.0)
        total = float(x @ x)
        scale = (total / max(x.size, 1)) ** 0.5
        if array.dtype == np.float64:
            digest.update(f"{scale:.6e}".encode() if scale > 1e-12 else b"0")
            array = np.round(x / scale, 7) + 0.0 if scale > 1e-12 else np.zeros(x.size)
        digest.update(np.ascontiguousarray(array).tobytes())
        square += total
        order += float(x @ np.cos(np.arange(size, size + x.size) ** 0.5))
        size += x.size
    n = max(size, 1)
    return {
        "digest": digest.hexdigest(),
        "numbers": [size, *(float(f"{v / n**0.5:.6g}") for v in (square**0.5, order))],
    }


def here():
    """What rounding depends on, but for what `numerics` holds and for the maker of the CPU, which MKL looks at."""
    libraries = ("torch", "numpy", "scipy", "scikit-learn", "mne", "pyriemann", "moabb")
    found = {name: version(name).split("+")[0] for name in libraries if installed(name)}
    return {**found, "isa": numerics.in_effect()["isa"]}


def installed(name):
    return importlib.util.find_spec({"scikit-learn": "sklearn"}.get(name, name)) is not None


def computed(name):
    """The summary of a case, and the digest of the limits within which it asked its arguments to be."""
    with warnings.catch_warnings(), limits() as asked:
        warnings.simplefilter("ignore")
        found = summary(values.CASES[name]())
    return {**found, "limits": hashlib.blake2b("\n".join(sorted(asked)).encode(), digest_size=8).hexdigest()}


@contextlib.contextmanager
def limits():
    """What the functions of `checks` are called with: a limit that moves is a change of behaviour, too."""
    asked, public = set(), {n: f for n, f in vars(checks).items() if inspect.isfunction(f) and n[0] != "_"}

    def watched(name, function):
        def call(*given, **named):
            asked.add(f"{name} {[*map(brief, given)]} { {k: brief(v) for k, v in named.items()} }")
            return function(*given, **named)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name, function in public.items():
            patch.setattr(checks, name, watched(name, function))
        yield asked


def brief(value):
    if isinstance(value, bool | int | float | str | None):
        return repr(value)
    has_shape = hasattr(value, "shape") and not isinstance(value, type)
    return str(tuple(value.shape)) if has_shape else type(value).__name__


def lacking(name):
    """What a case needs and is not here."""
    for need in values.NEEDS[name]:
        if need == "data" and "HETFL_DATA" not in os.environ:
            return "the files of the data sets ($HETFL_DATA)"
        if need not in ("data", "dp_accounting") and not installed(need):
            return need
    return None


def stored():
    return json.loads(KEPT.read_text("utf8"))


@pytest.fixture(autouse=True)
def no_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HETFL_CACHE", str(tmp_path))


@pytest.mark.parametrize("name", values.CASES)
def test_nothing_has_changed(name):
    kept = stored()
    if here() != kept["made with"]:
        pytest.skip(f"values.json was made with {kept['made with']}, this is {here()}")
    if missing := lacking(name):
        pytest.skip(f"{missing} is not here")
    found, case = computed(name), kept["values"][name]
    assert found.pop("limits") == case["limits"], f"{name} has other limits; if that is meant: make values"
    if vendor() not in case["by"]:
        pytest.skip(f"{name} was computed on CPUs by {' and '.join(case['by'])}, this one is by {vendor()}")
    assert found == case["by"][vendor()], f"{name} gives other numbers; if that is meant: make values"


def test_defaults_and_constants_are_as_they_were():
    """Of what has been written down: what is new may be missing."""
    kept, found = stored()["promises"], json.loads(json.dumps(values.promises()))
    changed = [f"{name}: {was} -> {found.get(name)}" for name, was in kept.items() if found.get(name) != was]
    assert not changed, "\n".join([*changed, "if that is meant: make values"])


def test_every_case_is_kept_and_no_other():
    assert set(stored()["values"]) == set(values.CASES)


def test_a_digest_tells_values_places_and_shapes_apart():
    x = np.arange(6.0)
    all_ = [
        x,
        -x,
        x[::-1],
        x.reshape(2, 3),
        x.astype(np.int64),
        x + 1e-5,
        x.astype(np.float32),
        x.astype(np.float32) + 1e-6,
        [x],
        {"a": x},
        {"b": x},
        "x",
    ]
    digests = [summary(v)["digest"] for v in all_]
    assert len(set(digests)) == len(all_)
    assert summary(x) == summary(torch.arange(6, dtype=torch.float64)) == summary(x + 1e-15)


def combined(old, found, maker):
    """A case as it is written down: other makers' values stay, unless what was computed here has changed."""
    limits, found = found["limits"], {key: x for key, x in found.items() if key != "limits"}
    others = old["by"] if old and old["by"].get(maker, found) == found else {}
    return {"limits": limits, "by": dict(sorted({**others, maker: found}.items()))}


def test_values_of_another_cpu_stay_as_long_as_nothing_changes():
    one, other = {"digest": "1", "numbers": [1]}, {"digest": "2", "numbers": [1]}
    old = {"limits": "x", "by": {"amd": one, "intel": other}}
    assert combined(old, {**other, "limits": "y"}, "intel") == {**old, "limits": "y"}
    assert combined(old, {**one, "limits": "x"}, "intel") == {"limits": "x", "by": {"intel": one}}, "amd's is stale"
    assert combined(old, {**one, "limits": "x"}, "via")["by"].keys() == {"amd", "intel", "via"}, "a first time here"
    assert combined(None, {**one, "limits": "x"}, "amd") == {"limits": "x", "by": {"amd": one}}


def main():
    before, changed = stored(), {}
    known = before["values"] if before["made with"] == here() else {}
    for name in values.CASES:
        if missing := lacking(name):
            raise SystemExit(f"{name} needs {missing}")
        with tempfile.TemporaryDirectory() as folder:
            os.environ["HETFL_CACHE"] = folder
            found = computed(name)
        changed[name] = combined(known.get(name), found, vendor())
        print(name, *(f"{x:.6g}" for x in found["numbers"]))
    kept = {"made with": here(), "promises": values.promises(), "values": changed}
    KEPT.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", "utf8")


if __name__ == "__main__":
    main()

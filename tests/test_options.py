"""Options at every door: unknown names are refused with the one that is meant, bad values with one text for all."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression

import hetfl_core
from hetfl_core import (
    Client,
    Federation,
    Preparation,
    adapt,
    baselines,
    compare,
    keywords,
    simulate,
    simulate_seeds,
    tune,
)
from hetfl_core.baselines import LDA
from hetfl_core.datasets import CATALOGUE, digits
from hetfl_core.deployment import RunSettings, client_from_file, settings_of
from hetfl_core.deployment.apps import KEYS
from hetfl_core.engine import Simulator
from hetfl_core.engine.apart import simulate_apart
from hetfl_core.engine.measures import MEASURES
from hetfl_core.engine.options import RunOptions
from hetfl_core.methods import FLIC, FedAvg
from hetfl_core.networks import MLP, Model
from hetfl_core.plugins import data_sets

RNG = np.random.default_rng(0)
FED = Federation.from_arrays({name: (RNG.normal(size=(20, 3)), np.arange(20) % 2) for name in "abc"})
METHOD = FedAvg(Model(MLP((3,), 3)), local_epochs=1)
ESTIMATORS = {"logistic": LogisticRegression(), "lda": LDA()}
KINDS = {"estimators": ESTIMATORS, "both": {**ESTIMATORS, "shared": METHOD}, "methods": {"a": METHOD, "b": METHOD}}
GRID = {"C": [0.1, 1.0]}

RUNNING: Mapping[str, Callable[..., Any]] = {
    "compare": lambda **told: compare(FED, ESTIMATORS, seeds=3, **told),
    "tune": lambda **told: tune(FED, LogisticRegression(), GRID, **told),
    "simulate": lambda **told: simulate(FED, METHOD, **told),
    "simulate_seeds": lambda **told: simulate_seeds(FED, METHOD, **told),
    "simulate_apart": lambda **told: simulate_apart(FED, METHOD, **told),
}
"""Whatever runs something on a federation."""

DOORS: Mapping[str, Callable[..., Any]] = {
    **RUNNING,
    "adapt": lambda **told: adapt(None, [], **told),
    "Federation.from_frame": lambda **told: Federation.from_frame(pd.DataFrame(), client="a", target="b", **told),
    "Federation.from_csv": lambda **told: Federation.from_csv("no.csv", target="b", **told),
    "Federation.from_arrays": lambda **told: Federation.from_arrays({}, **told),
    "Federation": lambda **told: Federation([], **told),
    "Client": lambda **told: Client([[1.0]], [0], [[1.0]], [0], "a", **told),
    "Simulator": lambda **told: Simulator(FED, METHOD, **told),
    "Preparation": lambda **told: Preparation(**told),
    "FedAvg": lambda **told: FedAvg(**told),
    "FLIC": lambda **told: FLIC.published(**told),
    "Model": lambda **told: Model(**told),
    "RunSettings": lambda **told: RunSettings(2, **told),
    "client_from_file": lambda **told: client_from_file("no.csv", "a", **told),
}
"""What takes options, and refuses those that it does not know before it looks at anything else."""


@pytest.fixture(autouse=True)
def _nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("tqdm.auto.tqdm.__init__", "hetfl_core.baselines.LDA.learn", "hetfl_core.estimators.PerSite.learn"):
        monkeypatch.setattr(name, lambda *a, **k: pytest.fail("something ran, or drew a bar"))


@pytest.mark.parametrize("door", DOORS)
def test_what_no_door_knows_is_refused_with_what_it_takes(door: str) -> None:
    with pytest.raises(TypeError, match=rf"^{door}\(\) got an unexpected keyword argument 'nonsense'; it takes \w+, "):
        DOORS[door](nonsense=1)


@pytest.mark.parametrize(
    ("door", "theirs", "ours"),
    [
        *((door, word, "metric") for door in RUNNING for word in ("scoring", "metrics", "measure")),
        *(
            (door, word, "metric")
            for door in RUNNING
            if door != "compare"
            for word in ("scoring", "metrics", "measure")
        ),
        *((door, word, "seeds") for door in ("compare", "tune") for word in ("cv", "n_splits", "random_state", "seed")),
        *((door, "random_state", "seed") for door in ("simulate", "adapt", "RunSettings")),
        ("Federation.from_frame", "random_state", "seed"),
        ("simulate", "seeds", "seed"),
        *((door, word, "rounds") for door in RUNNING for word in ("round", "n_rounds", "max_iter")),
        *((door, "participations", "participation") for door in RUNNING),
        ("tune", "param_grid", "grid"),
        ("tune", "estimator", "method"),
        ("compare", "verbose", "progress"),
        ("compare", "reference", "base"),
        ("compare", "jobs", "n_jobs"),
        ("simulate", "n_jobs", "workers"),
        ("adapt", "epochs", "rounds"),
        ("Federation.from_frame", "label", "target"),
        ("Federation.from_frame", "site", "client"),
        ("Federation.from_csv", "separator", "sep"),
        ("Federation.from_csv", "prepar", "prepare"),
        ("Federation.from_arrays", "testsize", "test_size"),
        ("Federation", "num_classes", "n_classes"),
        ("Client", "feature", "features"),
        ("FedAvg", "learning_rate", "lr"),
        ("FedAvg", "epochs", "local_epochs"),
        ("FLIC", "alignement_weight", "alignment_weight"),
        ("client_from_file", "labels", "label"),
    ],
)
def test_what_is_meant_is_hinted_at(door: str, theirs: str, ours: str) -> None:
    with pytest.raises(TypeError, match=rf"^{door}\(\) got .* '{theirs}' \(did you mean '{ours}'\?\)$"):
        DOORS[door](**{theirs: "auc"})


BAD = {
    "rounds": -5,
    "participation": 7,
    "engine": "fast",
    "device": "gpu",
    "dtype": "float32",
    "checkpoint": 3,
    "evaluate_every": 0,
    "last_step": "mine",
    "validation": 3,
    "stack_size": 0,
    "workers": 0,
    "threads": 0,
    "on_round": 3,
    "secrets": 3,
    "progress": "no",
}


def said(call: Callable[..., Any], **told: Any) -> str:
    with pytest.raises((ValueError, TypeError)) as error:
        call(**told)
    return str(error.value)


def taken(door: str) -> list[str]:
    """Names of all that something takes, as its error says."""
    return said(DOORS[door], nonsense=1).split("it takes ")[1].split(", ")


@pytest.mark.parametrize("name", BAD)
def test_a_bad_value_is_refused_in_the_same_words_whoever_takes_part(name: str) -> None:
    """As `simulate` says it, which is what the options are of."""
    wanted = said(RUNNING["simulate"], **{name: BAD[name]})
    assert wanted.startswith(f"{name} must ")
    for methods in KINDS.values():
        assert said(compare, federation=FED, methods=methods, seeds=3, **{name: BAD[name]}) == wanted
    for door, call in RUNNING.items():
        if name in taken(door):
            assert said(call, **{name: BAD[name]}) == wanted, door


def test_every_option_has_a_bad_value_here() -> None:
    assert {*BAD} == {*RunOptions.names("metric")}


def test_the_options_are_those_of_simulate_with_its_defaults() -> None:
    own = inspect.signature(simulate).parameters
    assert {*own} == {*RunOptions.names(), "federation", "method", "seed"}
    made = RunOptions()
    assert all(getattr(made, name) == own[name].default for name in RunOptions.names())


@pytest.mark.parametrize("kind", KINDS)
def test_what_does_not_go_with_the_data_is_refused_in_the_same_words(kind: str) -> None:
    for told in ({"participation": 0.1}, {"validation": FED.subset(["a", "b"])}):
        wanted = said(RUNNING["simulate"], **told)
        assert said(compare, federation=FED, methods=KINDS[kind], seeds=3, progress=False, **told) == wanted
    wanted = said(RUNNING["simulate"], participation=0.1)
    for method, grid in ((METHOD, {"lr": [0.1]}), (LogisticRegression(), GRID)):
        assert said(tune, federation=FED, method=method, grid=grid, progress=False, participation=0.1) == wanted


def test_a_grid_is_checked_before_anything_runs() -> None:
    for values, words in (
        ({"rounds": [2, -1]}, "rounds must be a"),
        ({"participation": [7]}, "participation must lie"),
    ):
        with pytest.raises(ValueError, match=rf"grid: setting .*: {words}"):
            tune(FED, METHOD, values, progress=False)
    with pytest.raises(ValueError, match="no setting is called 'learning_rate'; did you mean lr"):
        tune(FED, METHOD, {"learning_rate": [0.1]}, progress=False)


def test_what_is_not_here_is_not_measured() -> None:
    with pytest.raises(ValueError, match=r"metric must be one that a baseline has, of .*, got 'own'"):
        simulate(FED, LDA(), metric=["own"])


def test_keys_of_a_run_config_that_nearly_are_ours() -> None:
    for key, ours in {
        "round": "rounds",
        "evaluate_evry": "evaluate-every",
        "measure": "metric",
        "Classes": "classes",
    }.items():
        with pytest.raises(ValueError, match=f"key '{key}' that nothing reads: did you mean '{ours}'"):
            settings_of({"classes": 2, key: 3})
    assert settings_of({"classes": 2, "hospital": "Lyon", "folder": "", "patience": 3.0}) == RunSettings(2)


def test_a_file_of_arrays_has_no_options_of_tables(tmp_path: Any) -> None:
    np.savez(tmp_path / "a.npz", x=RNG.normal(size=(30, 3)), y=np.arange(30) % 2)
    client_from_file(tmp_path / "a.npz", "a")
    for told in ({"sep": ";"}, {"ignore": ["b"]}, {"label": "ill"}):
        with pytest.raises(ValueError, match=f"client 'a', a.npz: {next(iter(told))} is of tables"):
            client_from_file(tmp_path / "a.npz", "a", **told)


CHECKING_NAMES = "hetfl_core.checks."
HANDED_ON = {
    "hetfl_core.baselines.Classical.set_params": "to the class, whose fields are known",
    "hetfl_core.engine.predictor.Predictor.fit": "it refuses whatever comes",
    "hetfl_core.clients.altered": "fields of any object, which are taken as they are",
    "hetfl_core.datasets.clinical.recorded_table": "to pandas.read_csv",
    "hetfl_core.distances.parts.check_shapes": "checks tensors by name",
    "hetfl_core.engine.together.together": "what those who call it have checked",
    "hetfl_core.frames.by_client": "columns by name, of Federation.from_frame",
    "hetfl_core.methods.base.Method.finetuning": "to Method.stage",
    "hetfl_core.methods.base.Method.stage": "to Stage, whose fields are known",
    "hetfl_core.methods.fedhenn.FedHeNN.published": "to the class, whose fields are known",
    "hetfl_core.methods.flic.FLIC.published": "to the class, whose fields are known",
    "hetfl_core.methods.hyfem.HyFEM.published": "to the class, whose fields are known",
    "hetfl_core.plots.latent": "to plots.clients_and_classes, whose arguments are known",
    "hetfl_core.plots.project": "to scikit-learn's class",
    "hetfl_core.records.record.RunRecord.of": "to the class, whose fields are known",
    "hetfl_core.tables.read_table": "to pandas.read_csv",
    "hetfl_core.tables.sites": "to pandas.read_csv",
}
"""Functions of the core with ``**options`` that check no names, and who does."""


def with_options() -> dict[str, Any]:
    """Public functions of the core, and of its classes, that take ``**options``, by their names."""
    found = {}
    for each in pkgutil.walk_packages(hetfl_core.__path__, "hetfl_core."):
        module = importlib.import_module(each.name) if "__main__" not in each.name else hetfl_core
        for name, thing in vars(module).items():
            inside = {name: thing}
            if inspect.isclass(thing) and thing.__module__ == module.__name__:
                inside = {f"{name}.{own}": getattr(one, "__func__", one) for own, one in vars(thing).items()}
            for own, function in inside.items():
                hidden = any(part.startswith("_") for part in (*own.split("."), getattr(function, "__name__", "")))
                if hidden or not inspect.isfunction(function) or function.__module__ != module.__name__:
                    continue
                if any(p.kind is p.VAR_KEYWORD for p in inspect.signature(function).parameters.values()):
                    found[f"{module.__name__}.{own}"] = function
    return found


def test_whatever_takes_options_checks_their_names_or_hands_them_to_what_does() -> None:
    """A new function with ``**options`` is decorated by `keywords.hinting`, or says here who refuses the unknown."""
    found = {name for name, function in with_options().items() if not hasattr(function, "__wrapped__")}
    data = {name for name in found if name.startswith("hetfl_core.datasets.")}  # tried below
    assert found - data - {*HANDED_ON} == {name for name in found if name.startswith(CHECKING_NAMES)}
    assert {*HANDED_ON} - {*found} == set()


@pytest.mark.parametrize("name", data_sets())
def test_every_data_set_refuses_what_it_does_not_know(name: str) -> None:
    with pytest.raises(TypeError, match="got an unexpected keyword argument 'nonsense'"):
        data_sets()[name](nonsense=1)


def test_a_field_of_a_partition_is_hinted_at() -> None:
    with pytest.raises(TypeError, match=r"'clients_per_class'; expected a field of Partition: n_clients, .*min_size"):
        CATALOGUE["toy.noisy_features"](clients_per_class=3)
    with pytest.raises(TypeError, match=r"\(did you mean 'n_clients'\?\)"):
        CATALOGUE["toy.noisy_features"](nclients=3)


@pytest.mark.parametrize(
    ("word", "known", "found"),
    [
        ("scoring", ["metric"], "metric"),
        ("Scoring", ["metric"], "metric"),
        ("metric", ["metric"], "metric"),
        ("measure", ["metric"], "metric"),
        ("nonsense", ["metric"], None),
        ("", ["metric"], None),
        (3, ["metric"], None),
        ("cv", ["seed"], None),
    ],
)
def test_the_nearest_name(word: Any, known: list[str], found: str | None) -> None:
    assert keywords.nearest(word, known) == found


def test_every_synonym_stands_for_something_that_there_is() -> None:
    known = {name for door in DOORS for name in taken(door)} | {name for own in MEASURES.values() for name in own}
    known |= {f.name for f in fields(baselines.Chosen)} | {*KEYS} | {*inspect.signature(digits.bundled).parameters}
    assert {name for names in keywords.SYNONYMS.values() for name in names.split()} <= known

"""Bad calls of the ledger and of the figures, as `test_fuzz` tries them of the rest."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Mapping
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from fuzzing import Case, bad_values, complaint, nonsense
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from hetfl_book import ledger
from hetfl_book.figures import eeg, intervals, scenes, steered, transport
from hetfl_book.ledger import RunRecord, arithmetic, comparison, results
from hetfl_core import Client, Federation, checks, plots, records, statistics
from hetfl_core.statistics import Paired

mpl.use("Agg")

BCI = "flic/bci-common40"


def run(method: str, seed: int, accuracy: float) -> RunRecord:
    clients = {"client": ["A-1", "A-2", "B-1"], "n_train": [4, 5, 6], "accuracy": [accuracy, 0.5, accuracy / 2]}
    data = {"name": "bci", "fingerprint": f"f{seed}", "n_clients": 3}
    metrics = {"accuracy": accuracy, "accuracy_weighted": accuracy / 2, "seconds": 9.0 + seed}
    return RunRecord(BCI, "paper", method, seed, {"rounds": 50}, data, metrics, per_client=clients)


RECORDS = [
    run(name, seed, at + seed / 100)
    for name, at in (("FLIC-HL", 0.7), ("Local", 0.6), ("FedRep", 0.65))
    for seed in range(3)
]
PAIR = ledger.paired(RECORDS, BCI, "FLIC-HL", "Local")
NUMBERS, CLAIMS = ledger.numbers(RECORDS), ledger.claims(RECORDS)
CLIENTS = comparison.table(RECORDS)
VALUES = pd.Series([70.0, 71.0, 72.0], index=[0, 1, 2])
COMMON = {"records": RECORDS, "experiment": BCI, "metric": "accuracy"}
KNOWN = {BCI: ["Local"]}
NO_PAIRS = dict.fromkeys(("records", "experiment", "a", "b", "metric", "scale"), "no seed has")


def there(call: Any) -> Any:
    """A call in which a file or folder that is not there, or is there already, is no fault."""

    def tolerant(**options: Any) -> None:
        with contextlib.suppress(OSError):
            call(**options)

    return tolerant


def gaps(call: Any) -> Any:
    """A call that may say NaN: it stands for what is not known."""

    def silent(**options: Any) -> None:
        call(**options)

    return silent


LEDGER = {
    "RunRecord": Case(
        RunRecord,
        {
            "experiment": BCI,
            "scale": "own",
            "method": "Local",
            "seed": 0,
            "settings": {},
            "federation": {},
            "metrics": {"accuracy": 0.5},
            "history": {"round": [0]},
            "per_client": {"client": ["a"]},
            "commit": "0",
            "dirty": None,
            "versions": {},
            "hardware": {},
            "numerics": {},
            "seconds": 1.0,
            "created": "2026-01-01T00:00:00Z",
        },
    ),
    "value": Case(gaps(ledger.value), {"record": RECORDS[0], "metric": "accuracy"}),
    "to_percent": Case(lambda metric: records.to_percent(0.5, metric), {"metric": "accuracy"}),
    "compare_records": Case(ledger.compare_records, {"a": RECORDS[0], "b": RECORDS[1]}),
    "write": Case(there(ledger.write), {"record": RECORDS[0], "folder": "out"}),
    "write_to": Case(there(records.write_to), {"record": RECORDS[0], "path": "out.json"}),
    "load": Case(
        there(ledger.load),
        {"folder": None, "experiment": BCI, "scale": "paper", "method": "Local"},
        names={"folder": "results folder"},
    ),
    "tidy": Case(ledger.tidy, {"experiments": {50: BCI}, "metrics": ("accuracy",), "scale": "paper", "by": "x"}),
    "relative_path_of": Case(
        records.relative_path_of, {"experiment": BCI, "scale": "paper", "method": "Local", "seed": 0}
    ),
    "paper_table": Case(ledger.paper_table, {"paper": "flic", "table": 4}, names={"paper": "no numbers of"}),
    "combined_error": Case(
        lambda sample: ledger.combined_error(sample, (1.0, 3)), {"sample": (1.0, 3)}, names={"sample": "samples"}
    ),
    "verdict": Case(ledger.verdict, {"difference": 1.5, "standard_error": 0.5}),
    "tolerance": Case(ledger.tolerance, {"standard_error": 0.5}),
    "numbers": Case(ledger.numbers, {"records": RECORDS, "accuracy": "accuracy", "known": KNOWN}),
    "claims": Case(ledger.claims, {"records": RECORDS, "known": KNOWN, "instead": {"flic/a": "flic/b"}}),
    "claim_verdict": Case(ledger.claim_verdict, {"result": PAIR, "low": -1.0, "high": 1.0}),
    "claim_p": Case(ledger.claim_p, {"result": PAIR, "low": -1.0, "high": 1.0}),
    "command": Case(ledger.command, {"experiment": BCI}),
    "tally": Case(ledger.tally, {"numbers": NUMBERS, "claims": CLAIMS}),
    "show": Case(ledger.show, {"table": NUMBERS}),
    "outcome": Case(ledger.outcome, {"row": CLAIMS.to_dict("records")[0]}),
    "in_full": Case(ledger.in_full, {"row": NUMBERS.to_dict("records")[0]}),
    "interval": Case(gaps(statistics.interval), {"values": [1.0, 2.0, 4.0], "level": 0.9}),
    "Paired.of": Case(Paired.of, {"by_seed": {0: 1.0, 1: 2.0, 2: 4.0}}),
    "Paired.above": Case(PAIR.above, {"bound": 0.5}),
    "paired": Case(ledger.paired, COMMON | {"a": "FLIC-HL", "b": "Local", "scale": "paper"}, names=NO_PAIRS),
    "contrast": Case(
        statistics.contrast,
        {"records": RECORDS, "terms": [(1.0, BCI, "FLIC-HL"), (-1.0, BCI, "Local")], "metric": "accuracy"}
        | {"scale": "paper", "transform": float},
        names=NO_PAIRS | {"terms": "no seed has|terms"},
    ),
    "effects": Case(ledger.effects, COMMON | {"base": "Local", "scale": "paper"}),
    "corrected": Case(ledger.corrected, {"found": pd.DataFrame({"p": [0.01, 0.5]}), "alpha": 0.05}),
    "holm": Case(gaps(statistics.holm), {"p": np.array([0.01, 0.5])}),
    "welch": Case(gaps(ledger.welch), {"a": (70.0, 1.0, 3), "b": (69.0, 2.0, 3)}),
    "generations": Case(ledger.generations, {"records": RECORDS}),
    "arithmetic_spreads": Case(ledger.arithmetic_spreads, {"records": RECORDS, "metric": "accuracy"}),
    "arithmetic_reach": Case(gaps(ledger.arithmetic_reach), {"spread": 0.5, "seeds": 3}),
    "with_arithmetic": Case(arithmetic.with_arithmetic, {"claims": CLAIMS, "records": RECORDS}),
    "comparison.table": Case(comparison.table, {"found": RECORDS, "metric": "accuracy", "key": "n"}),
    "comparison.curve": Case(
        there(comparison.curve),
        {"experiments": {4: BCI}, "folder": None},
        names={"folder": "results folder"},
    ),
    "comparison.means": Case(comparison.means, {"rows": CLIENTS, "by": ["data_set"], "metric": "accuracy"}),
    "comparison.paired_differences": Case(
        comparison.paired_differences,
        {"rows": CLIENTS, "a": "FLIC-HL", "b": "Local", "by": ["data_set"], "metric": "accuracy"},
    ),
    "comparison.with_verdicts": Case(
        comparison.with_verdicts, {"found": comparison.paired_differences(CLIENTS, "FLIC-HL", "Local")}
    ),
    "comparison.best": Case(comparison.best, {"rows": CLIENTS, "among": ["Local", "FedRep"], "metric": "accuracy"}),
    "comparison.against": Case(
        comparison.against,
        {"rows": CLIENTS, "methods": ["FLIC-HL"], "opponents": ["Local"], "by": ["data_set"]},
    ),
    "results.by_seed": Case(results.by_seed, COMMON | {"method": "Local"}),
    "results.at_round": Case(
        results.at_round,
        {key: v for key, v in COMMON.items() if key != "metric"}
        | {"method": "Local", "column": "accuracy", "round": 1},
    ),
    "results.pooled": Case(
        results.pooled,
        {key: each for key, each in COMMON.items() if key != "experiment"} | {"experiments": [BCI], "method": "Local"},
    ),
    "results.apart": Case(results.apart, {"values": {"a": VALUES, "b": VALUES - 1}, "base": "a"}),
    "results.mean_sd": Case(results.mean_sd, {"values": VALUES, "digits": 2}),
    "results.pair": Case(results.pair, COMMON | {"a": "FLIC-HL", "b": "Local", "scale": "paper"}),
    "results.difference": Case(results.difference, {"a": VALUES, "b": VALUES - 1}),
    "results.across": Case(results.across, COMMON | {"base_experiment": BCI, "base": "Local"}),
    "results.gaps": Case(
        results.gaps,
        {"records": RECORDS, "experiments": {3: BCI}, "methods": ["FLIC-HL"], "base": "Local"},
    ),
}

HISTORY = pd.DataFrame({"round": [0, 1, 2], "accuracy": [0.1, 0.2, 0.3], "ce": [3.0, 2.0, 1.0]})
POINTS = {"a": np.random.default_rng(0).normal(size=(6, 3)), "b": np.random.default_rng(1).normal(size=(5, 3))}
FLAT = {name: z[:, :2] for name, z in POINTS.items()}
LABELS = {"a": np.arange(6) % 2, "b": np.arange(5) % 2}
DIFFERENCES = pd.DataFrame({"mean": [1.0, 2.0], "low": [0.5, -1.0], "high": [1.5, 5.0]}, index=["one", "two"])
SWEEP = pd.DataFrame({"n": [1, 1, 2, 2], "method": list("aaab"), "accuracy": [1.0, 2.0, 3.0, 4.0]})
GAPS = pd.DataFrame(
    {"x": [1, 2], "method": ["a", "a"], "mean": [1.0, 2.0], "low": [0.5, -np.inf], "high": [1.5, np.inf]}
)
LEARNING = pd.DataFrame(
    {"n": [4, "all"], "method": ["a", "a"], "n_train": [4.0, 9.0], "mean": [60.0, 70.0], "low": [50.0, 60.0]}
).assign(high=lambda rows: rows["mean"] + 10)
C3 = ["C3", "Cz", "C4"]
SPD = np.array([np.diag([4.0, 0.25]), np.eye(2)])
ON = {"ax": None, "title": ""}
CLOUDS = {"x": np.eye(3)[:, :2], "y": np.eye(3)[:, 1:] + 2.0}
PAIRED = {"x": np.array([1.0, 3.0, 2.0]), "y": np.array([4.0, 9.0, 6.0])}

TABLES = Federation([Client(np.eye(2), [0, 1], np.eye(2), [0, 1], "p", ["a", "b"])])

FIGURES = {
    "curves": Case(plots.curves, ON | {"runs": {"FLIC": [HISTORY, HISTORY]}, "column": "accuracy"}),
    "project": Case(plots.project, {"points": POINTS["a"], "how": "PCA", "seed": 0}),
    "availability": Case(plots.availability, ON | {"federation": TABLES, "names": {"a": "age"}}),
    "clients_and_classes": Case(
        plots.clients_and_classes,
        ON
        | {"flat": FLAT, "labels": LABELS, "anchors": np.eye(2), "classes": [0, 1], "class_names": None}
        | {"legend": True},
        huge=False,
    ),
    "latent": Case(
        plots.latent,
        {"points": POINTS, "labels": LABELS, "anchors": np.eye(2, 3), "how": "PCA", "seed": 0, "ax": None}
        | {"options": None},
    ),
    "regions": Case(
        scenes.regions,
        ON
        | {"points": [[0.0, 0.0], [1.0, 1.0]], "labels": [0, 1], "limits": (-1.0, 1.0, -1.0, 1.0), "steps": 5}
        | {"classify": lambda x: (x[:, 0] > 0).astype(int)},
        names={"labels": "points and labels"},
    ),
    "sweep": Case(intervals.sweep, ON | {"rows": SWEEP, "x": "n", "y": "accuracy", "by": "method", "xlabel": ""}),
    "differences": Case(plots.differences, ON | {"rows": DIFFERENCES, "xlabel": "points"}),
    "forest": Case(intervals.forest, ON | {"rows": DIFFERENCES, "xlabel": "points"}),
    "forests": Case(intervals.forests, ON | {"found": {"one": DIFFERENCES}, "xlabel": "points", "groups": [1, 1]}),
    "verdicts": Case(
        intervals.verdicts,
        ON | {"table": pd.DataFrame({"statement": ["a", "b"], "holds": ["yes", "if"]}), "columns": 2},
    ),
    "gaps": Case(intervals.gaps, ON | {"rows": GAPS, "xlabel": "", "spread": 0.1}),
    "convergence": Case(
        scenes.convergence,
        ON | {"curves": {"one": [1.0, 0.5, 0.1]}, "bounds": {"theorem": [1.0, 0.6, 0.4]}, "floor": 1e-16},
    ),
    "eeg.head": Case(eeg.head, {"channels": C3, "rate": 160.0}),
    "eeg.traces": Case(
        eeg.traces,
        ON | {"data": np.ones((3, 4)), "times": [0.0, 0.1, 0.2, 0.3], "names": C3, "step": 20.0, "marks": {0.1: "cue"}},
    ),
    "eeg.topographies": Case(
        eeg.topographies,
        {"values": {"now": [1.0, -1.0, 0.5]}, "info": eeg.head(C3), "limit": 1.0, "label": "µV", "columns": 1},
        huge=False,
    ),
    "eeg.matrices": Case(
        eeg.matrices,
        {"given": {"one": np.eye(3)}, "channels": C3, "label": "µV²", "columns": 1, "limit": None},
        huge=False,
    ),
    "eeg.upright": Case(eeg.upright, {"S": SPD}),
    "eeg.cone": Case(eeg.cone, ON | {"top": 4.0, "bowl": True}),
    "eeg.along": Case(
        lambda **a: eeg.along(eeg.cone(4.0), **a), {"path": SPD, "label": "a", "colour": "k", "style": "-"}
    ),
    "eeg.points": Case(lambda **a: eeg.points(eeg.cone(4.0), **a), {"S": SPD, "label": "a", "i": 0, "size": 26.0}),
    "eeg.learning_curves": Case(eeg.learning_curves, ON | {"rows": LEARNING, "methods": ["a"], "dashed": []}),
    "transport.ellipse": Case(
        transport.ellipse, {"mean": np.zeros(2), "covariance": SPD[0], "radius": 2.0, "steps": 9}, huge=False
    ),
    "transport.carried": Case(transport.carried, ON | CLOUDS | {"plan": np.eye(3) / 3, "t": 0.5}),
    "transport.blended": Case(transport.blended, ON | CLOUDS | {"t": 0.5}),
    "transport.arrows": Case(transport.arrows, ON | CLOUDS | {"plan": np.eye(3) / 3}),
    "transport.table": Case(transport.table, ON | {"plan": np.eye(3) / 3, "written": "{:.2f}"}),
    "transport.pairing": Case(transport.pairing, ON | PAIRED),
    "transport.stairs": Case(transport.stairs, ON | PAIRED),
    "transport.between": Case(
        transport.between,
        ON | {"m1": np.zeros(2), "S1": SPD[0], "m2": np.ones(2), "S2": SPD[0], "matrix": np.eye(2), "t": 0.5},
        huge=False,
    ),
    "steered.results": Case(
        steered.results,
        {
            "sliders": {"rate": [0.1, 0.2]},
            "found": {"one": np.ones((2, 3))},
            "axis": "accuracy (%)",
            "limits": (0, 100),
            "alt": "One line.",
            "start": (1,),
        },
    ),
}
CASES: Mapping[str, Case] = {**LEDGER, **FIGURES}


@pytest.fixture(autouse=True)
def a_folder_of_ones_own(monkeypatch, tmp_path):
    """For records that are written, and figures that are closed."""
    monkeypatch.chdir(tmp_path)
    yield
    plots.plt.close("all")


@pytest.mark.parametrize("name", CASES)
def test_the_calls_that_are_varied_are_valid(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert nonsense(CASES[name].call(**CASES[name].valid)) is None


def tried(data: Any, cases: Mapping[str, Case]) -> None:
    """One bad value in the place of one argument of one of these calls."""
    name, argument = data.draw(st.sampled_from([(name, a) for name, case in cases.items() for a in case.valid]))
    values = bad_values(cases[name], argument)
    value = values[data.draw(st.integers(0, len(values) - 1))]
    found = complaint(cases[name], argument, value)
    plots.plt.close("all")
    assert found is None, f"{name}({argument}={checks.shown(value)}): {found}"


@settings(max_examples=400, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_bad_call_of_the_ledger_names_its_argument(data):
    tried(data, LEDGER)


@settings(max_examples=100, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_bad_call_of_a_figure_names_its_argument(data):
    tried(data, FIGURES)

"""Head to head: the rules as code, the runs that are missing, and what is read from records."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

from hetfl_book.headtohead import across, command, datacard, entries, ranking, running
from hetfl_book.headtohead.entries import ALONE, Entry, NotHere
from hetfl_book.headtohead.federations import FEDERATIONS, Setting, at_most, data_of
from hetfl_book.headtohead.running import Bench, Task
from hetfl_core import Client, Federation, records
from hetfl_core.datasets import digits, toy
from hetfl_core.engine.apart import simulate_apart
from hetfl_core.learners import simulate
from hetfl_core.methods import CATALOGUE, FedProto, Local, Method
from hetfl_core.networks import MLP, Model
from hetfl_core.records import RunRecord
from hetfl_core.tuning import SEEDS as CHOICE

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "book" / "headtohead.md").read_text("utf8")
LINES = entries.entries()


# --- the rules --------------------------------------------------------------------------------------------------------


def test_no_method_is_tried_with_more_than_twelve_settings_and_networks_all_with_as_many() -> None:
    tried = {name: entries.settings_in(line.grid) for name, line in LINES.items()}
    assert {n for name, n in tried.items() if isinstance(LINES[name].method, Method)} == {12}
    assert set(tried.values()) == {0, 12}, "0 where there is nothing to choose"
    with pytest.raises(ValueError, match="at most 12 settings, as all methods have, got 13"):
        Entry(Local(), grid={"lr": [0.1 * k for k in range(1, 14)]})


def test_methods_that_take_part_are_those_of_the_catalogue() -> None:
    """What does not is a variant of one that does, or new; it is printed (``pytest -rP``)."""
    variants = {"FLIC-FedAvgFT", "FLIC-L2GD", "Fed-CMA, marginal", "FedCR, own bodies"}
    part = {line.method.name for line in LINES.values() if isinstance(line.method, Method)}
    print("in the catalogue, and not in the head to head:", *sorted({*CATALOGUE} - part - variants))
    assert len(part) > 20
    assert part <= {*CATALOGUE} - variants
    assert {name for name, line in LINES.items() if line.exchanges} == {
        name for name, line in LINES.items() if isinstance(line.method, Method) and name != ALONE
    }


def test_all_networks_take_the_same_steps() -> None:
    data = toy.noisy_features(n_clients=3)
    for name in ("FedProto", "FLIC-Class", "FedHeNN", ALONE):
        stage = LINES[name].on(data, entries.FAMILIES["small"]).stages(3, "round")[0]
        assert (stage.steps, stage.batch_size, stage.optimizer) == (8, 32, "adam"), name


def test_finals_have_other_seeds_than_choices() -> None:
    assert {len(setting.seeds) for setting in FEDERATIONS.values()} == {5, 10}
    assert not {seed for setting in FEDERATIONS.values() for seed in setting.seeds} & {*CHOICE}
    rows = re.findall(r"(?m)^\| `([\w-]+)` \|", PAGE)
    assert rows == list(FEDERATIONS), "book/headtohead.md: a row for each federation in its first table, in their order"


@pytest.mark.parametrize("name", FEDERATIONS)
def test_a_federation_has_its_section_on_the_page_of_all_runs(name: str) -> None:
    cells = json.loads((ROOT / "book" / "headtohead-runs.ipynb").read_text("utf8"))["cells"]
    told = ["".join(cell["source"]) for cell in cells]
    heading = any(text.startswith(f"(runs-{name})=\n## ") for text in told)
    assert heading, f"book/headtohead-runs.ipynb: {name} needs a cell with (runs-{name})= and a heading below it"
    assert f'runs("{name}")' in told, f'book/headtohead-runs.ipynb: {name} needs a cell with runs("{name}")'


def test_a_tenth_leaves_the_test_rows_and_four_of_each_class() -> None:
    whole, few = data_of("noisy-features", 0), data_of("noisy-features", 0, "tenth")
    assert max(client.n_train for client in whole) <= 301
    for client, other in zip(whole, few, strict=True):
        assert client.x_test.equal(other.x_test)
        sizes, left = (np.bincount(one.y_train) for one in (client, other))
        wanted = [min(n, max(4, round(n / 10))) for n in sizes]
        assert left.tolist() == wanted
        rows = {tuple(row) for row in client.x_train.tolist()}
        assert rows >= {tuple(row) for row in other.x_train.tolist()}


def test_at_most_keeps_the_shares_of_the_classes() -> None:
    data = toy.noisy_features(n_clients=2, n_classes=3)
    cut = at_most(data, 0, 90)
    for client, other in zip(data, cut, strict=True):
        shares, left = (np.bincount(one.y_train, minlength=3) / one.n_train for one in (client, other))
        assert other.n_train <= 92
        assert np.abs(shares - left).max() < 0.02


def test_who_cannot_run_says_why_and_who_would_run_twice_does_not() -> None:
    different, same = toy.noisy_features(n_clients=3), digits.bundled(n_clients=2).subset(["fine-000"])
    with pytest.raises(NotHere, match="features must be names"):
        LINES["FedAvg"].seen(different, "made")
    with pytest.raises(NotHere, match="the method on common columns once more"):
        LINES["late fusion"].seen(same, "pictures")
    with pytest.raises(NotHere, match="only on EEG"):
        LINES["LDA alone"].seen(different, "made")
    assert LINES["FedAvg"].seen(same, "pictures") is same


# --- nothing exchanged ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["FedProto", "FLIC-Class", "FedAvg-FT"])
def test_a_client_apart_is_a_federation_of_its_own(name: str) -> None:
    data = toy.noisy_features(n_clients=3, n_classes=3, n_train_per_class=60, n_test_per_class=20)
    changes: dict[str, Any] = {"model": Model(MLP((8,), 4)), "local_steps": 3, "batch_size": 16}
    changes |= {"pretrain_epochs": 2} if name.startswith("FLIC") else {}
    method = replace(CATALOGUE[name], **changes)
    options: dict[str, Any] = {"rounds": 3, "progress": False, "dtype": torch.float64}
    apart = simulate_apart(data, method, seeds=[4, 7], **options)
    assert {seed: list(runs) for seed, runs in apart.items()} == {s: [c.name for c in data] for s in (4, 7)}
    for client in data:
        alone = simulate(data.subset([client.name]), method, seed=7, **options)
        for key, p in alone.params[0].items():
            assert (apart[7][client.name].params[0][key] - p).abs().max() < 1e-9, key


def test_apart_training_alone_is_what_it_was() -> None:
    data = toy.noisy_features(n_clients=3, n_classes=3, n_train_per_class=60, n_test_per_class=20)
    method, options = Local(Model(MLP((8,), 4)), local_steps=3), {"rounds": 2, "progress": False}
    whole = simulate(data, method, seed=1, **options)  # type: ignore[arg-type]
    apart = simulate_apart(data, method, seeds=[1], **options)[1]
    assert [run.final["accuracy"] for run in apart.values()] == whole.per_client["accuracy"].tolist()


# --- runs -------------------------------------------------------------------------------------------------------------


@contextmanager
def _small() -> Iterator[None]:
    """One federation of three clients, runs of two rounds, and networks that are tried with two rates."""
    sizes = {"n_classes": 3, "n_train_per_class": 60, "n_test_per_class": 40}
    made = Setting("three", lambda seed: toy.noisy_features(n_clients=3, seed=seed, **sizes), "made", False, 0.0)  # type: ignore[arg-type]
    kept = dict(FEDERATIONS)
    FEDERATIONS.clear()
    FEDERATIONS["three"] = made
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(Setting, "seeds", property(lambda self: (0, 1, 2)))
        monkeypatch.setattr(running, "ROUNDS", 2)
        monkeypatch.setattr(running, "RATES", (0.001, 0.01))
        monkeypatch.setattr(running, "OPTIONS", {**running.OPTIONS, "rounds": 2, "evaluate_every": 2})
        data_of.cache_clear()
        yield
    FEDERATIONS.clear()
    FEDERATIONS.update(kept)  # in their order


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int, list[tuple[Task, int]]]:
    """A folder with all records of `lines`, how many were made, and what was told of each task: made once for all."""
    folder, done = tmp_path_factory.mktemp("whole"), list[tuple[Task, int]]()
    with _small():
        bench = Bench(folder, lines())
        stages = running.tasks(bench, ["three"], ["all"], list(bench.lines))
        return folder, running.make_missing(bench, stages, on_done=lambda task, n: done.append((task, n))), done


@pytest.fixture
def small(whole: tuple[Path, int, list[tuple[Task, int]]], tmp_path: Path) -> Iterator[None]:
    """`_small`, and a copy of the records that `whole` has, in `tmp_path`."""
    shutil.copytree(whole[0], tmp_path, dirs_exist_ok=True)
    with _small():
        yield


def heart_like() -> Federation:
    """Two clients with one column in common, and one that only one of them has."""
    columns = {"a": ["age", "chol"], "b": ["age", "ca"]}
    y = [0, 1] * 4
    tables = {name: pd.DataFrame(np.arange(16.0).reshape(8, 2), columns=own) for name, own in columns.items()}
    return Federation([Client(x, y, x, y, name) for name, x in tables.items()], 2)


def lines(**others: Entry) -> dict[str, Entry]:
    some = {name: LINES[name] for name in (ALONE, "FedProto", "logistic regression alone")}
    few = {"lr": (0.001, 0.01)}
    return {name: replace(line, grid=few if isinstance(line.method, Method) else ()) for name, line in some.items()} | (
        others
    )


@pytest.mark.parametrize("name", [n for n, line in LINES.items() if line.exchanges and n != "FedSR"])
def test_a_method_of_ones_own_has_an_own_last_step_where_it_hands_out_one_model(name: str) -> None:
    """As those of the catalogue do, except FedSR, whose clients train the head at the end."""
    data = heart_like()
    assert entries.entry_of(LINES[name].method, data).one_model == LINES[name].one_model


@pytest.mark.nightly
@pytest.mark.usefixtures("small")
def test_what_is_missing_is_made_once(whole: tuple[Path, int, list[tuple[Task, int]]], tmp_path: Path) -> None:
    _, total, done = whole
    assert total == sum(n for _, n in done) == 15
    bench = Bench(tmp_path, lines())
    stages = running.tasks(bench, ["three"], ["all"], list(bench.lines))
    assert running.make_missing(bench, stages) == 0
    (tmp_path / "headtohead/three-all/own/FedProto-seed1.json").unlink()
    records.pack(tmp_path)
    assert running.make_missing(bench, stages) == 1, "a killed call goes on, packed or not"

    chosen = records.find(tmp_path, "headtohead/three-all-tuning", "own", "FedProto", CHOICE[0])
    assert chosen is not None
    table = pd.DataFrame(chosen.settings["table"])
    assert chosen.settings["chosen"] == {"lr": table["lr"][table["log_loss"].idxmin()]}
    assert set(chosen.settings["edges"]) == {"lr"}, "one of two values is an edge"
    final = records.find(tmp_path, "headtohead/three-all", "own", "FedProto", 0)
    apart = records.find(tmp_path, "headtohead/three-all-apart", "own", "FedProto", 0)
    assert final is not None
    assert apart is not None
    assert final.settings["method"]["lr"] == chosen.settings["chosen"]["lr"] == apart.settings["method"]["lr"]
    assert final.settings["rounds"] == 2
    assert final.metrics["bytes_up"] > 0 == apart.metrics["bytes_up"]
    assert final.federation["fingerprint"] == apart.federation["fingerprint"]
    assert apart.metrics["accuracy"] == pytest.approx(np.mean(apart.per_client["accuracy"]), abs=1e-6)

    other = Bench(tmp_path, lines(**{"FedProto": replace(LINES["FedProto"], grid={"lr": (0.1, 0.2)})}))
    assert other.lacks(Task("three", "all", "FedProto", "tuning")) == [CHOICE[0]], "chosen among others"


@pytest.mark.usefixtures("small")
def test_a_method_whose_every_setting_diverges_has_a_reason_and_no_finals(tmp_path: Path) -> None:
    wild = Entry(FedProto(optimizer="sgd"), grid={"lr": (1e30,), "optimizer": ("sgd",)})
    bench = Bench(tmp_path, {ALONE: lines()[ALONE], "wild": wild})
    running.make_missing(bench, running.tasks(bench, ["three"], ["all"], [ALONE, "wild"]))
    record = records.find(tmp_path, "headtohead/three-all-tuning", "own", "wild", CHOICE[0])
    assert record is not None
    assert record.settings["chosen"] is None
    assert "every run diverged" in record.settings["reason"]
    assert not list(tmp_path.glob("headtohead/three-all/own/wild*"))


@pytest.mark.usefixtures("small")
def test_finals_of_another_method_than_would_be_run_are_refused_before_anything_is_run(tmp_path: Path) -> None:
    def bench(changed: Entry) -> tuple[Bench, list[list[Task]]]:
        made = Bench(tmp_path, lines(**{"FedProto": changed}))
        return made, running.tasks(made, ["three"], ["all"], [ALONE, "FedProto"])

    line = lines()["FedProto"]
    choice = Task("three", "all", "FedProto", "tuning")
    running.check(*bench(line))
    for other, said in (
        (replace(line, grid={"lr": (0.1, 0.2)}), r"grid: .*'lr': \[0.001, 0.01\].* → .*'lr': \[0.1, 0.2\]"),
        (replace(line, method=replace(line.method, term_weight=3.0)), "method.term_weight: 1.0 → 3.0"),
    ):
        made, stages = bench(other)
        assert made.lacks(choice) == [CHOICE[0]]
        done: list[Task] = []
        cure = f"three-all.* in {tmp_path}.* is of another 'FedProto' .*{said}.*; give another --out, or delete"
        with pytest.raises(ValueError, match=cure):
            running.make_missing(made, stages, on_done=lambda task, n: done.append(task))  # noqa: B023
        assert not done


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("end", "method", "changes", "said"),
    [
        ("", "FedProto", {"view": "zeros"}, "view: 'zeros' → 'own'"),
        ("-tuning", "FedProto", {"chosen": {"lr": 0.5}}, r"method.lr: 0.0\d* → 0.5"),
        ("-tuning", running.FAMILY, {"chosen": {"family": "other"}}, "family: '.*' → 'other'"),
    ],
)
def test_finals_that_do_not_go_with_their_choice_or_view_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str, method: str, changes: dict[str, Any], said: str
) -> None:
    monkeypatch.setitem(entries.FAMILIES, "other", entries.FAMILIES["small"])
    bench = Bench(tmp_path, lines())
    stages = running.tasks(bench, ["three"], ["all"], ["FedProto"])
    running.check(bench, stages)
    stored = records.load(tmp_path, f"headtohead/three-all{end}", method=method)
    records.write(replace(stored[0], settings={**stored[0].settings, **changes}), tmp_path)
    with pytest.raises(ValueError, match=said):
        running.check(bench, stages)


def test_a_field_that_the_library_got_later_changes_no_record_and_one_of_ones_own_does() -> None:
    method = FedProto()
    older = running._plain(method)
    del older["term_weight"]
    kept = replace(record("FedProto", 0, [1, 1, 1]), settings={"method": older})
    now = {"method": running._plain(method)}
    assert running._differs(kept, now, Entry(method)) == []
    mine = type("Mine", (FedProto,), {"__module__": "my_module"})()
    assert running._differs(kept, now, Entry(mine)) == ["method.term_weight: (none) → 1.0"]
    faster = {"method": {**now["method"], "lr": 7.0}}
    assert running._differs(kept, faster, Entry(method)) == [f"method.lr: {method.lr} → 7.0"]


def test_defaults_of_another_version_of_an_estimators_library_change_no_record() -> None:
    line = LINES["logistic regression alone"]
    now = running._plain(line.method)
    settings = {"view": "own", "method": {**now, "estimator": "otherwise"}}
    kept = replace(record("logistic", 0, [1, 1, 1]), settings=settings)
    asked = {"view": "zeros", "method": now}
    assert running._differs(kept, asked, line) == ["view: 'own' → 'zeros'"]
    same = replace(kept, versions=records.environment()["versions"])
    assert len(running._differs(same, asked, line)) > 1


@pytest.mark.usefixtures("small")
def test_a_method_of_ones_own_is_placed_among_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_method.py").write_text(
        "from dataclasses import dataclass\nfrom hetfl_core.methods import FedProto\n\n\n"
        '@dataclass(frozen=True)\nclass Mine(FedProto):\n    """Mine."""\n'
    )
    monkeypatch.chdir(tmp_path)
    bench, stages = command.planned("three", None, "all", "my_method:Mine", tmp_path / "out", tune_only=True)
    assert bench.lines["Mine"].grid == {"lr": entries.RATES, "term_weight": entries.WEIGHTS}
    assert {task.what for stage in stages for task in stage} == {"tuning"}
    small = lines(Mine=replace(bench.lines["Mine"], grid={"lr": (0.001, 0.01)}))
    bench, stages = replace(bench, lines=small), running.tasks(bench, ["three"], ["all"], [ALONE, "Mine"])
    there, shared = tmp_path / "headtohead", shutil.ignore_patterns("FedProto*")
    shutil.copytree(there, bench.out / "headtohead", ignore=shared, dirs_exist_ok=True)
    assert command.make(bench, stages, 1) == 7, "a choice, three finals and their control: the others are there"
    shown = command.ranked(bench, stages)
    assert "\nMine " in shown
    tried = ranking.choices([tmp_path / "out"]).set_index("method")
    assert tried["settings"].to_dict() == {running.FAMILY: 6, ALONE: 2, "Mine": 2}
    assert tried.loc["Mine", "chosen"].keys() == {"lr"}
    assert f"\n{ALONE} " in shown
    assert "\nFedProto " not in shown
    assert "no finals of 'Mine' on three, all" in command.ranked(replace(bench, out=tmp_path / "empty"), stages)
    shutil.copytree(there, bench.out / "headtohead", dirs_exist_ok=True)
    assert "\nFedProto " in command.ranked(bench, stages), "among all that have records there"
    for wrong, said in {
        "my_method": "must look like",
        "my_method:No": "cannot be had",
        "nowhere:X": "cannot be",
    }.items():
        with pytest.raises(ValueError, match=said):
            command.planned("three", add=wrong)
    with pytest.raises(ValueError, match="methods"):
        command.planned("three", ["FedProtoo"])


def test_the_list_is_of_the_federations_that_are_asked_for() -> None:
    told = [line for line in command.overview(["linear-mapping"]) if not line.startswith(" ")]
    assert [line.split(":")[0] for line in told] == ["linear-mapping"]


def test_the_data_card_tells_made_rows_from_real_ones_and_which_portrait_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    packed = replace(FEDERATIONS["linear-mapping"], source=("CC BY 4.0", "Street et al., 1993"))
    monkeypatch.setitem(FEDERATIONS, "linear-mapping", packed)
    shown = next(line for line in datacard.table().splitlines() if "`linear-mapping`" in line)
    assert "real rows" in shown
    assert "CC BY 4.0" in shown
    assert "- `linear-mapping`: Street et al., 1993" in datacard.sources()
    monkeypatch.setitem(FEDERATIONS, "nuclei", packed)
    with pytest.raises(LookupError, match="hetfl headtohead --describe --federations nuclei`"):
        datacard.table()


# --- what is read from records ----------------------------------------------------------------------------------------


def record(method: str, seed: int, values: list[float], control: bool = False, **metrics: Any) -> RunRecord:
    """On the hospitals: accuracies of three clients, the last of which has few test rows of a class."""
    each = {"client": ["a", "b", "c"], "n_train": [30, 60, 9], "n_test": [20, 40, 6], "rarest": [10, 15, 3]}
    return RunRecord(
        experiment="headtohead/heart-all" + running.APART * control,
        scale="own",
        method=method,
        seed=seed,
        settings={},
        federation={},
        metrics={"bytes_up": 2000, "bytes_down": 1000, **metrics},
        per_client={**each, "balanced_accuracy": values},  # type: ignore[dict-item]
        seconds=2.0,
    )


def three(method: str, values: list[list[float]], **options: Any) -> list[RunRecord]:
    return [record(method, seed, own, **options) for seed, own in enumerate(values)]


BASE = [[0.7, 0.8, 0.1], [0.6, 0.8, 0.9], [0.7, 0.7, 0.5]]


def test_cells_pair_by_seed_and_leave_out_clients_of_few_rows() -> None:
    better = [[0.72, 0.82, 1.0], [0.64, 0.84, 1.0], [0.76, 0.76, 1.0]]
    found = [*three(ALONE, BASE), *three("FedProto", better), *three("FedProto", BASE, control=True)]
    table = ranking.cells(found).set_index("method")
    own = table.loc["FedProto"]
    assert own["gain"] == pytest.approx(np.mean([2, 4, 6]))
    half = stats.t.ppf(0.975, 2) * math.sqrt((1 / 3 + 2 / 3) * 4)
    assert (own["low"], own["high"]) == pytest.approx((4 - half, 4 + half))
    assert own["gain_sharing"] == pytest.approx(4)
    assert math.isnan(own["gain_logistic"])
    assert (own["worst"], own["worst_client"]) == (pytest.approx(4), "a")
    assert (own["bytes_up"], own["seconds"], own["seeds"], own["diverged"]) == (2000, 2.0, 3, 0)
    assert table.loc[ALONE, "gain"] == 0
    by_client = ranking.client_gains(found).loc["heart", "all", "FedProto"]
    assert by_client["gain"].tolist() == pytest.approx([4, 4, 50])
    assert by_client["n_train"].tolist() == [30, 60, 9]
    assert by_client["counts"].tolist() == [True, True, False]


def test_the_best_way_to_stay_alone_is_chosen_on_rows_cut_from_the_training_rows(tmp_path: Path) -> None:
    def tuned(method: str, losses: list[float], size: str = "all") -> None:
        line = replace(record(method, 0, BASE[0]), experiment=f"headtohead/heart-{size}{running.TUNING}")
        records.write(replace(line, settings={"table": {"log_loss": losses}}), tmp_path)

    tuned(ALONE, [0.6, 0.4, math.nan])
    tuned("boosting alone", [0.5])
    tuned("FedProto", [0.1])
    tuned("in one place, zeros", [0.1])
    tuned("boosting alone", [], "tenth")
    assert ranking.best_alone([tmp_path]) == {("heart", "all"): ALONE}


def test_gains_over_the_best_way_to_stay_alone_are_over_logistic_regression_where_none_is_chosen() -> None:
    trees, network = [[one + 0.1 for one in run] for run in BASE], [[one - 0.1 for one in run] for run in BASE]
    found = [*three(ALONE, network), *three("boosting alone", trees), *three("logistic regression alone", BASE)]
    chosen = {("heart", "all"): "boosting alone"}
    best = ranking.cells(found, staying=chosen).set_index("method")["gain_alone"]
    assert best.to_dict() == pytest.approx({"boosting alone": 0, "logistic regression alone": -10, ALONE: -20})
    plain = ranking.cells(found, staying={}).set_index("method")
    assert plain["gain_alone"].tolist() == pytest.approx([10, 0, -10])
    assert plain["low_alone"].tolist() == plain["low_logistic"].tolist()
    sites = ranking.client_gains(found, base=chosen)["gain"].sort_index()
    assert sorted(set(sites.index.get_level_values("method"))) == ["logistic regression alone", ALONE]
    assert sites.loc["heart", "all", ALONE].tolist() == pytest.approx([-20, -20, -20])
    usual = ranking.client_gains(found, base={})["gain"].sort_index()
    assert usual.loc["heart", "all", ALONE].tolist() == pytest.approx([-10] * 3)


def test_the_records_choose_the_way_to_stay_alone_of_each_case() -> None:
    assert ranking.best_alone() == {
        ("heart", "all"): "logistic regression alone",
        ("heart", "tenth"): "logistic regression alone",
        ("liver", "all"): ALONE,
        ("liver", "tenth"): "logistic regression alone",
        ("thyroid", "all"): "boosting alone",
        ("thyroid", "tenth"): "boosting alone",
    }


def test_seconds_of_a_busy_machine_do_not_enter_the_mean() -> None:
    found = three(ALONE, BASE)
    late = replace(found[2], seconds=99.0, hardware={"busy": True})
    assert ranking.cells([*found[:2], late])["seconds"].tolist() == [2.0]
    assert ranking.cells([replace(r, hardware={"busy": True}) for r in found])["seconds"].isna().all()


def test_where_no_client_has_ten_rows_of_a_class_all_count() -> None:
    few = [replace(r, per_client={**r.per_client, "rarest": [3, 9, 3]}) for r in three(ALONE, BASE)]
    assert ranking.cells(few)["score"].tolist() == pytest.approx([100 * np.mean(BASE)])


def test_a_run_that_diverged_has_no_mean_and_is_last() -> None:
    lost = three("FedProto", [*BASE[:2], [math.nan, 0.9, 0.9]])
    lost[2] = replace(lost[2], metrics={**lost[2].metrics, "diverged": 1})
    table = ranking.cells([*three(ALONE, BASE), *three("FedGen", [[0.1, 0.1, 0.1]] * 3), *lost])
    own = table.set_index("method").loc["FedProto"]
    assert math.isnan(own["score"])
    assert math.isnan(own["gain"])
    assert own["diverged"] == 1
    ranks = across.ranks(across.scores(table, "all"))
    assert ranks.loc["heart"].to_dict() == {ALONE: 1, "FedGen": 2, "FedProto": 3}
    shown = ranking.text(table)
    assert shown.index("FedGen") < shown.index("FedProto")
    line = next(line for line in shown.splitlines() if line.startswith(ALONE))
    assert line.split()[-3:] == ["3.0", "2.0", "0"], "kB up and down, seconds, diverged"


def test_of_an_error_less_is_better() -> None:
    def with_loss(records: list[RunRecord], loss: float) -> list[RunRecord]:
        return [replace(r, per_client={**r.per_client, "log_loss": [loss] * 3}) for r in records]

    found = [*with_loss(three(ALONE, BASE), 0.5), *with_loss(three("FedProto", BASE), 0.3)]
    table = ranking.cells(found, "log_loss").set_index("method")
    assert table.loc["FedProto", "gain"] == pytest.approx(0.2)
    assert across.ranks(across.scores(table.reset_index(), "all"), less=True).loc["heart", "FedProto"] == 1


def test_the_board_ranks_each_measure_size_and_kind_by_itself() -> None:
    better = [[one + 0.1 for one in run] for run in BASE]
    found = [*three(ALONE, BASE), *three("FedProto", better), *three("FedProto", BASE, control=True)]
    board = ranking.board({"accuracy": ranking.cells(found)})
    assert set(board["kind"]) == {ranking.EVERY, "real", "tables"}
    real = board[board["kind"] == "real"]
    assert real["method"].tolist() == ["FedProto", ALONE]
    assert real["rank"].tolist() == [0, 1]
    assert real["gain_sharing"].tolist() == pytest.approx([10, math.nan], nan_ok=True)
    assert real["sent"].tolist() == [3000, 3000]


def test_the_lines_of_a_federation_name_what_was_chosen_and_mark_the_edges() -> None:
    table = ranking.cells([*three(ALONE, BASE), *three("FedAvg" + running.OWN_STEP, BASE)])
    chosen = pd.DataFrame(
        [
            {
                "federation": "heart",
                "size": "all",
                "method": "FedAvg",
                "chosen": {"lr": 0.016},
                "edges": {"lr": "most"},
            },
            {"federation": "heart", "size": "all", "method": ALONE, "chosen": {"lr": 0.001}, "edges": {}},
        ]
    )
    found = ranking.lines(table, chosen, "heart").set_index("method")["setting"]
    assert found.to_dict() == {"FedAvg" + running.OWN_STEP: "lr 0.016*", ALONE: "lr 0.001"}
    assert ranking.lines(table, chosen, "liver").empty


def test_only_methods_with_a_line_everywhere_are_ranked_across() -> None:
    table = pd.DataFrame(
        {
            "federation": ["heart", "heart", "digits"],
            "size": "all",
            "real": [True, True, True],
            "method": ["A", "B", "A"],
            "score": [1.0, 2.0, 3.0],
        }
    )
    assert across.scores(table, "all").columns.tolist() == ["A"]
    assert across.scores(table[table["federation"] == "heart"], "all").columns.tolist() == ["A", "B"]


@pytest.mark.parametrize(("k", "q"), [(2, 1.960), (3, 2.343), (5, 2.728), (10, 3.164)])
def test_the_critical_difference_has_the_quantiles_of_demsars_table(k: int, q: float) -> None:
    assert across.critical_difference(k, 14) == pytest.approx(q * math.sqrt(k * (k + 1) / (6 * 14)), rel=3e-4)
    assert across.critical_difference(k, 14, 0.10) < across.critical_difference(k, 14)


def test_friedman_by_its_formula() -> None:
    values = pd.DataFrame(np.random.default_rng(0).random((8, 4)), columns=list("ABCD"))
    mean = across.ranks(values).mean()
    statistic = 12 * 8 / (4 * 5) * ((mean**2).sum() - 4 * 25 / 4)
    assert across.friedman(values) == pytest.approx(stats.chi2.sf(statistic, 3))


def test_wilcoxon_is_exact_and_corrected() -> None:
    values = pd.DataFrame({ALONE: [0.0] * 6, "A": [1, 2, 3, 4, 5, 6.0], "B": [-1, 2, -3, 4, -5, 6.0], "C": [0.0] * 6})
    table = across.against(values)
    assert table.loc["A", "p"] == pytest.approx(2 / 2**6)
    assert table.loc["A", "p_holm"] == pytest.approx(3 * 2 / 2**6)
    assert table.loc["A", ["median", "wins"]].tolist() == [3.5, 6]
    assert table.loc["C", "p"] == 1
    values.loc[0, "B"] = math.nan
    assert math.isnan(across.against(values).loc["B", "p"])


def test_both_tests_stand_side_by_side() -> None:
    """A method that diverged somewhere has no figure of either; an equal one is practically the same."""
    values = pd.DataFrame({ALONE: [0.0] * 6, "up": [3.0] * 6, "same": [0.0] * 6, "lost": [9.0] * 5 + [math.nan]})
    table = across.against(values)
    assert table.index.tolist() == ["up", "same", "lost"]
    assert table.loc["up", ["wins", "p"]].tolist() == [6, stats.wilcoxon([3.0] * 6).pvalue]
    assert table.loc["up", "better"] == across.signed_rank([3.0] * 6).better
    assert table.loc["same", ["p", "same"]].tolist() == [1, 1]
    assert table.loc["lost", ["p", "better", "same", "worse"]].isna().all()


def test_the_signed_rank_test_by_its_closed_form() -> None:
    """One difference beyond the region: only the pair of made-up ones lies within, and w₀ ~ Beta(1/2, 1)."""
    within = 1 - 0.5**0.25  # the share w₀² is larger than a half where w₀ > √½
    found = across.signed_rank([5.0])
    assert found.same == pytest.approx(within, abs=0.01)
    assert found.better == pytest.approx(1 - within, abs=0.01)
    assert found.worse == 0
    mirrored = across.signed_rank([-5.0])
    assert (mirrored.worse, mirrored.better) == pytest.approx((found.better, 0), abs=0.01)
    assert across.signed_rank([0.5] * 9).same == 1
    assert across.signed_rank([3.0] * 12).better > 0.99
    with pytest.raises(ValueError, match="finite"):
        across.signed_rank([1.0, math.nan])


# --- the records ------------------------------------------------------------------------------------------------------


def git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)


@cache
def stored() -> list[RunRecord]:
    return ranking.finals()


@cache
def choices() -> list[RunRecord]:
    return ranking._stored((None,), running.TUNING)


def test_records_are_of_what_was_chosen_and_of_clean_code() -> None:
    found = stored()
    for r in found:
        cure = "commit the code, delete the record, and run `hetfl headtohead` again; or try with --out elsewhere"
        assert not r.dirty, f"{r.relative_path} in data/results is of code that was not committed: {cure}"
    for r in found:
        known = records.find(ROOT / "data" / "results", *tuning_of(r), CHOICE[0])
        line = LINES[r.method.removesuffix(running.OWN_STEP)]
        if not line.grid:
            continue
        place = f"{r.relative_path} in data/results"
        assert known is not None, f"{place} has no choice of settings beside it: commit that of {tuning_of(r)[0]} too"
        cure = f"delete the records of {r.method} there, and run `hetfl headtohead` again"
        assert known.settings["chosen"] is not None, f"{place}: its choice found no setting; {cure}"
        assert known.created < r.created, f"{place} is older than the choice of its settings; {cure}"
        if isinstance(line.method, Method):
            own = {key: r.settings["method"][key] for key in known.settings["chosen"]}
            assert own == pytest.approx(known.settings["chosen"]), f"{place} has other settings than chosen; {cure}"


@pytest.mark.nightly
def test_committed_records_count_as_finished(tmp_path: Path) -> None:
    found = [*stored(), *choices()]
    there = {(r.experiment, r.method) for r in found}
    names = [name for name, setting in FEDERATIONS.items() if setting.available]
    names = [name for name in names if any(experiment.startswith(f"headtohead/{name}-") for experiment, _ in there)]
    if not names:
        pytest.skip("no files are here")
    bench = Bench(tmp_path, LINES, (ROOT / "data" / "results",))
    stages = running.tasks(bench, names, ["all", "tenth"], list(LINES))
    running.check(bench, stages)
    done = [task for stage in stages for task in stage if (task.experiment, task.label) in there]
    assert [task for task in done if bench.lacks(task)] == []


def tuning_of(r: RunRecord) -> tuple[str, str, str]:
    experiment = r.experiment.removesuffix(running.APART) + running.TUNING
    return experiment, "own", r.method.removesuffix(running.OWN_STEP)


def test_the_rules_are_older_than_the_records() -> None:
    """By date, and, where the commits that records name are in this history, by descent."""
    first = git("log", "--format=%H %aI", "--diff-filter=A", "--", "book/headtohead.md").stdout.split()
    if len(first) < 2 or git("rev-parse", "--is-shallow-repository").stdout.strip() == "true":
        pytest.skip("no history here")
    commit, date = first[-2:]
    found = [*stored(), *choices()]
    assert all(pd.Timestamp(r.created) > pd.Timestamp(date) for r in found)
    for known in {r.commit for r in found}:
        if git("cat-file", "-e", known).returncode == 0:
            assert git("merge-base", "--is-ancestor", commit, known).returncode == 0, known

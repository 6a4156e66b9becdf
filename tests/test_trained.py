"""Models that are used: for new rows, from a folder, for a client that comes later; and no row of data in a file."""

from __future__ import annotations

import json
import struct
import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import save as packed
from small import assert_same_tensors

from hetfl_core import Client, Federation, Trained, adapt, load_trained, simulate
from hetfl_core.engine import trained
from hetfl_core.federation import FederationWarning
from hetfl_core.methods import CATALOGUE, FLIC, FedAvg, FedCMA, HyFEM, Local, Method
from hetfl_core.networks import MLP, Blocks, Model, Module, PerClient
from hetfl_core.preparation import Preparation

COLUMNS = ["age", "chol", "sugar", "rate"]
QUICK = {"rounds": 1, "device": "cpu", "progress": False}
SMALL = Model(MLP((5,), 4), alpha=3)


def table(n: int = 60, seed: int = 0) -> pd.DataFrame:
    """Patients of three hospitals; the last does not measure sugar."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 3
    x = pd.DataFrame(rng.normal(size=(n, 4)) + y[:, None], columns=COLUMNS, index=[f"p{i}" for i in range(n)])
    x["site"] = np.resize(["Basel", "Lyon", "Porto", "Basel"], n)
    x["state"] = np.array(["mild", "severe", "well"])[y]
    x.loc[x["site"] == "Porto", "sugar"] = np.nan
    return x


TABLE = table()
FED = Federation.from_frame(TABLE, client="site", target="state", test_size=0.3)
NEW = table(21, seed=1)


def rows_of(site: str) -> pd.DataFrame:
    return NEW[NEW["site"] == site]


def short(name: str) -> Method:
    method = CATALOGUE[name]
    brief = {"pretrain_epochs": 1} if getattr(method, "pretrain_epochs", 0) else {}
    return replace(method, model=replace(method.model, phi=MLP((5,), 4)), local_epochs=1, batch_size=7, **brief)


def fitting(name: str) -> Federation:
    try:
        CATALOGUE[name].check(FED.specs())
    except ValueError:
        return FED.of_common_features()
    return FED


def run_of(method: Method, federation: Federation = FED, **options: Any) -> Any:
    return simulate(federation, method, **{**QUICK, **options})


# --- every method ----------------------------------------------------------------------------------------------------


def leaks(content: bytes, federation: Federation) -> list[str]:
    """Clients of whom a row (its first three numbers, one after the other) stands in a file, in single or double."""
    found = []
    for client in federation:
        for row in torch.cat([client.x_train, client.x_test]).double().numpy():
            if any(struct.pack(f"<3{kind}", *row[:3]) in content for kind in "fd") or repr(float(row[0])) in str(
                content
            ):
                found.append(client.name)
    return found


@pytest.mark.parametrize("name", CATALOGUE)
def test_what_was_saved_says_what_the_run_says_and_holds_no_row(name, tmp_path):
    fed, method = fitting(name), short(name)
    run = run_of(method, fed, last_step="own")
    model = load_trained(run.save(tmp_path / "model"))
    assert model.method == method
    assert model.clients == [client.name for client in fed]
    for client in fed:
        frame = pd.DataFrame(client.x_test.numpy(), columns=list(client.features))
        p = model.predict_proba(frame[frame.columns[::-1]], client=client.name)
        kept, state = run.trained().client(client.name), model.client(client.name)
        torch.testing.assert_close(kept.outputs(client.x_test.float()), state.outputs(client.x_test.float()))
        assert p.columns.to_list() == ["mild", "severe", "well"]
        np.testing.assert_allclose(p.sum(axis=1), 1)
        if not method.of(fed.specs()[0]).prediction_noise(fed.specs()[0]):
            np.testing.assert_allclose(p.to_numpy(), run.probabilities()[client.name], atol=1e-6)
        said = model.predict(frame, client=client.name)
        assert said.to_list() == p.idxmax(axis=1).to_list()
    files = {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()}
    assert sorted(files) == ["model.json", "tensors.safetensors"]
    single = fed.to(torch.float32)
    assert [leaks(content, single) for content in files.values()] == [[], []]


def test_the_search_for_rows_finds_one():
    """Fed-CMA's clients keep a minibatch of their own samples among what they train with."""
    run = run_of(replace(short("Fed-CMA"), samples_per_class=2), fitting("Fed-CMA"))
    single = fitting("Fed-CMA").to(torch.float32)
    assert isinstance(run.method, FedCMA)
    held = packed({f"{i}/{n}": p.contiguous() for i, mine in enumerate(run.params) for n, p in mine.items()})
    assert leaks(held, single) != []
    assert leaks(json.dumps(single[0].x_train.double().tolist()).encode(), single) != []


@pytest.mark.parametrize(
    "name", [name for name, m in CATALOGUE.items() if type(m).predict_server is not Method.predict_server]
)
def test_the_servers_model(name, tmp_path):
    fed, method = fitting(name), short(name)
    run = run_of(method, fed)
    model = load_trained(run.save(tmp_path))
    if "server_accuracy" not in run.final:
        with pytest.raises(ValueError, match=r"leaves no model at the server; predict for one of \['Basel'"):
            _ = model.server
        return
    right = []
    for client in fed:
        frame = pd.DataFrame(client.x_test.numpy(), columns=list(client.features))
        right.append(np.mean(model.server.predict(frame) == [model.classes[c] for c in client.y_test.tolist()]))
    if not method.prediction_noise(fed.specs()[0]):
        assert run.final["server_accuracy"] == pytest.approx(np.mean(right))


# --- rows ------------------------------------------------------------------------------------------------------------


def test_rows_come_by_name_and_keep_their_index():
    model = run_of(FLIC(SMALL, local_epochs=1, pretrain_epochs=1)).trained()
    rows = rows_of("Porto").drop(columns="sugar")
    said = model.predict(rows, client="Porto")
    assert said.index.equals(rows.index)
    assert set(said) <= {"mild", "severe", "well"}
    turned = model.predict_proba(rows[rows.columns[::-1]], "Porto")
    pd.testing.assert_frame_equal(turned, model.predict_proba(rows, "Porto"))
    assert repr(model) == "Trained(FLIC-HL on 'federation': ['Basel', 'Lyon', 'Porto'])"


BASEL = rows_of("Basel")


@pytest.mark.parametrize(
    ("rows", "client", "message"),
    [
        (BASEL, "Bern", r"client must be one of \['Basel', 'Lyon', 'Porto'\], got 'Bern'"),
        (BASEL, None, "client must be one of .*, got None"),
        (
            BASEL.drop(columns=["age", "rate"]),
            "Basel",
            r"client 'Basel': the table must have the columns .*lacks \['age', 'rate'\]",
        ),
        (
            BASEL.assign(age="old"),
            "Basel",
            "client 'Basel': column 'age' must hold numbers, without gaps, in all 11 rows",
        ),
        (
            BASEL.assign(age=np.nan),
            "Basel",
            "client 'Basel': column 'age' must hold numbers, without gaps, in all 11 rows",
        ),
        (BASEL.assign(age=np.inf), "Basel", r"client 'Basel': rows must be finite numbers of shape \(n, 4\)"),
        (BASEL.iloc[:0], "Basel", "client 'Basel': rows must be at least one"),
        (
            np.zeros((2, 4)),
            "Basel",
            r"client 'Basel': rows must be a table .*\['age', 'chol', 'sugar', 'rate'\], in any order, got array",
        ),
        (BASEL.to_dict("list"), "Basel", "client 'Basel': rows must be a table .* of type dict, which does not say"),
    ],
)
def test_rows_that_a_model_does_not_take(rows, client, message):
    model = run_of(Local(SMALL, local_epochs=1)).trained()
    with pytest.raises(ValueError, match=message):
        model.predict(rows, client=client)


def test_rows_in_blocks_come_as_a_table_or_by_block(tmp_path):
    """Of a client that lacks a block nothing is asked of it."""
    phi = Blocks.alike(["blood", "heart"], MLP((4,), 3), 4)
    clients = []
    for name in ("Basel", "Porto"):
        rows = TABLE[TABLE["site"] == name]
        blood = rows[["chol", "sugar"]] if name == "Basel" else rows[[]]
        x = {"blood": blood, "heart": rows[["rate", "age"]]}
        clients.append(Client(x, np.arange(len(rows)) % 2, x, np.arange(len(rows)) % 2, name))
    run = run_of(HyFEM(Model(phi), local_epochs=1), Federation(clients, 2))
    model = load_trained(run.save(tmp_path))
    found = model.predict_proba(BASEL, "Basel")
    parts = {"heart": BASEL[["age", "rate"]], "blood": BASEL[["sugar", "chol"]]}
    pd.testing.assert_frame_equal(model.predict_proba(parts, "Basel"), found.set_axis(range(len(found)), axis=0))
    assert len(model.predict(rows_of("Porto"), "Porto")) == len(rows_of("Porto"))
    assert model.predict({"heart": BASEL[["age", "rate"]]}, "Porto").isin([0, 1]).all()
    assert len(model.server.predict(BASEL)) == len(BASEL)
    with pytest.raises(
        ValueError, match=r"client 'Basel': rows must have the blocks \['blood', 'heart'\], got \['heart'\]"
    ):
        model.predict({"heart": np.zeros((2, 2))}, "Basel")
    with pytest.raises(ValueError, match=r"rows in block 'heart' must be a table .*\['rate', 'age'\], in any order"):
        model.predict({**parts, "heart": np.zeros((11, 2))}, "Basel")
    with pytest.raises(ValueError, match=r"client 'Basel' in block 'blood': the table must have .* lacks"):
        model.predict(BASEL.drop(columns="sugar"), "Basel")


def test_an_array_does_not_stand_for_a_table_whose_columns_came_in_another_order():
    """The federation has brought B's columns into A's order: its own rows as an array would be read the wrong way."""
    rng = np.random.default_rng(0)
    tables = {
        name: pd.DataFrame(rng.normal(size=(80, 2)), columns=list(order)) for name, order in (("A", "ab"), ("B", "ba"))
    }
    labels = {name: (x["a"] > 0).to_numpy().astype(int) for name, x in tables.items()}
    fed = Federation.from_arrays({name: (x, labels[name]) for name, x in tables.items()})
    run = run_of(FedAvg(SMALL, local_epochs=5, lr=0.05), fed, rounds=3)
    model = run.trained()
    assert (model.predict(tables["B"], "B") == labels["B"]).mean() > 0.9
    array = tables["B"].to_numpy()
    for one in (model.client("B"), model.server):
        for call in (one.predict, one.predict_proba):
            with pytest.raises(ValueError, match=r"rows must be a table .*\['a', 'b'\], in any order"):
                call(array)
    with pytest.raises(ValueError, match=r"client 'new': x_test must be a table .*, as x_train is, got a ndarray"):
        Client(tables["B"], labels["B"], array, labels["B"], "new")


def test_of_a_regression_numbers_are_predicted(tmp_path):
    rng = np.random.default_rng(0)
    fed = Federation.from_arrays({"a": (rng.normal(size=(20, 3)), rng.normal(size=20))}, task="regression")
    run = run_of(Local(SMALL, local_epochs=1), fed, last_step="own")
    model = load_trained(run.save(tmp_path))
    np.testing.assert_allclose(model.predict(fed[0].x_test.numpy()), run.outputs()["a"][:, 0], rtol=1e-6)
    with pytest.raises(ValueError, match="client 'a': a regression has no class probabilities"):
        model.predict_proba(fed[0].x_test.numpy())


def test_a_model_that_diverged_says_so():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = run_of(Local(SMALL, local_epochs=2, lr=1e30, optimizer="sgd")).trained()
    with pytest.raises(ValueError, match="client 'Basel': the model says NaN or infinity of 11 rows"):
        model.predict(BASEL, "Basel")


class Doubled:
    """A preparation of another's making, that JSON can hold."""

    def __init__(self, factor: float = 2.0) -> None:
        self.factor = factor

    def transform(self, frame: pd.DataFrame, wanted: object = None) -> pd.DataFrame:
        return frame[["age", "chol", "rate"]].fillna(0) * self.factor

    def state(self) -> dict[str, float]:
        return {"factor": self.factor}


def test_a_clients_preparation_goes_with_its_model(tmp_path, monkeypatch):
    """Whatever has `transform`, and a `state` that is restored."""
    run = run_of(Local(SMALL, local_epochs=1), FED.of_common_features())
    plain = run.trained()
    held = replace(plain, prepares=[Doubled(), Doubled(3), None])
    for factor, site in ((2, "Basel"), (3, "Lyon"), (1, "Porto")):
        rows = rows_of(site)[["age", "chol", "rate"]]
        pd.testing.assert_frame_equal(held.predict_proba(rows, site), plain.predict_proba(factor * rows, site))
    for client, doubled in zip(run.federation, held.prepares, strict=True):
        object.__setattr__(client, "prepare", doubled)
    monkeypatch.setattr(trained, "restored", lambda state, by, trusted: Doubled(**state))
    again = load_trained(run.save(tmp_path))
    for client in run.federation:
        object.__setattr__(client, "prepare", None)
    for site in again.clients:
        pd.testing.assert_frame_equal(again.predict_proba(BASEL, site), held.predict_proba(BASEL, site))


def test_rows_as_they_come_are_prepared_as_training_rows_were(tmp_path):
    """Gaps, words, another order of columns; a level that was never seen is said, a column that is missing is named."""
    rng = np.random.default_rng(0)
    frame = TABLE.assign(pain=rng.choice(["none", "some"], len(TABLE)))
    frame.loc[rng.random(len(frame)) < 0.2, "age"] = np.nan
    fed = Federation.from_frame(frame, client="site", target="state", prepare=Preparation())
    run = run_of(Local(SMALL, local_epochs=1), fed)
    model = load_trained(run.save(tmp_path))
    rows = NEW.assign(pain="some", age=np.nan)[["pain", "rate", "age", "chol", "sugar"]].fillna({"sugar": 0})
    for site in model.clients:
        x = fed[site].prepare.transform(rows)[list(fed[site].features)].to_numpy()
        (index,) = [i for i, client in enumerate(fed) if client.name == site]
        with torch.no_grad():
            wanted = run.method.predict(run.params[index], {}, torch.tensor(x).float()).double().softmax(1)
        np.testing.assert_allclose(model.predict_proba(rows, site), wanted, atol=1e-6)
    with pytest.raises(ValueError, match=r"client 'Lyon': the table must have the columns .* lacks \['age'\]"):
        model.predict(rows.drop(columns="age"), "Lyon")
    with pytest.warns(
        FederationWarning, match=r"column 'pain' has levels that its preparation does not know, \['bad'\]"
    ):
        model.predict(rows.assign(pain="bad"), "Lyon")


# --- a client that comes later ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["FLIC-HL", "HetFedRep", "Local", "FedPer"])
def test_a_new_site_learns_of_a_loaded_model_what_it_learns_of_the_run(name, tmp_path):
    fed, method = fitting(name), short(name)
    run = run_of(method, fed, last_step="own")
    model = load_trained(run.save(tmp_path))
    later = table(30, seed=5).fillna(0).assign(site="Bern")
    bern = Federation.from_frame(later[[*fed[0].features, "site", "state"]], client="site", target="state")
    found, wanted = (adapt(known, bern, rounds=2, device="cpu", progress=False) for known in (model, run))
    assert_same_tensors(found.params[0], wanted.params[0])
    assert {**found.final, "seconds": 0} == {**wanted.final, "seconds": 0}
    again = load_trained(found.save(tmp_path / "Bern"))
    rows = NEW[list(bern[0].features)].fillna(0)
    assert set(again.predict(rows)) <= {"mild", "severe", "well"}
    with pytest.raises(ValueError, match="clients must be new to the run, but 'Basel' took part"):
        adapt(model, fed, device="cpu", progress=False)
    words = Federation.from_frame(later.assign(state=["well", "dead"] * 15), client="site", target="state")
    with pytest.raises(ValueError, match=r"clients have the labels .*dead"):
        adapt(model, words, device="cpu", progress=False)


# --- files -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mine(FedAvg):
    """A method of one's own."""

    more: float = 1.0


def test_a_method_of_ones_own_is_handed_over(tmp_path):
    """No file says what code is run."""
    fed = FED.of_common_features()
    run = run_of(Mine(SMALL, local_epochs=1), fed)
    run.save(tmp_path)
    with pytest.raises(
        ValueError, match=r"model.json, written by hetfl-core .*, has a method or network that is not of"
    ):
        load_trained(tmp_path)
    model = load_trained(tmp_path, method=Mine(SMALL, local_epochs=1))
    pd.testing.assert_frame_equal(model.predict_proba(BASEL, "Lyon"), run.trained().predict_proba(BASEL, "Lyon"))
    with pytest.raises(ValueError, match=r"has another method \(there → given\):\n  more: 1.0 → 2.0"):
        load_trained(tmp_path, method=Mine(SMALL, local_epochs=1, more=2.0))
    with pytest.raises(TypeError, match="method must be a Method"):
        load_trained(tmp_path, method=Mine)


def test_a_network_of_ones_own_is_handed_over(tmp_path):
    phi = Module(lambda shape: torch.nn.Sequential(torch.nn.Linear(shape[0], 4), torch.nn.Tanh()))
    run = run_of(Local(Model(phi), local_epochs=1))
    run.save(tmp_path)
    with pytest.raises(ValueError, match="not of this library"):
        load_trained(tmp_path)
    model = load_trained(tmp_path, method=Local(Model(phi), local_epochs=1))
    pd.testing.assert_frame_equal(model.predict_proba(BASEL, "Basel"), run.trained().predict_proba(BASEL, "Basel"))


def test_networks_by_client_and_inputs_that_are_no_tables(tmp_path):
    rng = np.random.default_rng(0)
    x = {name: rng.normal(size=(12, 1, 12, 12)) for name in "ab"}
    fed = Federation.from_arrays({name: (x[name], np.arange(12) % 2) for name in "ab"}, test_size=0.25)
    nets = PerClient({"a": MLP((3,), 4), "b": MLP((6,), 4)})
    run = run_of(Local(Model(nets), local_epochs=1), fed)
    model = load_trained(run.save(tmp_path))
    np.testing.assert_allclose(model.predict_proba(fed[1].x_test.numpy(), "b"), run.probabilities()["b"], atol=1e-6)
    with pytest.raises(ValueError, match=r"shape \(n, 1×12×12\), got shape \(12, 4\)"):
        model.predict(np.zeros((12, 4)), "b")


@pytest.fixture
def folder(tmp_path):
    return run_of(Local(SMALL, local_epochs=1)).save(tmp_path / "model")


def rewritten(folder, **changes):
    """The file with other content, sealed as if it had been written so."""
    about = json.loads((folder / "model.json").read_text())
    about = {**about, **changes}
    about.pop("seal")
    (folder / "model.json").write_text(json.dumps({**about, "seal": trained._seal(about)}))


def test_files_that_are_not_there(tmp_path, folder):
    with pytest.raises(FileNotFoundError, match=r"there is no .*nothing.model.json; a folder that Run.save wrote"):
        load_trained(tmp_path / "nothing")
    (folder / "tensors.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"there is no .*tensors.safetensors"):
        load_trained(folder)


def test_every_byte_counts(folder):
    """A file that was changed anywhere is refused by name, whichever it is; but for blanks between what JSON says."""
    for name in ("model.json", "tensors.safetensors"):
        content = (folder / name).read_bytes()
        for at in np.random.default_rng(0).integers(0, len(content), 25):
            if name == "model.json" and content[at : at + 1].isspace():
                continue
            other = bytearray(content)
            other[at] ^= 1
            (folder / name).write_bytes(other)
            with pytest.raises(ValueError, match=name):
                load_trained(folder)
        (folder / name).write_bytes(content)
    assert isinstance(load_trained(folder), Trained)
    (folder / "model.json").write_text("[]")
    with pytest.raises(ValueError, match=r"model.json is damaged, or was not written by Run.save"):
        load_trained(folder)


def test_what_another_version_wrote(folder):
    about = json.loads((folder / "model.json").read_text())
    rewritten(folder, format=99, versions={"hetfl-core": "9.1"})
    with pytest.raises(
        ValueError, match=r"model\.json has format 99, of hetfl-core 9\.1; this version reads formats \(1, 2\)"
    ):
        load_trained(folder)
    for method, why in (
        ({**about["method"], "class": "FedFuture"}, "has a method 'FedFuture' that this version does not make"),
        ({**about["method"], "warmth": 3}, "has a method 'Local' that this version does not make: .*warmth"),
        ({**about["method"], "lr": -1}, "does not make: lr must"),
        ({**about["method"], "model": {**about["method"]["model"], "alpha": 7}}, r"has 'alpha.weight' .* with shape"),
    ):
        rewritten(folder, format=1, versions=about["versions"], method=method)
        with pytest.raises(ValueError, match=why):
            load_trained(folder)
    other = [[value + 1 for value in said] for said in about["probe"]]
    rewritten(folder, method=about["method"], probe=other)
    with pytest.raises(ValueError, match="has a model of client 'Basel' that says something else in this version"):
        load_trained(folder)


def test_a_folder_is_written_anew(folder):
    run = run_of(FLIC(SMALL, local_epochs=1, pretrain_epochs=1))
    assert run.save(folder) == folder
    assert load_trained(folder).method.name == "FLIC-HL"
    again = load_trained(folder)
    again.save(folder)
    pd.testing.assert_frame_equal(load_trained(folder).predict_proba(BASEL, "Lyon"), again.predict_proba(BASEL, "Lyon"))


def test_parameters_that_all_have_are_written_once(tmp_path):
    fed = FED.of_common_features()
    run_of(FedAvg(Model(MLP((300,), 4)), local_epochs=1), fed).save(tmp_path / "shared")
    run_of(Local(Model(MLP((300,), 4)), local_epochs=1), fed).save(tmp_path / "own")
    sizes = [(tmp_path / name / "tensors.safetensors").stat().st_size for name in ("shared", "own")]
    assert sizes[1] / sizes[0] > 2.5


@pytest.mark.parametrize("bad", [None, 3, "", b"x"])
def test_a_folder_is_a_path(bad):
    run = run_of(Local(SMALL, local_epochs=1))
    for call in (run.save, load_trained):
        with pytest.raises((ValueError, TypeError), match="folder must be"):
            call(bad)


def test_the_server_says_nothing_of_rows_that_each_site_prepares_in_its_own_way():
    """Ages of 60 would go into a network that has seen them scaled."""
    fed = Federation.from_frame(
        pd.DataFrame({"age": [50.0, 60, 70, 80] * 5, "site": ["a", "b"] * 10, "ill": ["no", "no", "yes", "yes"] * 5}),
        client="site",
        target="ill",
        prepare=Preparation(),
    )
    model = simulate(fed, FedAvg(), rounds=1, progress=False).trained()
    with pytest.raises(ValueError, match=r"the server cannot prepare rows.* predict for one of \['a', 'b'\]"):
        _ = model.server
    rows = pd.DataFrame([[60.0, 61.0]], columns=["age", "age"])
    with pytest.raises(ValueError, match="client 'a': the table must have each column once, got 'age' twice"):
        model.predict(rows, client="a")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a.pop("clients"), r"holds what this version cannot read \(KeyError: 'clients'\)"),
        (lambda a: a.update(clients=[], params=[], prepare=[], probe=[]), "holds what this version cannot read"),
        (lambda a: a.update(dtype="torch.nonsense"), "holds what this version cannot read"),
        (lambda a: a.update(classes=["mild"]), "has 1 classes, where its models have 3"),
        (lambda a: a.update(probe=a["probe"][:1]), "holds what this version cannot read"),
        (
            lambda a: a["clients"][0].update(features=["age"]),
            r"has 1 features of client 'Basel', whose inputs are \(4,",
        ),
        (lambda a: a.update(format=True), "has format True"),
    ],
)
def test_words_that_no_version_wrote_are_refused_by_file(change, message, tmp_path):
    """However well they are sealed."""
    run_of(Local(SMALL, local_epochs=1)).save(tmp_path)
    about = json.loads((tmp_path / "model.json").read_text())
    change(about)
    about["seal"] = trained._seal({key: value for key, value in about.items() if key != "seal"})
    (tmp_path / "model.json").write_text(json.dumps(about))
    with pytest.raises(ValueError, match=rf"model\.json.* {message}"):
        load_trained(tmp_path)


def test_a_folder_whose_tensors_are_anothers_is_refused(tmp_path):
    for seed in (0, 1):
        run_of(Local(SMALL, local_epochs=1), seed=seed).save(tmp_path / str(seed))
    (tmp_path / "1" / "tensors.safetensors").replace(tmp_path / "0" / "tensors.safetensors")
    with pytest.raises(ValueError, match=r"is not the file that model\.json was written with"):
        load_trained(tmp_path / "0")

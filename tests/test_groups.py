"""Patients who are known at several clients: learnt at all or tested at all, wherever rows are split."""

import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from hetfl_core import Client, Federation, Preparation, tune
from hetfl_core.deployment import client_from_file
from hetfl_core.federation import FederationWarning
from hetfl_core.rng import numpy_stream
from hetfl_core.splits import SplitBy, alike_elsewhere, by_groups, over_clients
from hetfl_core.tuning import held_out


def hospitals(shared=30, own=30, sites="AB", seed=0, visits=1):
    """Patients of each site, of which the first `shared` are known at all sites, with the same values."""
    rng = np.random.default_rng(seed)

    def people(n, first):
        x = pd.DataFrame(rng.normal(size=(n, 5)), columns=list("abcde"))
        return x.assign(patient=[f"P{first + i:04d}" for i in range(n)], y=rng.integers(0, 2, n))

    both = people(shared, 0)
    parts = [pd.concat([both, people(own, 1000 * (i + 1))] * visits).assign(site=s) for i, s in enumerate(sites)]
    return pd.concat(parts, ignore_index=True).sample(frac=1, random_state=seed, ignore_index=True)


def federation(frame, **options):
    given = {"client": "site", "target": "y", "test_size": 0.3, "group": "patient"}
    return Federation.from_frame(frame, **given | options)


def patients_of(fed, frame):
    """Those in training rows and those in test rows, of each client, found by the first feature."""
    known = dict(zip(frame["a"], frame["patient"], strict=True))
    return {c.name: [{known[v] for v in x[:, 0].tolist()} for x in (c.x_train, c.x_test)] for c in fed}


@pytest.mark.parametrize("shared", [60, 30, 3])
@pytest.mark.parametrize("sites", ["AB", "ABCD"])
@pytest.mark.parametrize("prepare", [None, Preparation(scale=False)])
def test_a_patient_of_several_clients_is_learnt_at_all_or_tested_at_all(shared, sites, prepare):
    frame = hospitals(shared, 60 - shared, sites)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fed = federation(frame, prepare=prepare)
    found = patients_of(fed, frame)
    train, test = (set().union(*(found[who][i] for who in sites)) for i in (0, 1))
    assert not train & test
    assert [len(found[who][1]) for who in sites] == [18] * len(sites), "each has its share of test patients"
    again, other = federation(frame, prepare=prepare), federation(frame, prepare=prepare, seed=1)
    assert again.fingerprint() == fed.fingerprint() != other.fingerprint()
    whole = frame.set_index("site").loc[[*reversed(sites)]].reset_index()
    order = federation(whole, prepare=prepare)
    assert all(torch.equal(order[who].x_test, fed[who].x_test) for who in sites), "in any order of clients"


def test_shared_patients_are_tested_as_often_as_others():
    """Of 30 shared and 30 own patients of each site, 18 are tested: about nine of each kind."""
    counts = []
    frame = hospitals(30, 30)
    for seed in range(20):
        found = patients_of(federation(frame, seed=seed), frame)
        counts += [sum(p < "P1000" for p in found[who][1]) for who in "AB"]
    assert 8 < np.mean(counts) < 10


def test_clients_that_share_nobody_are_split_as_they_are_alone():
    """Bit for bit; so is a third client beside two that share patients."""
    apart = hospitals(0, 40, "ABC")
    alone = {who: federation(apart[apart.site == who])[who] for who in "ABC"}
    for who, client in alone.items():
        values = apart[apart.site == who].reset_index(drop=True)["patient"]
        train, test = SplitBy("group", "patient", values).rows(who, 0.3, numpy_stream(0, who, 0, "split"))
        x = torch.tensor(apart.loc[apart.site == who, list("abcde")].to_numpy())
        assert torch.equal(client.x_train, x[train])
        assert torch.equal(client.x_test, x[test])
        assert torch.equal(federation(apart)[who].x_test, client.x_test)
    mixed = apart.copy()
    mixed.loc[(mixed.site == "B") & (mixed.patient == "P2003"), "patient"] = "P1003"
    fed = federation(mixed)
    assert torch.equal(fed["C"].x_test, alone["C"].x_test)
    assert not torch.equal(fed["A"].x_test, alone["A"].x_test)


@pytest.mark.parametrize("write", [str, lambda p: p.lower(), lambda p: f" {p} "])
def test_a_number_is_one_patient_however_it_is_written(write):
    frame = hospitals(40, 0)
    other = frame.assign(patient=np.where(frame.site == "B", frame["patient"].map(write), frame["patient"]))
    assert federation(other).fingerprint() == federation(frame).fingerprint()
    numbers = frame.assign(patient=frame["patient"].str[1:].astype(int))
    mixed = numbers.astype({"patient": object})
    for kind in (float, str, lambda p: f"{p:03d}"):
        of_b = [kind(p) if s == "B" else p for p, s in zip(numbers["patient"], numbers["site"], strict=True)]
        assert federation(mixed.assign(patient=of_b)).fingerprint() == federation(numbers).fingerprint()


def test_each_site_that_numbers_its_own_patients_keeps_its_share():
    """1 … 60 at both, other people: their draws are coupled, and nothing else changes."""
    frame = hospitals(0, 60)
    frame["patient"] = frame.groupby("site").cumcount() + 1
    fed = federation(frame)
    assert [c.n_test for c in fed] == [18, 18]


groups = st.dictionaries(
    st.sampled_from("ABCDE"), st.lists(st.integers(0, 12), min_size=1, max_size=20), min_size=1, max_size=5
)


@settings(deadline=None, max_examples=200)
@given(groups, st.floats(0, 0.9), st.integers(0, 5))
def test_no_group_is_on_both_sides_and_every_client_keeps_one_for_training(numbers, share, seed):
    held = {who: np.array([str(n) for n in own], object) for who, own in numbers.items()}

    def streams():
        return {who: numpy_stream(seed, who, 0, "split") for who in held}

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FederationWarning)
        found = by_groups(held, share, streams())
        together = over_clients(held, share, streams())
        turned = by_groups(dict(reversed(held.items())), share, streams())
    sides = [{g for who, rows in found.items() for g in held[who][rows[i]]} for i in (0, 1)]
    assert not sides[0] & sides[1]
    for who, (train, test) in found.items():
        assert sorted([*train, *test]) == list(range(len(held[who])))
        assert len(train)
        n = len({*held[who]})
        assert len({*held[who][test]}) <= min(np.ceil(share * n), n - 1)
        assert turned[who][1].tolist() == test.tolist()
    shared = {who for who, own in held.items() for other in held if other != who and {*own} & {*held[other]}}
    assert {*together} == shared


def test_a_client_whose_patients_are_all_decided_by_others_is_told():
    """B's two patients are each at a site of two, whose other one is tested: one of the three sites has none left."""
    frame = pd.DataFrame({"site": list("AABBCC"), "patient": list("121323"), "a": np.arange(6.0), "y": [0, 1] * 3})
    with pytest.warns(
        FederationWarning, match="client '.': no group is left for testing, as each is at another client"
    ):
        fed = federation(frame, test_size=0.5)
    assert sorted(c.n_test for c in fed) == [0, 1, 1]
    assert min(c.n_train for c in fed) == 1


def test_gaps_among_groups_are_refused_by_client_and_column():
    frame = hospitals(10, 10)
    frame.loc[frame.index[frame.site == "B"][:3], "patient"] = None
    with pytest.raises(ValueError, match="client 'B': column 'patient', which group= names, must have no gaps, got 3"):
        federation(frame)


@pytest.mark.parametrize("argument", ["client", "target", "group", "time"])
def test_columns_that_say_how_rows_are_dealt_hold_one_thing_each(argument):
    frame = hospitals(5, 5).assign(odd=[[1]] * 20)
    options = {"group": None} if argument == "time" else {}
    with pytest.raises(
        ValueError, match=rf"column 'odd', which {argument}= names, must hold a number or a text in each"
    ):
        federation(frame, **options | {argument: "odd"})
    assert len(federation(frame, ignore=["odd"])) == 2


@pytest.mark.parametrize("times", [pd.to_timedelta(range(20), "D"), pd.period_range("2020-01", periods=20, freq="M")])
def test_periods_and_spans_of_time_have_an_order(times):
    frame = hospitals(0, 10).assign(day=range(20))
    expected = federation(frame, group=None, time="day", ignore=["patient"])
    spans = federation(frame.assign(day=times), group=None, time="day", ignore=["patient"])
    assert spans.fingerprint() == expected.fingerprint()


# --- validation rows ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [0, 40])
@pytest.mark.parametrize("view", [None, "blocks"])
def test_validation_rows_are_cut_by_whole_patients_over_all_clients(shared, view):
    frame = hospitals(shared, 60 - shared, visits=2)
    fed = federation(frame)
    seen = fed.in_blocks() if view else fed
    cut = held_out(seen, 0.25, 3)
    cut = Federation(list(cut.of_common_columns()), 2) if view else cut
    found = patients_of(cut, frame)
    train, validation = (set().union(*(found[who][i] for who in "AB")) for i in (0, 1))
    assert not train & validation
    assert not validation & set().union(*(both[1] for both in patients_of(fed, frame).values()))
    assert [len(found[who][1]) for who in "AB"] == [11, 11], "a quarter of 42 patients"
    assert held_out(seen, 0.25, 3).fingerprint() == held_out(seen, 0.25, 3).fingerprint()


def test_a_choice_is_not_made_by_what_was_learnt_by_heart():
    """The label is a coin, each patient comes twice: weak regularisation learns them by heart, and gains nothing."""
    rng = np.random.default_rng(0)
    who = np.repeat(np.arange(40), 2)
    x = pd.DataFrame(rng.normal(size=(40, 60))[who], columns=[f"x{i}" for i in range(60)])
    frame = x.assign(patient=who, y=rng.integers(0, 2, 40)[who], site="A")
    grid = {"C": [1e-4, 1e4]}
    found = tune(federation(frame), LogisticRegression(max_iter=1000), grid, metric="accuracy", progress=False)
    assert found.table["accuracy"].max() < 0.8


def test_one_patient_alone_has_no_validation_rows():
    frame = hospitals(0, 20)
    frame.loc[frame.site == "B", "patient"] = "P9"
    cut = held_out(federation(frame), 0.3, 0)
    assert cut["B"].n_test == 0
    found = tune(federation(frame), LogisticRegression(), {"C": [0.1, 1.0]}, progress=False)
    assert found.table["log_loss"].notna().all()


def test_clients_of_ones_own_may_say_whose_rows_they_are():
    x, y = np.random.default_rng(0).normal(size=(12, 2)), np.arange(12) % 2
    clients = [Client(x, y, x, y, name, groups=np.repeat([1, 2, 3, 4], 3)) for name in "AB"]
    cut = held_out(Federation(clients), 0.25, 0)
    assert cut["A"].n_test == cut["B"].n_test == 3
    assert torch.equal(cut["A"].x_test, cut["B"].x_test)
    with pytest.raises(ValueError, match="client 'A': groups must say whose each of the 12 training rows is, got 3"):
        Client(x, y, x, y, "A", groups=[1, 2, 3])
    with pytest.raises(TypeError, match="client 'A': groups must be a sequence"):
        Client(x, y, x, y, "A", groups=7)


def test_a_site_of_its_own_knows_its_groups(tmp_path):
    frame = hospitals(0, 30, visits=2)
    frame[frame.site == "A"].drop(columns="site").to_csv(tmp_path / "A.csv", index=False)
    client = client_from_file(tmp_path / "A.csv", "A", label="y", prepare=Preparation(), group="patient")
    assert len(client.groups) == client.n_train
    assert held_out(Federation([client], 2), 0.25, 0)["A"].n_test == 12


# --- without groups -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"prepare": Preparation()}, {"time": "day"}, {"split": "fold"}])
def test_rows_that_are_alike_at_two_clients_are_told(options):
    frame = hospitals(60, 20).assign(day=lambda f: (np.arange(len(f)) * 7) % 101, fold="train")
    frame["fold"] = np.where(np.arange(len(frame)) % 3, "train", "test")
    unused = [c for c in ("day", "fold", "patient") if c not in options.values()]
    message = r"of another client that they may be of one patient \(\d+ of \d+ on '[AB]' like rows on '[AB]'; .*--group"
    with pytest.warns(FederationWarning, match=message) as told:
        federation(frame, group=None, ignore=unused, **options)
    assert told[0].filename == __file__
    assert len(told) == 1
    arrays = {who: (rows[list("abcde")], rows["y"]) for who, rows in frame.groupby("site")}
    with pytest.warns(FederationWarning, match=message):
        Federation.from_arrays(arrays)


def test_patients_with_another_number_at_each_client_are_told():
    frame = hospitals(60, 20)
    frame["patient"] = frame["site"] + frame["patient"]
    with pytest.warns(
        FederationWarning, match="give each patient one number over all clients in the column that group="
    ):
        federation(frame)


def test_nearly_alike_rows_count_and_other_columns_do_not_matter():
    """B lacks a column, has noise, and is in another order; C has nobody of them."""
    frame = hospitals(40, 10, "ABC")
    rng = np.random.default_rng(1)
    frame["a"] += 0.01 * rng.normal(size=len(frame))
    frame.loc[frame.site == "B", "e"] = np.nan
    frame.loc[frame.site == "C", list("abcd")] = rng.normal(size=(50, 4))
    with pytest.warns(FederationWarning, match=r"\(7 of 15 on 'B' like rows on 'A'; 9 of 15 on 'A' like rows on 'B'\)"):
        federation(frame, group=None, ignore=["patient"])


@pytest.mark.parametrize("scale", [1, 1000])
@pytest.mark.parametrize("columns", [["a"], list("abcde"), ["p", "q"], ["p", "q", "r", "a"]])
def test_rows_that_agree_by_chance_are_no_warning(columns, scale):
    """Few columns, words that many have, and, where B measures in another unit, columns that never agree."""
    rng = np.random.default_rng(0)
    frame = hospitals(0, 200, "ABC").assign(p=rng.integers(0, 2, 600), q=rng.choice(["no", "yes"], 600), r=1.0)
    frame["a"] *= np.where(frame.site == "B", scale, 1)
    frame["b"] += np.where(frame.site == "B", scale - 1, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        federation(frame[[*columns, "site", "y"]], group=None, prepare=Preparation())


def test_what_is_alike_elsewhere_is_counted_by_hand():
    """Of four test rows at A, two agree with rows at B; one is too far away in x, and one has another word."""
    spread = pd.DataFrame({"x": np.linspace(-50, 50, 200), "w": ["p", "q"] * 100})
    rows = pd.DataFrame({"x": [10.1, 20.2, 30.3, 40.4], "w": ["p", "q", "p", "q"]})
    sd = float(np.std([*spread["x"], *rows["x"]]))
    others = pd.DataFrame({"x": [10.1 + 0.05 * sd, 20.2, 30.3 + 0.2 * sd, 40.4], "w": ["p", "q", "p", "p"], "more": 1})
    tables = {"A": pd.concat([spread, rows], ignore_index=True), "B": others, "C": others[["more"]]}
    sets = {
        "A": (np.arange(200), np.arange(200, 204)),
        "B": (np.arange(4), np.arange(0)),
        "C": (np.arange(4), np.arange(0)),
    }
    assert alike_elsewhere(tables, sets) == {}, "two of four agree by chance too"
    more = {f"z{i}": np.resize([i, 5.0, -3.0], 204) for i in range(3)}
    tables["A"] = tables["A"].assign(**more)
    tables["B"] = others.assign(**{name: values[200:] for name, values in more.items()})
    assert alike_elsewhere(tables, sets) == {"A": (2, ["B"])}

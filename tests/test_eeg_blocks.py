"""Groups of electrodes as blocks: which cap holds what, what a block is made of, and who is tested on what."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from small import largest_difference

from hetfl_book.datasets import eeg_blocks
from hetfl_book.datasets.eeg_blocks import GROUPS, NEW, TASKS, groups_of, laboratory
from hetfl_core import simulate
from hetfl_core.datasets import eeg, eeg_head, eeg_simulated, eeg_trials
from hetfl_core.datasets.eeg_head import Physiology
from hetfl_core.datasets.recordings import TABLE_S1, Recordings, standard_montage
from hetfl_core.methods import HyFEM, Local
from hetfl_core.networks import MLP, Blocks, Model
from hetfl_core.partition import split_each
from hetfl_core.rng import numpy_stream

pytest.importorskip("moabb")
estimation = pytest.importorskip("pyriemann.estimation")
tangentspace = pytest.importorskip("pyriemann.tangentspace")

FEW = {"subjects": 1, "trials": 10, "people": 2, "progress": False}
MODEL = Model(Blocks.alike(GROUPS, MLP((4,), 3), 5))


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory):
    """Covariances are computed once for all tests here, and kept nowhere else."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HETFL_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def fed():
    return eeg_blocks.simulated(**FEW)


def caps():
    """The caps of `TABLE_S1`, by name."""
    return {name: set(recordings.channels) for name, recordings in TABLE_S1.items()}


# --- groups and caps ------------------------------------------------------------------------------------------------


def test_groups_are_disjoint_and_lie_on_the_scalp():
    electrodes = [c for group in GROUPS.values() for c in group]
    assert len(set(electrodes)) == len(electrodes)
    assert set(electrodes) <= set(standard_montage().ch_names)


def test_a_cap_holds_the_groups_that_it_has_every_electrode_of():
    for name, cap in caps().items():
        assert groups_of(sorted(cap)) == tuple(
            group for group, electrodes in GROUPS.items() if not set(electrodes) - cap
        )
        assert groups_of(laboratory(name).channels) == groups_of(tuple(cap))
    assert groups_of(GROUPS["frontal"][1:]) == ()
    kinds = {groups_of(tuple(cap)) for cap in caps().values()}
    assert len(kinds) == 6, "no two caps are alike"
    assert all(kinds), "and each can take part"
    assert any(len(kind) == len(GROUPS) for kind in kinds)


def test_the_docstring_shows_the_caps():
    lines = str(eeg_blocks.__doc__).splitlines()
    first, second, last = (i for i, line in enumerate(lines) if line.startswith("==="))
    columns = [m.span() for m in re.finditer("=+", lines[first])]
    header, *rows = ([line[a:b].strip() for a, b in columns] for line in lines[first + 1 : last] if line[0] != "=")
    assert second == first + 2
    assert header[2:] == list(TABLE_S1)
    for (name, shown, *cells), (group, electrodes) in zip(rows, GROUPS.items(), strict=True):
        assert (name, tuple(shown.split())) == (group, electrodes)
        assert [cell == "yes" for cell in cells] == [set(electrodes) <= cap for cap in caps().values()]


def test_laboratories_keep_their_people():
    """Electrodes, classes and trials are fewer; the person behind a number is the one of `eeg.simulated`."""
    for name, full in TABLE_S1.items():
        ours = laboratory(name, 10)
        assert (ours.rate, ours.n_sessions, ours.interval) == (full.rate, full.n_sessions, full.interval)
        assert ours.classes == tuple(c for c in full.classes if c in TASKS)
        assert set(ours.channels) <= set(full.channels)
        assert ours.n_trials == min(10, full.n_trials)
        one, other = (eeg_head.person(recordings, 2, 3) for recordings in (ours, full))
        np.testing.assert_array_equal(one.positions, other.positions)
        assert one.mu_peak == other.mu_peak
        at = [full.classes.index(c) for c in ours.classes]
        np.testing.assert_array_equal(one.erd, other.erd[at])
    assert laboratory("AlexMI").n_trials == 20
    assert sum(len(TABLE_S1[name].classes) > len(laboratory(name).classes) for name in TABLE_S1) == 3


def test_classes_are_those_that_four_laboratories_have():
    asked = [c for recordings in TABLE_S1.values() for c in recordings.classes]
    assert set(TASKS) == {c for c in asked if asked.count(c) >= 4}


# --- federations ----------------------------------------------------------------------------------------------------


def test_a_federation_of_caps(fed):
    assert fed.name == "eeg_blocks.simulated"
    assert [client.name for client in fed] == [f"{name}-1" for name in TABLE_S1]
    count = np.zeros((len(GROUPS), len(TASKS)), int)
    for client, (name, cap) in zip(fed, caps().items(), strict=True):
        assert list(client.shapes) == list(GROUPS)
        for b, (group, electrodes) in enumerate(GROUPS.items()):
            there = set(electrodes) <= cap
            assert client.shapes[group] == (len(electrodes) * there,)
            assert client.x_train[group].dtype == client.x_test[group].dtype == torch.float32
            count[b] += [there and task in TABLE_S1[name].classes for task in TASKS]
        classes = {TASKS.index(task) for task in TABLE_S1[name].classes if task in TASKS}
        assert set(client.y_train.tolist()) == set(client.y_test.tolist()) == classes
        assert fed.info["caps"][name] == [group for group, shape in client.shapes.items() if shape != (0,)]
    assert fed.info["holders"] == count.tolist()
    assert fed.info["unused_cells"] == float((count == 0).mean()) == 0
    assert fed.full_shapes == {group: (len(electrodes),) for group, electrodes in GROUPS.items()}
    assert fed.info["simulated"]
    assert fed.info["class_names"] == ["left hand", "right hand", "feet"]
    assert np.bincount(fed.y_test).tolist() == [10, 10, 10], "two people, five trials of each class"
    json.dumps(dict(fed.info))


def trials_of(lab: Recordings, subject: int, seed: int = 0):
    """Trials by MOABB, and the places of those to train and to test on."""
    found = eeg_trials.trials(eeg_simulated.twin(lab, seed), subject, labels=TASKS, classes=TASKS)
    return found, *eeg.split(found.y, found.session, found.name, seed)


@pytest.mark.parametrize("name", ["Zhou2016", NEW["test"]])
@pytest.mark.parametrize("features", ["power", "tangent"])
def test_blocks_are_pyriemanns_of_the_same_trials(name, features):
    """Each of its group's signals alone, with the zero of training trials alone (of new people the first session)."""
    fed = eeg_blocks.simulated(**FEW | {"features": features, "people": 1})
    lab = laboratory(name, 10, 1)
    found, train, test = trials_of(lab, 1)
    held_by = fed if name in NEW.values() else fed[f"{name}-1"]
    for group in groups_of(lab.channels):
        signals = found.x[:, [found.channels.index(c) for c in GROUPS[group]]]
        covariances = estimation.Covariances("scm").transform(signals)
        if features == "tangent":
            space = tangentspace.TangentSpace().fit(covariances[train])
            expected = [space.transform(covariances[part]) for part in (train, test)]
        else:
            decibels = 10 * np.log10(signals.var(axis=2))
            expected = [decibels[part] - decibels[train].mean(axis=0) for part in (train, test)]
        np.testing.assert_allclose(held_by.x_test[group], expected[1], atol=1e-5)
        if held_by is not fed:
            np.testing.assert_allclose(held_by.x_train[group], expected[0], atol=1e-5)
    assert held_by.y_test.tolist() == found.y[test].tolist()


def test_the_zero_is_that_of_training_trials(fed):
    for client in (*fed, *eeg_blocks.simulated(**FEW, tested_on="validation")):
        assert float(client.x_train["hands"].mean(0).abs().max()) < 1e-5
        assert float(client.x_test["hands"].mean(0).abs().max()) > 1e-3


def test_settings_are_judged_on_training_trials_and_on_other_people(fed):
    """A fifth of each class; the test trials take no part, nor do the people of the test."""
    judged = eeg_blocks.simulated(**FEW, tested_on="validation")
    for client in fed:
        mine = judged[client.name]
        assert mine.n_train + mine.n_test == client.n_train
        (rest,), (fifth,) = split_each(
            client.y_train.numpy(), [np.arange(client.n_train)], 0.2, numpy_stream(0, client.name, 0, "validation")
        )
        for part, places in ((mine.x_train, rest), (mine.x_test, fifth)):
            same = client.x_train["hands"][torch.from_numpy(places)] - part["hands"]
            assert float(same.std(0).max()) < 1e-5, "the same trials, above another mean"
        counts = torch.bincount(mine.y_test, minlength=3) / torch.bincount(client.y_train, minlength=3)
        assert all(0.1 < share < 0.3 for share in counts.tolist() if share == share)
    known = {row.tobytes() for row in fed.x_test["hands"].numpy()}
    assert not known & {row.tobytes() for row in judged.x_test["hands"].numpy()}
    one, other = (eeg_head.person(laboratory(name), 1) for name in NEW.values())
    assert one.mu_peak != other.mu_peak


def test_a_subject_depends_on_the_seed_and_on_nobody_else(fed):
    assert eeg_blocks.simulated(**FEW).fingerprint() == fed.fingerprint()
    fewer = eeg_blocks.simulated(**FEW | {"people": 1})
    assert all(torch.equal(a.x_train["hands"], b.x_train["hands"]) for a, b in zip(fewer, fed, strict=True))
    for group, x in fewer.x_test.items():
        assert torch.equal(x, fed.x_test[group][: len(x)])
    lab = replace(laboratory("BNCI2014-004", 10), n_subjects=1)
    others = [eeg_blocks._client(lab, 1, seed, "power", "test", None) for seed in (0, 1)]
    assert not torch.equal(others[0].x_train["hands"], others[1].x_train["hands"])


@pytest.mark.parametrize("method", [Local(MODEL, local_epochs=1), HyFEM(MODEL, local_epochs=1)])
def test_methods_for_blocks_run_and_the_order_of_clients_does_not_matter(fed, method):
    backwards = fed.subset([client.name for client in reversed(fed.clients)])
    assert backwards.fingerprint() == fed.fingerprint()
    runs = [simulate(one, method, rounds=2, device="cpu", progress=False) for one in (fed, backwards)]
    assert largest_difference(*runs) < 1e-5
    assert np.isfinite(runs[0].history["ce"].iloc[-1])


def test_more_blocks_tell_more():
    """Where everybody's imagery is plain: hands against feet is seen better with the midline than by C3 and C4."""
    clear = Physiology(erd=(0.6, 0.6), ipsilateral=(0.0, 0.0), surround=(0.0, 0.0), elsewhere=1.0, lapse=0.0)
    fed = eeg_blocks.simulated(**FEW | {"trials": 20}, simulator=clear)
    having = [client for client in fed if client.shapes["midline"] != (0,)]
    score = {}
    for groups in (("hands",), ("midline",), ("hands", "midline")):
        x, x_test = (
            torch.cat([torch.cat([part[g] for g in groups], 1) for part in parts]).numpy()
            for parts in ([client.x_train for client in having], [fed.x_test])
        )
        y = torch.cat([client.y_train for client in having]).numpy()
        score[groups] = LogisticRegression().fit(x, y).score(x_test, fed.y_test.numpy())
    assert score["hands", "midline"] > max(score["hands",], score["midline",]) + 0.05
    assert "erd" in fed.info["settings"]["simulator"]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"seed": -1}, "seed must be"),
        ({"subjects": 0}, "subjects must be a whole number of at least 1, got 0"),
        ({"trials": 9}, "trials must be a whole number of at least 10, got 9"),
        ({"people": 0}, "people must be a whole number in 1…1000, got 0"),
        ({"features": "vectorised"}, "features must be one of 'power', 'tangent', got 'vectorised'"),
        ({"tested_on": "both"}, "tested_on must be one of 'test', 'validation', got 'both'"),
        ({"simulator": 3}, "simulator must be a Physiology, got 3"),
        ({"progress": "x"}, "progress must be True or False"),
    ],
)
def test_bad_arguments_are_refused_before_anybody_is_simulated(bad, message):
    with pytest.raises((ValueError, TypeError), match=message):
        eeg_blocks.simulated(**bad)


def test_laboratories_and_caps_that_there_are_not():
    with pytest.raises(ValueError, match=r"name must be one of 'AlexMI'.* got 'Nowhere'"):
        laboratory("Nowhere")
    with pytest.raises(ValueError, match="channels must be a text"):
        groups_of([3])


def test_a_laboratory_of_ones_own_is_simulated_only():
    lab = replace(laboratory("BNCI2014-004", 10), name="Mine", n_sessions=1)
    with pytest.raises(ValueError, match="source must be one of 'simulated', got 'moabb'"):
        eeg.subject_covariances(lab, 1, source="moabb")
    found = eeg.subject_covariances(lab, 1, estimator="scm")
    assert (found.name, found.channels, len(found)) == ("Mine-1", ("C3", "C4"), 20)
    again = eeg.subject_covariances(replace(lab, n_trials=12), 1, estimator="scm")
    assert len(again) == 24, "the cache knows laboratories of one name apart"

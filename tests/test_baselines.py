"""Classical classifiers alone and pooled, against scikit-learn and pyRiemann called directly."""

import math
import warnings
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar

import numpy as np
import pytest
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from hetfl_book.papers import eeg as eeg_papers
from hetfl_core import Client, Federation, baselines, simulate
from hetfl_core.baselines import (
    LDA,
    LR,
    MDM,
    SVM,
    Alone,
    Chosen,
    Pooled,
    exponential,
    recentring,
)
from hetfl_core.datasets.fewer import fewer, fewer_trials, order
from hetfl_core.rng import numpy_stream

METHODS = [LDA(), LR(), SVM(), Chosen(among=(LDA(), LR()))]


def subjects(n_clients=4, n=40, q=3, classes=(0, 1), seed=0, width=None):
    """Covariances of trials whose power moves from one channel to another with the class, as tangent vectors."""
    rng = numpy_stream(seed, "tests", 0, "subjects")
    d = q * (q + 1) // 2
    made = []
    for i in range(n_clients):
        y = np.repeat(classes, [n - n // 3, n // 3])
        x = 0.5 * rng.normal(size=(n, d))
        x[:, 0] += 0.8 * (y == classes[0])
        test = rng.permutation(n)[: n // 2]
        made.append(Client(x, y, x[test] + 0.3 * rng.normal(size=(len(test), d)), y[test], f"subject-{i}"))
    return Federation(made, 3, "made").to(torch.float32)


def answers(run):
    return run.per_client.set_index("client")["accuracy"]


# --- fewer trials -----------------------------------------------------------------------------------------------------


def test_fewer_trials_are_nested_stratified_and_the_clients_own():
    federation = subjects()
    for client in federation:
        drawn = [set(order(client, 0)[:n].tolist()) for n in (3, 10, 20, 40)]
        assert [len(d) for d in drawn] == [3, 10, 20, 40]
        assert all(a < b for a, b in pairwise(drawn))
        for n in (3, 10, 20):
            share = float((fewer(client, n, 0).y_train == 0).double().mean())
            assert abs(share - 27 / 40) <= 1 / n + 1e-9
    assert not np.array_equal(order(federation[0], 0), order(federation[0], 1))
    assert not np.array_equal(order(federation[0], 0), order(federation[1], 0))


def test_classes_are_interleaved_in_proportion():
    """Five of one class at the places 0, .3, .5, .7, .9 and three of another at 0, .5, .83; equal places by class."""
    y = torch.tensor([0] * 5 + [1] * 3)
    client = Client(torch.arange(8.0).reshape(8, 1), y, torch.zeros(1, 1), y[:1], "anna")
    for seed in range(3):
        assert y[order(client, seed).tolist()].tolist() == [0, 1, 0, 0, 1, 0, 1, 0]


def test_fewer_trials_keep_pairs_and_leave_the_test_set():
    client = subjects()[0]
    some = fewer(client, 10, 3)
    for x, y in zip(some.x_train, some.y_train):
        (place,) = np.nonzero((client.x_train == x).all(1).numpy())[0]
        assert client.y_train[place] == y
    assert torch.equal(some.x_test, client.x_test)
    assert len(fewer(client, 1000, 0).y_train) == 40


def test_the_rarest_class_is_among_the_first_trials():
    x, y = np.arange(102.0)[:, None], np.array([0] * 50 + [1] * 50 + [2] * 2)
    assert set(fewer(Client(x, y, x[:1], y[:1], "a"), 3, 0).y_train.tolist()) == {0, 1, 2}


def test_too_few_trials_for_the_classes_are_refused():
    with pytest.raises(ValueError, match="client 'subject-0': n must be at least 2, one trial of each class, got 1"):
        fewer(subjects()[0], 1, 0)


def test_a_federation_of_fewer_trials_says_so():
    federation = subjects()
    assert fewer_trials(federation, None, 0) is federation
    some = fewer_trials(federation, 10, 7)
    assert [c.n_train for c in some] == [10] * 4
    assert some.info["trials"] == {"at_most": 10, "seed": 7}
    own = {"x_test": federation[0].x_test, "y_test": federation[0].y_test}
    assert fewer_trials(replace(federation, **own), 10, 7).y_test.equal(own["y_test"])


# --- alone ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [LDA(), LR(), SVM()], ids=lambda m: m.name)
def test_alone_is_scikit_learn_on_each_client(method):
    federation = subjects()
    got = answers(simulate(federation, method))
    for client in federation:
        x, new = client.x_train.numpy(), client.x_test.numpy()
        if isinstance(method, LDA):
            model = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto")
        else:
            scaler = StandardScaler().fit(x)
            x, new = scaler.transform(x), scaler.transform(new)
            # The Gaussian kernel's default width is 1/(d · variance), and the variance of standardised data is 1.
            model = LogisticRegression(C=1) if isinstance(method, LR) else SVC(C=1, gamma=1 / x.shape[1])
        right = model.fit(x, client.y_train).predict(new) == client.y_test.numpy()
        assert got[client.name] == right.mean()
    assert 0.6 < got.mean() < 1, "a test that any classifier passes would show nothing"


def test_the_exponential_map_is_pyriemanns():
    geometry = pytest.importorskip("pyriemann.geometry.tangentspace")
    x = numpy_stream(0, "tests", 0, "exponential").normal(size=(5, 10))
    np.testing.assert_allclose(exponential(x), geometry.untangent_space(x, np.eye(4)), atol=1e-12)
    with pytest.raises(ValueError, match=r"tangent vectors must have q\(q\+1\)/2 numbers .* got 7"):
        exponential(np.zeros((2, 7)))
    for bad in (math.nan, math.inf):
        with pytest.raises(ValueError, match="x must be finite numbers of 2 axes"):
            exponential(np.full((2, 6), bad))
    with pytest.raises(ValueError, match="x must be finite numbers of 2 axes"):
        exponential(np.zeros(6))


def test_a_run_says_whether_it_drew_random_numbers():
    """So that seeds on the same data count once, and those of a classifier that nobody knows count each."""

    @dataclass(frozen=True)
    class Mine(LDA):
        deterministic: ClassVar[bool] = False

    class Unknown(Alone):
        def make(self):
            return DummyClassifier(strategy="uniform")

    said = {
        one.name: simulate(subjects(), one).settings["deterministic"]
        for one in (LDA(), LR(), SVM(), Chosen((LDA(),)), Mine(), Unknown())
    }
    assert said == {
        "LDA": True,
        "LR": True,
        "SVM": True,
        "Best by cross-validation": False,
        "Mine": False,
        "Unknown": False,
    }
    assert (MDM.deterministic, Pooled(LR()).deterministic, Pooled(Mine()).deterministic) == (True, True, False)


def test_mdm_on_tangent_vectors_is_mdm_on_covariances():
    """The affine-invariant distance is invariant under congruence, so the reference point does not matter."""
    classification = pytest.importorskip("pyriemann.classification")
    tangentspace = pytest.importorskip("pyriemann.tangentspace")
    rng = numpy_stream(0, "tests", 0, "covariances")
    y = np.arange(60) % 2
    mixing = rng.normal(size=(4, 4))
    signals = rng.normal(size=(60, 4, 30)) * np.where(
        y[:, None, None] == 0, [[1], [1], [1], [1]], [[1.3], [1], [1], [1]]
    )
    covariances = mixing @ (signals @ signals.swapaxes(1, 2) / 30) @ mixing.T
    space = tangentspace.TangentSpace().fit(covariances[:40])
    x = space.transform(covariances)
    direct = classification.MDM(metric="riemann").fit(covariances[:40], y[:40]).predict(covariances[40:])
    assert 0.6 < (direct == y[40:]).mean() < 1
    np.testing.assert_array_equal(MDM().learn(x[:40], y[:40])(x[40:]), direct)
    client = Client(x[:40], y[:40], x[40:], y[40:], "a")
    assert answers(simulate(Federation([client]), MDM()))["a"] == (direct == y[40:]).mean()


def test_a_client_with_one_class_is_always_told_that_class():
    x, y = np.eye(3), np.array([1, 1, 1])
    got = simulate(Federation([Client(x, y, x, y, "a")], 2), LDA())
    assert answers(got)["a"] == 1


def test_permuted_labels_leave_chance():
    pytest.importorskip("pyriemann")
    federation = subjects(8, 120)
    rng = numpy_stream(0, "tests", 0, "permuted")
    clients = [Client(c.x_train, rng.permutation(np.arange(120) % 2), c.x_test, np.arange(60) % 2, c.name)
               for c in federation]  # fmt: skip
    for method in (LDA(), Pooled(LR())):
        assert abs(simulate(Federation(clients, 3), method).final["accuracy"] - 0.5) < 0.08, method.name


def test_the_choice_is_that_of_a_cross_validation_and_sees_no_test_trial():
    """One feature squared decides: the Gaussian kernel learns that, a linear classifier cannot."""
    rng = numpy_stream(0, "tests", 0, "choice")
    x = rng.normal(size=(120, 2))
    y = (x[:, 0] ** 2 > 0.5).astype(int)
    both = Chosen(among=(LDA(), SVM()))
    assert both.choose(x, y, "a") == SVM()
    z = rng.normal(size=(120, 2))
    linear = (z[:, 0] + 0.3 * rng.normal(size=120) > 0).astype(int)
    assert Chosen(among=(SVM(), LDA())).choose(np.c_[z, 3 * rng.normal(size=(120, 12))], linear, "a") == LDA()
    contrary = Client(x, y, z, linear, "a")
    run = simulate(Federation([contrary]), both)
    assert answers(run)["a"] == answers(simulate(Federation([contrary]), SVM()))["a"]


def test_with_nothing_to_leave_out_the_first_is_chosen():
    x = np.arange(6.0).reshape(3, 2)
    assert Chosen(among=(SVM(), LDA())).choose(x, np.array([0, 0, 1]), "a") == SVM()


class NeedsTheFirst(ClassifierMixin, BaseEstimator):
    """A classifier that always says 0, and cannot be fitted without the trial whose feature is 0."""

    def fit(self, x, y):
        if not (x == 0).any():
            raise ValueError("the first trial is missing")
        self.classes_ = np.unique(y)
        return self

    def predict(self, x):
        return np.zeros(len(x), int)


class Fragile(Alone):
    def make(self):
        return NeedsTheFirst()


class Broken(Alone):
    def make(self):
        return LogisticRegression(C=-1)


def test_what_fails_in_a_fold_is_not_chosen_and_failures_name_the_client():
    pytest.importorskip("pyriemann")
    x, y = np.arange(10.0)[:, None], np.arange(10) % 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn tells of the fold
        assert Chosen(among=(Fragile(), LDA())).choose(x, y, "a") == LDA()
        with pytest.raises(ValueError, match="client 'a': Broken cannot be fitted to folds of 10 vectors"):
            Chosen(among=(LDA(), Broken())).choose(x, y, "a")
    with pytest.raises(ValueError, match=r"client 'a': MDM cannot be fitted to folds .* tangent vectors must"):
        Chosen(among=(MDM(),)).choose(np.eye(10, 7), y, "a")


# --- pooled -----------------------------------------------------------------------------------------------------------


def vectors(matrices):
    """Tangent vectors at the identity."""
    return pytest.importorskip("pyriemann.geometry.tangentspace").tangent_space(matrices, np.eye(matrices.shape[1]))


def moved(client, congruence):
    """The client at another reference point: C becomes A C A for all its trials, with A symmetric."""
    x = {
        part: vectors(congruence @ exponential(getattr(client, part).numpy().astype(float)) @ congruence)
        for part in ("x_train", "x_test")
    }
    return replace(client, **x)


def centred(federation):
    """All vectors at the mean of the client's training trials, in double precision."""
    made = []
    for client in federation:
        train, test = client.x_train.numpy().astype(float), client.x_test.numpy().astype(float)
        move = recentring(train)
        made.append(replace(client, x_train=move(train), x_test=move(test)))
    return Federation(made, federation.n_classes, federation.name, federation.info)


def symmetric(seed, q=3):
    a = 0.4 * numpy_stream(seed, "tests", 0, "congruence").normal(size=(q, q))
    return exponential(vectors(np.eye(q)[None]) + (a + a.T)[np.triu_indices(q)])[0]


def test_recentring_is_a_tangent_space_of_the_given_trials():
    """Against pyRiemann on the covariances: the same eigenvalues, so the same up to a rotation; idempotent."""
    tangentspace = pytest.importorskip("pyriemann.tangentspace")
    rng = numpy_stream(0, "tests", 0, "recentring")
    signals = rng.normal(size=(30, 4, 20)) * [[1.0], [3.0], [0.5], [2.0]]
    covariances = signals @ signals.swapaxes(1, 2) / 20
    few = tangentspace.TangentSpace().fit(covariances[:8])
    all_trials = tangentspace.TangentSpace().fit(covariances).transform(covariances)
    got, direct = recentring(all_trials[:8])(all_trials), few.transform(covariances)
    spectrum = lambda x: np.linalg.eigvalsh(exponential(x))  # noqa: E731
    np.testing.assert_allclose(spectrum(got), spectrum(direct), rtol=1e-6)
    assert np.abs(got - all_trials).max() > 0.1
    np.testing.assert_allclose(recentring(direct[:8])(direct), direct, atol=1e-6)
    np.testing.assert_allclose(recentring(got[:1])(got[:1]), 0, atol=1e-9)


@pytest.mark.parametrize("pooled", [Pooled(), Pooled(LR())], ids=lambda m: m.name)
def test_the_reference_point_that_vectors_came_with_does_not_matter_to_pooling(pooled):
    federation = centred(subjects(5, 60))
    elsewhere = [moved(client, symmetric(i)) for i, client in enumerate(federation)]
    got = simulate(Federation(elsewhere, 3), pooled)
    np.testing.assert_array_equal(answers(got), answers(simulate(federation, pooled)))
    assert 0.6 < got.final["accuracy"] < 1
    alone = [answers(simulate(Federation(clients, 3), LDA())) for clients in (federation.clients, elsewhere)]
    assert (alone[0] != alone[1]).any(), "for others it does, or the test would show nothing"


def diagonal(power):
    """Tangent vectors of diagonal covariances, which commute, at the reference point that they are given."""
    return vectors(np.stack([np.diag(row) for row in np.exp(power)]))


def test_of_few_trials_only_those_matter():
    """The others had a say in the vectors by their mean, test trials too; diagonal, so that no rotation is left."""
    rng = numpy_stream(0, "tests", 0, "first trials")
    y = np.arange(40) % 2
    logs = [0.5 * rng.normal(size=(60, 3)) + 0.5 * np.c_[np.r_[y, y[:20]], np.zeros((60, 2))] for _ in range(3)]
    kept = {f"subject-{i}": order(Client(logs[0][:40], y, logs[0], np.r_[y, y[:20]], f"subject-{i}"), 0)[:10]
            for i in range(3)}  # fmt: skip

    def federation(change):
        made = []
        for (name, first), log in zip(kept.items(), logs):
            others = np.setdiff1d(np.arange(40), first)
            log = log.copy()
            log[others] += change
            power = diagonal(log - log.mean(0))
            made.append(Client(power[:40], y, power[40:], y[:20], name))
        return fewer_trials(Federation(made, 2), 10, 0)

    few, changed = federation(0.0), federation([3.0, -1.0, 0.0])
    assert (few[0].x_train - changed[0].x_train).abs().max() > 0.5
    found = [simulate(f, Pooled(LR())) for f in (few, changed)]
    np.testing.assert_array_equal(answers(found[0]), answers(found[1]))
    assert found[0].final["train_accuracy"] == found[1].final["train_accuracy"] > 0.5


def test_test_trials_do_not_change_the_pooled_model():
    federation = subjects(3)
    changed = [replace(c, x_test=torch.cat([c.x_test, c.x_test + 2]), y_test=c.y_test.repeat(2)) for c in federation]
    both = [list(federation), list(Federation(changed, 3))]
    model = [baselines.pool(Pooled(LR()), [(clients, clients)])[0] for clients in both]
    new = numpy_stream(0, "tests", 0, "new").normal(size=(50, 6))
    for client in federation:
        np.testing.assert_array_equal(*(found[client.name](new) for found in model))


def test_what_cannot_be_recentred_is_refused_by_name():
    pytest.importorskip("pyriemann")
    y = np.array([0, 1, 0, 1])
    seven = Federation([Client(np.eye(4, 7), y, np.eye(4, 7), y, "narrow")])
    with pytest.raises(ValueError, match=r"client 'narrow': its vectors cannot be re-centred: .* got 7"):
        simulate(seven, Pooled())
    for size in (50, 2000):
        entries = size * np.ones((4, 6)) * [1, 0.5, 0.2, 1.5, 0.1, 0.3]
        microvolts = Federation([Client(entries, y, entries, y, "entries")])
        with pytest.raises(ValueError, match="client 'entries': expected tangent vectors, to re-centre them, got"):
            simulate(microvolts, Pooled())


@pytest.mark.filterwarnings("ignore:.*the test set holds classes")
def test_one_trial_is_its_own_reference():
    pytest.importorskip("pyriemann")
    federation = subjects(3)
    single = replace(federation[2], x_train=federation[2].x_train[:1], y_train=federation[2].y_train[:1])
    run = simulate(Federation([federation[0], federation[1], single], 3), Pooled())
    assert run.per_client["n_train"].tolist() == [40, 40, 1]


def named(client, name):
    return Client(client.x_train, client.y_train, client.x_test, client.y_test, name)


@pytest.mark.parametrize("pairs", [((0, 1), (1, 2)), ((1, 2), (0, 2)), ((0, 1), (0, 1))])
def test_pooled_is_one_model_of_all_trials_of_clients_with_the_same_classes(pairs):
    """Classes name the movements: right hand and feet, say, and left and right hand."""
    pytest.importorskip("pyriemann")
    parts = [[named(c, f"{i}-{c.name}") for c in subjects(2, classes=pair, seed=i)] for i, pair in enumerate(pairs)]
    clients = [client for both in zip(*parts, strict=True) for client in both]
    got = answers(simulate(Federation(clients, 3), Pooled()))
    groups = parts if pairs[0] != pairs[1] else [clients]
    for there in (centred(Federation(group, 3)) for group in groups):
        x, y = (np.concatenate([getattr(c, part).numpy() for c in there]) for part in ("x_train", "y_train"))
        model = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto").fit(x, y)
        for client in there:
            assert got[client.name] == (model.predict(client.x_test.numpy()) == client.y_test.numpy()).mean()
    assert Pooled(LR()).name == "Pooled LR"


def seen_from_their_own_mean(classes_of, seed=0, n=60):
    """People who feel each class at the same place, class 1 midway between two others, described from their average."""
    rng = numpy_stream(seed, "tests", 0, "places")
    places = {0: -1.0, 1: 0.0, 2: 1.0}
    made = []
    for name, classes in classes_of.items():
        y = np.resize(classes, n)
        log = 0.2 * rng.normal(size=(n, 3)) + np.c_[[places[c] for c in y], np.zeros((n, 2))]
        power = diagonal(log - log.mean(0))
        made.append(Client(power[: n // 2], y[: n // 2], power[n // 2 :], y[n // 2 :], name))
    return Federation(made, 3).to(torch.float32)


def test_people_with_unlike_pairs_of_classes_do_not_spoil_each_other():
    """Class 1 lies above the average of 0 and 1, and below that of 1 and 2: one model of all would be wrong on one."""
    pytest.importorskip("pyriemann")
    everybody = seen_from_their_own_mean(
        {**{f"few-{i}": (1, 2) for i in range(2)}, **{f"many-{i}": (0, 1) for i in range(8)}}
    )
    of_a_kind = everybody.subset(["few-0", "few-1"])
    together = answers(simulate(everybody, Pooled()))
    np.testing.assert_array_equal(together[["few-0", "few-1"]], answers(simulate(of_a_kind, Pooled())))
    assert together.min() > 0.9
    stay = [client for client in everybody if client.name != "few-1"]
    new = eeg_papers.join(Federation(stay, 3), [everybody["few-1"]], Pooled(), untrained=True)
    assert new.final["accuracy"] > 0.9


@pytest.mark.parametrize("of", [SVM(), MDM(), Chosen(), LDA, None])
def test_only_what_tells_probabilities_is_pooled(of):
    with pytest.raises(ValueError, match=r"of must be a LDA or a LR, got"):
        Pooled(of)


def test_who_is_pooled_with_whom():
    """By width; by electrodes where they are known; by data set where there is more than one width."""
    narrow, wide = subjects(3, q=3), subjects(2, q=4)
    wide = [Client(c.x_train, c.y_train, c.x_test, c.y_test, f"wide-{c.name}") for c in wide]
    names = lambda federation: [[c.name for c in group] for group in baselines.poolable(federation)]  # noqa: E731
    assert [len(g) for g in names(Federation([*narrow, *wide], 3))] == [3, 2]
    sets = {"subject-0": {"data_set": "A"}, "subject-1": {"data_set": "B"}, "subject-2": {"data_set": "A"}}
    both = Federation([*narrow, *wide], 3, info={"subjects": sets})
    assert names(both)[:2] == [["subject-0", "subject-2"], ["subject-1"]]
    assert len(names(Federation(narrow.clients, 3, info={"subjects": sets}))) == 1, "one space: the common electrodes"
    electrodes = {
        "subject-0": {"channels": ["C3"]},
        "subject-1": {"channels": ["C3"]},
        "subject-2": {"channels": ["Cz"]},
    }
    by_name = Federation(narrow.clients, 3, info={"subjects": electrodes})
    assert names(by_name) == [["subject-0", "subject-1"], ["subject-2"]]


@pytest.mark.filterwarnings("ignore:.*the test set holds classes")
def test_classes_say_who_is_pooled_with_whom():
    """As a set, among training trials: in any order, at any shares. A part of the classes is another set."""
    x = np.zeros((6, 3))
    of = {
        "a": [0, 1, 0, 1, 0, 1],
        "other order": [1, 1, 1, 0, 0, 0],
        "other shares": [0, 1, 1, 1, 1, 1],
        "other pair": [1, 2, 1, 2, 1, 2],
        "three": [0, 1, 2, 0, 1, 2],
        "one": [1, 1, 1, 1, 1, 1],
        "three again": [2, 2, 2, 2, 1, 0],
        "one again": [1, 1, 1, 1, 1, 1],
        "another one": [0, 0, 0, 0, 0, 0],
    }
    fed = Federation([Client(x, y, x, [0, 1, 2, 0, 1, 2], name) for name, y in of.items()], 3)
    assert [[c.name for c in group] for group in baselines.poolable(fed)] == [
        ["a", "other order", "other shares"],
        ["other pair"],
        ["three", "three again"],
        ["one", "one again"],
        ["another one"],
    ]
    assert len(baselines.poolable(fewer_trials(fed.subset(["a", "other order", "other shares"]), 2, 0))) == 1


def test_what_pooling_sends():
    """40 trials of 6 float32 and an int64 label, from 4 clients; and LDA's 6 weights and a bias in float64, to each."""
    pytest.importorskip("pyriemann")
    run = simulate(subjects(classes=(0, 1)), Pooled())
    assert run.final["bytes_up"] == 4 * 40 * (6 * 4 + 8)
    assert run.final["bytes_down"] == 4 * (6 + 1) * 8
    assert simulate(subjects(), LDA()).final["bytes_up"] == 0


def test_a_newcomer_without_trials_gets_the_others_model():
    """The others' vectors are moved to their means, the newcomer's stay, having no trial of their own."""
    pytest.importorskip("pyriemann")
    federation = subjects(4)
    members, new = federation.subset(["subject-0", "subject-1", "subject-2"]), [federation["subject-3"]]
    run = eeg_papers.join(members, new, Pooled(), untrained=True)
    x, y = (np.concatenate([getattr(c, part).numpy() for c in centred(members)]) for part in ("x_train", "y_train"))
    model = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto").fit(x, y)
    right = model.predict(new[0].x_test.numpy()) == new[0].y_test.numpy()
    assert list(run.per_client["client"]) == ["subject-3"]
    assert run.per_client["n_train"].tolist() == [0]
    assert run.final["accuracy"] == right.mean()
    trained = eeg_papers.join(members, new, Pooled())
    assert trained.final["accuracy"] == answers(simulate(federation, Pooled()))["subject-3"]
    alone = [Client(np.eye(2), [0, 1], np.eye(2), [0, 1], "wide")]
    with pytest.raises(ValueError, match=r"client 'wide': expected another client .* the same features, electrodes"):
        eeg_papers.join(members, alone, Pooled(), untrained=True)


@pytest.mark.parametrize("pooled", [Pooled(), Pooled(LR())], ids=lambda m: m.name)
def test_a_group_of_one_class_is_always_told_that_class(pooled):
    pytest.importorskip("pyriemann")
    federation = subjects(2, classes=(1, 1))
    run = simulate(federation, pooled)
    assert answers(run).tolist() == [1, 1]
    assert run.final["bytes_down"] == 0, "nothing is learnt"
    members, new = federation.subset(["subject-0"]), [federation["subject-1"]]
    assert eeg_papers.join(members, new, pooled, untrained=True).final["accuracy"] == 1


@pytest.mark.parametrize("classes", [(2, 2), (1, 1), (1, 2)])
def test_a_newcomer_with_other_classes_than_all_members_is_refused_by_name_or_learns_alone(classes):
    pytest.importorskip("pyriemann")
    members = subjects(2, classes=(0, 1))
    new = replace(subjects(1, classes=classes)[0], name="new")
    with pytest.raises(ValueError, match=rf"client 'new': expected another client .* classes \[{min(classes)}.*none"):
        eeg_papers.join(members, [new], Pooled(), untrained=True)
    alone = simulate(Federation([new], 3), Pooled()).final["accuracy"]
    assert eeg_papers.join(members, [new], Pooled()).final["accuracy"] == alone > 0.5


@pytest.mark.parametrize("untrained", [False, True])
def test_newcomers_do_not_see_each_other(untrained):
    pytest.importorskip("pyriemann")
    federation = subjects(5, 30)
    members = federation.subset(["subject-0", "subject-1"])
    new = [federation[f"subject-{i}"] for i in (2, 3, 4)]
    together = eeg_papers.join(members, new, Pooled(LR()), untrained=untrained)
    each = [eeg_papers.join(members, [client], Pooled(LR()), untrained=untrained) for client in new]
    assert answers(together).tolist() == [run.final["accuracy"] for run in each]
    if not untrained:
        one = simulate(Federation([*members, new[0]], 3), Pooled(LR()))
        assert answers(together)["subject-2"] == answers(one)["subject-2"]
    trials, model = 30 * (6 * 4 + 8), each[0].final["bytes_down"]
    assert together.final["bytes_up"] == trials * (2 if untrained else 5)
    assert together.final["bytes_down"] == 3 * model > 0


@pytest.mark.parametrize(("rarest", "expected"), [(12, 5), (3, 3)])
def test_five_folds_unless_told_or_as_many_as_the_rarest_class_has_trials(monkeypatch, rarest, expected):
    asked = []
    scored = lambda model, x, y, cv: asked.append(cv.n_splits) or np.zeros(1)  # noqa: E731
    monkeypatch.setattr("sklearn.model_selection.cross_val_score", scored)
    y = np.repeat([0, 1], [12, rarest])
    Chosen(among=(LDA(),)).choose(np.zeros((len(y), 2)), y)
    assert asked == [expected]


# --- runs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [*METHODS, Pooled()], ids=lambda m: m.name)
def test_a_run_of_a_baseline_looks_like_any_other(method):
    pytest.importorskip("pyriemann")
    federation = subjects()
    run = simulate(federation, method, seed=2, rounds=50, participation=0.1, progress=False)
    assert list(run.history["round"]) == [0]
    assert {"train_accuracy", "accuracy", "bytes_up", "bytes_down", "seconds"} <= set(run.history)
    assert run.final["accuracy"] == pytest.approx(run.per_client["accuracy"].mean())
    assert run.final["accuracy_worst"] == run.per_client["accuracy"].min()
    assert run.final["train_accuracy"] > 0.5
    assert run.settings["seed"] == 2
    assert "on 'made': accuracy" in repr(run)


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_neither_the_seed_nor_the_order_of_clients_matters(method):
    federation = subjects()
    backwards = federation.subset([c.name for c in reversed(federation.clients)])
    runs = [simulate(federation, method, seed=0), simulate(backwards, method, seed=0)]
    if not isinstance(method, Chosen):
        runs.append(simulate(federation, method, seed=5))
    for run in runs:
        np.testing.assert_array_equal(answers(run).sort_index(), answers(runs[0]).sort_index())


def test_a_classifier_has_no_embedding_and_says_so():
    y = np.array([0, 1, 0, 1])
    run = simulate(Federation([Client(np.eye(4), y, np.eye(4), y, "a")]), LDA())
    with pytest.raises(NotImplementedError, match="LDA has no embedding"):
        run.embed()
    with pytest.raises(NotImplementedError, match=r"LDA .* what it has fitted predicts by run.trained\(\)"):
        run.outputs()
    assert run.settings["method"] == {"class": "LDA"}
    with pytest.raises(TypeError, match=r"method must be an object, such as LDA\(\), got the class LDA"):
        simulate(run.federation, LDA)


def test_what_a_classifier_cannot_take_is_refused_by_name():
    y = np.array([0, 1, 0, 1])
    pictures = Federation([Client(np.zeros((4, 1, 2, 2)), y, np.zeros((1, 1, 2, 2)), y[:1], "a")])
    with pytest.raises(ValueError, match="client 'a': a classical classifier wants vectors"):
        simulate(pictures, LDA())
    numbers = Federation([Client(np.zeros((4, 2)), y * 0.5, np.zeros((1, 2)), y[:1] * 0.5, "a")], task="regression")
    with pytest.raises(ValueError, match="wants a classification, got a regression"):
        simulate(numbers, LDA())
    seven = Federation([Client(np.eye(4, 7), y, np.eye(4, 7), y, "narrow")])
    with pytest.raises(ValueError, match="client 'narrow': MDM cannot be fitted to 4 vectors: tangent vectors must"):
        simulate(seven, MDM())

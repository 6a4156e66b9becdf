"""Classical classifiers alone and pooled, against scikit-learn and pyRiemann called directly."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from hetfl_core import Client, Federation, baselines
from hetfl_core.baselines import LDA, LR, MDM, SVM, Chosen, Pooled, exponential, fewer, fewer_trials, order
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


# --- alone ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [LDA(), LR(), SVM()], ids=lambda m: m.name)
def test_alone_is_scikit_learn_on_each_client(method):
    federation = subjects()
    got = answers(baselines.run(federation, method))
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
    np.testing.assert_array_equal(MDM().fit(x[:40], y[:40])(x[40:]), direct)
    client = Client(x[:40], y[:40], x[40:], y[40:], "a")
    assert answers(baselines.run(Federation([client]), MDM()))["a"] == (direct == y[40:]).mean()


def test_a_client_with_one_class_is_always_told_that_class():
    x, y = np.eye(3), np.array([1, 1, 1])
    got = baselines.run(Federation([Client(x, y, x, y, "a")], 2), LDA())
    assert answers(got)["a"] == 1


def test_permuted_labels_leave_chance():
    federation = subjects(8, 120)
    rng = numpy_stream(0, "tests", 0, "permuted")
    clients = [Client(c.x_train, rng.permutation(np.arange(120) % 2), c.x_test, np.arange(60) % 2, c.name)
               for c in federation]  # fmt: skip
    for method in (LDA(), Pooled(LR())):
        assert abs(baselines.run(Federation(clients, 3), method).final["accuracy"] - 0.5) < 0.08, method.name


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
    run = baselines.run(Federation([contrary]), both)
    assert answers(run)["a"] == answers(baselines.run(Federation([contrary]), SVM()))["a"]


def test_with_nothing_to_leave_out_the_first_is_chosen():
    x = np.arange(6.0).reshape(3, 2)
    assert Chosen(among=(SVM(), LDA())).choose(x, np.array([0, 0, 1]), "a") == SVM()


# --- pooled -----------------------------------------------------------------------------------------------------------


def test_pooled_is_one_model_of_all_trials_and_names_only_the_clients_own_classes():
    first, second = subjects(2, classes=(0, 1)), subjects(2, classes=(1, 2), seed=1)
    clients = [*first, *(Client(c.x_train, c.y_train, c.x_test, c.y_test, f"other-{i}") for i, c in enumerate(second))]
    got = answers(baselines.run(Federation(clients, 3), Pooled()))
    x, y = (np.concatenate([getattr(c, part).numpy() for c in clients]) for part in ("x_train", "y_train"))
    model = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto").fit(x, y)
    for client in clients:
        own = np.unique(client.y_train)
        predicted = own[model.predict_proba(client.x_test.numpy())[:, own].argmax(1)]
        assert got[client.name] == (predicted == client.y_test.numpy()).mean()
    assert Pooled(LR()).name == "Pooled LR"


def test_who_is_pooled_with_whom():
    """By width; by electrodes where they are known; by data set where there is more than one width."""
    narrow, wide = subjects(3, q=3), subjects(2, q=4)
    wide = [Client(c.x_train, c.y_train, c.x_test, c.y_test, f"wide-{c.name}") for c in wide]
    names = lambda federation: [[c.name for c in group] for group in baselines.together(federation)]  # noqa: E731
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


def test_what_pooling_sends():
    """40 trials of 6 float32 and an int64 label, from 4 clients; and LDA's 6 weights and a bias in float64, to each."""
    run = baselines.run(subjects(classes=(0, 1)), Pooled())
    assert run.final["bytes_up"] == 4 * 40 * (6 * 4 + 8)
    assert run.final["bytes_down"] == 4 * (6 + 1) * 8
    assert baselines.run(subjects(), LDA()).final["bytes_up"] == 0


def test_a_newcomer_without_trials_gets_the_others_model():
    federation = subjects(4)
    members, new = federation.subset(["subject-0", "subject-1", "subject-2"]), [federation["subject-3"]]
    run = baselines.join(members, new, Pooled(), untrained=True)
    x, y = (np.concatenate([getattr(c, part).numpy() for c in members]) for part in ("x_train", "y_train"))
    model = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto").fit(x, y)
    right = model.predict(new[0].x_test.numpy()) == new[0].y_test.numpy()
    assert list(run.per_client["client"]) == ["subject-3"]
    assert run.per_client["n_train"].tolist() == [0]
    assert run.final["accuracy"] == right.mean()
    trained = baselines.join(members, new, Pooled())
    assert trained.final["accuracy"] == answers(baselines.run(federation, Pooled()))["subject-3"]
    alone = [Client(np.eye(2), [0, 1], np.eye(2), [0, 1], "wide")]
    with pytest.raises(ValueError, match="client 'wide': there is no other client"):
        baselines.join(members, alone, Pooled(), untrained=True)


# --- runs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [*METHODS, Pooled()], ids=lambda m: m.name)
def test_a_run_of_a_baseline_looks_like_any_other(method):
    federation = subjects()
    run = baselines.run(federation, method, seed=2, rounds=50, participation=0.1, progress=False)
    assert list(run.history["round"]) == [0]
    assert {"train_accuracy", "test_accuracy", "bytes_up", "bytes_down", "seconds"} <= set(run.history)
    assert run.final["accuracy"] == pytest.approx(run.per_client["accuracy"].mean())
    assert run.final["accuracy_worst"] == run.per_client["accuracy"].min()
    assert run.final["train_accuracy"] > 0.5
    assert run.settings["seed"] == 2
    assert "0 rounds: accuracy" in repr(run)


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_neither_the_seed_nor_the_order_of_clients_matters(method):
    federation = subjects()
    backwards = federation.subset([c.name for c in reversed(federation.clients)])
    runs = [baselines.run(federation, method, seed=0), baselines.run(backwards, method, seed=0)]
    if not isinstance(method, Chosen):
        runs.append(baselines.run(federation, method, seed=5))
    for run in runs:
        np.testing.assert_array_equal(answers(run).sort_index(), answers(runs[0]).sort_index())


def test_what_a_classifier_cannot_take_is_refused_by_name():
    y = np.array([0, 1, 0, 1])
    pictures = Federation([Client(np.zeros((4, 1, 2, 2)), y, np.zeros((1, 1, 2, 2)), y[:1], "a")])
    with pytest.raises(ValueError, match="client 'a': a classical classifier wants vectors"):
        baselines.run(pictures, LDA())
    numbers = Federation([Client(np.zeros((4, 2)), y * 0.5, np.zeros((1, 2)), y[:1] * 0.5, "a")], task="regression")
    with pytest.raises(ValueError, match="wants a classification, got a regression"):
        baselines.run(numbers, LDA())
    seven = Federation([Client(np.eye(4, 7), y, np.eye(4, 7), y, "narrow")])
    with pytest.raises(ValueError, match="client 'narrow': MDM cannot be fitted to 4 vectors: tangent vectors must"):
        baselines.run(seven, MDM())

import json

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from hetfl_book.datasets import text
from hetfl_book.datasets.text import Pair
from hetfl_core.datasets import DataError


class Fake:
    """Vectors that tell caption and image apart and know which they are of; counts how often it is called."""

    name = "fake"

    def __init__(self, widths=(768, 512)):
        self.widths, self.calls = widths, []

    def captions(self, texts):
        self.calls.append(("captions", len(texts)))
        return np.stack([np.full(self.widths[0], float(t.split()[-1])) for t in texts]).astype(np.float32)

    def images(self, paths):
        self.calls.append(("images", len(paths)))
        assert all(path.read_bytes() for path in paths)
        return np.stack([np.full(self.widths[1], -float(p.stem)) for p in paths]).astype(np.float32)


N_IMAGES, PER_IMAGE = 100, 3


def entries():
    """Captions in TextCaps' form: 100 images of five kinds, of which one is not wanted, three captions each."""
    kinds = ("Bottle", "Car", "Food", "Book", "Clock")
    return [
        {"image_id": str(i), "caption_str": f"a thing with text {i}", "image_classes": [kinds[i % 5], "Person"]}
        for i in range(N_IMAGES)
        for _ in range(PER_IMAGE)
    ]


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A data folder with made captions and images."""
    monkeypatch.setenv("HETFL_DATA", str(tmp_path))
    (tmp_path / text.IMAGES).mkdir(parents=True)
    write_captions(tmp_path, {"data": entries()})
    for i in range(N_IMAGES):
        (tmp_path / text.IMAGES / f"{i}.jpg").write_bytes(b"a picture")
    return tmp_path


def write_captions(home, content):
    (home / text.CAPTIONS).write_text(content if isinstance(content, str) else json.dumps(content))


def ids(client):
    """The images that a client of made vectors holds, training and test."""
    return [x[:, 0].abs().long().tolist() for x in (client.x_train, client.x_test)]


# --- TextCaps -----------------------------------------------------------------------------------------------------


def test_half_the_clients_hold_captions_and_half_images(home):
    federation = text.textcaps(n_clients=8, classes_per_client=2, embedder=Fake())
    assert [c.name for c in federation] == [f"{m}-{i:03d}" for m in ("caption", "image") for i in range(4)]
    assert federation.n_classes == 4
    for client in federation:
        full = 768 if client.name.startswith("caption") else 512
        assert full - int(0.1 * full) <= client.shapes[0] <= full
        assert len(set(client.y_train.tolist())) == 2
        assert (client.x_train.sign() == (1 if full == 768 else -1))[client.x_train != 0].all()
        for x, y in zip(ids(client), (client.y_train, client.y_test)):
            assert [i % 5 for i in x] == y.tolist()  # kinds in the order of CLASSES: vectors kept their labels
    assert federation.info["simulated"] is False
    json.dumps(dict(federation.info))


def test_every_pair_is_dealt_once_in_each_modality(home):
    federation = text.textcaps(n_clients=8, classes_per_client=2, embedder=Fake())
    for modality in ("caption", "image"):
        mine = [c for c in federation if c.name.startswith(modality)]
        assert sum(c.n_train for c in mine) == int(0.8 * 80 * PER_IMAGE)
        assert sum(c.n_train + c.n_test for c in mine) == 80 * PER_IMAGE
        held = [i for c in mine for part in ids(c) for i in part]
        assert np.bincount(held, minlength=100).tolist() == [0 if i % 5 == 4 else PER_IMAGE for i in range(100)]


def test_splitting_pairs_tests_on_images_that_were_trained_on_and_splitting_images_does_not(home):
    shares = {}
    for split in ("pairs", "images"):
        federation = text.textcaps(n_clients=8, classes_per_client=2, embedder=Fake(), split=split)
        train, test = (set().union(*(ids(c)[part] for c in federation)) for part in (0, 1))
        shares[split] = federation.info["test_images_in_training"]
        assert bool(train & test) is (shares[split] > 0)
    assert shares["images"] == 0
    assert shares["pairs"] > 0.8  # of two other captions, one or both are in training with 96 %


def test_clip_shares_one_space_and_is_not_pruned(home):
    federation = text.textcaps(n_clients=8, classes_per_client=2, embeddings="clip", embedder=Fake((512, 512)))
    assert {c.shapes for c in federation} == {(512,)}


@pytest.mark.parametrize(("embeddings", "model"), [("clip", "Clip"), ("bert-resnet", "BertResNet")])
def test_each_kind_of_vectors_is_made_by_its_own_model(home, monkeypatch, embeddings, model):
    made = {name: Fake((512, 512)) for name in ("Clip", "BertResNet")}
    for name, fake in made.items():
        monkeypatch.setattr(text, name, lambda fake=fake: fake)
    text.textcaps(n_clients=8, classes_per_client=2, embeddings=embeddings)
    assert [name for name, fake in made.items() if fake.calls] == [model]


def test_models_get_all_items_in_order_64_at_a_time():
    sizes = []

    def vectors(part):
        sizes.append(len(part))
        return torch.tensor(part, dtype=torch.float32)[:, None]

    found = text._batches(range(130), vectors, "numbers")
    assert sizes == [64, 64, 2]
    assert found[:, 0].tolist() == list(range(130))


def test_the_published_code_prunes_less_in_random_order_and_shares_half(home):
    federation = text.textcaps(n_clients=8, classes_per_client=2, variant="code", embedder=Fake())
    captions, images = ([c for c in federation if c.name.startswith(m)] for m in ("caption", "image"))
    assert all(730 <= c.shapes[0] <= 768 for c in captions)
    assert all(480 <= c.shapes[0] <= 512 for c in images)
    rng = np.random.default_rng(0)
    assert (np.diff(text.kept_coordinates(768, 0.1, "code", rng)) < 0).any()
    assert (np.diff(text.kept_coordinates(768, 0.1, "text", rng)) > 0).all()


def test_pruning_drops_up_to_the_share_uniformly():
    rng = np.random.default_rng(0)
    dropped = [100 - len(text.kept_coordinates(100, 0.1, "text", rng)) for _ in range(1100)]
    assert np.bincount(dropped).min() > 60  # 100 expected of each of 0 … 10
    assert max(dropped) == 10
    assert len(text.kept_coordinates(100, 0.0, "code", rng)) == 100


def test_seeds_split_deal_and_prune_differently_and_repeatably(home):
    a, b, c = (text.textcaps(n_clients=8, classes_per_client=2, seed=seed, embedder=Fake()) for seed in (0, 0, 1))
    assert a.fingerprint() == b.fingerprint() != c.fingerprint()
    assert [x.shapes for x in a] != [x.shapes for x in c]


def test_vectors_are_computed_once_and_each_image_once(home):
    fake = Fake()
    text.textcaps(n_clients=8, classes_per_client=2, embedder=fake)
    text.textcaps(n_clients=8, classes_per_client=3, seed=4, embedder=fake)
    assert fake.calls == [("captions", 240), ("images", 80)]
    other = Fake()
    other.name = "another model"
    text.textcaps(n_clients=8, classes_per_client=2, embedder=other)
    assert len(other.calls) == 2  # kept under another name
    write_captions(home, {"data": entries()[:-30]})
    text.textcaps(n_clients=8, classes_per_client=2, embedder=fake)
    assert len(fake.calls) == 4  # other captions, other vectors
    assert not [path for path in (home / "textcaps").iterdir() if path.name.endswith(".tmp")]


def test_an_interrupted_computation_leaves_nothing(home):
    class Broken(Fake):
        def images(self, paths):
            raise KeyboardInterrupt

    before = sorted((home / "textcaps").iterdir())
    with pytest.raises(KeyboardInterrupt):
        text.textcaps(n_clients=8, classes_per_client=2, embedder=Broken())
    assert sorted((home / "textcaps").iterdir()) == before


def test_a_missing_package_names_the_extra(home):
    class Bare(Fake):
        def captions(self, texts):
            raise ModuleNotFoundError("No module named 'transformers'")

    with pytest.raises(ImportError, match=r"transformers.*pip install \"hetfl-book\[text\]\""):
        text.textcaps(n_clients=8, classes_per_client=2, embedder=Bare())


def test_damaged_vectors_are_named(home):
    text.textcaps(n_clients=8, classes_per_client=2, embedder=Fake())
    (path,) = (home / "textcaps").glob("vectors-*.npz")
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(DataError, match=f"{path} cannot be read.*delete it"):
        text.textcaps(n_clients=8, classes_per_client=2, embedder=Fake())
    np.savez(path, captions=np.zeros((3, 768)), images=np.zeros((80, 512)))
    with pytest.raises(DataError, match="expected 240 captions and 80 images, got 3, 80"):
        text.textcaps(n_clients=8, classes_per_client=2, embedder=Fake())


# --- what is missing ----------------------------------------------------------------------------------------------


def test_missing_captions_say_from_where(tmp_path, monkeypatch):
    monkeypatch.setenv("HETFL_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"TextCaps_0.1_train.json is missing: get it from https://dl\.fbai"):
        text.textcaps()


def test_how_many_clients_the_captions_are_enough_for_is_seen_when_they_are_read(home):
    with pytest.raises(ValueError, match="at most 192, the number of samples, got 500"):
        text.textcaps(n_clients=1000, classes_per_client=2, embedder=Fake())


def test_missing_images_are_found_out_before_anything_is_computed(home):
    (home / text.IMAGES / "0.jpg").unlink()
    (home / text.IMAGES / "11.jpg").unlink()
    fake = Fake()
    with pytest.raises(
        DataError, match=r"2 of 80 images are missing, the first is .*0\.jpg: get .*train_val_images\.zip"
    ):
        text.textcaps(n_clients=8, classes_per_client=2, embedder=fake)
    assert fake.calls == []


def test_a_folder_that_cannot_be_written_to_is_found_out_before_anything_is_computed(home, monkeypatch):
    monkeypatch.setattr(text.os, "access", lambda *args: False)
    fake = Fake()
    with pytest.raises(DataError, match=r"cannot be written to.*HETFL_DATA"):
        text.textcaps(n_clients=8, classes_per_client=2, embedder=fake)
    assert fake.calls == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "expected TextCaps 0.1"),
        ([1], "expected TextCaps 0.1"),
        ({"data": [{"image_id": "1", "caption_str": "x"}]}, "expected TextCaps 0.1.*image_classes"),
        ({"data": [e for e in entries() if e["image_classes"][0] != "Food"]}, "no image of class Food in 240 captions"),
    ],
)
def test_damaged_captions_are_named(home, content, message):
    write_captions(home, content)
    with pytest.raises(DataError, match=message):
        text.textcaps(n_clients=8, classes_per_client=2, embedder=Fake())


def test_entries_without_a_class_are_left_out(home):
    extra = {"image_id": "7", "caption_str": "nothing", "image_classes": []}
    write_captions(home, {"data": [extra, *entries()]})
    pairs = text.read_pairs(home / text.CAPTIONS)
    assert len(pairs) == 240
    assert pairs[0] == Pair("0", "a thing with text 0", 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"embeddings": "word2vec"}, "embeddings must be one of 'bert-resnet', 'clip', got 'word2vec'"),
        ({"split": "words"}, "split must be one of 'pairs', 'images', got 'words'"),
        ({"n_clients": 7}, "n_clients must be even"),
        ({"prune": 1.0}, r"prune must lie in \[0, 1\), got 1.0"),
        ({"variant": "paper"}, "variant"),
        ({"classes_per_client": 5}, "classes_per_client must be at most the number of classes"),
    ],
)
def test_wrong_arguments(home, options, message):
    with pytest.raises(ValueError, match=message):
        text.textcaps(**{"n_clients": 8, "embedder": Fake(), **options})


# --- the stand-in -------------------------------------------------------------------------------------------------


def test_the_stand_in_says_so_and_has_the_shape_of_textcaps():
    federation = text.two_modalities(n_clients=20, classes_per_client=2, n_pairs=2000)
    assert federation.info["stand_in"] is True
    assert federation.info["simulated"] is True
    assert sum(c.n_train for c in federation) == 2 * 1600
    for client in federation:
        full = 768 if client.name.startswith("caption") else 512
        assert 0.9 * full <= client.shapes[0] <= full
        assert len(set(client.y_train.tolist())) == 2
    a, b = (
        text.two_modalities(n_clients=4, classes_per_client=2, seed=seed, n_pairs=400).fingerprint() for seed in (0, 1)
    )
    assert a != b


def test_any_two_classes_of_the_stand_in_are_equally_far_apart_in_both_modalities():
    """Means of the meaning are `separation` apart, and E‖sA‖² = ‖s‖² · width / latent for the map A."""
    federation = text.two_modalities(
        n_clients=2, classes_per_client=4, n_pairs=12_000, prune=0.0, separation=3.0, latent=16
    )
    for client, width in zip(federation, (768, 512)):
        x, y = client.x_train.double(), client.y_train
        means = torch.stack([x[y == c].mean(0) for c in range(4)])
        gaps = torch.pdist(means).square() * 16 / width
        # sampling error of a mean of 2 400: variance per coordinate about 1 + 2 over 2 400, twice, in every coordinate
        torch.testing.assert_close(gaps, torch.full_like(gaps, 9.0), rtol=0.25, atol=0)


def test_a_local_linear_classifier_finds_the_stand_in_neither_easy_nor_hopeless():
    scores = []
    for k in (2, 3):
        # As many samples per client as with 100 clients of 15 000.
        federation = text.two_modalities(n_clients=20, classes_per_client=k, n_pairs=3000)
        fits = [LogisticRegression(C=0.01, max_iter=300).fit(c.x_train, c.y_train) for c in federation]
        scores.append(np.mean([fit.score(c.x_test, c.y_test) for fit, c in zip(fits, federation)]))
    assert 0.65 < scores[1] < scores[0] < 0.92


def test_the_stand_in_needs_room_for_its_classes():
    with pytest.raises(ValueError, match="latent must be a whole number of at least 4, got 3"):
        text.two_modalities(latent=3)


def test_as_few_pairs_as_each_client_needs_for_a_class():
    """Four fifths of the pairs train, in two modalities: 8/5 of their number for 10 clients with 2 classes each."""
    assert len(text.two_modalities(n_clients=10, classes_per_client=2, n_pairs=14)) == 10
    with pytest.raises(ValueError, match="n_pairs must be enough"):
        text.two_modalities(n_clients=10, classes_per_client=2, n_pairs=12)

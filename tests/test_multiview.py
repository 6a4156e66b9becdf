"""ModelNet40's views and HeriGraph's features, on small twins: what becomes a block, and what is refused."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from hetfl_book.datasets import multiview
from hetfl_book.datasets.multiview import CITIES, HERITAGE_CLASSES, MODELNET_CLASSES
from hetfl_book.experiments import EXPERIMENTS
from hetfl_core import simulate
from hetfl_core.datasets import DataError, registry
from hetfl_core.datasets.blocks import ASSIGNMENTS
from hetfl_core.methods import HyFEM
from hetfl_core.networks import MLP, Blocks, Model

# --- ModelNet40 -----------------------------------------------------------------------------------------------------


def plain(name, view):
    return f"{name}_{view:03d}.png"


def shaded(name, view):
    return f"{name}.obj.shaded_v{view:03d}.png"


def grey(c, i, view, test=False):
    """The grey level of a made picture: it tells class, object and view apart."""
    return c + 40 * i + 7 * view + 3 * test


def draw(path, level, side=4):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (side, side), (level,) * 3).save(path)
    return path


@pytest.fixture(scope="module")
def made_views(tmp_path_factory):
    """Two objects a class for training and one for tests, 4 × 4 pixels of one grey level; both ways of naming files."""
    root = tmp_path_factory.mktemp("views") / "modelnet40"
    for c, name in enumerate(MODELNET_CLASSES):
        called = plain if c % 2 else shaded
        for view in range(1, 13):
            for i in range(2):
                draw(root / name / "train" / called(f"{name}_{i + 1:04d}", view), grey(c, i, view))
            draw(root / name / "test" / called(f"{name}_0099", view), grey(c, 0, view, True))
    (root / ".DS_Store").write_bytes(b"x")
    (root / "README.txt").write_text("not a class")
    (root / "xbox" / "train" / "Thumbs.db").write_bytes(b"x")
    return root


@pytest.fixture
def views(made_views, monkeypatch):
    monkeypatch.setattr(multiview, "fetch", {"modelnet40/views": made_views}.__getitem__)
    return made_views


@pytest.fixture
def one_class(tmp_path, monkeypatch):
    """A folder in which each class has one object in each part; tests spoil the class "cup"."""
    root = tmp_path / "modelnet40"
    first = None
    for name in MODELNET_CLASSES:
        for part in ("train", "test"):
            for view in range(1, 13):
                path = root / name / part / plain(f"{name}_0001", view)
                if first is None:
                    first = draw(path, 9)
                else:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.hardlink_to(first)
    monkeypatch.setattr(multiview, "fetch", {"modelnet40/views": root}.__getitem__)
    return root


def test_the_classes_are_forty_in_the_order_of_the_alphabet():
    assert len(MODELNET_CLASSES) == 40
    assert sorted(MODELNET_CLASSES) == list(MODELNET_CLASSES)
    assert (MODELNET_CLASSES[15], MODELNET_CLASSES[39]) == ("flower_pot", "xbox")


def test_every_view_is_a_block(views):
    fed = multiview.modelnet40(assignment="centralised", resize=2)
    assert fed.name == "multiview.modelnet40"
    assert fed.n_classes == 40
    (one,) = fed
    assert (one.n_train, one.n_test) == (80, 40)
    assert list(one.x_train) == [f"view {view:02d}" for view in range(1, 13)]
    for view in range(1, 13):
        block = one.x_train[f"view {view:02d}"]
        assert block.shape == (80, 1, 2, 2)
        assert block.dtype == torch.float32
        levels = [grey(c, i, view) for c in range(40) for i in range(2)]
        assert torch.allclose(block[:, 0, 1, 1], torch.tensor(levels, dtype=torch.float32) / 127.5 - 1)
        tested = torch.tensor([grey(c, 0, view, True) for c in range(40)], dtype=torch.float32)
        assert torch.allclose(fed.x_test[f"view {view:02d}"][:, 0, 0, 0], tested / 127.5 - 1)
    assert one.y_train.tolist() == np.repeat(np.arange(40), 2).tolist()
    assert fed.info["objects"] == [80, 40]
    assert fed.info["settings"]["views"] == 12
    json.dumps(dict(fed.info))


def test_the_papers_second_setting(views):
    """Eight clients, who hold what the published code says; a block that a client lacks is empty."""
    fed = multiview.modelnet40()
    assert fed.info["unused_cells"] == pytest.approx(58 / 480)
    for client, one in zip(fed, ASSIGNMENTS["modelnet40:2"], strict=True):
        held = [i for i, shape in enumerate(client.shapes.values()) if 0 not in shape]
        assert tuple(held) == one.blocks
        assert tuple(sorted(set(client.y_train.tolist()))) == one.classes
        assert (client.n_train, client.n_test) == (30, 40)
    assert fed.x_test["view 05"].shape == (40, 1, 32, 32), "4 pixels become 32"


def ran(experiment, method):
    """The data that an experiment gives to a method, on which that runs for a round."""
    setting = dataclasses.replace(EXPERIMENTS[experiment].at("book"), rounds=1, evaluate_every=1)
    found = setting.run(method, 0, progress=False, device="cpu")
    assert 0 <= found.final["accuracy"] <= 1
    return found.federation


def test_experiments_on_views_run_once_the_files_are_there(views):
    fed = ran("hyfem/modelnet40-1", "HyFEM")
    assert [len(set(client.y_train.tolist())) for client in fed] == [20] * 4
    assert set.intersection(*({n for n, s in c.shapes.items() if 0 not in s} for c in fed)) == {"view 01", "view 07"}
    assert len(ran("hyfem/modelnet40-1", "centralised")) == 1
    assert list(ran("hyfem/modelnet40-1", "FedProx, common blocks")[0].shapes) == ["view 01", "view 07"]
    assert len(ran("hyfem/modelnet40-2", "FedAvg, zeros")) == 8
    assert len(ran("hyfem/modelnet40-2-mu2", "HyFEM, mu2 0.5")) == 8


@pytest.mark.parametrize(
    ("n", "names"), [(4, ["01", "04", "07", "10"]), (1, ["01"]), (6, ["01", "03", "05", "07", "09", "11"])]
)
def test_fewer_views_are_evenly_spread(views, n, names):
    fed = multiview.modelnet40(assignment="centralised", views=n, resize=1)
    assert list(fed.x_test) == [f"view {name}" for name in names]
    with pytest.raises(ValueError, match=f"blocks of assignment.* must lie in 0…{n - 1}"):
        multiview.modelnet40(views=n)


def test_hyfem_learns_from_views(views):
    """Two clients, who share a view and a half of the classes: the server's model knows all views and classes."""
    halves = [((0, 1), range(30)), ((1, 2), range(10, 40))]
    fed = multiview.modelnet40(assignment=halves, views=3, resize=2)
    method = HyFEM(Model(Blocks.alike(list(fed.x_test), MLP((), 4), 8)), local_epochs=1, batch_size=10, lr=0.01)
    run = simulate(fed, method, rounds=2, device="cpu", progress=False)
    assert {"accuracy", "server_accuracy"} <= set(run.final)


def test_hyfem_learns_from_features(heritage):
    fed = multiview.herigraph(cities=["Suzhou"])
    method = HyFEM(Model(Blocks.alike(list(fed.x_test), MLP((), 4), 8)), local_epochs=1, batch_size=10, lr=0.01)
    run = simulate(fed, method, rounds=1, device="cpu", progress=False)
    assert {"accuracy", "server_accuracy"} <= set(run.final)


def test_the_seed_chooses_fewer_objects(views):
    fed = multiview.modelnet40(seed=3, assignment="centralised", per_class=1, views=1, resize=1)
    (one,) = fed
    assert one.y_train.tolist() == list(range(40))
    other = multiview.modelnet40(seed=4, assignment="centralised", per_class=1, views=1, resize=1)
    assert other.fingerprint() != fed.fingerprint(), "the seed chooses objects"
    again = multiview.modelnet40(seed=3, assignment="centralised", per_class=1, views=1, resize=1)
    assert again.fingerprint() == fed.fingerprint()


def test_validation_reads_no_test_picture(views, monkeypatch):
    asked = []
    true = multiview.read_image
    monkeypatch.setattr(multiview, "read_image", lambda path, *more: asked.append(path) or true(path, *more))
    monkeypatch.setattr("hetfl_core.datasets.blocks.HELD_OUT", 0.5)
    fed = multiview.modelnet40(assignment="centralised", tested_on="validation", views=1, resize=1)
    (one,) = fed
    assert one.y_train.tolist() == one.y_test.tolist() == list(range(40))
    assert len(asked) == 80
    assert {path.parent.name for path in asked} == {"train"}


def test_a_picture_becomes_grey_and_smaller_by_means(views, tmp_path):
    """Of colours the sum that ITU-R 601 defines; of pixels their mean."""
    path = tmp_path / "one.png"
    pixels = np.zeros((4, 4, 3), np.uint8)
    pixels[:2, :2] = [[[0, 0, 0], [200, 200, 200]], [[100, 100, 100], [100, 100, 100]]]
    pixels[:2, 2:] = [255, 0, 0]
    Image.fromarray(pixels).save(path)
    found = multiview.read_image(path, "one", "L", 2)
    assert found.dtype == np.uint8
    assert found.tolist() == [[100, round(0.299 * 255)], [0, 0]]


def test_memory_is_that_of_pictures_in_single_precision(views, memory_asked):
    multiview.modelnet40(assignment="centralised", views=2, resize=5, per_class=1)
    assert memory_asked[0] == 9 * 25 * 2 * (40 + 40)


def test_pictures_that_do_not_fit_are_refused_before_they_are_read(views, monkeypatch):
    monkeypatch.setattr("hetfl_core.checks.available_memory", lambda: 1e6)
    monkeypatch.setattr(multiview, "read_image", lambda *args: pytest.fail("reads"))
    with pytest.raises(ValueError, match=r"views=12, resize=32, per_class=None would need .* GiB"):
        multiview.modelnet40()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            lambda cup: (cup / "train" / "cup_0001_007.png").unlink(),
            r"cup.train: expected 12 views of cup_0001, lacks view 7",
        ),
        (lambda cup: draw(cup / "train" / "cup_0001_013.png", 1), "cup_0001_013.png: expected a picture called"),
        (lambda cup: draw(cup / "train" / "cup_0001_000.png", 1), "cup_0001_000.png: expected a picture called"),
        (lambda cup: draw(cup / "train" / "front.png", 1), "front.png: expected a picture called <object>_001 … _012"),
        (
            lambda cup: draw(cup / "test" / "cup_0001_003.jpg", 1),
            "expected one picture of each view, got cup_0001_003.jpg",
        ),
        (lambda cup: replace(cup / "train" / "cup_0001_001.png", b""), "cup_0001_001.png cannot be read as an image"),
        (
            lambda cup: replace(cup / "test" / "cup_0001_001.png", b"\x89PNG\r\n\x1a\n"),
            "001.png cannot be read as an image",
        ),
        (lambda cup: cut(cup / "train" / "cup_0001_012.png"), "cup_0001_012.png cannot be read as an image"),
        (lambda cup: oblong(cup / "train" / "cup_0001_002.png"), "002.png: expected a square image, got 6 × 4"),
        (lambda cup: cup.rename(cup.with_name("mug")), "mug: expected one folder for each of ModelNet40's classes"),
        (
            lambda cup: cup.rename(cup.parents[1] / "cup"),
            r"modelnet40: expected folders of .* 40 classes, lacks \['cup'\]",
        ),
        (lambda cup: (cup / "test").rename(cup / "tests"), r"cup.test is missing: expected pictures of a class"),
        (lambda cup: empty(cup / "train"), "cup.train: expected pictures of at least one object, got none"),
    ],
)
def test_what_is_not_right_is_named(one_class, spoil, message):
    spoil(one_class / "cup")
    with pytest.raises(DataError, match=message):
        multiview.modelnet40(assignment="centralised", resize=1)


def replace(path, content):
    path.unlink()
    path.write_bytes(content)


def cut(path):
    pixels = np.random.default_rng(0).integers(0, 256, (40, 40), dtype=np.uint8)
    path.unlink()
    Image.fromarray(pixels).save(path)
    path.write_bytes(path.read_bytes()[:900])


def oblong(path):
    path.unlink()
    Image.new("L", (6, 4)).save(path)


def empty(folder):
    for path in folder.iterdir():
        path.unlink()


def test_a_folder_that_is_not_there_is_to_be_placed_by_hand(monkeypatch, tmp_path):
    monkeypatch.setenv("HETFL_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"modelnet40 is missing\. It is placed by hand: unpack what .*modelnet40v1png"):
        multiview.modelnet40()
    assert not registry.available("multiview.modelnet40")


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"views": 5}, "views must divide 12, got 5"),
        ({"views": 24}, "views must be a whole number in 1…12, got 24"),
        ({"resize": 225}, "resize must be .* in 1…224, got 225"),
        ({"assignment": "modelnet40:1"}, "assignment must be one of"),
        ({"assignment": [((12,), (0,))]}, "blocks of assignment.0. must lie in 0…11"),
        ({"assignment": [((0,), (40,))]}, "classes of assignment.0. must lie in 0…39"),
        ({"tested_on": "both"}, "tested_on must be"),
        ({"overlap": 2}, "overlap must"),
    ],
)
def test_bad_arguments_are_refused_before_a_picture_is_sought(monkeypatch, bad, message):
    monkeypatch.setattr(multiview, "fetch", lambda key: pytest.fail(f"reads {key}"))
    with pytest.raises(ValueError, match=message):
        multiview.modelnet40(**bad)


@pytest.mark.realdata("multiview.modelnet40")
def test_the_real_pictures():
    fed = multiview.modelnet40(per_class=2, test_per_class=1, resize=8)
    assert {c.n_train for c in fed} == {30}


# --- HeriGraph ------------------------------------------------------------------------------------------------------


def made_city(seed, n=30, first=0):
    """Tables of a city: pictures in another order in each, every third without text, the last three without class."""
    rng = np.random.default_rng(seed)
    ids = 50_000_000_000 + first + np.arange(n)
    category = np.arange(n) % 9
    labelled = np.arange(n) < n - 3
    labels = pd.DataFrame({"ID": ids})
    for i in range(9):
        labels[f"soft {i}"] = (category == i).astype(float)
    labels["category"] = [HERITAGE_CLASSES[c] if known else None for c, known in zip(category, labelled, strict=True)]
    labels["category_id"] = np.where(labelled, category, -1)
    for name in ("category_vote", "cat_id_vote", "category_stack", "cat_id_stack", "conf", "category_same"):
        labels[name] = 0
    labels["labelled"] = labelled
    visual = pd.DataFrame(rng.normal(size=(n, 982)) * 3 + 1, columns=[f"v{i}" for i in range(982)])
    visual.insert(0, "IO_type", "outdoor")
    visual.insert(0, "ID", ids)
    text = pd.DataFrame(rng.normal(size=(n, 768)) - 2, columns=[f"BERT_{i}" for i in range(768)])
    has = np.arange(n) % 3 != 0
    text[~has] = np.nan
    for name in ("English", "Local_Lang", "Other_Lang"):
        text[name] = np.where(has, 1.0, np.nan)
    head = {"index": ids, "text_bool": has, "revised_text": 'A "bridge"\tof\nstone', "num_sent": 1, "text_len": 4}
    for at, (name, value) in enumerate(head.items()):
        text.insert(at, name, value)
    order = rng.permutation(n)
    return {"Attribute_Labels": labels, "Visual_Features": visual, "Textual_Features": text.iloc[order]}


@pytest.fixture(scope="module")
def made_cities(tmp_path_factory):
    """Three cities with 30 pictures each, Venice-XL with the 30 of Venice and 30 more, and their files."""
    folder = tmp_path_factory.mktemp("herigraph")
    cities = {city: made_city(i, first=100 * i) for i, city in enumerate(CITIES[:3])}
    cities["Venice-XL"] = {
        name: pd.concat([cities["Venice"][name], table], ignore_index=True)
        for name, table in made_city(7, first=700).items()
    }
    paths = {f"herigraph/{city}/{name}": folder / f"{city}-{name}.csv" for city in cities for name in cities[city]}
    for city, tables in cities.items():
        for name, table in tables.items():
            table.to_csv(paths[f"herigraph/{city}/{name}"], sep="\t")
    return cities, paths


def once(read):
    """Features as they are read, each pair of files once: reading a thousand columns takes longer than all else."""
    known = {}

    def features(city, ids):
        files = (multiview.fetch(f"herigraph/{city}/{name}") for name in ("Textual_Features", "Visual_Features"))
        if (key := (*files, ids.tobytes())) not in known:
            known[key] = read(city, ids)
        return known[key]

    return features


FEATURES = once(multiview._features)


class Heritage:
    """Made cities, whose files a test may replace."""

    def __init__(self, cities, paths, folder):
        self.cities, self.paths, self.folder = cities, dict(paths), folder

    def replace(self, city, name, content):
        path = self.folder / f"{city}-{name}.csv"
        self.paths[f"herigraph/{city}/{name}"] = path
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            content.to_csv(path, sep="\t")


@pytest.fixture
def heritage(made_cities, tmp_path, monkeypatch):
    made = Heritage(*made_cities, tmp_path)
    monkeypatch.setattr(multiview, "fetch", lambda key: made.paths[key])
    monkeypatch.setattr(multiview, "_features", FEATURES)
    return made


def where_text_is(x):
    return x["text"].abs().sum(dim=1) > 0


def test_the_experiment_on_herigraph_runs_once_the_files_are_there(heritage):
    assert len(ran("hyfem/herigraph", "HyFEM")) == 6
    assert len(ran("hyfem/herigraph", "centralised")) == 1


def test_four_blocks_of_features(heritage):
    fed = multiview.herigraph(assignment="centralised")
    (one,) = fed
    assert fed.n_classes == 9
    assert {block: tuple(x.shape[1:]) for block, x in one.x_train.items()} == {
        "text": (768,),
        "hidden": (512,),
        "scenes": (365,),
        "attributes": (102,),
    }
    n = 3 * 27 + 54
    assert one.n_train + one.n_test == fed.info["samples_at_hand"] == n, "those without a class are left out"
    assert fed.info["in_two_parts"] == 27
    text = torch.cat([where_text_is(one.x_train), where_text_is(one.x_test)])
    assert fed.info["without_text"] == int((~text).sum()) == n // 3
    for block, x in one.x_train.items():
        assert x.dtype == torch.float32
        rows = x[where_text_is(one.x_train)] if block == "text" else x
        assert torch.allclose(rows.mean(0), torch.zeros(rows.shape[1]), atol=1e-5)
        assert torch.allclose(rows.std(0, correction=0), torch.ones(rows.shape[1]), atol=1e-4)
    json.dumps(dict(fed.info))


def test_rows_of_the_tables_are_matched_by_picture(heritage):
    """The tables have one picture in different places; scaling is undone by what two pictures tell."""
    fed = multiview.herigraph(assignment="centralised", cities=["Suzhou"])
    (one,) = fed
    tables = heritage.cities["Suzhou"]
    true = {
        "hidden": tables["Visual_Features"].iloc[:, 2:514],
        "scenes": tables["Visual_Features"].iloc[:, 517:882],
        "attributes": tables["Visual_Features"].iloc[:, 882:984],
        "text": tables["Textual_Features"].set_index("index").loc[tables["Visual_Features"]["ID"]].iloc[:, 4:772],
    }
    x = {block: torch.cat([one.x_train[block], one.x_test[block]]).double().numpy() for block in true}
    y = torch.cat([one.y_train, one.y_test]).numpy()
    for block, table in true.items():
        values = table.to_numpy(dtype=float)[:27]
        here = np.isfinite(values).all(1)
        got = x[block][np.abs(x["text"]).sum(1) > 0] if block == "text" else x[block]
        labels = y[np.abs(x["text"]).sum(1) > 0] if block == "text" else y
        scaled = (got - got.mean(0)) / got.std(0)
        wanted = (values[here] - values[here].mean(0)) / values[here].std(0)
        order, back = np.argsort(scaled[:, 0]), np.argsort(wanted[:, 0])
        np.testing.assert_allclose(scaled[order], wanted[back], atol=1e-4)
        assert labels[order].tolist() == (np.arange(27)[here] % 9)[back].tolist()


def test_the_split_is_of_pictures_and_no_seed_changes_it(heritage):
    a, b = (multiview.herigraph(seed=seed, assignment="centralised", cities=["Venice", "Venice-XL"]) for seed in (0, 1))
    assert torch.equal(a.x_test["hidden"], b.x_test["hidden"])
    train, test = ({tuple(row) for row in x["hidden"][:, :3].tolist()} for x in (a[0].x_train, a.x_test))
    assert not train & test, "a picture that is in two parts is on one side"
    assert len(train) + len(test) == 54
    assert len(a[0].y_train) + len(a.y_test) == 81
    assert len(test) == 9, "one of six of each class"
    assert set(a.y_test.tolist()) == set(range(9))


def test_samples_without_text_may_be_left_out(heritage):
    fed = multiview.herigraph(assignment="centralised", without_text="drop")
    (one,) = fed
    assert where_text_is(one.x_train).all()
    assert where_text_is(fed.x_test).all()
    assert one.n_train + one.n_test == 90
    assert fed.info["without_text"] == 0


def test_the_assignment_of_the_papers_numbers(heritage):
    fed = multiview.herigraph(seed=2, overlap=0.5, test_per_class=1, cities=("Amsterdam", "Venice-XL"))
    assert len(fed) == 6
    names = ["text", "hidden", "scenes", "attributes"]
    for client, one in zip(fed, ASSIGNMENTS["herigraph"], strict=True):
        assert [n for n in names if 0 not in client.shapes[n]] == [names[b] for b in one.blocks]
        assert set(client.y_train.tolist()) <= set(one.classes)
        assert client.n_test == 9
    settings = fed.info["settings"]
    assert (settings["cities"], settings["overlap"], settings["seed"]) == (["Amsterdam", "Venice-XL"], 0.5, 2)


def test_settings_are_judged_on_training_samples(heritage):
    """Of three training samples of a class in Venice and three in Amsterdam a fifth is one."""
    fed = multiview.herigraph(assignment="centralised", tested_on="validation", per_class=4, cities=CITIES[:2])
    assert np.bincount(fed.y_test).tolist() == [1] * 9
    assert np.bincount(fed[0].y_train).tolist() == [3] * 9


def test_a_picture_in_two_parts_is_on_one_side_for_validation_too(heritage):
    """Both together are the training samples, and what is held out does not tell how features are scaled."""
    call = {"assignment": "centralised", "cities": ["Venice", "Venice-XL"]}
    whole = multiview.herigraph(**call)
    known = whole[0].x_train["hidden"]
    for seed in range(3):
        fed = multiview.herigraph(seed=seed, tested_on="validation", **call)
        (one,) = fed
        train, held_out = ({tuple(row) for row in x["hidden"][:, :3].tolist()} for x in (one.x_train, fed.x_test))
        assert not train & held_out
        assert set(fed.y_test.tolist()) == set(range(9))
        assert float(one.x_train["hidden"].mean(0).abs().max()) < 1e-5
        both = torch.cat([one.x_train["hidden"], fed.x_test["hidden"]])
        both = (both - both.mean(0)) / both.std(0, correction=0)
        assert torch.allclose(both[both[:, 0].argsort()], known[known[:, 0].argsort()], atol=1e-4)
        assert fed.info["settings"]["tested_on"] == "validation"
        text = torch.cat([where_text_is(one.x_train), where_text_is(one.x_test)])
        assert fed.info["without_text"] == int((~text).sum())


def test_a_feature_that_never_changes_is_zero(heritage):
    heritage.replace("Suzhou", "Visual_Features", heritage.cities["Suzhou"]["Visual_Features"].assign(v0=0.25))
    fed = multiview.herigraph(assignment="centralised", cities=["Suzhou"])
    assert (fed.x_test["hidden"][:, 0] == 0).all()


def test_memory_is_that_of_the_features(heritage, memory_asked):
    multiview.herigraph(assignment="centralised", cities=["Suzhou"])
    assert memory_asked[0] == 3 * 4 * 1747 * 27
    assert 768 + 512 + 365 + 102 == 1747


@pytest.mark.parametrize(
    ("name", "spoil", "message"),
    [
        (
            "Visual_Features",
            lambda t: t.drop(columns="v9"),
            "Visual_Features.csv: expected 985 columns, one of them 'ID', got 984",
        ),
        ("Textual_Features", lambda t: t.assign(more=1), "Textual_Features.csv: expected 777 columns, .* got 778"),
        ("Attribute_Labels", lambda t: t.drop(columns="conf"), "Attribute_Labels.csv: expected 20 columns, .* got 19"),
        ("Attribute_Labels", lambda t: t.rename(columns={"ID": "id"}), "expected 20 columns, one of them 'ID'"),
        ("Attribute_Labels", lambda t: t.rename(columns={"labelled": "known"}), "expected columns ID, category, cat"),
        (
            "Attribute_Labels",
            lambda t: t.assign(labelled="perhaps"),
            "expected columns ID, category, category_id, labelled",
        ),
        ("Attribute_Labels", lambda t: t.assign(labelled=False), "expected labelled pictures, each once, got 0"),
        ("Attribute_Labels", lambda t: t.assign(ID=5), "expected labelled pictures, each once, got 27, 1 unlike"),
        (
            "Attribute_Labels",
            lambda t: t.assign(category_id=9),
            "expected a class of HeriGraph for picture 50000000100, got 9",
        ),
        ("Attribute_Labels", lambda t: t.assign(category="form"), "expected a class .* got 0, 'form'"),
        ("Visual_Features", lambda t: t.iloc[1:], "Visual_Features.csv: expected a row for each .* lacks 50000000100"),
        ("Textual_Features", lambda t: t.iloc[:0], "Textual_Features.csv: expected a row for each labelled picture"),
        (
            "Visual_Features",
            lambda t: t.assign(v3="much"),
            "expected numbers in the columns hidden, scenes, attributes",
        ),
        (
            "Visual_Features",
            lambda t: t.assign(v981=np.nan),
            "expected finite attributes of every picture, not so of 50000000100",
        ),
        ("Visual_Features", lambda t: t.assign(v600=np.inf), "expected finite scenes of every picture"),
        ("Textual_Features", lambda t: t.assign(BERT_5=np.inf), "Suzhou.*: expected finite features of texts"),
    ],
)
def test_tables_that_are_not_right_are_named(heritage, name, spoil, message):
    heritage.replace("Suzhou", name, spoil(heritage.cities["Suzhou"][name]))
    with pytest.raises(DataError, match=message):
        multiview.herigraph(assignment="centralised", cities=["Suzhou"])


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b"\x80\x81\t\x82\n"])
@pytest.mark.parametrize("name", ["Attribute_Labels", "Visual_Features", "Textual_Features"])
def test_files_that_are_no_tables_are_named(heritage, name, content):
    heritage.replace("Suzhou", name, content)
    with pytest.raises(DataError, match=f"Suzhou-{name}"):
        multiview.herigraph(assignment="centralised", cities=["Suzhou"])


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"cities": ["Rome"]}, "cities must be one of 'Amsterdam'.* got 'Rome'"),
        ({"cities": []}, r"cities must be different ones, at least one, got \[\]"),
        ({"cities": ["Venice", "Venice"]}, "cities must be different ones"),
        ({"without_text": "mean"}, "without_text must be one of"),
        ({"assignment": [((4,), (0,))]}, "blocks of assignment.0. must lie in 0…3"),
        ({"missing": 1.0}, "missing must"),
    ],
)
def test_bad_arguments_are_refused_before_a_table_is_read(monkeypatch, bad, message):
    monkeypatch.setattr(multiview, "fetch", lambda key: pytest.fail(f"reads {key}"))
    with pytest.raises(ValueError, match=message):
        multiview.herigraph(**bad)


def test_a_city_needs_its_own_files_only(heritage, monkeypatch):
    asked = []
    monkeypatch.setattr(multiview, "fetch", lambda key: asked.append(key) or heritage.paths[key])
    multiview.herigraph(assignment="centralised", cities=["Amsterdam"])
    assert {key.split("/")[1] for key in asked} == {"Amsterdam"}
    assert set(registry.needs("multiview.herigraph")) == {
        f"herigraph/{city}/{name}"
        for city in CITIES
        for name in ("Attribute_Labels", "Textual_Features", "Visual_Features")
    }


@pytest.mark.realdata("multiview.herigraph")
def test_the_real_tables():
    """As many samples as the paper has."""
    fed = multiview.herigraph(per_class=20, test_per_class=5)
    assert fed.info["samples_at_hand"] == 41_621

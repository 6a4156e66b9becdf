import hashlib
import http.server
import io
import os
import pickle
import signal
import threading
import zipfile
from pathlib import Path

import numpy as np
import pooch
import pytest

from hetfl_book.datasets import flic_bci
from hetfl_core.datasets import registry
from hetfl_core.datasets.registry import DataError, Entry, Source, arrays_digest
from hetfl_core.files import data_path
from hetfl_core.plugins import data_sets

CONTENT = b"forty-two bytes of perfectly good data...."


def sha256(content):
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty data folder."""
    folder = tmp_path / "home"
    monkeypatch.setenv("HETFL_DATA", str(folder))
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    return folder


@pytest.fixture
def server():
    """A server on this machine: ``server.files`` maps a path to bytes, ``server.cut`` stops after so many of them."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.server.hits.append(self.path)
            content = self.server.files.get(self.path)
            if content is None:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: self.server.cut])

        def log_message(self, *args):
            pass

    httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    httpd.files, httpd.hits, httpd.cut = {}, [], None
    httpd.url = f"http://127.0.0.1:{httpd.server_port}"
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield httpd
    httpd.shutdown()
    httpd.server_close()
    thread.join()


UNREACHABLE = "http://127.0.0.1:9/file"  # the discard port: nothing listens there


def register(monkeypatch, *, urls=(UNREACHABLE,), accept=(), official=None, convert="", datasets=("made.set",)):
    official = official or Source("set/file.bin", sha256=sha256(CONTENT), bytes=len(CONTENT))
    entry = Entry("set/file", official, tuple(accept), tuple(urls), "CC0", "nobody", tuple(datasets), convert)
    monkeypatch.setattr(registry, "entries", lambda: {"set/file": entry})
    return entry


def put(home, content, name="set/file.bin"):
    path = home / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def all_files(home):
    return sorted(str(p.relative_to(home)) for p in home.rglob("*") if p.is_file()) if home.is_dir() else []


# --- what is there ------------------------------------------------------------------------------------------------


def test_a_right_file_is_used_as_it_is(home, monkeypatch):
    register(monkeypatch)
    path = put(home, CONTENT)
    assert registry.fetch("set/file") == path
    assert registry.verify("set/file") == path
    assert registry.available("made.set")


def test_a_read_only_folder_will_do(home, monkeypatch):
    register(monkeypatch)
    put(home, CONTENT)

    def refuse(*args, **kwargs):
        raise AssertionError("nothing may be written")

    monkeypatch.setattr(registry.tempfile, "mkstemp", refuse)
    monkeypatch.setattr(registry.Path, "mkdir", refuse)
    registry.fetch("set/file")


def test_an_alternative_with_its_own_hash_counts(home, monkeypatch):
    register(monkeypatch, accept=[Source("set/other.bin", sha256=sha256(b"other"))])
    other = put(home, b"other", "set/other.bin")
    assert registry.fetch("set/file") == other
    put(home, b"damaged")
    assert registry.fetch("set/file") == other  # a good alternative beats a damaged official file


def test_md5_serves_where_no_sha256_is_known(home, monkeypatch):
    register(monkeypatch, official=Source("set/file.bin", md5=hashlib.md5(CONTENT).hexdigest()))
    put(home, CONTENT)
    registry.verify("set/file")
    put(home, CONTENT[::-1])
    with pytest.raises(DataError, match="expected md5"):
        registry.verify("set/file")


@pytest.mark.parametrize("call", [registry.fetch, registry.verify])
def test_a_damaged_file_is_named_with_both_hashes_and_left_alone(home, monkeypatch, call):
    register(monkeypatch)
    wrong = CONTENT[:-1] + b"!"
    path = put(home, wrong)
    with pytest.raises(DataError) as caught:
        call("set/file")
    message = str(caught.value)
    for part in ("set/file", str(path), sha256(CONTENT), sha256(wrong), "hetfl data fetch set/file", "Delete"):
        assert part in message
    assert path.read_bytes() == wrong
    assert not registry.available("made.set")


def test_what_git_calls_a_content_serves_where_no_digest_is_known(home, monkeypatch):
    """`git hash-object` of these ten bytes."""
    register(monkeypatch, official=Source("set/file.bin", git="aa5522f7cd3fd6a572cac43fa9e659dcbae8817d"))
    path = put(home, b"Hello, git")
    assert registry.fetch("set/file") == path
    path.write_bytes(b"Hello, git!")
    with pytest.raises(DataError, match="expected git aa5522f7"):
        registry.fetch("set/file")


def test_a_folder_is_placed_by_hand(home, monkeypatch, server):
    register(monkeypatch, urls=(server.url + "/pictures.tar",), official=Source("pictures", folder=True))
    says = rf"set/file: .*pictures is missing\. It is placed by hand: unpack what {server.url}/pictures\.tar gives"
    for call in (registry.fetch, registry.verify):
        with pytest.raises(DataError, match=says):
            call("set/file")
    assert not server.hits
    assert not registry.available("made.set")
    put(home, b"", "pictures")
    with pytest.raises(DataError, match="pictures is no folder"):
        registry.fetch("set/file")
    (home / "pictures").unlink()
    put(home, b"x", "pictures/one.png")
    assert registry.fetch("set/file") == home / "pictures"
    row = registry.status().iloc[0]
    assert (row.present, row.ok, row.bytes) == (True, True, None)


def test_a_truncated_file_is_called_so(home, monkeypatch):
    register(monkeypatch)
    put(home, CONTENT[:10])
    with pytest.raises(DataError, match=f"truncated: expected {len(CONTENT)} bytes, found 10 .*{sha256(CONTENT)}"):
        registry.fetch("set/file")


def test_a_file_that_cannot_be_read_is_an_error(home, monkeypatch):
    register(monkeypatch)
    (home / "set/file.bin").mkdir(parents=True)
    with pytest.raises(DataError, match="cannot be read"):
        registry.fetch("set/file")


def test_missing_is_said_without_going_to_the_network(home, monkeypatch, server):
    register(monkeypatch, urls=[f"{server.url}/file"])
    with pytest.raises(DataError, match=r"file\.bin is missing\..*hetfl data fetch set/file"):
        registry.verify("set/file")
    assert server.hits == []


def test_unknown_keys_get_the_nearest_right_ones():
    with pytest.raises(DataError, match="did you mean mnist/train-images"):
        registry.fetch("mnist/train_image")
    with pytest.raises(DataError, match=r"there is cichocki_mi/A, .*shows all"):
        registry.verify("???")


def test_a_hash_is_computed_once_until_the_file_changes(home, monkeypatch):
    register(monkeypatch)
    path = put(home, CONTENT)
    registry._digest.cache_clear()
    for _ in range(3):
        registry.fetch("set/file")
    assert registry._digest.cache_info().misses == 1
    os.utime(path, ns=(1, 1))
    registry.fetch("set/file")
    assert registry._digest.cache_info().misses == 2


def test_status_tells_present_missing_and_damaged(home, monkeypatch):
    register(monkeypatch, accept=[Source("set/other.bin", sha256=sha256(b"other"))])
    assert registry.status().loc[0].to_dict() == {
        "key": "set/file",
        "path": str(home / "set/file.bin"),
        "present": False,
        "ok": False,
        "bytes": len(CONTENT),
        "licence": "CC0",
    }
    put(home, b"bad")
    assert registry.status().loc[0, ["present", "ok", "bytes"]].tolist() == [True, False, 3]
    put(home, b"other", "set/other.bin")
    row = registry.status().loc[0]
    assert (row.ok, row.path, row.bytes) == (True, str(home / "set/other.bin"), 5)


def test_data_home(monkeypatch, tmp_path):
    monkeypatch.setenv("HETFL_DATA", str(tmp_path / "a" / ".." / "b"))
    assert registry.data_home() == (tmp_path / "b").resolve()
    monkeypatch.delenv("HETFL_DATA")
    assert "hetfl" in str(registry.data_home())


# --- downloads ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("progress", [True, False])
def test_download_then_use(home, monkeypatch, server, progress):
    register(monkeypatch, urls=[f"{server.url}/file"])
    server.files["/file"] = CONTENT
    path = registry.fetch("set/file", progress=progress)
    assert path.read_bytes() == CONTENT
    assert all_files(home) == ["set/file.bin"]
    registry.fetch("set/file")
    assert server.hits == ["/file"]


def test_the_next_address_is_tried(home, monkeypatch, server):
    register(monkeypatch, urls=[UNREACHABLE, f"{server.url}/gone", f"{server.url}/wrong", f"{server.url}/file"])
    server.files.update({"/wrong": b"<html>moved</html>", "/file": CONTENT})
    assert registry.fetch("set/file", progress=False).read_bytes() == CONTENT
    assert all_files(home) == ["set/file.bin"]


def test_no_network_names_the_address_and_what_to_do(home, monkeypatch):
    register(monkeypatch)
    with pytest.raises(DataError) as caught:
        registry.fetch("set/file", progress=False)
    for part in (
        "set/file",
        UNREACHABLE,
        "Is there a network?",
        sha256(CONTENT),
        str(home / "set/file.bin"),
        "HETFL_DATA",
    ):
        assert part in str(caught.value)
    assert all_files(home) == []


def test_a_wrong_download_is_refused_and_leaves_nothing(home, monkeypatch, server):
    register(monkeypatch, urls=[f"{server.url}/file"])
    wrong = server.files["/file"] = CONTENT.upper()
    with pytest.raises(DataError, match=f"expected sha256 {sha256(CONTENT)}, found {sha256(wrong)}"):
        registry.fetch("set/file", progress=False)
    assert all_files(home) == []


def test_a_connection_that_breaks_off_leaves_nothing(home, monkeypatch, server):
    register(monkeypatch, urls=[f"{server.url}/file"])
    server.files["/file"], server.cut = CONTENT, 10
    with pytest.raises(DataError, match="could not be downloaded"):
        registry.fetch("set/file", progress=False)
    assert all_files(home) == []


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_an_interrupted_download_leaves_nothing(home, monkeypatch, failure):
    register(monkeypatch)

    def half(self, url, path, pooch):
        with open(path, "wb") as file:
            file.write(CONTENT[:20])
        raise failure

    monkeypatch.setattr(pooch.HTTPDownloader, "__call__", half)
    expected = KeyboardInterrupt if isinstance(failure, KeyboardInterrupt) else DataError
    with pytest.raises(expected) as caught:
        registry.fetch("set/file")
    assert all_files(home) == []
    if expected is DataError:
        assert "No space left on device" in str(caught.value)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_what_a_killed_download_leaves_goes_with_the_next(home, monkeypatch):
    register(monkeypatch)

    def killed(self, url, path, pooch):
        with open(path, "wb") as file:
            file.write(CONTENT[:20])
        os.kill(os.getpid(), signal.SIGKILL)

    with monkeypatch.context() as patch:
        patch.setattr(pooch.HTTPDownloader, "__call__", killed)
        child = os.fork()
        if child == 0:
            registry.fetch("set/file", progress=False)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert [path.name[-4:] for path in home.rglob("*") if path.is_file()] == [".tmp"]
    monkeypatch.setattr(
        pooch.HTTPDownloader, "__call__", lambda self, url, path, pooch: Path(path).write_bytes(CONTENT)
    )
    path = registry.fetch("set/file", progress=False)
    assert [found for found in home.rglob("*") if found.is_file()] == [path]


def test_a_folder_that_cannot_be_written_to(home, monkeypatch):
    register(monkeypatch)
    home.write_text("a file where the folder should be")
    with pytest.raises(DataError, match=r"cannot write to .*HETFL_DATA"):
        registry.fetch("set/file")


# --- the registry file --------------------------------------------------------------------------------------------


def test_the_registry_is_complete():
    for key, entry in registry.entries().items():
        assert entry.urls, key
        assert entry.licence, key
        assert entry.citation, key
        assert set(entry.datasets) <= set(data_sets()), key
        for source in (entry.official, *entry.accept):
            kind, value = source.check
            assert len(value) == {"md5": 32, "git": 40, "folder": 0}.get(kind, 64), key
            assert not os.path.isabs(source.path), key


def test_a_table_with_rows_stands_for_one_file_a_row():
    shared = {
        "path": "set/{part}-{n}.bin",
        "urls": ["https://a.example/{n}", "https://b.example/{part}"],
        "accept": [{"path": "set/{part}-{n}.gz", "sha256": "{gz}"}],
        "licence": "CC0",
    }
    rows = [{"part": "train", "n": 0, "gz": "ab", "bytes": 5}, {"part": "test", "n": 7, "gz": "cd", "bytes": 6}]
    tables = dict(registry._each("set/{part}/{n}", {**shared, "each": rows}))
    assert list(tables) == ["set/train/0", "set/test/7"]
    second = tables["set/test/7"]
    assert second["path"] == "set/test-7.bin"
    assert second["urls"] == ["https://a.example/7", "https://b.example/test"]
    assert second["accept"] == [{"path": "set/test-7.gz", "sha256": "cd"}]
    assert second["bytes"] == 6
    assert registry._each("set/{odd}", shared) == [("set/{odd}", shared)]  # no rows: braces mean nothing


def test_needs_names_the_files_of_a_data_set():
    assert len(registry.needs("digits.mnist_usps")) == 6
    assert registry.needs("flic_bci.common40") == ["flic/bci_common40"]
    assert len(registry.needs("femnist.digits")) == 40
    assert registry.needs("digits.bundled") == []
    assert registry.available("digits.bundled")  # nothing to download


@pytest.mark.parametrize("ask", [registry.needs, registry.available])
def test_a_data_set_that_is_not_there_is_refused_by_name(ask):
    with pytest.raises(DataError, match=r"no data set is called 'digits\.bundeld'; did you mean digits\.bundled"):
        ask("digits.bundeld")
    for wrong in (3, None, ["digits.bundled"]):
        with pytest.raises(DataError, match="no data set is called"):
            ask(wrong)


@pytest.mark.parametrize("ask", [registry.lookup, registry.fetch, registry.verify])
@pytest.mark.parametrize("key", [3, None, ["usps/train"]])
def test_a_key_that_is_no_text_is_refused(ask, key):
    with pytest.raises(DataError, match="no data file is called"):
        ask(key)


def test_every_data_set_has_a_card():
    cards = data_path("registry.toml").parent / "cards"
    if not cards.is_dir():
        pytest.skip(f"needs a checkout: an installed wheel carries no {cards}")
    form = "a title `# Data card: `name`` and paragraphs that begin with **What.**, **Origin.** and **Caveats.**"
    for name in data_sets():
        card = cards / f"{name}.md"
        assert card.is_file(), f"{name} stands in the catalogue: write data/cards/{name}.md, {form}"
        text = card.read_text("utf8")
        parts = [f"# Data card: `{name}`", *(f"**{part}" for part in ("What.", "Origin.", "Caveats."))]
        lacking = [part for part in parts if part not in text]
        assert not lacking, f"data/cards/{name}.md lacks {', '.join(lacking)}; wanted is {form}"


def test_every_real_file_that_is_there_is_right():
    files = registry.status()
    if not files.present.any():
        pytest.skip(f"needs the real files of the registry in HETFL_DATA (now {registry.data_home()})")
    assert files[files.present & ~files.ok].empty


def test_the_files_of_cifar_10_are_the_archive_or_the_part_that_stands_in_for_it():
    train, test = (registry.lookup(f"cifar10/{part}") for part in ("train", "test"))
    assert registry.needs("pooled.cifar10") == ["cifar10/train", "cifar10/test"]
    assert train.official == test.official
    assert [entry.usable[1].path for entry in (train, test)] == [
        "cifar10/train_first900_per_class.bin.xz",
        "cifar10/test.bin.xz",
    ]
    assert registry.needs("pooled.cifar100") == ["cifar100/archive"]
    assert registry.needs("pooled.emnist_letters") == ["emnist/archive"]
    assert registry.needs("pooled.fashion_mnist") == registry.needs("images.fashion_mnist")


@pytest.mark.realdata("flic_bci.common40")
def test_the_plain_bci_file_is_the_one_of_the_manifest():
    content = registry.fetch("flic/bci_common40").read_bytes()
    assert sha256(content) == "a1ed4de71d47adacc29d9d1085d2bb8a92fc57d287c6348dc2420968efb5e223"


# --- the digest of arrays -----------------------------------------------------------------------------------------


def test_arrays_digest_ignores_packing_and_nothing_else(tmp_path):
    a, b, c, d = (tmp_path / f"{n}.npz" for n in "abcd")
    x, y = np.arange(6.0).reshape(2, 3), np.array(["p", "q"])
    np.savez(a, x=x, y=y)
    np.savez_compressed(b, y=y, x=x)
    np.savez(c, x=x.reshape(3, 2), y=y)
    np.savez(d, x=x.astype(np.float32), y=y)
    assert arrays_digest(a) == arrays_digest(b)
    assert len({arrays_digest(p) for p in (a, c, d)}) == 3


def test_arrays_digest_unpickles_nothing(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, x=np.array([{"an": "object"}], dtype=object))
    assert arrays_digest(path) == "no plain .npz"
    path.write_bytes(b"rubbish")
    assert arrays_digest(path) == "no plain .npz"


# --- the published pickle -----------------------------------------------------------------------------------------


def made_users(n=40, d=6):
    """Data of the shape of the published file."""
    rng = np.random.default_rng(0)

    def part(rows):
        return rng.normal(size=(rows, d)), rng.integers(0, 2, rows).astype(float)

    user = {i: [*part(4 + i % 3), *part(2)] for i in range(n)}
    meta = {i: {"code": "Zhou 2016" if i % 2 else "Weibo 2014", "subject": 1 + i // 2} for i in range(n)}
    return user, meta


def save_pickled(path, **content):
    """As the published script saves: ``np.savez`` of dicts."""
    np.savez(path, **{name: np.array(value, dtype=object) for name, value in content.items()})
    with zipfile.ZipFile(path) as archive:
        names = set(archive.namelist())
    assert {f"{n}.npy" for n in content} <= names
    return path


def test_convert_gives_the_arrays_value_for_value(tmp_path):
    user, meta = made_users()
    flic_bci.convert(save_pickled(tmp_path / "users.npz", user=user, meta_info=meta), tmp_path / "plain.npz")
    with np.load(tmp_path / "plain.npz", allow_pickle=False) as plain:
        assert len(plain.files) == 4 * 40 + 2
        for i in range(40):
            for part, expected in zip(("x_train", "y_train", "x_test", "y_test"), user[i]):
                np.testing.assert_array_equal(plain[f"{part}_{i:02d}"], expected)
        assert plain["y_test_07"].dtype == np.int64
        assert plain["dataset"][:2].tolist() == ["Weibo 2014", "Zhou 2016"]
        assert plain["subject"].tolist() == [1 + i // 2 for i in range(40)]


def save_as_numpy_did(path, core, **content):
    """An .npz of objects pickled by protocol 3, with the module names of NumPy 1 (numpy.core) or 2 (numpy._core)."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, value in content.items():
            array = np.array(value, dtype=object)
            header = io.BytesIO()
            np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(array))
            raw = pickle.dumps(array, 3)
            for other in (b"numpy._core", b"numpy.core"):
                raw = raw.replace(b"c" + other + b".", b"c" + core + b".")
            archive.writestr(f"{name}.npy", header.getvalue() + raw)
    return path


def test_pickles_of_numpy_1_and_2_are_read(tmp_path):
    user, meta = made_users()
    meta[0]["subject"] = np.int64(1)  # a NumPy scalar, another name to admit
    digests = []
    for core in (b"numpy.core", b"numpy._core"):
        path = save_as_numpy_did(tmp_path / "users.npz", core, user=user, meta_info=meta)
        assert core + b".multiarray" in path.read_bytes()
        flic_bci.convert(path, tmp_path / "plain.npz")
        digests.append(arrays_digest(tmp_path / "plain.npz"))
    flic_bci.convert(save_pickled(tmp_path / "now.npz", user=user, meta_info=meta), tmp_path / "plain.npz")
    assert {arrays_digest(tmp_path / "plain.npz")} == set(digests)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_containers_and_arrays_pass(protocol):
    value = {"a": [np.arange(3), np.float64(2.5), (1, "x", None, True)], 1: {2, 3}}
    if protocol == 2:  # byte strings go through _codecs there, which is not on the list
        with pytest.raises(pickle.UnpicklingError, match="refused"):
            loads(pickle.dumps(value, protocol))
        return
    back = loads(pickle.dumps(value, protocol))
    np.testing.assert_array_equal(back["a"][0], np.arange(3))
    assert back["a"][1:] == value["a"][1:]
    assert back[1] == {2, 3}


def loads(content):
    return flic_bci.PlainUnpickler(io.BytesIO(content)).load()


class Malicious:
    """Unpickles to a call."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("hidden", [False, True])
def test_a_malicious_pickle_is_refused_before_it_runs(tmp_path, hidden):
    victim = tmp_path / "victim"
    command = f"touch {victim}"
    evil = Malicious(os.system, command)
    user, meta = made_users()
    if hidden:
        user[3][0] = evil
    else:
        user = evil
    path = save_pickled(tmp_path / "users.npz", user=user, meta_info=meta)
    with pytest.raises(DataError, match=r"refused to load (posix|nt)\.system"):
        flic_bci.convert(path, tmp_path / "plain.npz")
    assert not victim.exists()
    assert not (tmp_path / "plain.npz").exists()
    np.load(path, allow_pickle=True)["user"]  # the same pickle does its mischief elsewhere: the test can fail
    assert victim.exists()


@pytest.mark.parametrize("function", [eval, getattr, __import__, open])
def test_builtins_that_could_harm_are_refused(function):
    with pytest.raises(pickle.UnpicklingError, match="refused to load"):
        loads(pickle.dumps(Malicious(function, "x", "y")))


def fewer(user, meta):
    user.pop(39)


def wider(user, meta):
    user[2][0] = np.zeros((4, 7))


def longer(user, meta):
    user[2][1] = np.zeros(99)


def wrong_label(user, meta):
    user[5][3][0] = 7


def not_finite(user, meta):
    user[5][2][0, 0] = np.nan


def short_list(user, meta):
    user[1].pop()


def no_code(user, meta):
    meta[1] = {"subject": 1}


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (fewer, "expected user for clients 0…39, got 39 keys"),
        (wider, r"client 2: expected features \(n, 6\).*got \(4, 7\)"),
        (longer, r"client 2: expected .* got .* and \(99,\)"),
        (wrong_label, "client 5: expected labels 0…4"),
        (not_finite, "client 5: expected .* finite features"),
        (short_list, r"client 1: expected \[x_train"),
        (no_code, "expected meta_info to give code and subject"),
    ],
)
def test_a_pickle_of_another_layout_is_refused(tmp_path, spoil, message):
    user, meta = made_users()
    spoil(user, meta)
    path = save_pickled(tmp_path / "users.npz", user=user, meta_info=meta)
    with pytest.raises(DataError, match=message):
        flic_bci.convert(path, tmp_path / "plain.npz")
    assert not (tmp_path / "plain.npz").exists()


def test_an_npz_without_users_is_refused(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros(3))
    with pytest.raises(DataError, match="expected user and meta_info"):
        flic_bci.convert(tmp_path / "a.npz", tmp_path / "plain.npz")
    (tmp_path / "b.npz").write_bytes(b"no zip at all")
    with pytest.raises(DataError, match="cannot be read"):
        flic_bci.convert(tmp_path / "b.npz", tmp_path / "plain.npz")


@pytest.fixture
def pickled(tmp_path, monkeypatch, server):
    """A registry whose one file is such a pickle, to be converted."""
    user, meta = made_users()
    content = save_pickled(tmp_path / "users.npz", user=user, meta_info=meta).read_bytes()
    flic_bci.convert(tmp_path / "users.npz", tmp_path / "plain.npz")
    server.files["/users.npz"] = content
    register(
        monkeypatch,
        urls=[f"{server.url}/users.npz"],
        official=Source("set/users.npz", sha256=sha256(content), bytes=len(content)),
        accept=[Source("set/plain.npz", arrays=arrays_digest(tmp_path / "plain.npz"))],
        convert="hetfl_book.datasets.flic_bci:convert",
    )
    return content


def test_a_downloaded_pickle_is_kept_only_as_plain_arrays(home, pickled):
    path = registry.fetch("set/file", progress=False)
    assert path == home / "set/plain.npz"
    assert all_files(home) == ["set/plain.npz"]
    assert registry.verify("set/file") == path


def test_a_pickle_in_the_folder_is_converted_once_its_hash_is_right(home, pickled, server):
    put(home, pickled, "set/users.npz")
    assert registry.fetch("set/file") == home / "set/plain.npz"
    assert server.hits == []


def test_a_pickle_with_a_wrong_hash_is_never_opened(home, pickled, monkeypatch):
    def opened(*args):
        raise AssertionError("opened")

    monkeypatch.setattr(flic_bci, "PlainUnpickler", opened)
    put(home, pickled[:-1] + b"!", "set/users.npz")
    with pytest.raises(DataError, match="not the right file"):
        registry.fetch("set/file")
    assert all_files(home) == ["set/users.npz"]


def test_a_conversion_with_another_result_is_refused(home, pickled, monkeypatch):
    monkeypatch.setattr(flic_bci, "convert", lambda original, target: target.write_bytes(b"something else"))
    with pytest.raises(DataError, match="not as expected"):
        registry.fetch("set/file", progress=False)
    assert all_files(home) == []

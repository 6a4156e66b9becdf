"""What all tests share: where the real data files are, one thread, and a hypothesis profile without deadlines."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
if "HETFL_DATA" not in os.environ and SHARED.is_dir():
    os.environ["HETFL_DATA"] = str(SHARED)
os.environ.setdefault("OMP_NUM_THREADS", "1")  # as `make test` has it: OpenBLAS adds in another order with more

from hetfl_core import numerics  # noqa: E402

numerics.hold()  # before torch is imported: what the tests compute is what records were computed with

import torch  # noqa: E402
from hypothesis import settings  # noqa: E402

from hetfl_core.datasets import registry  # noqa: E402

torch.set_num_threads(1)
settings.register_profile("hetfl", deadline=None, max_examples=50, derandomize=True)
settings.load_profile("hetfl")


def pytest_configure() -> None:
    """Ctrl-C works in what tests start, also where a shell runs them in the background and ignores it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        with suppress(ValueError):  # not in the main thread
            signal.signal(signal.SIGINT, signal.default_int_handler)


FIRST = ("flower", "repository", "recipes", "contributing", "building", "assignments", "grading", "browser")
"""Files whose tests last long and mostly wait: of several processes, the others have something to do meanwhile."""


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files in `FIRST`; what needs a browser or files that a fresh clone lacks is nightly by itself."""
    for item in items:
        if item.get_closest_marker("browser") or item.get_closest_marker("realdata"):
            item.add_marker("nightly")
    places = {f"test_{name}": place for place, name in enumerate(FIRST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(FIRST)))


@pytest.fixture(autouse=True, scope="module")
def no_file_of_tests_draws_in_the_style_of_another() -> Iterator[None]:
    """Pages call `plots.use_style`, which holds for the process: what a test runs of them would change other tests."""
    yield
    if (matplotlib := sys.modules.get("matplotlib")) is not None:
        matplotlib.rcdefaults()


@pytest.fixture
def memory_asked(monkeypatch) -> list[float]:
    """Bytes that `checks.memory` was asked for, call after call; nothing is refused."""
    asked: list[float] = []
    monkeypatch.setattr("hetfl_core.checks.memory", lambda n_bytes, **sizes: asked.append(n_bytes))
    return asked


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test marked ``cuda`` without a GPU, and one marked ``realdata`` where files are missing, saying which.

    ``@pytest.mark.realdata("flic_bci.common40")`` needs the files of the named data sets only.
    """
    if item.get_closest_marker("cuda") and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    marker = item.get_closest_marker("realdata")
    if marker is None:
        return
    entries = registry.entries().values()
    datasets = marker.args or sorted({name for entry in entries for name in entry.datasets})
    missing = [name for name in datasets if not registry.available(name)]
    if missing:
        pytest.skip(f"needs the real files of {', '.join(missing)} in HETFL_DATA (now {registry.data_home()})")


@pytest.fixture(scope="session")
def context():
    """A browser, one for all tests: a second one in the same process would find the first one's loop running."""
    from test_browser import DESK, FLAGS, chromium

    api = pytest.importorskip("playwright.sync_api")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
        yield browser.new_context(viewport=DESK)
        browser.close()


@pytest.fixture
def on_phone(context, tmp_path):
    """A function that shows some HTML on a phone, and gives the page."""
    pages = []

    def shown(markup: str):
        (tmp_path / "figure.html").write_text(f"<!doctype html><meta charset='utf-8'>{markup}", "utf8")
        page = context.new_page()
        pages.append(page)
        page.set_viewport_size({"width": 390, "height": 844})
        page.goto((tmp_path / "figure.html").as_uri())
        return page

    yield shown
    for page in pages:
        page.close()

"""Every page of the built book in headless Chromium, with the network cut.

They need a built book (`make book`) and a Chromium, and skip where one of them is missing; with HETFL_REQUIRE_BOOK=1,
as in `.ci/run`, that is a failure.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

import pytest

HTML = Path(__file__).resolve().parents[1] / "book" / "_build" / "html"
PAGES = sorted(p.relative_to(HTML).as_posix() for p in HTML.rglob("*.html") if "_static" not in p.parts)
FLAGS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
]
BROWSERS = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"]
PHONE, DESK = {"width": 390, "height": 844}, {"width": 1280, "height": 900}

pytestmark = pytest.mark.browser


def missing(what: str) -> None:
    """Skip, or fail where these tests are required."""
    if os.environ.get("HETFL_REQUIRE_BOOK"):
        pytest.fail(what)
    pytest.skip(what)


def chromium() -> str:
    """Path of a Chromium: HETFL_BROWSER, or one of the usual names."""
    names = [
        os.environ.get("HETFL_BROWSER", ""),
        "chromium",
        "chromium-browser",
        "google-chrome",
        "google-chrome-stable",
    ]
    found = next((path for n in names if n and (path := shutil.which(n))), None)
    if not found:
        missing("no Chromium was found: install the package 'chromium', or set HETFL_BROWSER to a Chromium or Chrome")
    return str(found)


class Quiet(SimpleHTTPRequestHandler):
    """A file server that does not log."""

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture(scope="session")
def site() -> Iterator[str]:
    """The built book on a local server; its address."""
    if not (HTML / "index.html").exists():
        missing("there is no built book: run 'make book' first")
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(HTML))) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture(scope="session")
def context():
    api = pytest.importorskip("playwright.sync_api")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
        yield browser.new_context(viewport=DESK)
        browser.close()


class Visit:
    """A browser tab that notes what goes wrong, and what it asks for that is not the book: it finds no other host.

    Requests are watched, not intercepted: that would switch the browser's cache off, and each page load MathJax anew.
    """

    def __init__(self, context, site: str) -> None:
        self.site = site
        self.page = context.new_page()
        self.outside: list[str] = []
        self.errors: list[str] = []
        self.lost: list[str] = []
        self.page.on("request", self.note)
        self.page.on("console", lambda m: m.type == "error" and self.errors.append(m.text))
        self.page.on("pageerror", lambda e: self.errors.append(str(e)))
        self.page.on("response", lambda r: r.status >= 400 and self.lost.append(r.url))

    def note(self, request) -> None:
        if not request.url.startswith((self.site, "data:", "blob:")):
            self.outside.append(request.url)

    def open(self, path: str):
        self.page.goto(self.site + path, wait_until="load")
        self.page.evaluate("async () => { await window.MathJax?.startup?.promise; await document.fonts.ready }")
        return self.page


@pytest.fixture(scope="session")
def tab(site: str, context) -> Visit:
    """The one that all tests share: a process of its own for each page would cost more than the pages do."""
    return Visit(context, site)


@pytest.fixture
def visit(tab: Visit) -> Visit:
    """The tab as a reader on a desk opens it, with nothing noted."""
    tab.page.goto("about:blank")
    tab.page.set_viewport_size(DESK)
    for notes in (tab.outside, tab.errors, tab.lost):
        notes.clear()
    return tab


RAW_MATHS = r"""() => {
    const copy = (document.querySelector("article") || document.body).cloneNode(true);
    copy.querySelectorAll("pre, code, script, style, mjx-container").forEach(e => e.remove());
    return copy.textContent.match(/\\\(|\\\)|\\\[|\\\]|\$\$|\\begin\{|\$[A-Za-z\\][^$\n]{0,40}\$/g) || [];
}"""

UNRENDERED = """() => [...document.querySelectorAll("article .math")]
    .filter(e => !e.querySelector("mjx-container") || e.querySelector("mjx-merror, [data-mjx-error]"))
    .map(e => e.textContent)"""

TOO_WIDE = """() => document.documentElement.scrollWidth"""

WITHOUT_ALT = """() => [...document.querySelectorAll("article img")]
    .filter(e => !e.alt.trim() || /^(\\.\\.\\/)*_images/.test(e.alt)).map(e => e.src)"""

LINKS = """() => [...document.querySelectorAll("a[href], link[href], img[src], script[src]")]
    .map(e => e.getAttribute("href") ? e.href : e.src)"""


@pytest.mark.parametrize("path", PAGES or [pytest.param("index.html", id="book")])
def test_page(visit: Visit, path: str) -> None:
    """One visit a page: nothing asked of the network, nothing missing, maths set, readable on desk and phone."""
    page = visit.open(path)
    assert page.title().strip()
    assert page.evaluate(UNRENDERED) == []
    assert page.evaluate(RAW_MATHS) == []
    assert page.evaluate(WITHOUT_ALT) == [], "pictures without alt text"
    assert dead_links(visit.site, path, page.evaluate(LINKS)) == []
    assert page.evaluate(TOO_WIDE) <= DESK["width"] + 1
    buttons_lead_somewhere(visit, Path(path).stem if "/" not in path else "", page.evaluate(BUTTONS))
    page.set_viewport_size(PHONE)
    page.wait_for_timeout(50)
    assert page.evaluate(TOO_WIDE) <= PHONE["width"] + 1
    assert visit.outside == [], "the page asks the network for something"
    assert visit.lost == []
    assert visit.errors == []


BUTTONS = "[...document.querySelectorAll('.article-header-buttons a')].map(a => a.href)"


@functools.cache
def repository() -> str:
    """The project's address, as the book has it; "" where none is set."""
    root = HTML.parents[2]
    spec = importlib.util.spec_from_file_location("hetfl_book", root / "book" / "_ext" / "hetfl_book.py")
    extension = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(extension)
    return str(extension.repository())


def buttons_lead_somewhere(visit: Visit, page: str, buttons: list[str]) -> None:
    """A chapter's buttons open the very notebook; where no address is known, none leads out of the book."""
    chapters = [p.stem for p in (HTML.parents[1]).glob("*.ipynb")]
    assert chapters
    if page not in chapters:
        return
    links = [link for link in buttons if not link.startswith(visit.site)]
    address = repository()
    name = address.removeprefix("https://github.com/")
    if name in ("", address):
        assert [link for link in links if not (address and link.startswith(address))] == []
        return
    assert f"https://colab.research.google.com/github/{name}/blob/main/book/{page}.ipynb" in links
    assert f"https://mybinder.org/v2/gh/{name}/main?urlpath=lab/tree/book/{page}.ipynb" in links
    assert (HTML / "_sources" / f"{page}.ipynb").exists(), "the download button's file"


def dead_links(site: str, path: str, links: list[str]) -> list[str]:
    """Links into the book whose file or place on the page is not there."""
    dead = []
    for link in {link for link in links if link.startswith(site)}:
        address, place = urldefrag(link)
        file = HTML / (unquote(urlsplit(address).path).lstrip("/") or "index.html")
        if not file.is_file() or (place and file.suffix == ".html" and unquote(place) not in ids(file)):
            dead.append(link)
    return dead


@functools.cache
def ids(file: Path) -> set[str]:
    """All ids of a page."""
    return set(re.findall(r'\bid="([^"]+)"', file.read_text("utf8")))


def test_what_a_page_asks_of_others_is_noted_and_not_found(visit: Visit) -> None:
    page = visit.open("bibliography.html")
    assert visit.outside == []
    page.evaluate("document.body.append(Object.assign(new Image(), {src: 'http://elsewhere.example/picture.png'}))")
    page.wait_for_function("[...document.images].at(-1).complete")
    assert visit.outside == ["http://elsewhere.example/picture.png"]
    assert page.evaluate("[...document.images].at(-1).naturalWidth") == 0
    assert any("ERR_NAME_NOT_RESOLVED" in error for error in visit.errors), visit.errors


def test_maths_was_there_to_be_set(visit: Visit) -> None:
    page = visit.open("notation.html")
    assert page.locator("mjx-container").count() > 30
    assert page.evaluate("document.fonts.check('1em MJXTEX')")


def test_solutions_toggle(visit: Visit) -> None:
    path = next(p for p in PAGES if "solution dropdown" in (HTML / p).read_text("utf8"))
    page = visit.open(path)
    solution = page.locator(".solution.dropdown").first
    inside = solution.locator(".section, p:not(.admonition-title), div").last
    assert not inside.is_visible()
    solution.locator(".toggle-button").click()
    inside.wait_for(state="visible")


def test_figures_move(visit: Visit) -> None:
    """The slider changes the picture and what stands beside it; "play" begins at the first and ends at the last."""
    moving = [p for p in PAGES if '<figure class="moving"' in (HTML / p).read_text("utf8")]
    assert moving, "no page has a figure that moves"
    for path in moving:
        page = visit.open(path)
        figure = page.locator("figure.moving").first
        slider, shown = figure.locator("input"), figure.locator(".step:not([hidden])")
        picture = shown.locator("img").last
        last = int(slider.get_attribute("max") or 0)
        assert shown.count() == 1
        still, end = picture.get_attribute("src"), figure.locator(".step img").last.get_attribute("src")
        slider.evaluate("e => { e.value = 1; e.dispatchEvent(new Event('input')) }")
        assert shown.count() == 1
        assert picture.get_attribute("src") != still
        assert figure.locator("output").inner_text() == shown.get_attribute("data-label")
        slider.evaluate("(e, last) => { e.value = last - 1; e.dispatchEvent(new Event('input')) }", last)
        figure.locator("button").click()
        page.wait_for_function("e => e.value == e.max", arg=slider.element_handle())
        assert picture.get_attribute("src") == end


def test_search_finds_anchor(visit: Visit) -> None:
    page = visit.open("search.html?q=anchor")
    page.wait_for_selector("#search-results li a")
    found = page.locator("#search-results li a").all_inner_texts()
    assert "Notation" in found
    assert visit.outside == []


def test_dark_theme_can_be_chosen(visit: Visit) -> None:
    page = visit.open("index.html")
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before

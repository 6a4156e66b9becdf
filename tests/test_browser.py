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
from html import unescape
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlencode, urljoin, urlsplit

import matplotlib.pyplot as plt
import pytest
from test_part_one import TAUGHT

from hetfl_book.figures.moving import moving

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
PHONE, DESK, PAPER = {"width": 390, "height": 844}, {"width": 1280, "height": 900}, {"width": 718, "height": 1000}
REFERENCE = [p for p in PAGES if "generated/" in p]
CHAPTERS = [p for p in PAGES if '<div class="cell' in (HTML / p).read_text("utf8") and "/" not in p]
SCRIPTS_MOST = 1_800_000  # bytes, uncompressed

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

SEEN = r"""() => {
    const top = e => e.getBoundingClientRect().top + scrollY;
    const visible = e => e.checkVisibility();
    const codes = [...document.querySelectorAll("article .cell_input pre")].filter(visible);
    const figures = [...document.querySelectorAll("article figure, article .guide")].filter(visible);
    const images = [...document.querySelectorAll("article img")].filter(visible);
    const first = figures.length ? top(figures[0]) : null;
    const before = codes.filter(e => first === null || top(e) < first);
    const height = document.documentElement.scrollHeight;
    const own = images.filter(e => !/^data:/.test(e.getAttribute("src")));
    return {
        first,
        imports: before.filter(e => /^(import|from)\s/m.test(e.textContent)).length,
        exercises: [...document.querySelectorAll("article .exercise")].map(e => top(e) / height),
        long: codes.flatMap(e => e.textContent.split("\n")).filter(l => l.length > 84),
        tall: images.map(e => e.getBoundingClientRect().height).filter(h => h > 801),
        shrunk: own.filter(e => e.getBoundingClientRect().width < 0.75 * Math.min(
            e.getAttribute("width"), e.closest("article").clientWidth)).map(e => e.alt.slice(0, 60)),
        formulas: [...document.querySelectorAll("mjx-container[tabindex], mjx-container [tabindex]")]
            .filter(e => e.scrollWidth <= e.clientWidth + 1).length,
        assistive: document.querySelectorAll("mjx-container").length
            - document.querySelectorAll("mjx-container mjx-assistive-mml").length,
        scripts: performance.getEntriesByType("resource").filter(e => /\.js(\?|$)/.test(e.name))
            .reduce((bytes, e) => bytes + e.decodedBodySize, 0),
    };
}"""

WITHOUT_KEYBOARD = """() => [...document.querySelectorAll("article *")].filter(e => e.checkVisibility()
    && ["auto", "scroll"].includes(getComputedStyle(e).overflowX) && getComputedStyle(e).display != "inline"
    && e.scrollWidth > e.clientWidth + 1 && e.clientWidth > 0
    && e.tabIndex < 0 && !e.querySelector("a[href], button, input, summary, [tabindex='0']")
    ).map(e => e.outerHTML.slice(0, 80))"""

CLIPPED = """() => [...document.querySelectorAll("article *")].filter(e => e.checkVisibility()
    && !e.closest("mjx-container, svg") && e.clientWidth > 0
    && (e.getBoundingClientRect().right > innerWidth + 1
        || (getComputedStyle(e).overflowX != "visible" && getComputedStyle(e).display != "inline"
            && e.scrollWidth > e.clientWidth + 1)))
    .map(e => e.outerHTML.slice(0, 100))"""

OPEN_SOLUTIONS = """() => [...document.querySelectorAll("article .solution.dropdown")]
    .filter(e => [...e.querySelectorAll("p:not(.admonition-title), pre")].some(x => x.checkVisibility())).length"""

HYPHENS = """() => {
    const apart = "pre, code, script, style, svg, mjx-container, .sig";
    return [...document.querySelectorAll(`article *:not(:is(${apart}), :is(${apart}) *)`)]
        .flatMap(e => [...e.childNodes].filter(n => n.nodeType == 3).map(n => n.data))
        .concat([...document.images].map(e => e.alt))
        .filter(text => /(^|[\\s[(,;])-[.]?\\d/.test(text)).map(text => text.slice(0, 80));
}"""

LINKS = """() => [...document.querySelectorAll("a[href], link[href], img[src], script[src]")]
    .map(e => e.getAttribute("href") ? e.href : e.src)"""


@pytest.mark.parametrize(
    "path", [p for p in PAGES if p not in REFERENCE[1:]] or [pytest.param("index.html", id="book")]
)
def test_page(visit: Visit, path: str) -> None:
    """One visit a page: nothing asked of the network, nothing missing, maths set, readable on desk and phone."""
    page = visit.open(path)
    assert page.title().strip()
    assert page.evaluate(UNRENDERED) == []
    assert page.evaluate(RAW_MATHS) == []
    assert page.evaluate(WITHOUT_ALT) == [], "pictures without alt text"
    assert page.evaluate(HYPHENS) == [], "numbers below zero whose sign is not read aloud"
    assert dead_links(visit.site, path, page.evaluate(LINKS)) == []
    assert page.evaluate(TOO_WIDE) <= DESK["width"] + 1
    seen = page.evaluate(SEEN)
    assert seen["scripts"] <= SCRIPTS_MOST
    assert seen["formulas"] == 0, "formulas that are stops of the keyboard though nothing in them scrolls"
    assert seen["assistive"] == 0, "formulas without MathML for those who listen"
    assert seen["tall"] == []
    if path in CHAPTERS:
        as_wished(path, seen)
        page.emulate_media(media="print")
        page.set_viewport_size(PAPER)
        assert page.evaluate(CLIPPED) == [], "cut off on paper"
        assert page.evaluate(OPEN_SOLUTIONS) == 0
        page.emulate_media(media="screen")
    buttons_lead_somewhere(visit, Path(path).stem if "/" not in path else "", page.evaluate(BUTTONS))
    page.set_viewport_size(PHONE)
    page.wait_for_timeout(50)
    assert page.evaluate(TOO_WIDE) <= PHONE["width"] + 1
    keyboard_reaches_all(page)
    page.add_script_tag(path=axe())
    assert page.evaluate(AXE, False) == [], "what axe-core calls serious or critical"
    assert visit.outside == [], "the page asks the network for something"
    assert visit.lost == []
    assert visit.errors == []


def keyboard_reaches_all(page) -> None:
    """Boxes that scroll are stops of the keyboard."""
    for _ in range(20):  # the theme waits for a resize to end, on a busy machine for long
        if not page.evaluate(WITHOUT_KEYBOARD):
            break
        page.wait_for_timeout(250)
    assert page.evaluate(WITHOUT_KEYBOARD) == [], "boxes that only a mouse scrolls"


LAID = """async paths => {
    const place = document.querySelector("article"), reader = new DOMParser();
    const texts = await Promise.all(paths.map(async path => (await fetch(path)).text()));
    place.replaceChildren(...texts.map((text, i) => {
        const part = document.createElement("section");
        part.dataset.page = paths[i];
        part.append(...reader.parseFromString(text, "text/html").querySelector("article").childNodes);
        return part;
    }));
    await MathJax.typesetPromise([place]);
    window.dispatchEvent(new Event("load"));  // as when a page is opened: boxes that scroll become stops
}"""

WIDE_PARTS = """() => [...document.querySelectorAll("[data-page]")]
    .filter(e => e.scrollWidth > innerWidth).map(e => e.dataset.page)"""


def test_the_other_pages_of_the_reference(visit: Visit) -> None:
    """They are made alike, by hundreds: one is opened above, and here the text of all is laid into it, once.

    The reference's first page leads to all of them; those that stand in the contents of the book are rooms.
    """
    if not REFERENCE:
        missing("there is no built book: run 'make book' first")
    first = re.findall(r'href="(api/generated/[^"#]+)', (HTML / "api.html").read_text("utf8"))
    assert set(first) == set(REFERENCE)
    assert "api/generated/" not in (HTML / "index.html").read_text("utf8").partition("<article")[0]
    frames = {}
    for path in REFERENCE:
        text = (HTML / path).read_text("utf8")
        head, _, body = text.partition("</head>")
        assert re.search(r"<title>\s*\S", head), path
        frames[path] = {
            urljoin(path, link)
            for link in re.findall(r'<(?:script|link)[^>]* (?:src|href)="([^"]*\.(?:js|css)[^"]*)"', text)
        }
        links = [urljoin(visit.site + path, unescape(link)) for link in re.findall(r' (?:href|src)="([^"]+)"', text)]
        assert dead_links(visit.site, path, links) == []
        assert body.count("<article") == 1
    fullest = max(REFERENCE, key=lambda path: len(frames[path]))
    assert all(frame <= frames[fullest] for frame in frames.values()), "scripts and styles of the page that is opened"
    page = visit.open(fullest)
    page.evaluate(LAID, [visit.site + path for path in REFERENCE])
    assert page.locator("[data-page]").count() == len(REFERENCE)
    assert page.locator("[data-page] mjx-container").count() > 100
    for check in (UNRENDERED, RAW_MATHS, WITHOUT_ALT, HYPHENS, WIDE_PARTS):
        assert page.evaluate(check) == []
    seen = page.evaluate(SEEN)
    assert (seen["formulas"], seen["assistive"], seen["tall"]) == (0, 0, [])
    page.set_viewport_size(PHONE)
    page.wait_for_timeout(300)
    assert page.evaluate(WIDE_PARTS) == []
    assert page.evaluate(TOO_WIDE) <= PHONE["width"] + 1
    keyboard_reaches_all(page)
    assert (visit.outside, visit.lost, visit.errors) == ([], [], [])


MOVED = ("-results.html", "-numerics.html", "-runs.html")
"""Ends of pages that took over sections of another one as they were, in the order that was made for it."""


def as_wished(path: str, seen: dict) -> None:
    """What a chapter's text has to bring along; pages of Part I have their exercises at the end."""
    exercises, moved = seen["exercises"], path.endswith(MOVED)
    late = bool(exercises) and min(exercises) > 0.5
    lacks = {
        "the first figure begins on the first screen": not moved
        and (seen["first"] is None or seen["first"] >= DESK["height"]),
        "no import is seen before the first figure": seen["imports"] > 0,
        "an exercise stands in the first half": late and not moved and path.removesuffix(".html") not in TAUGHT,
        "visible code has at most 84 columns": bool(seen["long"]),
        "figures are readable at 800 pixels of height": bool(seen["shrunk"]),
    }
    broken = {wish for wish, lacking in lacks.items() if lacking}
    assert broken == set(), {k: seen[k] for k in ("first", "imports", "exercises", "long", "shrunk")}


BUTTONS = "[...document.querySelectorAll('.article-header-buttons a')].map(a => a.href)"


@functools.cache
def repository() -> str:
    """The project's address, as the book has it; "" where none is set."""
    root = HTML.parents[2]
    spec = importlib.util.spec_from_file_location("hetfl_site", root / "book" / "_ext" / "hetfl_site.py")
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
    assert f"https://colab.research.google.com/github/{name}/blob/notebooks/{page}.ipynb" in links
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
    those = [p for p in PAGES if '<figure class="moving"' in (HTML / p).read_text("utf8")]
    assert sum((HTML / p).read_text("utf8").count('<figure class="moving"') for p in those) >= 8
    visit.page.emulate_media(reduced_motion="reduce")
    for path in those:
        page = visit.open(path)
        for figure in page.locator("figure.moving").all():
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
            assert figure.locator("button").inner_text() == "play"
    visit.page.emulate_media(reduced_motion="no-preference")


def test_a_film_plays_once_when_it_comes_into_view(context) -> None:
    """Not before, and not for who wants no motion; "play" is "pause" meanwhile, and a hand on the slider ends it."""

    def bars(k):
        figure, axes = plt.subplots(figsize=(2, 1))
        axes.bar([0, 1], [k, 3])
        return figure

    page, film = context.new_page(), moving(bars, range(3), "round", "Two bars.").html()
    far = f'<div style="height:3000px"></div>{film}'
    page.set_viewport_size(PHONE)
    page.set_content(far)
    slider, button = page.locator("input"), page.locator("button")
    page.wait_for_timeout(300)
    assert (slider.input_value(), button.inner_text()) == ("0", "play")
    slider.scroll_into_view_if_needed()
    page.wait_for_function("document.querySelector('button').textContent === 'pause'")
    page.wait_for_function("document.querySelector('input').value === '2'")
    assert button.inner_text() == "play"
    box = slider.bounding_box()
    assert box["width"] >= 240
    assert box["height"] >= 44
    button.click()
    assert button.inner_text() == "pause"
    slider.dispatch_event("pointerdown")
    assert button.inner_text() == "play"
    page.emulate_media(reduced_motion="reduce")
    page.set_content(film)
    page.wait_for_timeout(300)
    assert (slider.input_value(), button.inner_text()) == ("0", "play")
    page.close()


def found(visit: Visit, query: str) -> list[str]:
    """Files that the search finds, best first."""
    page = visit.open("search.html?" + urlencode({"q": query}))
    page.wait_for_function("/finished/.test(document.querySelector('#search-results .search-summary')?.textContent)")
    links = page.locator("#search-results li a").evaluate_all("all => all.map(e => e.getAttribute('href'))")
    assert visit.outside == []
    return [urlsplit(link).path.removeprefix("./") for link in links]


@pytest.mark.parametrize(
    ("query", "chapter"),
    [
        ("Wasserstein", ""),
        ("non-iid", ""),
        ("FedAvg", "federated-learning.html"),
        ("personalization", ""),
        ("BCI", ""),
        ("HyFEM", "hyfem.html"),
        ("differential privacy", ""),
        ("anchors", "flic.html"),
    ],
)
def test_search_finds_chapters_first(visit: Visit, query: str, chapter: str) -> None:
    first = found(visit, query)[:3]
    assert set(first) & ({chapter} if chapter else {*CHAPTERS}), first


def test_search_finds_names_of_the_library_in_its_reference(visit: Visit) -> None:
    assert found(visit, "bures_wasserstein")[0] == "api/generated/hetfl_core.distances.html"
    assert "notation.html" in found(visit, "anchor")


def axe() -> str:
    """The script of axe-core, which comes with a package."""
    spec = importlib.util.find_spec("axe_playwright_python")
    if spec is None or spec.origin is None:
        missing("axe-playwright-python is not installed")
    return str(Path(spec.origin).parent / "axe.min.js")


AXE = """async contrast => (await axe.run(document, {
    preload: false, resultTypes: ["violations"],
    rules: {"color-contrast": {enabled: contrast}, "link-in-text-block": {enabled: contrast}},
})).violations.filter(v => ["serious", "critical"].includes(v.impact))
    .map(v => [v.id, v.nodes.length, v.nodes.slice(0, 3).map(n => n.html.slice(0, 120))])"""


@pytest.mark.parametrize(
    "path", ["index.html", "personalised.html", "hyfem-theory.html", "search.html", "api/generated/hetfl_core.rng.html"]
)
def test_axe_finds_nothing_serious(visit: Visit, path: str) -> None:
    """Desk and phone, light and dark; whether colours differ enough depends on the theme, not on width or page.

    On a phone, without colours, `test_page` asks the same of every page.
    """
    page = visit.open(path)
    page.add_script_tag(path=axe())
    try:
        for theme in ("light", "dark"):
            page.set_viewport_size(DESK)
            page.evaluate("theme => { document.documentElement.dataset.theme = theme }", theme)
            page.wait_for_timeout(400)  # colours fade over, and the theme waits for a resize to end
            assert page.evaluate(AXE, True) == [], theme
            page.set_viewport_size(PHONE)
            page.wait_for_timeout(400)
            assert page.evaluate(AXE, False) == [], theme
    finally:
        page.set_viewport_size(DESK)


def test_keyboard_is_seen_wherever_it_stops(visit: Visit) -> None:
    """Tab through the first eighty stops of a page: each has a ring."""
    page = visit.open("hyfem-theory.html")
    without, seen = [], set()
    for _ in range(80):
        page.keyboard.press("Tab")
        stop = page.evaluate(
            """() => { const e = document.activeElement, s = getComputedStyle(e);
            return [e.outerHTML.slice(0, 90), s.outlineStyle != "none" && parseFloat(s.outlineWidth) >= 2] }"""
        )
        seen.add(stop[0])
        if not stop[1]:
            without.append(stop[0])
    assert without == []
    assert len(seen) > 40
    assert any("search-button" in s for s in seen)
    assert any("btn-download" in s or "dropdown-toggle" in s for s in seen), sorted(seen)


# --- the files, without a browser -------------------------------------------------------------------------------


def article(path: str) -> str:
    """The HTML of a page's running text."""
    return (HTML / path).read_text("utf8").partition("<article")[2].partition("</article>")[0]


@pytest.mark.parametrize("path", CHAPTERS or [pytest.param("index.html", id="book")])
def test_figures_are_numbered_and_wait_for_the_reader(path: str) -> None:
    """Each picture is in a figure with number and caption, has its room, and is loaded late but for the first."""
    if not CHAPTERS:
        missing("there is no built book: run 'make book' first")
    text = article(path)
    images = re.findall(r"<img [^>]*>", text)
    assert images or path.endswith("-runs.html")
    if not images:
        return
    inside = re.sub(r"<figure.*?</figcaption>\s*</figure>", "", text, flags=re.DOTALL)
    assert re.findall(r"<img [^>]*>", inside) == [], "pictures that are no figures"
    captions = re.findall(r"<figcaption>.*?</figcaption>", text, re.DOTALL)
    assert all(
        re.search(r'caption-number">Figure (?:\d+\.)?\d+\.? </span><span class="caption-text">\S', c) for c in captions
    )
    files = [image for image in images if 'src="data:' not in image]
    assert all(re.search(r' width="\d+" height="\d+"', image) for image in files)
    assert [image for image in files if image != images[0] and 'loading="lazy"' not in image] == []
    assert 'loading="lazy"' not in images[0]
    for name, width in re.findall(r'src="([^"]+\.png)"[^>]* width="(\d+)"', " ".join(files)):
        pixels = int.from_bytes((HTML / path).parent.joinpath(name).read_bytes()[16:20], "big")
        assert pixels >= 1.9 * int(width), f"{name} has one pixel a point"


def test_figures_have_numbers_of_their_own() -> None:
    """One, two, three … within each chapter of Part I, and through the rest of the book."""
    found: dict[str, list[int]] = {}
    for page in PAGES:
        for chapter, number in re.findall(r'caption-number">Figure (?:(\d+)\.)?(\d+)', article(page)):
            found.setdefault(chapter, []).append(int(number))
    if not found:
        missing("there is no built book: run 'make book' first")
    for numbers in found.values():
        assert sorted(numbers) == list(range(1, len(numbers) + 1))


def test_pages_say_what_they_are_about() -> None:
    """A description of its own for each page, and the same for links to it."""
    found: dict[str, str] = {}
    for path in PAGES:
        head = (HTML / path).read_text("utf8").partition("</head>")[0]
        said = dict(re.findall(r'<meta (?:name|property)="([^"]+)" content="([^"]*)"', head))
        assert 30 < len(said["description"]) <= 260, (path, said["description"])
        assert said["og:description"] == said["description"]
        assert said["og:title"]
        assert said["og:site_name"].startswith("Federated learning")
        assert said["description"] not in found, (path, found[said["description"]])
        found[said["description"]] = path


def test_dark_theme_can_be_chosen(visit: Visit) -> None:
    page = visit.open("index.html")
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before

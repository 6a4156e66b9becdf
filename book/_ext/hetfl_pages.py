"""What a browser gets: numbered figures, light pages, a search that knows chapters from the API.

- Every picture that a cell shows is a figure with a number and a caption: what to see, in the cell's own metadata
  (``caption``); without it the first sentence of the alt text, which says what there is to who cannot see it.
- Icons stand in the page as drawings. The theme's script that would draw them holds two thousand, a megabyte and a half.
- Pictures after the first are loaded when the reader comes near, into room that is kept for them.
- Numbers below zero have a minus sign, as the axes of figures have: screen readers pass over a hyphen.
- Scripts are loaded where they are used: MathJax where there is mathematics, the search's index on its page.
- Each page says in its head what it is about, and a chapter below its title how long it takes.
- The search puts chapters first, by how often they use the word, and knows other words for it (``search.js``).
"""

from __future__ import annotations

import json
import re
import struct
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from html import escape, unescape
from itertools import groupby
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.errors import SphinxError
from sphinx.search.en import SearchEnglish
from sphinx.transforms import SphinxTransform

HERE = Path(__file__).resolve().parent
TALLEST = 800
"""Height in CSS pixels that no figure exceeds."""


class PageError(SphinxError):
    """Something of a page that cannot be shown."""

    category = "Page"


# --- figures ----------------------------------------------------------------------------------------------------


class NumberedFigures(SphinxTransform):  # type: ignore[misc]
    """Make a figure of what a cell draws, before Sphinx gives figures their numbers (priority 210)."""

    default_priority = 205

    def apply(self, **kwargs: Any) -> None:
        """Pictures that follow each other in one output, which share their alt text, are one figure."""
        bundles = [node for node in self.document.findall(nodes.container) if is_picture(node)]
        for parent in {id(b.parent): b.parent for b in bundles}.values():
            if isinstance(parent, nodes.figure):
                continue  # the cell's metadata say what the caption is, and MyST-NB has made the figure
            made: list[nodes.Node] = []
            for drawn, group in groupby(list(parent.children), is_picture):
                children = list(group)
                said = next((text for child in children if drawn and (text := alt_text(child))), "")
                if said:
                    text = caption_of(children[0]) or first_sentence(said)
                    caption = nodes.caption(text, text)
                    children = [nodes.figure("", *children, caption, classes=["drawn"])]
                made += children
            parent.children = []
            parent.extend(made)


def is_picture(node: nodes.Node) -> bool:
    """Whether a node is an output of MyST-NB that holds a picture, in whichever form it will be shown."""
    bundle = isinstance(node, nodes.container) and node.get("nb_element") == "mime_bundle"
    return bundle and next(iter(node.findall(nodes.image)), None) is not None


def caption_of(bundle: nodes.Element) -> str:
    """The caption that the metadata of an output's cell hold, or nothing."""
    node: nodes.Element | None = bundle
    while node is not None and node.get("nb_element") != "cell_code":
        node = node.parent
    return str(node.get("cell_metadata", {}).get("caption", "")) if node is not None else ""


def alt_text(bundle: nodes.Element) -> str:
    """The alt text of an output's picture; that of a figure that moves is its text form."""
    for image in bundle.findall(nodes.image):
        if image.get("alt"):
            return str(image["alt"])
    plain = [child for child in bundle.children if child.get("mime_type") == "text/plain"]
    said = plain[0].astext().strip() if plain else ""
    return "" if said.startswith("<") else said


def first_sentence(text: str) -> str:
    """A text's first sentence, and the second where the first has fewer than thirty characters.

    >>> first_sentence("Two panels. On the left, accuracy in per cent at vs. 3.5 rounds. More.")
    'Two panels. On the left, accuracy in per cent at vs. 3.5 rounds.'
    """
    sentences = re.split(r"(?<=[.!?])\s+(?=[A-Z])", " ".join(text.split()))
    return " ".join(sentences[: 2 if len(sentences[0]) < 30 else 1])


# --- the head ---------------------------------------------------------------------------------------------------


def describe(app: Any, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Say what a page is about, for search engines and for links to it: its title and its first paragraph."""
    book = app.config.html_title
    title = unescape(re.sub(r"<[^>]+>", "", context.get("title") or "")) or book
    said = (description(doctree) if doctree is not None else "") or f"{title}: a page of the book “{book}”."
    tags = {"og:type": "article", "og:site_name": book, "og:title": title, "og:description": said}
    if app.config.html_baseurl:
        address = app.config.html_baseurl.rstrip("/") + "/"
        picture = re.search(r'<img [^>]*src="(?:\.\./)*(_images/[^"]+\.png)"', context.get("body") or "")
        tags |= {"og:url": f"{address}{page}.html"} | ({"og:image": address + picture[1]} if picture else {})
    head = [f'<meta name="description" content="{escape(said)}" />']
    head += [f'<meta property="{name}" content="{escape(value)}" />' for name, value in tags.items()]
    context["metatags"] = "\n".join([context.get("metatags") or "", *head])


def description(doctree: nodes.document, most: int = 200) -> str:
    """The first paragraph of a page's running text, cut between words to `most` characters."""
    for paragraph in doctree.findall(nodes.paragraph):
        text = re.sub(r"^(For whom|Who this is for)[.:] ", "", " ".join(paragraph.astext().split()))
        if isinstance(paragraph.parent, nodes.section | nodes.document) and len(text) >= 40:
            return text if len(text) <= most else text[:most].rsplit(" ", 1)[0].rstrip(",;:–— ") + " …"
    return ""


def say_minutes(app: Any, doctree: nodes.document) -> None:
    """Below the title of a notebook whose metadata have its minutes, say how many."""
    path, title = Path(app.env.doc2path(app.env.docname)), next(iter(doctree.findall(nodes.title)), None)
    if path.suffix == ".ipynb" and title is not None:
        minutes = json.loads(path.read_text("utf8"))["metadata"].get("minutes")
        if minutes:
            text = f"About {minutes} minutes"
            title.parent.insert(title.parent.index(title) + 1, nodes.paragraph(text, text, classes=["minutes"]))


def fewer_scripts(app: Any, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Load MathJax after the page, and only where there is mathematics.

    Jupyter Book adds every script under ``_static``, so that MathJax's comes twice, first as one that the page waits for.
    """
    scripts = [s for s in context["script_files"] if "mathjax/" in str(getattr(s, "filename", ""))]
    wanted = 'class="math' in (context.get("body") or "")
    late = next((s for s in scripts if "defer" in getattr(s, "attributes", {})), None)
    for script in scripts:
        if not wanted or (late is not None and script is not late):
            context["script_files"].remove(script)


# --- the finished page ------------------------------------------------------------------------------------------


def finish(app: Any, failed: Exception | None) -> None:
    """Go over all pages once they are written."""
    if failed or app.builder.format != "html":
        return
    out = Path(app.outdir)
    script = out / "_static" / "scripts" / "fontawesome.js"
    known = icons(script.read_text("utf8")) if script.exists() else {}
    for path in out.rglob("*.html"):
        if "_static" not in path.parts:
            before = path.read_text("utf8")
            after = finished(before, path, known)
            if after != before:
                path.write_text(after, "utf8")


def finished(page: str, path: Path, known: dict[str, dict[str, str]]) -> str:
    """A page with its icons drawn, its pictures in their room, minus signs, and without scripts that it does not use."""
    page = re.sub(r"\s*<script [^>]*scripts/fontawesome\.js[^>]*></script>", "", page)
    page = re.sub(ICON, lambda match: drawn(match, known), page)
    if path.name != "search.html":
        page = re.sub(r'\s*<script src="[^"]*(?:searchtools|language_data|searchindex)\.js[^"]*"></script>', "", page)
    # Its items are no listitems, so that it is no list to who listens.
    page = page.replace('<div role="list" class="citation-list">', '<div class="citation-list">')
    page = page.replace('<details><summary><span class="toctree-toggle"', LABELLED)
    page = page.replace(' open="open"><summary><span class="toctree-toggle"', f' open="open">{LABELLED[9:]}')
    page = re.sub(PRINTED, lambda match: to_page(match, path), page)
    head, article, rest = page.partition("<article")
    body, end, rest = rest.partition("</article>")
    body = re.sub(TEXT_APART, lambda match: match[0] if match[0] != "-" else MINUS, body)
    body = re.sub(r'(?<= alt=")[^"]*', lambda match: re.sub(HYPHEN, MINUS, match[0]), body)
    numbers = iter(range(10**6))
    body = re.sub(r"<img [^>]*>", lambda match: placed(match[0], path, next(numbers)), body)
    return head + article + body + end + rest


MINUS = "\N{MINUS SIGN}"
HYPHEN = r"(?<![\w.)-])-(?=\.?\d)"
"""The hyphen before a number below zero; not that of a range, of a date or of a name."""
TEXT_APART = re.compile(
    r'<(pre|code|script|style|svg)\b.*?</\1>|<dt class="sig\b.*?</dt>|<[^>]*>|\\\(.*?\\\)|\\\[.*?\\\]|' + HYPHEN,
    re.DOTALL,
)
"""What is no running text, which is passed over as a whole (code, tags, mathematics), or such a hyphen."""

PRINTED = re.compile(r' href="((?:\.\./)*[\w/-]+)\.ipynb((?:#[^"]*)?)"')


def to_page(match: re.Match[str], page: Path) -> str:
    """A link to a chapter in what a cell prints, which leads to its notebook in Jupyter, and here to its page."""
    there = (page.parent / f"{match[1]}.html").exists()
    return f' href="{match[1]}.html{match[2]}"' if there else match[0]


LABELLED = '<details><summary aria-label="Show or hide its pages"><span class="toctree-toggle"'
ICON = re.compile(r'<(i|span) class="([^"]*\bfa-[^"]*)"([^>]*)></\1>')
STYLES = {"fas": "fas", "fa-solid": "fas", "fab": "fab", "fa-brands": "fab", "far": "far", "fa-regular": "far"}
NO_NAMES = re.compile(r"fa-(solid|brands|regular|lg|fw|sm|xs|\dx)$")


def icons(script: str) -> dict[str, dict[str, str]]:
    """The drawings in Font Awesome's script: of each style, of each name, the SVG's inside and its view box."""
    found: dict[str, dict[str, str]] = {}
    entry = r'"?([a-z0-9-]+)"?:\[(\d+),(\d+),\[([^\]]*)\],"[0-9a-f]+","([^"]*)"\]'
    for table, style in re.findall(r"var \w+=(\{.*?\});!function.*?\"(fa[brs])\"", script, re.DOTALL):
        here = found.setdefault(style, {})
        for name, width, height, others, line in re.findall(entry, table):
            drawing = f'viewBox="0 0 {width} {height}"><path fill="currentColor" d="{line}"></path></svg>'
            for alias in [name, *re.findall(r'"([a-z0-9-]+)"', others)]:
                here.setdefault(alias, drawing)
    return found


def drawn(match: re.Match[str], known: dict[str, dict[str, str]]) -> str:
    """An icon as a drawing, with the classes and attributes by which the theme shows and hides it.

    Raises
    ------
    PageError
        If the theme has no such icon: a page would show nothing.
    """
    classes, rest = match[2].split(), re.sub(r'\s*title="[^"]*"', "", match[3])
    names = [c.removeprefix("fa-") for c in classes if c.startswith("fa-") and not NO_NAMES.match(c)]
    style = next((STYLES[c] for c in classes if c in STYLES), "fas")
    if not names:
        return match[0]
    if names[0] not in known.get(style, {}):
        raise PageError(f"no icon called {names[0]!r} of style {style!r} in the theme's fontawesome.js")
    return f'<svg class="{" ".join([*classes, "svg-inline--fa"])}"{rest} aria-hidden="true" {known[style][names[0]]}'


def placed(image: str, page: Path, number: int) -> str:
    """A picture with its size, so that its room is kept, and loaded late unless it is the page's first."""
    source = re.search(r'src="([^"]+)"', image)
    if not source or source[1].startswith(("data:", "http")) or ' width="' in image:
        return image  # one with a width has been placed by an earlier build
    style = re.search(r' style="width: ([\d.]+)px;(?: height: ([\d.]+)px;)?"', image)
    size = natural_size(page.parent / unescape(source[1]))
    if size is None:
        return image
    width = float(style[1]) if style else size[0]
    height = width * size[1] / size[0]
    if style:
        image = image.replace(style[0], "")
    image = re.sub(r' (?:width|height|loading|decoding)="[^"]*"', "", image)
    extra = f' width="{width:.0f}" height="{height:.0f}"'
    if height > TALLEST:
        extra += f' style="max-width: min(100%, {int(TALLEST * width / height)}px)"'
    if number:
        extra += ' loading="lazy" decoding="async"'
    return re.sub(r"\s*/?>$", extra + " />", image)


def natural_size(path: Path) -> tuple[float, float] | None:
    """Width and height of a PNG, or of an SVG that has a view box; None of anything else."""
    if path.suffix == ".png" and path.exists():
        width, height = struct.unpack(">II", path.read_bytes()[16:24])
        return width, height
    if path.suffix == ".svg" and path.exists():
        box = re.search(r'viewBox="[\d.-]+ [\d.-]+ ([\d.]+) ([\d.]+)"', path.read_text("utf8"))
        return (float(box[1]), float(box[2])) if box else None
    return None


# --- the search -------------------------------------------------------------------------------------------------


def write_scorer(app: Any, env: Any) -> None:
    """Hand the search `search.js`, with how often each chapter uses its words, in the order of the contents."""
    if app.builder.format != "html":
        return
    stem, counts = cache(SearchEnglish({}).stem), {}
    for name in sorted(name for name in env.found_docs if "/" not in name):
        words = re.findall(r"\w{2,}", env.get_doctree(name).astext().lower())
        counts[name] = {word: n for word, n in count(words, stem) if n > 2}
    text = (HERE / "search.js").read_text("utf8")
    made = Path(app.doctreedir) / "search.js"
    made.write_text(text.replace("/* counts */ {}", json.dumps(counts, ensure_ascii=False)), "utf8")
    app.config.html_search_scorer = str(made)


def count(words: Iterable[str], stem: Any) -> Iterator[tuple[str, int]]:
    """Stems of words and how often each comes; numbers are left out."""
    stems: Counter[str] = Counter()
    for word, n in Counter(words).items():
        if not word.isdigit():
            stems[stem(word)] += n
    return iter(stems.items())


def setup(app: Any) -> dict[str, bool]:
    """Connect all of it: scripts are chosen when all extensions have added theirs, pages are finished when written."""
    app.add_transform(NumberedFigures)
    app.connect("doctree-read", say_minutes)
    app.connect("html-page-context", fewer_scripts, priority=890)
    app.connect("html-page-context", describe)
    app.connect("env-updated", write_scorer)
    app.connect("build-finished", finish, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

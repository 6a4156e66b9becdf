"""Notebooks are executed side by side, while Sphinx reads the other pages.

myst-nb executes a notebook when Sphinx reads its page, one after the other: Jupyter Book hands no number of processes
on to Sphinx, and Sphinx would deal its pages out in alphabetical chunks, so that the notebooks, which stand next to
each other there, would still wait for each other. Here those of them that are not in the cache are executed by the
workers of jupyter-cache ([1]_), one notebook a process. Pages that are no notebooks are read meanwhile, and each
notebook when it has been executed: myst-nb then finds it in the cache. What the cells of a page of Part I computed is
kept beside the cache, for the tests of its sentences.

``HETFL_JOBS`` says how many at a time (``make book JOBS=4``); without it, as many as this process may use cores.

References
----------
.. [1] jupyter-cache, jupyter_cache.executors.basic: the worker of the executor ``local-parallel``. Its executor takes
   neither a number of processes nor an order, and deals notebooks out in chunks, hence a pool of our own.
.. [2] jupyter-cache, jupyter_cache.cache.db: ``NbCacheRecord.records_to_delete``.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from logging import ERROR
from pathlib import Path
from typing import Any

from hetfl_kernels import forked
from jupyter_cache import get_cache
from jupyter_cache.base import JupyterCacheAbstract
from jupyter_cache.cache.main import JupyterCacheBase
from jupyter_cache.executors.basic import ExecutionWorkerLocalMProc, ProcessData
from sphinx.errors import SphinxError
from sphinx.util import logging

from hetfl_core.numerics import usable_cores

LOGGER = logging.getLogger(__name__)
FEW = 3
"""So many notebooks are executed by kernels of their own: to import once for all what any of them might need takes longer."""


class NotebookError(SphinxError):
    """Notebooks that failed, with their tracebacks."""

    category = "Notebooks failed"


class Untrimmed(JupyterCacheBase):  # type: ignore[misc]
    """The cache as a worker sees it: what it puts there deletes nothing.

    jupyter-cache trims itself after every notebook: it asks which records are the newest, and then, in a second query,
    for all others ([2]_). What another process puts there between the two is among those others, and is deleted.
    """

    def truncate_caches(self) -> None:
        """Nothing: the process that started the workers trims, once, when they have ended."""


class Worker(ExecutionWorkerLocalMProc):  # type: ignore[misc]
    """Executes a notebook in its folder; kernels that are forked keep their variables where they are told to."""

    @staticmethod
    def execute(project_nb: Any, data: Any) -> Any:
        """As jupyter-cache does, for pages with minutes by which they are counted into Part I."""
        file = Path(data.cache.path).with_name("variables") / f"{Path(project_nb.uri).stem}.pkl"
        os.environ["HETFL_VARIABLES"] = str(file) if "minutes" in project_nb.nb.metadata else ""
        return ExecutionWorkerLocalMProc.execute(project_nb, data)


def jobs() -> int:
    """How many notebooks are executed at a time.

    Raises
    ------
    ValueError
        If the environment variable ``HETFL_JOBS`` is set to something else than a whole number of at least 1.
    """
    wish = os.environ.get("HETFL_JOBS", "")
    if not wish:
        return usable_cores()
    if not wish.isdecimal() or int(wish) < 1:
        raise ValueError(f"HETFL_JOBS must be a whole number of at least 1, got {wish!r}")
    return int(wish)


def in_order(names: Sequence[str], first: Sequence[str]) -> list[str]:
    """Names in the order in which they are started: those of `first`, then the others as they come.

    The longest has to be among the first, or all other cores wait for it in the end.
    """
    return sorted(names, key=lambda name: first.index(name) if name in first else len(first))


def is_notebook(env: Any, name: str) -> bool:
    """Whether a page is one."""
    return Path(env.doc2path(name)).suffix == ".ipynb"


def waiting(app: Any, names: Sequence[str], cache: JupyterCacheAbstract) -> list[Any]:
    """Those of the pages that are notebooks, not excluded from execution and not in the cache, as its records."""
    found = []
    for name in in_order(names, app.config.hetfl_first):
        path = Path(app.env.doc2path(name))
        excluded = any(path.match(pattern) for pattern in app.env.mystnb_config.execution_excludepatterns)
        if is_notebook(app.env, name) and not excluded:
            record = cache.add_nb_to_project(str(path))
            found += cache.list_unexecuted(filter_pks=[record.pk])
    return found


def execute(cache: JupyterCacheAbstract, records: Sequence[Any], timeout: int, at_once: int) -> Iterator[Any]:
    """Begin to execute notebooks into the cache; the record of each when it is done, whether it failed or not.

    Every worker is a fresh process: one forked from Sphinx's would inherit the threads and locks of what is loaded there.
    """
    context, theirs = multiprocessing.get_context("spawn"), Untrimmed(cache.path)
    held = ExitStack()
    if len(records) > FEW:
        held.enter_context(forked())
    pool = held.enter_context(ProcessPoolExecutor(at_once, context, multiprocessing.log_to_stderr, (ERROR,)))
    started = {pool.submit(Worker(), ProcessData(r.pk, r.uri, theirs, timeout, False)): r for r in records}
    return as_they_end(cache, held, started)


def as_they_end(cache: JupyterCacheAbstract, held: ExitStack, started: dict[Any, Any]) -> Iterator[Any]:
    """The records of notebooks in the order in which they end; then `held` is left, and the cache is trimmed."""
    with held:
        for done in as_completed(started):
            if done.exception() and not isinstance(done.exception(), BrokenProcessPool):
                raise done.exception()
            yield cache.get_project_record(started[done].pk)
    cache.truncate_caches()


def what_failed(traceback: str | None) -> str:
    """What a notebook's cell says, without the calls by which it was reached; of a kernel that died nothing is kept."""
    return traceback.partition("nbclient.exceptions.")[2] if traceback else "its kernel or process died; see above"


def execute_side_by_side(app: Any, env: Any, names: list[str]) -> None:
    """Begin to execute the notebooks among the pages that Sphinx is about to read, and have them read last, in order."""
    settings = env.mystnb_config
    if settings.execution_mode != "cache":
        return
    cache = get_cache(settings.execution_cache_path)
    records = waiting(app, names, cache)
    if not records:
        return
    # Kernels that compute at the same time must not each take all cores; the Makefile sets the same for all commands.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    at_once = min(jobs(), len(records))
    LOGGER.info("executing %d notebooks, %d at a time", len(records), at_once)
    running = execute(cache, records, settings.execution_timeout, at_once)
    app.hetfl_running = cache, running, {record.uri for record in records}
    names[:] = sorted(in_order(names, app.config.hetfl_first), key=lambda name: is_notebook(env, name))


def wait_for(app: Any, name: str, source: list[str]) -> None:
    """Before a notebook is read, wait until it has been executed, so that myst-nb finds it in the cache.

    Raises
    ------
    NotebookError
        If notebooks failed: their names and tracebacks. The others have been executed and are kept.
    """
    if not hasattr(app, "hetfl_running") or not is_notebook(app.env, name):
        return
    cache, running, waiting = app.hetfl_running
    failed = []
    while waiting and (failed or app.env.doc2path(name) in waiting):
        record = next(running)
        waiting.remove(record.uri)
        title, result = Path(record.uri).name, cache.get_cached_project_nb(record.pk)
        if result:
            LOGGER.info("executed %s in %.0f s", title, result.data["execution_seconds"])
        else:
            LOGGER.info("%s failed", title)
            failed.append(f"{record.uri}\n{what_failed(record.traceback)}")
    if not waiting:
        next(running, None)  # ends the workers, and trims the cache
    if failed:
        raise NotebookError("\n\n".join(["", *failed]))


def write_side_by_side(app: Any, env: Any) -> None:
    """Have pages written side by side; two extensions of Jupyter Book do not say that they may be read so."""
    app.parallel = jobs() + 1  # with the process that hands out the pages, which has little to do


def setup(app: Any) -> dict[str, bool]:
    """Execute before notebooks are read. ``hetfl_first``: pages whose notebooks take longest, and are started first."""
    app.add_config_value("hetfl_first", [], "")
    app.connect("env-before-read-docs", execute_side_by_side)
    app.connect("source-read", wait_for, priority=0)
    app.connect("env-updated", write_side_by_side)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

"""One process of checks a core, replaced when it dies."""

from __future__ import annotations

import contextlib
import multiprocessing
import queue
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psutil

from grading import marks

PATIENCE = 120
"""Seconds for a process of checks to start, and seconds beyond the time of a submission after which it is taken for dead."""


class Worker:
    """A process of checks."""

    def __init__(self, plan: marks.Plan) -> None:
        self.plan = plan
        self.process = None

    def start(self) -> None:
        """Start the process.

        Raises
        ------
        RuntimeError
            If it does not come to grading anything, which is the fault of no submission.
        """
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=marks.work, args=(theirs, self.plan), daemon=True)
        self.process.start()
        theirs.close()
        try:
            ready = self.pipe.poll(PATIENCE) and self.pipe.recv() == "ready"
        except EOFError:
            ready = False
        if not ready:
            raise RuntimeError("the process of the checks did not start; what it said is above")

    def stop(self) -> None:
        """End the process and all that it has started."""
        if self.process is None:
            return
        with contextlib.suppress(psutil.NoSuchProcess):
            parent = psutil.Process(self.process.pid)
            for each in [*parent.children(recursive=True), parent]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()
        self.process.join()
        self.pipe.close()
        self.process = None

    def grade(self, task: marks.Task) -> marks.Grade:
        """Grade a submission; where that ends this process, a second time in a new one."""
        flags = []
        for _ in range(2):
            if self.process is None:
                self.start()
            with contextlib.suppress(EOFError, OSError):  # it may die at any time
                self.pipe.send(task)
                if self.pipe.poll(self.plan.longest + PATIENCE):
                    grade = self.pipe.recv()
                    grade.flags += flags
                    return grade
            self.stop()
            flags = ["the process of the checks was ended while this was graded"]
        nothing = dict.fromkeys(marks.possible_marks(self.plan.tests), 0.0)
        return marks.Grade(task.name, nothing, "grading broke off: the process of the checks was ended", flags=flags)


def grade_tasks(tasks: list[marks.Task], plan: marks.Plan, jobs: int) -> Iterator[marks.Grade]:
    """Grade submissions, several at a time; the grades come in the order of the submissions."""
    workers: queue.SimpleQueue[Worker] = queue.SimpleQueue()
    crew = [Worker(plan) for _ in range(max(1, min(jobs, len(tasks))))]
    for worker in crew:
        workers.put(worker)

    def grade(task: marks.Task) -> marks.Grade:
        worker = workers.get()
        try:
            return worker.grade(task)
        finally:
            workers.put(worker)

    try:
        with ThreadPoolExecutor(len(crew)) as pool:
            yield from pool.map(grade, tasks)
    finally:
        for worker in crew:
            worker.stop()

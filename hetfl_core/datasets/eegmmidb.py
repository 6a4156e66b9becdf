"""One real recording: subject 1 of the EEG Motor Movement/Imagery set [1]_ of PhysioNet [2]_, and a federation of it.

One person, one sitting, 64 electrodes, 160 Hz. A run of two minutes holds 15 trials of about 4 s, each after as long a
rest; what to do is told by a target on a screen. A task is done three times in turn with three others:

==============  ========  ==========  ==========  =========
task            imagined  T1          T2          runs
==============  ========  ==========  ==========  =========
``hands``       no        left fist   right fist  3, 7, 11
``hands``       yes       left fist   right fist  4, 8, 12
``fists_feet``  no        both fists  both feet   5, 9, 13
``fists_feet``  yes       both fists  both feet   6, 10, 14
==============  ========  ==========  ==========  =========

References
----------
.. [1] G. Schalk, D. J. McFarland, T. Hinterberger, N. Birbaumer, J. R. Wolpaw. BCI2000: a general-purpose
   brain–computer interface (BCI) system. IEEE Trans. Biomed. Eng. 51(6), 2004.
.. [2] A. L. Goldberger et al. PhysioBank, PhysioToolkit, and PhysioNet. Circulation 101(23), 2000.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

from hetfl_core import checks
from hetfl_core.datasets import eeg
from hetfl_core.datasets.eeg_cutting import Cutting, Trials, cut
from hetfl_core.datasets.eeg_runs import RecordedRun
from hetfl_core.datasets.recordings import TABLE_S1, need, standard_montage
from hetfl_core.datasets.registry import fetch
from hetfl_core.federation import Federation

__all__ = ["one_person", "raw"]


CLASSES = ("left_hand", "right_hand", "hands", "feet", "rest")
"""What was moved, or imagined to be moved, in the order of the labels 0 … 4; ``"hands"`` are both fists at once."""

Task = Literal["hands", "fists_feet"]

INTERVAL = (0.0, 4.0)
"""Begin and end of a trial after its cue, s; the shortest lasts 4.1 s."""


_TASKS: dict[tuple[Task, bool], tuple[tuple[str, str], tuple[int, int, int]]] = {
    ("hands", False): (("left_hand", "right_hand"), (3, 7, 11)),
    ("hands", True): (("left_hand", "right_hand"), (4, 8, 12)),
    ("fists_feet", False): (("hands", "feet"), (5, 9, 13)),
    ("fists_feet", True): (("hands", "feet"), (6, 10, 14)),
}
"""Of each task, imagined or not: what its marks T1 and T2 stand for, and the runs in which it was done."""


class View(NamedTuple):
    """A client of the federation: the cap through which it sees a task."""

    cap: str
    task: Task
    imagined: bool

    @property
    def name(self) -> str:
        """The client's name, such as ``"imagined-hands-AlexMI"``."""
        return f"{'imagined' if self.imagined else 'moved'}-{self.task}-{self.cap}"


CLIENTS = (
    View("BNCI2014-004", "hands", True),
    View("AlexMI", "hands", True),
    View("Zhou2016", "hands", False),
    View("BNCI2014-001", "hands", False),
    View("BNCI2014-004", "fists_feet", True),
    View("BNCI2014-002", "fists_feet", True),
    View("Zhou2016", "fists_feet", False),
    View("AlexMI", "fists_feet", False),
)
"""The clients: the one head seen through the caps of five laboratories of `TABLE_S1`, with 3 to 22 electrodes."""


def raw(runs: int | Sequence[int] = (4, 8, 12)) -> Any:
    """The recording of some runs of one person, unfiltered.

    Parameters
    ----------
    runs : int or sequence of int
        3 … 14, joined in this order.

    Returns
    -------
    mne.io.Raw
        64 electrodes with the names and places of the 10–05 system, V; annotations T0 (rest), T1 and T2.

    Raises
    ------
    DataError
        If a file is missing and cannot be downloaded, or is damaged.
    """
    need("mne")
    import mne

    parts = []
    for run in [runs] if isinstance(runs, int) else runs:
        part = mne.io.read_raw_edf(fetch(f"eegmmidb/S001/{run:02d}"), preload=True, verbose="error")
        mne.datasets.eegbci.standardize(part)
        parts.append(part.set_montage(standard_montage()))
    return mne.concatenate_raws(parts, verbose="error")


def trials(
    task: Task = "hands",
    imagined: bool = True,
    channels: Sequence[str] | None = None,
    band: tuple[float, float] = (8.0, 30.0),
    rest: bool = False,
) -> Trials:
    """The 45 trials of one task, by the same steps as every other recording (`hetfl_core.datasets.eeg_cutting`).

    Each run stands as a session, so that the last run is what the last session is elsewhere: the test set.

    Parameters
    ----------
    task : {"hands", "fists_feet"}
        Left or right fist, or both fists or both feet.
    imagined : bool
        Whether the movement was imagined or made.
    channels : sequence of str, optional
        Electrodes, in this order; all 64 by default.
    band : tuple of float
        Hz.
    rest : bool
        Whether the rests, one before each trial, are trials too.

    Returns
    -------
    Trials
        Labels are places in this module's `CLASSES`; ``session`` is the run, e.g. ``"0run4"``.

    Raises
    ------
    DataError
        As `raw` and `hetfl_core.datasets.eeg_cutting.cut` do.
    ValueError
        For another task.
    """
    checks.choice("task", task, ("hands", "fists_feet"))
    names, numbers = _TASKS[task, imagined]
    marks = dict(zip(("T1", "T2"), names, strict=True)) | ({"T0": "rest"} if rest else {})
    how = Cutting(marks, CLASSES, INTERVAL, band, tuple(channels or ()))
    runs = [RecordedRun("EEGMMIDB-1", f"run {n}", f"{i}run{n}", raw(n)) for i, n in enumerate(numbers)]
    return cut("EEGMMIDB-1", runs, how, named=channels is not None)


def one_person(
    features: Literal["tangent", "vectorised"] = "tangent",
    reference: Literal["train", "all"] = "train",
    split: Literal["session", "random"] = "session",
    band: tuple[float, float] = (8.0, 30.0),
    seed: int = 0,
) -> Federation:
    """One real person's recording as eight clients, each a task seen through another laboratory's cap.

    The clients are `CLIENTS`: 3 to 22 electrodes, 6 to 253 features, 45 trials of two of four classes. Two clients
    see the same trials where they share a task. The first two runs of a task are for training, the last is the test
    set, for both of them, so that no client has learnt from a trial on which another is tested. *All are one person*:
    what is learnt here says nothing about how people differ.

    Parameters
    ----------
    features, reference, split
        As in `hetfl_core.datasets.eeg.subject_client`; ``split="random"`` mixes runs, and breaks what is said above of
        tests.
    band : tuple of float
        Hz.
    seed : int
        Of a random split; without effect otherwise.

    Returns
    -------
    Federation
        Clients such as ``"imagined-hands-AlexMI"``, 30 training and 15 test trials each, inputs float32.
        ``info["subjects"]`` gives task and electrodes of each client.

    Raises
    ------
    DataError
        If a file is missing and cannot be downloaded, or is damaged.
    """
    eeg.check_vectors(features, reference, split, band, seed)
    tasks = {key: trials(*key, band=band) for key in dict.fromkeys((view.task, view.imagined) for view in CLIENTS)}
    seen = []
    for view in CLIENTS:
        found, channels = tasks[view.task, view.imagined], TABLE_S1[view.cap].channels
        picks = [found.channels.index(name) for name in channels]
        seen.append(replace(found, x=found.x[:, picks], channels=channels, name=view.name))
    clients = [eeg.subject_client(of, features, reference, seed, split) for of in seen]
    settings = {"features": features, "reference": reference, "split": split, "band": list(band), "seed": seed}
    about = {
        view.name: {
            **{"data_set": "EEGMMIDB", "subject": 1, "task": view.task, "imagined": view.imagined},
            **{"runs": list(_TASKS[view.task, view.imagined][1]), "electrodes": len(of.channels)},
        }
        for view, of in zip(CLIENTS, seen, strict=True)
    }
    info = {
        "settings": settings,
        "source": "PhysioNet EEGMMIDB 1.0.0, subject 1 only: eight views of one person",
        "licence": "ODC-By 1.0",
        "class_names": [name.replace("_", " ") for name in CLASSES[:4]],
        "subjects": about,
        "one_person": True,
        "simulated": False,
    }
    return Federation(clients, 4, "eeg.eegmmidb", info)

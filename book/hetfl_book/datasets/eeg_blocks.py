"""Groups of electrodes as named blocks, caps as what a client holds of them: simulated EEG for HyFEM [1]_.

Each of the six laboratories of `hetfl_core.datasets.eeg_simulated` has a cap of its own. `GROUPS` divides electrodes of
the 10–10 system into seven groups by place; a cap holds a group if it has all of its electrodes:

============= ================== ====== ============ ============ ============ ========= ========
group         electrodes         AlexMI BNCI2014-001 BNCI2014-002 BNCI2014-004 Weibo2014 Zhou2016
============= ================== ====== ============ ============ ============ ========= ========
frontal       F7 F3 Fz F4 F8     yes                                           yes
hands         C3 C4              yes    yes          yes          yes          yes       yes
left central  FC3 FC1 C1 CP3 CP1        yes          yes                       yes
right central FC4 FC2 C2 CP4 CP2        yes          yes                       yes
midline       FCz Cz CPz                yes          yes                       yes       yes
parietal      P1 Pz P2 POz              yes                                    yes
occipital     O1 Oz O2                                                         yes       yes
============= ================== ====== ============ ============ ============ ========= ========

The classes are what at least four of the laboratories asked for: left hand, right hand, feet. A subject has those of
them that its laboratory asked for: two in AlexMI and BNCI2014-002 (no left hand) and in BNCI2014-004 (no feet).

A block is made of its group's electrodes alone: their powers between 8 and 30 Hz, in decibels above the subject's own
mean over its training trials. Such numbers are few and say the same of everybody. Coordinates in the tangent space
(``features="tangent"``) say also how electrodes go together; that depends on where a person's sources lie, and for five
electrodes there are 15 of them. No group tells all classes apart: the hands are seen best by C3 and C4, the feet by Cz.

References
----------
.. [1] X. Zhang, W. Yin, T. Chen, M. Hong. Hybrid federated learning for feature & sample heterogeneity: algorithms and
   implementation. TMLR 2024.
.. [2] P. Zanini, M. Congedo, C. Jutten, S. Said, Y. Berthoumieu. Transfer learning: a Riemannian geometry framework
   with applications to brain–computer interfaces. IEEE Trans. Biomed. Eng. 65(5), 2018.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm.auto import tqdm

from hetfl_core import checks
from hetfl_core.datasets import eeg
from hetfl_core.datasets.blocks import HELD_OUT, Holding, holders
from hetfl_core.datasets.eeg_head import Physiology
from hetfl_core.datasets.recordings import CLASSES, TABLE_S1, Recordings
from hetfl_core.federation import Client, Federation
from hetfl_core.partition import split_each
from hetfl_core.rng import numpy_stream

Matrices = NDArray[np.float64]

GROUPS: Mapping[str, tuple[str, ...]] = {
    "frontal": ("F7", "F3", "Fz", "F4", "F8"),
    "hands": ("C3", "C4"),
    "left central": ("FC3", "FC1", "C1", "CP3", "CP1"),
    "right central": ("FC4", "FC2", "C2", "CP4", "CP2"),
    "midline": ("FCz", "Cz", "CPz"),
    "parietal": ("P1", "Pz", "P2", "POz"),
    "occipital": ("O1", "Oz", "O2"),
}
"""Names of the blocks, and the electrodes of each."""

TASKS = CLASSES[:3]
"""Left hand, right hand, feet: the classes."""

NEW = {"test": "NewTest", "validation": "NewValidation"}
"""Laboratories, with all groups, of the people who take part in no training, by what they are for."""


def groups_of(channels: Sequence[str]) -> tuple[str, ...]:
    """Names of the groups of which a cap with these electrodes has every one, in the order of `GROUPS`."""
    there = checks.names("channels", channels)
    return tuple(name for name, electrodes in GROUPS.items() if set(electrodes) <= set(there))


def laboratory(name: str, trials: int = 48, people: int = 10) -> Recordings:
    """A laboratory as it is simulated here: electrodes of the groups that its cap holds, and classes among `TASKS`.

    What an electrode sees has the same law whichever others are simulated with it.

    Parameters
    ----------
    name : str
        A key of `TABLE_S1`, whose rate, sessions and people are kept, or one of the values of `NEW`.
    trials : int
        Most trials of a person and class, over all sessions; at least 10.
    people : int
        How many take part, in a laboratory of `NEW`.

    Raises
    ------
    ValueError
        If there is no laboratory of that name, or a number is out of range.
    """
    checks.choice("name", name, (*TABLE_S1, *NEW.values()))
    checks.integer("trials", trials, 10)
    checks.integer("people", people, 1, 1000)
    everything = sum(GROUPS.values(), ())
    if name in NEW.values():
        return Recordings(name, "", people, everything, 250.0, TASKS, min(trials, 40), 2, (2.0, 6.0))
    of = TABLE_S1[name]
    channels = sum((GROUPS[group] for group in groups_of(of.channels)), ())
    classes = tuple(task for task in TASKS if task in of.classes)
    return replace(of, channels=channels, classes=classes, n_trials=min(trials, of.n_trials))


def simulated(
    seed: int = 0,
    *,
    subjects: int | None = 4,
    trials: int = 48,
    people: int = 10,
    features: Literal["power", "tangent"] = "power",
    tested_on: Literal["test", "validation"] = "test",
    simulator: Physiology | None = None,
    progress: bool = True,
) -> Federation:
    """Simulated subjects of six laboratories, whose caps hold different groups of electrodes: a block for each group.

    Parameters
    ----------
    seed : int
        Of the simulation and of all splits. The people are those of `eeg.simulated` with this seed.
    subjects : int, optional
        The first so many of each laboratory; there are 4 to 14. None for all 54.
    trials : int
        Most trials of a subject and class, at least 10.
    people : int
        How many new people the server's model is tested on.
    features : {"power", "tangent"}
        What a block of q electrodes holds: their q powers, dB; or the q(q+1)/2 coordinates, without a unit, of their
        covariance in the tangent space. Zero is the mean of a subject's training trials either way.
    tested_on : {"test", "validation"}
        With ``"validation"`` a fifth of each subject's training trials of each class are its test trials, nobody trains
        on them, and the new people are others: for choosing settings without having seen a test trial.
    simulator : Physiology, optional
        Settings of the simulation.
    progress : bool
        Whether to show a progress bar over people.

    Returns
    -------
    Federation
        Clients ``AlexMI-1`` …, one a subject, with a block of shape (q,) or (q(q+1)/2,) for each group, float32, in the
        order of `GROUPS`; a group that the cap lacks is empty. Test trials are those of its last session, or a quarter
        where it has one. The test data of the federation itself are the second sessions of new people, with all groups
        and classes. Their zero is the mean of their first sessions, of which no label is used [2]_.
        ``info["caps"]`` gives the groups of each laboratory, ``info["holders"]`` the clients that hold each block of
        each class.

    Raises
    ------
    DataError
        If MNE, MOABB or pyRiemann is not installed.
    ValueError
        If an argument is out of range.
    """
    checks.seed(seed)
    if subjects is not None:
        checks.integer("subjects", subjects, 1)
    checks.choice("features", features, ("power", "tangent"))
    checks.choice("tested_on", tested_on, tuple(NEW))
    if simulator is not None:
        checks.instance("simulator", simulator, Physiology)
    checks.flag("progress", progress)
    labs = [laboratory(name, trials) for name in TABLE_S1]
    who = [(lab, s + 1) for lab in labs for s in range(lab.n_subjects)[:subjects]]
    new = laboratory(NEW[tested_on], trials, people)
    settings = {"subjects": subjects, "trials": trials, "people": people, "features": features, "tested_on": tested_on}
    rows = tqdm([*who, *((new, s + 1) for s in range(people))], "EEG blocks", unit="person", disable=not progress)
    found = [_client(lab, subject, seed, features, tested_on, simulator) for lab, subject in rows]
    clients, others = found[: len(who)], found[len(who) :]
    table = [_holding(lab) for lab, _ in who]
    count = holders(table, len(GROUPS), len(TASKS))
    info = {
        "settings": {"seed": seed, **settings, **({"simulator": repr(simulator)} if simulator else {})},
        "source": "hetfl_core.datasets.eeg_simulated: caps of the recordings of FLIC's Table S1, cut into groups",
        "licence": "that of this project; nobody was recorded",
        "simulated": True,
        "class_names": [task.replace("_", " ") for task in TASKS],
        "blocks": list(GROUPS),
        "electrodes": {name: list(electrodes) for name, electrodes in GROUPS.items()},
        "caps": {lab.name: list(groups_of(lab.channels)) for lab in labs},
        "holders": count.tolist(),
        "unused_cells": float((count == 0).mean()),
    }
    x_test = {name: torch.cat([one.x_test[name] for one in others]) for name in GROUPS}
    y_test = torch.cat([one.y_test for one in others])
    return Federation(clients, len(TASKS), "eeg_blocks.simulated", info, x_test=x_test, y_test=y_test)


def _holding(lab: Recordings) -> Holding:
    """What its subjects hold, by numbers."""
    names = list(GROUPS)
    return Holding(tuple(map(names.index, groups_of(lab.channels))), tuple(map(TASKS.index, lab.classes)))


def _client(
    lab: Recordings, subject: int, seed: int, features: str, tested_on: str, simulator: Physiology | None
) -> Client:
    """One person as a client; of a new one only the test trials count."""
    found = eeg.subject_covariances(lab, subject, estimator="scm", seed=seed, simulator=simulator)
    train, test = eeg.split(found.y, found.session, found.name, seed)
    if tested_on == "validation" and lab.name not in NEW.values():
        (train,), (test,) = split_each(found.y, [train], HELD_OUT, numpy_stream(seed, found.name, 0, "validation"))
    there = groups_of(found.channels)
    x_train: dict[str, Tensor] = {}
    x_test: dict[str, Tensor] = {}
    for name, electrodes in GROUPS.items():
        mine = [found.channels.index(c) for c in electrodes if name in there]
        within = found.matrices[:, mine][:, :, mine]
        both = _block(within[train], within[test], features)
        x_train[name], x_test[name] = (torch.from_numpy(x.astype(np.float32)) for x in both)
    return Client(x_train, found.y[train], x_test, found.y[test], found.name)


def _block(train: Matrices, test: Matrices, features: str) -> tuple[Matrices, Matrices]:
    """What is computed from covariances of a group's electrodes, µV², shapes (n, q, q)."""
    if not train.shape[1]:
        return train.reshape(len(train), 0), test.reshape(len(test), 0)
    if features == "tangent":
        return eeg.features(train, test)
    fitted, new = (10 * np.log10(np.diagonal(part, axis1=1, axis2=2)) for part in (train, test))
    return fitted - fitted.mean(axis=0), new - fitted.mean(axis=0)

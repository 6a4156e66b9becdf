"""Federated methods, one file per paper or family. A new one takes one file, and here its import and its name.

`CATALOGUE` then has it, and with it the command line and the tests that every method must pass.
"""

from collections.abc import Iterator

from hetfl_core.methods import privacy
from hetfl_core.methods.alignment import (
    MMD,
    Alignment,
    Anchors,
    DebiasedWasserstein,
    MixtureWasserstein,
    SampledWasserstein,
    Wasserstein,
    segment_distance,
    segment_means,
)
from hetfl_core.methods.anchor_terms import class_mmd, class_wasserstein
from hetfl_core.methods.base import Batch, Loss, Method, Stage, pick, task_loss, weighted_mean
from hetfl_core.methods.ditto import Ditto
from hetfl_core.methods.fedavg import FedAvg, FedAvgFT, Local
from hetfl_core.methods.fedcma import FedCMA
from hetfl_core.methods.fedcr import FedCR
from hetfl_core.methods.fedgen import FedGen
from hetfl_core.methods.fedhenn import FedHeNN, kernel_alignment, published_alignment
from hetfl_core.methods.fedpac import FedPAC
from hetfl_core.methods.fedper import FedBABU, FedPer, LGFedAvg
from hetfl_core.methods.fedproto import FedProto
from hetfl_core.methods.fedprox import FedProx
from hetfl_core.methods.fedrep import FedRep, HetFedRep
from hetfl_core.methods.fedsr import FedSR
from hetfl_core.methods.flic import FLIC
from hetfl_core.methods.fusion import LateFusion
from hetfl_core.methods.hyfem import HyFEM
from hetfl_core.methods.laser import LaserVFL
from hetfl_core.methods.pfedhn import PFedHN
from hetfl_core.methods.schemes import FedAvgFTScheme, FedRepScheme, L2GDScheme
from hetfl_core.methods.stochastic import gaussian_gap


def _variants(family: type[Method]) -> Iterator[Method]:
    for method in family.__subclasses__():
        yield from method.variants()
        yield from _variants(method)


CATALOGUE: dict[str, Method] = {method.name: method for method in _variants(Method)}
"""Every method at its defaults, and its variants (`Method.variants`), by their names in tables and records."""


def named(name: str) -> str | None:
    """Key in `CATALOGUE` of a method's name, in any case: ``"FLIC-HL"``, or that of its class, ``"FLIC"``.

    Parameters
    ----------
    name : str

    Returns
    -------
    str, optional
        None where no method is called so.
    """
    classes = {type(method).__name__.lower(): key for key, method in reversed(CATALOGUE.items())}
    return (classes | {key.lower(): key for key in CATALOGUE}).get(name.lower())


__all__ = [
    "CATALOGUE",
    "FLIC",
    "MMD",
    "Alignment",
    "Anchors",
    "Batch",
    "DebiasedWasserstein",
    "Ditto",
    "FedAvg",
    "FedAvgFT",
    "FedAvgFTScheme",
    "FedBABU",
    "FedCMA",
    "FedCR",
    "FedGen",
    "FedHeNN",
    "FedPAC",
    "FedPer",
    "FedProto",
    "FedProx",
    "FedRep",
    "FedRepScheme",
    "FedSR",
    "HetFedRep",
    "HyFEM",
    "L2GDScheme",
    "LGFedAvg",
    "LaserVFL",
    "LateFusion",
    "Local",
    "Loss",
    "Method",
    "MixtureWasserstein",
    "PFedHN",
    "SampledWasserstein",
    "Stage",
    "Wasserstein",
    "class_mmd",
    "class_wasserstein",
    "gaussian_gap",
    "kernel_alignment",
    "pick",
    "privacy",
    "published_alignment",
    "segment_distance",
    "segment_means",
    "task_loss",
    "weighted_mean",
]

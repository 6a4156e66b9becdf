"""Data sets, each a function that returns a `Federation`.

``CATALOGUE`` names them all; `hetfl_core.datasets.registry` knows the files behind those that need a download.
"""

from collections.abc import Callable

from hetfl_core.datasets import (
    blocks,
    digits,
    eeg,
    eeg_people,
    eegmmidb,
    femnist,
    heart,
    images,
    liver,
    pooled,
    registry,
    thyroid,
    toy,
)
from hetfl_core.datasets.registry import DataError
from hetfl_core.federation import Federation

CATALOGUE: dict[str, Callable[..., Federation]] = {
    "toy.noisy_features": toy.noisy_features,
    "toy.linear_mapping": toy.linear_mapping,
    "toy.linear_regression": toy.linear_regression,
    "toy.four_gaussians": toy.four_gaussians,
    "digits.mnist_usps": digits.mnist_usps,
    "digits.bundled": digits.bundled,
    "images.fashion_mnist": images.fashion_mnist,
    "pooled.fashion_mnist": pooled.fashion_mnist,
    "pooled.mnist": pooled.mnist,
    "pooled.cifar10": pooled.cifar10,
    "pooled.cifar100": pooled.cifar100,
    "pooled.emnist_letters": pooled.emnist_letters,
    "blocks.fashion_mnist": blocks.fashion_mnist,
    "blocks.mnist": blocks.mnist,
    "blocks.cifar10": blocks.cifar10,
    "blocks.eurosat": blocks.eurosat,
    "femnist.characters": femnist.characters,
    "femnist.digits": femnist.digits,
    "heart.hospitals": heart.hospitals,
    "liver.clinics": liver.clinics,
    "thyroid.laboratories": thyroid.laboratories,
    "eeg.simulated": eeg.simulated,
    "eeg.moabb": eeg.recorded,
    "eeg.eegmmidb": eegmmidb.one_person,
    "eeg.eight_people": eeg_people.eight_people,
}
"""Name of each data set, as in ``hetfl list``, and the function that makes its federation."""

registry.DATA_SETS.update(CATALOGUE)

__all__ = ["CATALOGUE", "DataError"]

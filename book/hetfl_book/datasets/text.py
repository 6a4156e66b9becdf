"""Captions and photographs: FLIC's TextCaps, and a made stand-in with two modalities (S3.1.3 of [1]_).

References
----------
.. [1] A. Rakotomamonjy et al. Personalised federated learning on heterogeneous feature spaces. TMLR, 2024.
.. [2] O. Sidorov, R. Hu, M. Rohrbach, A. Singh. TextCaps: a dataset for image captioning with reading comprehension.
   ECCV 2020.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from hetfl_core import checks
from hetfl_core.datasets.registry import DataError, data_home
from hetfl_core.errors import NotInstalled, WrongValue
from hetfl_core.federation import Client, Federation
from hetfl_core.files import write_atomically
from hetfl_core.partition import Indices, Partition, gathered, streams
from hetfl_core.rng import SERVER, numpy_stream

CLASSES = ("Bottle", "Car", "Food", "Book")
CAPTIONS = "textcaps/TextCaps_0.1_train.json"
IMAGES = "textcaps/train_images"
CAPTIONS_URL = "https://dl.fbaipublicfiles.com/textvqa/data/textcaps/TextCaps_0.1_train.json"
IMAGES_URL = "https://dl.fbaipublicfiles.com/textvqa/images/train_val_images.zip"
FLIC_MODALITIES = Partition(100, classes_per_client=2)
KEPT_BY_CODE = {768: 730, 512: 480}
"""Fewest coordinates that a client keeps in the published code, of 768 (captions) and of 512 (images)."""

Vectors = NDArray[np.float32]


# --- TextCaps -----------------------------------------------------------------------------------------------------


class Pair(NamedTuple):
    """A caption and its image."""

    image: str
    caption: str
    label: int


class Embedder(Protocol):
    """What turns captions and images into vectors.

    Attributes
    ----------
    name : str
        Which models these are; vectors kept on disk are known by it.
    """

    name: str

    def captions(self, texts: Sequence[str]) -> Vectors:
        """Vectors of captions, shape (n, d)."""

    def images(self, paths: Sequence[Path]) -> Vectors:
        """Vectors of image files, shape (n, d)."""


def textcaps(
    partition: Partition = FLIC_MODALITIES,
    seed: int = 0,
    *,
    embeddings: str = "bert-resnet",
    prune: float | None = None,
    split: str = "pairs",
    embedder: Embedder | None = None,
    **fields: Any,
) -> Federation:
    """TextCaps: a client holds captions or photographs of four kinds of objects (Tables 3 and 4 of [1]_); half of each.

    The captions and images of [2]_ (6.6 GB) have to be put into the data folder by hand, as no hash of theirs is known
    to check a download with; the error says from where. Vectors are computed once, which takes models (``pip install
    "hetfl-book[text]"``, which download their weights) and on a CPU some tens of minutes, and are then kept.

    Parameters
    ----------
    partition : Partition
        How captions are dealt to one half of the clients, and images to the other; the paper has 100 and 200 clients of
        2 and 3 classes. With ``variant="code"`` each is cut for b clients of which only the first b/2 are used (see
        `hetfl_core.partition.published_shards`), and pruning is that of the code.
    seed : int
        Seed of the split, of the dealing and of the pruning.
    embeddings : {"bert-resnet", "clip"}
        768 and 512 numbers from BERT and ResNet-18, or 512 from CLIP for both: one space for all clients (Table 4).
    prune : float, optional
        Each client lacks a random set of coordinates, up to this share of them: a uniform number. Default 0.1, and 0
        for CLIP. The appendix says "up to 10 %", Section 6 "10 %", and the code keeps 730 … 768 and 480 … 512
        (5 and 6 %), in random order.
    split : {"pairs", "images"}
        What is split 80/20. ``"pairs"`` is the text's word; but an image has about five captions, so that images and
        their twin captions then stand on both sides: ``info["test_images_in_training"]`` is their share.
        ``"images"`` keeps the captions of an image together.
    embedder : Embedder, optional
        In the place of those models.
    **fields
        Fields of the partition to change, such as ``n_clients=200``; but for its `split`.

    Returns
    -------
    Federation
        4 classes; clients ``caption-000`` … and ``image-000`` …, with vectors of the widths that pruning leaves.

    Raises
    ------
    DataError
        If captions or images are missing or damaged, or the folder for the vectors cannot be written to.
    ImportError
        If vectors have to be computed and the extra is not installed.
    ValueError
        If an argument does not allow a dealing.
    """
    checks.choice("embeddings", embeddings, ("bert-resnet", "clip"))
    checks.choice("split", split, ("pairs", "images"))
    if prune is None:
        prune = 0.0 if embeddings == "clip" else 0.1
    partition = gathered(partition, fields, Partition)
    _check(partition, seed, prune)
    pairs = read_pairs(data_home() / CAPTIONS)
    vectors = embed(pairs, embedder or (Clip() if embeddings == "clip" else BertResNet()))
    rng = numpy_stream(seed, SERVER, 0, "textcaps:split")
    training = split_mask([pair.image for pair in pairs], split, rng)
    y = np.array([pair.label for pair in pairs], dtype=np.int64)
    clients = _clients(vectors, y, training, partition, seed, prune)
    image = np.array([pair.image for pair in pairs])
    settings = {"seed": seed, "embeddings": embeddings, "prune": prune, "split": split}
    info = {
        "settings": partition.settings("classes_per_client", "variant") | settings,
        "source": "TextCaps 0.1, training part (Sidorov et al., 2020), with images of Open Images",
        "licence": "CC BY 4.0 (captions); images CC BY 2.0",
        "class_names": list(CLASSES),
        "simulated": False,
        "pairs": len(pairs),
        "test_images_in_training": float(np.isin(image[~training], image[training]).mean()),
    }
    return Federation(clients, len(CLASSES), "text.textcaps", info)


def _check(partition: Partition, seed: int, prune: float) -> None:
    if partition.n_clients % 2:
        raise WrongValue(f"n_clients must be even, as half hold captions and half images, got {partition.n_clients}")
    _half(partition).check(10**12, len(CLASSES))  # whether there are enough pairs is seen when they are dealt
    checks.seed(seed)
    checks.fraction("prune", prune, "[0, 1)")


def files_present() -> bool:
    """Whether the captions lie where `textcaps` looks for them (photographs or their vectors are looked at later)."""
    return (data_home() / CAPTIONS).is_file()


def read_pairs(path: Path) -> list[Pair]:
    """The captions of TextCaps whose image is, first of all, of one of the four `CLASSES`.

    An entry lists the object classes of its image; the first counts.

    Raises
    ------
    DataError
        If the file is missing, saying from where to get it, or is not as expected.
    """
    if not path.exists():
        raise DataError(f"{path} is missing: get it from {CAPTIONS_URL} and put it there")
    try:
        entries = json.loads(path.read_bytes())["data"]
        known = {name: label for label, name in enumerate(CLASSES)}
        found = [(e["image_id"], e["caption_str"], (e["image_classes"] or [""])[0]) for e in entries]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: expected TextCaps 0.1, a list under 'data' of captions: {error!r}") from error
    pairs = [Pair(str(image), str(caption), known[name]) for image, caption, name in found if name in known]
    if missing := set(range(len(CLASSES))) - {pair.label for pair in pairs}:
        raise DataError(f"{path}: no image of class {CLASSES[min(missing)]} in {len(found)} captions")
    return pairs


def split_mask(images: Sequence[str], split: str, rng: np.random.Generator, share: float = 0.8) -> NDArray[np.bool_]:
    """Which samples are for training: a share of the samples, or all samples of a share of the images."""
    _, unit = np.unique(images, return_inverse=True) if split == "images" else (None, np.arange(len(images)))
    n = int(unit.max()) + 1
    return np.isin(unit, rng.permutation(n)[: int(share * n)])


def embed(pairs: Sequence[Pair], embedder: Embedder, folder: Path | None = None) -> tuple[Vectors, Vectors]:
    """Vectors of the captions and of the images of all pairs, from disk where they have been computed before.

    They are kept in an .npz named by a hash of the embedder's name and of all pairs, so that a change of either is
    noticed. An image with several captions is embedded once.

    Parameters
    ----------
    pairs : sequence of Pair
    embedder : Embedder
    folder : pathlib.Path, optional
        Default ``textcaps`` in the data folder.

    Returns
    -------
    tuple of ndarray of float32, shapes (n, d) and (n, d')

    Raises
    ------
    DataError
        Before anything is computed, if an image is missing or the folder cannot be written to.
    ImportError
        If the embedder's packages are not installed.
    """
    key = hashlib.sha256(json.dumps([embedder.name, pairs]).encode()).hexdigest()
    folder = data_home() / "textcaps" if folder is None else folder
    path = folder / f"vectors-{key[:16]}.npz"
    names, index = np.unique([pair.image for pair in pairs], return_inverse=True)
    if not path.exists():
        files = _image_files(names.tolist())
        if not os.access(folder, os.W_OK):
            raise DataError(
                f"{folder} cannot be written to, where the vectors are kept; set HETFL_DATA to one that can"
            )
        try:
            computed = {"captions": embedder.captions([p.caption for p in pairs]), "images": embedder.images(files)}
        except ImportError as error:
            raise NotInstalled(f'{error}: vectors of TextCaps need `pip install "hetfl-book[text]"`') from error
        buffer = io.BytesIO()
        np.savez(buffer, **computed)  # type: ignore[arg-type]
        write_atomically(path, buffer.getvalue())
    return _read_vectors(path, len(pairs), index)


def _image_files(names: Sequence[str]) -> list[Path]:
    files = [data_home() / IMAGES / f"{name}.jpg" for name in names]
    missing = [file for file in files if not file.exists()]
    if missing:
        raise DataError(
            f"{len(missing)} of {len(files)} images are missing, the first is {missing[0]}: get {IMAGES_URL} and put "
            f"its images into {data_home() / IMAGES}"
        )
    return files


def _read_vectors(path: Path, n: int, index: Indices) -> tuple[Vectors, Vectors]:
    try:
        with np.load(path, allow_pickle=False) as file:
            captions, images = file["captions"], file["images"]
    except Exception as error:  # the zip, zlib and npy readers each raise their own kinds
        raise DataError(f"{path} cannot be read ({error!r}): delete it, and it is computed anew") from error
    if len(captions) != n or len(images) != index.max() + 1:
        raise DataError(
            f"{path}: expected {n} captions and {index.max() + 1} images, got {len(captions)}, {len(images)}"
        )
    return captions.astype(np.float32), images.astype(np.float32)[index]


class BertResNet:
    """Captions by BERT's [CLS] token (768 numbers), images by ResNet-18 before its classifier (512)."""

    name = "bert-base-uncased [CLS] + resnet18 IMAGENET1K_V1"

    def captions(self, texts: Sequence[str]) -> Vectors:
        """Shape (n, 768)."""
        from transformers import AutoModel, AutoTokenizer

        tokenizer, model = AutoTokenizer.from_pretrained(BERT), AutoModel.from_pretrained(BERT).eval()
        return _batches(
            texts, lambda part: model(**tokenizer(part, **_TOKENS)).last_hidden_state[:, 0], "captions by BERT"
        )

    def images(self, paths: Sequence[Path]) -> Vectors:
        """Shape (n, 512)."""
        import torch
        from torchvision.models import ResNet18_Weights, resnet18

        weights = ResNet18_Weights.IMAGENET1K_V1
        model, prepare = resnet18(weights=weights).eval(), weights.transforms()
        model.fc = torch.nn.Identity()
        return _batches(paths, lambda part: model(torch.stack([prepare(_photo(p)) for p in part])), "images by ResNet")


class Clip:
    """Captions and images by CLIP ViT-B/32, in its common space of 512 dimensions."""

    name = "openai/clip-vit-base-patch32"

    def captions(self, texts: Sequence[str]) -> Vectors:
        """Shape (n, 512)."""
        from transformers import AutoTokenizer, CLIPTextModelWithProjection

        tokenizer = AutoTokenizer.from_pretrained(self.name)
        model = CLIPTextModelWithProjection.from_pretrained(self.name).eval()
        return _batches(texts, lambda part: model(**tokenizer(part, **_TOKENS)).text_embeds, "captions by CLIP")

    def images(self, paths: Sequence[Path]) -> Vectors:
        """Shape (n, 512)."""
        from transformers import AutoImageProcessor, CLIPVisionModelWithProjection

        processor = AutoImageProcessor.from_pretrained(self.name)
        model = CLIPVisionModelWithProjection.from_pretrained(self.name).eval()

        def vectors(part: Sequence[Path]) -> Any:
            return model(**processor([_photo(path) for path in part], return_tensors="pt")).image_embeds

        return _batches(paths, vectors, "images by CLIP")


BERT = "bert-base-uncased"
_TOKENS = {"padding": True, "truncation": True, "max_length": 77, "return_tensors": "pt"}


def _photo(path: Path) -> Any:
    from PIL import Image

    with Image.open(path) as image:
        return image.convert("RGB")


def _batches(items: Sequence[Any], vectors: Any, label: str, size: int = 64) -> Vectors:
    import torch
    from tqdm.auto import tqdm

    starts = tqdm(range(0, len(items), size), desc=label)
    with torch.no_grad():
        return torch.cat([vectors(list(items[at : at + size])) for at in starts]).numpy()


# --- the stand-in -------------------------------------------------------------------------------------------------


def two_modalities(
    partition: Partition = FLIC_MODALITIES,
    seed: int = 0,
    *,
    prune: float = 0.1,
    n_pairs: int = 14_977,
    latent: int = 16,
    separation: float = 3.0,
    noise: tuple[float, float] = (1.0, 0.7),
    **fields: Any,
) -> Federation:
    """A made federation of two modalities in the shape of TextCaps, a stand-in: never to be set against the paper.

    A pair has a meaning s ~ N(m_c, I) in `latent` dimensions, where the means of any two classes are `separation`
    apart. Caption and image each blur it by noise of their own and map it linearly, by Gaussian matrices that are the
    same for all clients, to 768 and 512 numbers, to which unit noise is added.

    Parameters
    ----------
    partition, seed, prune, **fields
        As in `textcaps`.
    n_pairs : int
        Number of pairs, equally many per class; 80 % are for training.
    latent : int
        Dimensions of the meaning, at least 4.
    separation : float
        Distance of the means of two classes, in standard deviations of the meaning.
    noise : tuple of float
        Standard deviation of the blur of captions and of images.

    Returns
    -------
    Federation
        4 classes; clients ``caption-000`` … and ``image-000`` …; ``info["stand_in"]`` is true.

    Raises
    ------
    ValueError
        If an argument does not allow a dealing.
    """
    partition = gathered(partition, fields, Partition)
    _check(partition, seed, prune)
    checks.integer("latent", latent, len(CLASSES))
    checks.integer("n_pairs", n_pairs, 1)
    k = partition.classes_per_client or 1
    if 5 * partition.n_clients * k > 8 * n_pairs:
        raise WrongValue(
            f"n_pairs must be enough for each of n_clients={partition.n_clients} to get one for training of each of "
            f"{k} classes, got {n_pairs}"
        )
    checks.number("separation", separation, -1e30, 1e30)
    if not isinstance(noise, Sequence) or len(noise) != 2 or isinstance(noise, str):
        raise WrongValue(f"noise must be two numbers, of captions and of images, got {checks.shown(noise)}")
    for blur in noise:
        checks.number("noise", blur, 0, 1e30)
    checks.memory(8 * n_pairs * (latent + 768 + 512 / 2), n_pairs=n_pairs, latent=latent)
    checks.memory(8 * latent * 768, latent=latent)
    rng = numpy_stream(seed, SERVER, 0, "two_modalities:pairs")
    y = rng.permutation(np.arange(n_pairs) % len(CLASSES))
    meaning = rng.standard_normal((n_pairs, latent)) + separation / np.sqrt(2) * np.eye(len(CLASSES), latent)[y]
    vectors = tuple(_view(meaning, width, blur, rng) for width, blur in zip((768, 512), noise))
    training = split_mask([""] * n_pairs, "pairs", rng)
    clients = _clients(vectors, y, training, partition, seed, prune)
    settings = {"seed": seed, "prune": prune, "n_pairs": n_pairs, "latent": latent, "separation": separation}
    info = {
        "settings": partition.settings("classes_per_client", "variant") | settings | {"noise": list(noise)},
        "source": "drawn from the seed; it stands in for TextCaps, which cannot be had here",
        "class_names": list(CLASSES),
        "simulated": True,
        "stand_in": True,
    }
    return Federation(clients, len(CLASSES), "text.two_modalities", info)


def _view(meaning: NDArray[np.float64], width: int, blur: float, rng: np.random.Generator) -> Vectors:
    n, latent = meaning.shape
    mapping = rng.standard_normal((latent, width)) / np.sqrt(latent)
    seen = meaning + blur * rng.standard_normal((n, latent))
    return (seen @ mapping + rng.standard_normal((n, width))).astype(np.float32)


# --- what both share ----------------------------------------------------------------------------------------------


def _half(partition: Partition) -> Partition:
    """For the clients of one modality."""
    return replace(partition, n_clients=partition.n_clients // 2)


def _clients(
    vectors: tuple[Vectors, ...],
    y: Indices,
    training: NDArray[np.bool_],
    partition: Partition,
    seed: int,
    prune: float,
) -> list[Client]:
    """Half the clients get captions, half images; each modality is dealt for itself."""
    clients, half, y_train, y_test = [], _half(partition), y[training], y[~training]
    for modality, x in zip(("caption", "image"), vectors):
        dealt = (partition if partition.variant == "code" else half).deal(y_train, streams(seed, modality), y_test)
        x_train, x_test = x[training], x[~training]
        for i, (train, test) in enumerate(list(zip(*dealt, strict=True))[: half.n_clients]):
            name = f"{modality}-{i:03d}"
            kept = kept_coordinates(x.shape[1], prune, partition.variant, numpy_stream(seed, name, 0, "prune"))
            mine = x_train[train][:, kept], y_train[train], x_test[test][:, kept], y_test[test]
            clients.append(Client(*mine, name))
    return clients


def kept_coordinates(width: int, prune: float, variant: str, rng: np.random.Generator) -> Indices:
    """Coordinates that a client keeps: all but 0 … ⌊prune · width⌋ random ones, in order.

    The code's variant keeps `KEPT_BY_CODE` or more of them, in random order; it too keeps all where `prune` is 0.
    """
    fewest = width - int(prune * width)
    if variant == "code" and prune:
        fewest = KEPT_BY_CODE.get(width, fewest)
    kept = rng.permutation(width)[: rng.integers(fewest, width + 1)]
    return kept if variant == "code" else np.sort(kept)

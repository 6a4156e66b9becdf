"""Models that are used: they predict for new rows, are written to a folder, and come back from it.

A folder holds ``tensors.safetensors`` and ``model.json``: parameters, names of features and classes, settings and
versions, and of the data what the server is told of clients (`Spec`), no row of them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from hetfl_core import checks
from hetfl_core.clients import by_block, numbers_by_name, shape_text
from hetfl_core.engine.checkpoint import method_settings
from hetfl_core.engine.last_step import after
from hetfl_core.errors import WrongValue
from hetfl_core.federation import Spec, blocks, map_blocks
from hetfl_core.files import write_atomically
from hetfl_core.methods.base import Method
from hetfl_core.networks import Params
from hetfl_core.numerics import versions
from hetfl_core.preparation import restored
from hetfl_core.rng import SERVER
from hetfl_core.settings import Checked, changed, plain

FORMAT = 1
ABOUT, TENSORS = "model.json", "tensors.safetensors"


@dataclass(frozen=True, eq=False)
class Trained:
    """The models of a run without its data: what `Run.trained` and `hetfl_core.load_trained` give.

    Parameters
    ----------
    method : Method
    settings : dict
        What the run was told, as `Run.settings`.
    name : str
        Of the federation.
    info : dict
        Facts of the federation; ``"classes"`` has what its classes are called. Only these are saved.
    specs : list of Spec
        What is known of each client.
    params : list of dict of str to Tensor
        Each client's parameters.
    server_tensors : dict of str to Tensor
        What the server holds.
    dtype : torch.dtype
    steps : list of dict of str to Tensor
        The last step of each client, where the run had ``last_step="own"``.
    prepares : list
        What makes inputs of rows of each client's table, by its ``transform``; None where there is none.
    """

    method: Method
    settings: dict[str, Any]
    name: str
    info: dict[str, Any]
    specs: list[Spec]
    params: list[Params]
    server_tensors: Params
    dtype: torch.dtype
    steps: list[Params] = field(default_factory=list)
    prepares: list[Any] = field(default_factory=list)

    @classmethod
    def of(cls, run: Any) -> Trained:
        """The models of a run; see `Run.trained`."""
        if not isinstance(run.method, Method) or not any(run.params):
            raise WrongValue(f"{run.method.name} keeps no model that could be used: its classifiers are not kept")
        fed, specs = run.federation, run.federation.specs()
        params = []
        for spec, mine in zip(specs, run.params, strict=True):
            kept = {**run.method.of(spec).init_client(spec, torch.Generator()), **run.method.download(run.server, spec)}
            params.append({name: p.detach().cpu() for name, p in mine.items() if name in kept})
        server = {name: p.detach().cpu() for name, p in run.server.items()}
        steps, prepares = list(run.steps), [client.prepare for client in fed]
        dtype = blocks(fed[0].x_train)[0].dtype
        return cls(run.method, run.settings, fed.name, fed.info, specs, params, server, dtype, steps, prepares)

    # --- use ---

    @property
    def clients(self) -> list[str]:
        """Names of the clients that have a model."""
        return [spec.name for spec in self.specs]

    @property
    def classes(self) -> list[Any]:
        """What the classes are called, in the order of their numbers; empty for a regression."""
        return list(self.info.get("classes", range(self.specs[0].n_classes)))

    @property
    def server(self) -> Predictor:
        """The server's own model, which takes rows that have all features.

        Raises
        ------
        ValueError
            Where the method leaves none at the server, and where each client's table was prepared by its own rows.
        """
        if any(prepare is not None for prepare in self.prepares):
            raise WrongValue(
                "the server cannot prepare rows: each client's table was scaled and filled by its own rows; predict "
                f"for one of {self.clients}"
            )
        first = self.specs[0]
        features, shapes = dict[str, Any](), dict[str, tuple[int, ...]]()
        for spec in self.specs:
            for block, shape in by_block(spec.shapes).items():
                if block not in shapes or (0 in shapes[block] and 0 not in shape):
                    shapes[block], features[block] = shape, by_block(spec.features)[block]
        alone = not isinstance(first.shapes, Mapping)
        whole = replace(
            first,
            name=SERVER,
            shapes=shapes[""] if alone else shapes,
            features=features[""] if alone else features,
            n_train=0,
            class_counts=(0,) * first.n_classes,
        )

        def outputs(x: Any) -> Any:
            return self.method.of(whole).predict_server(self.server_tensors, x)

        found = Predictor("the server", whole, outputs, self.classes, self.dtype)
        if found.outputs(self._ones(whole)) is None:
            raise WrongValue(f"{self.method.name} leaves no model at the server; predict for one of {self.clients}")
        return found

    def client(self, name: str | None = None) -> Predictor:
        """The model of one client.

        Parameters
        ----------
        name : str, optional
            Of the client; it can be left out where there is only one.

        Returns
        -------
        Predictor

        Raises
        ------
        ValueError
            For a client that has no model.
        """
        if name is None and len(self.specs) == 1:
            name = self.clients[0]
        if not isinstance(name, str) or name not in self.clients:
            raise WrongValue(f"client must be one of {checks.shown(self.clients)}, got {checks.shown(name)}")
        index = self.clients.index(name)
        spec, params = self.specs[index], self.params[index]
        method, received = self.method.of(spec), self.method.download(self.server_tensors, spec)

        def outputs(x: Any) -> Tensor:
            return after([method.predict(params, received, x)], self.steps[index : index + 1])[0]

        prepare = self.prepares[index] if self.prepares else None
        return Predictor(f"client {name!r}", spec, outputs, self.classes, self.dtype, prepare)

    def predict(self, rows: Any, client: str | None = None) -> pd.Series:
        """Classes, or numbers, that a client's model predicts; see `Predictor.predict`."""
        return self.client(client).predict(rows)

    def predict_proba(self, rows: Any, client: str | None = None) -> pd.DataFrame:
        """Class probabilities of a client's model; see `Predictor.predict_proba`."""
        return self.client(client).predict_proba(rows)

    def __repr__(self) -> str:
        return f"Trained({self.method.name} on {self.name!r}: {checks.shown(self.clients)})"

    # --- files ---

    def save(self, folder: str | Path) -> Path:
        """Write the models to a folder; `hetfl_core.load_trained` reads them.

        No row of anybody's data is written, but what was fitted to clients' tables is: medians, means, spreads, and the
        levels of words. Of a client with few rows they say much.

        Parameters
        ----------
        folder : path
            Made if it is missing; models that it holds are replaced.

        Returns
        -------
        pathlib.Path
            The folder.

        Raises
        ------
        OSError
            If the disk refuses, naming the file.
        TypeError
            For what JSON cannot hold: classes that are neither numbers nor texts, and a preparation that only pickle
            could write.
        """
        root = checks.path("folder", folder)
        tensors = {f"server/{name}": p for name, p in self.server_tensors.items()}
        names, steps = [], self.steps or [{} for _ in self.specs]
        for index, (spec, params, step) in enumerate(zip(self.specs, self.params, steps, strict=True)):
            sent = self.method.download(self.server_tensors, spec)
            own = {name: p for name, p in params.items() if name not in sent or not torch.equal(p, sent[name].cpu())}
            tensors |= {f"client/{index}/{name}": p for name, p in own.items()}
            tensors |= {f"step/{index}/{name}": p for name, p in step.items()}
            names.append(list(params))
        packed = save_tensors({name: p.clone().contiguous() for name, p in tensors.items()})
        told = method_settings(self.method, self.specs)
        about = {
            "format": FORMAT,
            "versions": versions("hetfl-core", "torch", "numpy", "scikit-learn"),
            "method": told,
            "made_of_settings": _same(told, self.method),
            "settings": {name: value for name, value in plain(self.settings, "settings").items() if name != "method"},
            "name": self.name,
            "classes": plain(self.classes, "classes"),
            "clients": [plain(vars(spec), "clients") for spec in self.specs],
            "params": names,
            "server": list(self.server_tensors),
            "dtype": str(self.dtype),
            "prepare": [None if each is None else each.state() for each in self.prepares],
            "probe": self._probe(),
            "tensors": hashlib.sha256(packed).hexdigest(),
        }
        write_atomically(root / TENSORS, packed)
        write_atomically(root / ABOUT, json.dumps(about | {"seal": _seal(about)}, indent=1).encode())
        return root

    def _probe(self) -> list[list[float]]:
        """What each model says of a sample of ones, by which a version that computes something else is known."""
        return [self.client(spec.name).outputs(self._ones(spec))[0].tolist() for spec in self.specs]

    def _ones(self, spec: Spec) -> Any:
        return map_blocks(lambda shape: torch.ones(1, *shape, dtype=self.dtype), spec.shapes)


@dataclass(frozen=True, eq=False)
class Predictor:
    """One model, of a client or of the server, with the names of what it takes and says.

    Parameters
    ----------
    who : str
        What errors call it.
    spec : Spec
    function : callable
        From inputs to outputs.
    classes : list
    dtype : torch.dtype
    prepare : object, optional
        Makes inputs of rows of a table, by its ``transform``.
    """

    who: str
    spec: Spec
    function: Any
    classes: list[Any]
    dtype: torch.dtype
    prepare: Any = None

    def outputs(self, x: Any) -> Tensor:
        """Logits, shape (n, C), or numbers, shape (n, 1), for inputs as tensors."""
        with torch.no_grad():
            return self.function(x)

    def predict(self, rows: Any) -> pd.Series:
        """What the model predicts for new rows.

        Parameters
        ----------
        rows : DataFrame, or array_like, or dict of str to such
            A table with the columns that the model was trained with, in any order; others do not matter. Where features
            have no names, arrays of the shape of the training inputs; with named blocks a dict, or one table with the
            columns of all blocks. No array stands for a table, for it does not say which of its columns is which, and
            a federation may have brought them into another order than a client has them in.

        Returns
        -------
        Series, shape (n,)
            What the class is called, or the number of a regression; with the index of the table. Of a method that
            predicts at random, by its mean features.

        Raises
        ------
        ValueError
            Naming whose model it is, and the column: for one that is missing, holds no numbers or has gaps, where no
            preparation takes care of these; for arrays of another shape, or where features have names; for a model that
            diverged.
        """
        outputs, index = self._said(rows)
        if self.spec.task == "regression":
            return pd.Series(outputs[:, 0].double().numpy(), index, name="predicted")
        found = outputs.argmax(1).tolist()
        return pd.Series([self.classes[c] for c in found], index, name="predicted")

    def predict_proba(self, rows: Any) -> pd.DataFrame:
        """Class probabilities for new rows; the argument and what is raised as for `predict`.

        Returns
        -------
        DataFrame, shape (n, C)
            A column per class, by what it is called.

        Raises
        ------
        ValueError
            For a regression.
        """
        if self.spec.task == "regression":
            raise WrongValue(f"{self.who}: a regression has no class probabilities; use predict")
        outputs, index = self._said(rows)
        return pd.DataFrame(outputs.double().softmax(1).numpy(), index, self.classes)

    def _said(self, rows: Any) -> tuple[Tensor, Any]:
        """Outputs for some rows, and their index."""
        if self.prepare is not None:
            checks.instance("rows", rows, pd.DataFrame)
            known = [name for own in by_block(self.spec.features).values() for name in own or ()]
            rows = self.prepare.transform(rows, known or None)
            rows = rows.reindex(columns=known, fill_value=0.0) if known else rows  # 0 as in a federation that is filled
        names, shapes, x = by_block(self.spec.features), by_block(self.spec.shapes), {}
        alone = not isinstance(self.spec.shapes, Mapping)
        for block, shape in shapes.items():
            given = rows if alone or isinstance(rows, pd.DataFrame) else self._block(rows, block)
            if given is None or (not alone and given is rows and 0 in shape):
                continue  # a block that the client lacks
            x[block] = self._input(given, names[block], shape, f" in block {block!r}" if block else "")
        n = {len(each) for each in x.values()}
        if len(n) != 1 or 0 in n:
            raise WrongValue(f"{self.who}: rows must be at least one, as many in each block, got {sorted(n)}")
        (n_rows,) = n
        x = {b: x[b] if b in x else torch.zeros(n_rows, *shape, dtype=self.dtype) for b, shape in shapes.items()}
        outputs = self.outputs(x[""] if alone else x).cpu()
        if bad := int((~outputs.isfinite()).any(1).sum()):
            raise WrongValue(f"{self.who}: the model says NaN or infinity of {bad} rows; did its training diverge?")
        return outputs, rows.index if isinstance(rows, pd.DataFrame) else None

    def _block(self, rows: Any, block: str) -> Any:
        """The rows of one block; None where the client lacks it and so do the rows."""
        given = checks.mapping("rows", rows)
        if block not in given and 0 not in by_block(self.spec.shapes)[block]:
            raise WrongValue(f"{self.who}: rows must have the blocks {list(self.spec.shapes)}, got {list(given)}")
        return given.get(block)

    def _input(self, rows: Any, names: Sequence[str] | None, shape: tuple[int, ...], where: str) -> Tensor:
        """Rows as a tensor, their columns in the order of the features."""
        if names is not None:
            if not isinstance(rows, pd.DataFrame):
                raise WrongValue(
                    f"{self.who}: rows{where} must be a table (pandas.DataFrame) with the columns "
                    f"{checks.shown([*names])}, in any order, got {checks.shown(rows)} of type {type(rows).__name__}, "
                    "which does not say which of its columns is which: pd.DataFrame(rows, columns=[…]) names them"
                )
            rows = numbers_by_name(rows, names, self.who + where)
        array = checks.array("rows", rows.cpu() if isinstance(rows, Tensor) else rows)
        if array.dtype.kind not in "biuf" or array.shape[1:] != tuple(shape) or not np.isfinite(array).all():
            raise WrongValue(
                f"{self.who}: rows{where} must be finite numbers of shape (n, {shape_text(shape)}), got shape "
                f"{array.shape} and dtype {array.dtype}"
            )
        return torch.from_numpy(array.astype(np.float64)).to(self.dtype)


# --- what comes back ------------------------------------------------------------------------------------------------


def load_trained(folder: str | Path, *, method: Method | None = None) -> Trained:
    """Models that `Run.save` or `Trained.save` wrote.

    Parameters
    ----------
    folder : path
    method : Method, optional
        The method, where it or its network is not of this library: a file does not say what code to run.

    Returns
    -------
    Trained

    Raises
    ------
    FileNotFoundError
        Naming a file that is not there.
    ValueError
        Naming the file: that was changed or damaged, that another version wrote in another format, or whose models
        this version, or `method`, does not make or does not compute.
    """
    root = checks.path("folder", folder)
    if method is not None:
        checks.instance("method", method, Method, such_as="FLIC()")
    about, packed = _read(root / ABOUT), _bytes(root / TENSORS)
    if hashlib.sha256(packed).hexdigest() != about["tensors"]:
        raise WrongValue(f"{root / TENSORS} is not the file that {ABOUT} was written with: it was changed or damaged")
    try:
        tensors = {name: p.clone() for name, p in load_tensors(packed).items()}
    except SafetensorError as error:
        raise WrongValue(f"{root / TENSORS} is damaged: {error}") from error
    by = f"{root / ABOUT}, written by hetfl-core {about['versions']['hetfl-core']},"
    try:
        found = _assembled(about, tensors, method, by)
        _check(found, about["probe"], by)
    except (KeyError, IndexError, TypeError, AttributeError, RuntimeError, ValueError) as error:
        if by in str(error):
            raise
        raise WrongValue(f"{by} holds what this version cannot read ({type(error).__name__}: {error})") from error
    return found


def _assembled(about: Mapping[str, Any], tensors: Mapping[str, Tensor], method: Method | None, by: str) -> Trained:
    """The models of a file's words and tensors."""
    specs = [_spec(told) for told in about["clients"]]
    server = {name: tensors[f"server/{name}"] for name in about["server"]}
    made = _method(about, specs, method, by)
    params, steps = [], []
    for index, (spec, names) in enumerate(zip(specs, about["params"], strict=True)):
        own = {**made.download(server, spec), **dict(_under(tensors, f"client/{index}/"))}
        params.append({name: own[name] for name in names})
        steps.append(dict(_under(tensors, f"step/{index}/")))
    prepares = [None if state is None else restored(state) for state in about["prepare"]]
    settings, info = about["settings"] | {"method": about["method"]}, {"classes": about["classes"]}
    dtype = getattr(torch, about["dtype"].removeprefix("torch."))
    steps = steps if any(steps) else []
    info = info if specs[0].task == "classification" else {}
    return Trained(made, settings, about["name"], info, specs, params, server, dtype, steps, prepares)


def _bytes(path: Path) -> bytes:
    if not path.is_file():
        raise FileNotFoundError(f"there is no {path}; a folder that Run.save wrote holds {ABOUT} and {TENSORS}")
    return path.read_bytes()


def _read(path: Path) -> dict[str, Any]:
    """What ``model.json`` says, as it was written in this format."""
    try:
        about = json.loads(_bytes(path))
        number, seal = about["format"], about.pop("seal")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise WrongValue(f"{path} is damaged, or was not written by Run.save: {error}") from error
    if number != FORMAT or isinstance(number, bool):
        by = about.get("versions", {}).get("hetfl-core", "an unknown version")
        raise WrongValue(f"{path} has format {number!r}, of hetfl-core {by}; this version reads format {FORMAT}")
    if _seal(about) != seal:
        raise WrongValue(f"{path} was changed since it was written")
    return about


def _seal(about: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


def _under(tensors: Mapping[str, Tensor], prefix: str) -> Iterator[tuple[str, Tensor]]:
    return ((name.removeprefix(prefix), p) for name, p in tensors.items() if name.startswith(prefix))


def _spec(told: Mapping[str, Any]) -> Spec:
    shapes = map_blocks(tuple, told["shapes"])
    features = map_blocks(lambda names: names if names is None else tuple(names), told["features"])
    return Spec(**{**told, "shapes": shapes, "features": features, "class_counts": tuple(told["class_counts"])})


# --- methods of what is written of them -----------------------------------------------------------------------------


def _classes(base: Any = Checked) -> dict[str, Any]:
    """The settings of this library by their name."""
    found: dict[str, Any] = {}
    for each in base.__subclasses__():
        own = {each.__name__: each} if each.__module__.startswith("hetfl_core.") else {}
        found |= _classes(each) | own
    return found


def built(told: Any) -> Any:
    """The settings that were written down (`hetfl_core.settings.plain`), made again of the classes of this library.

    Parameters
    ----------
    told : object

    Returns
    -------
    object

    Raises
    ------
    KeyError, TypeError, ValueError
        For a class, or a field, that there is not.
    """
    if isinstance(told, Mapping) and "class" in told:
        return _classes()[told["class"]](**{name: built(value) for name, value in told.items() if name != "class"})
    if isinstance(told, Mapping):
        return {name: built(value) for name, value in told.items()}
    return tuple(map(built, told)) if isinstance(told, list) else told


def _same(told: Any, method: Method) -> bool:
    """Whether what is written of a method makes it again."""
    try:
        made = built(told)
        return type(made) is type(method) and all(
            getattr(made, f.name) == getattr(method, f.name) for f in fields(made)
        )
    except (KeyError, TypeError, ValueError, RuntimeError):
        return False


def _method(about: Mapping[str, Any], specs: Sequence[Spec], given: Method | None, by: str) -> Method:
    """The method of a file: made of its settings, or the one that is given, if it is the same."""
    told = about["method"]
    if given is None:
        if not about["made_of_settings"]:
            raise WrongValue(
                f"{by} has a method or network that is not of this library: load_trained(folder, method=…) takes it"
            )
        try:
            return built(told)
        except (KeyError, TypeError, ValueError) as error:
            raise WrongValue(f"{by} has a method {told['class']!r} that this version does not make: {error}") from error
    if differing := changed(told, json.loads(json.dumps(method_settings(given, specs)))):
        raise WrongValue(f"{by} has another method (there → given):\n  " + "\n  ".join(differing))
    return given


def _check(found: Trained, probe: Sequence[Sequence[float]], by: str) -> None:
    """Refuse models whose tensors have other shapes than this version makes, or that say something else."""
    if found.specs[0].task == "classification" and len(found.classes) != found.specs[0].n_classes:
        raise WrongValue(f"{by} has {len(found.classes)} classes, where its models have {found.specs[0].n_classes}")
    for spec, params in zip(found.specs, found.params, strict=True):
        for block, names in by_block(spec.features).items():
            if names is not None and (shape := by_block(spec.shapes)[block])[:1] != (len(names),):
                raise WrongValue(f"{by} has {len(names)} features of client {spec.name!r}, whose inputs are {shape}")
        model = found.method.of(spec).model
        for name, p in model.init(spec, torch.Generator(), model.parts).items():
            if name in params and params[name].shape != p.shape:
                shapes = f"{tuple(params[name].shape)}, where this version makes {tuple(p.shape)}"
                raise WrongValue(f"{by} has {name!r} of client {spec.name!r} with shape {shapes}")
    for name, said, wanted in zip(found.clients, found._probe(), probe, strict=True):
        if not np.allclose(said, wanted, rtol=1e-3, atol=1e-3, equal_nan=True):
            raise WrongValue(f"{by} has a model of client {name!r} that says something else in this version")

"""A network of PyTorch as an embedding: any `torch.nn.Module` that computes each sample by itself.

A module is tried, before anything is trained, on a few made-up samples: what cannot be trained in a stack of clients,
or would give another result there, is refused with its reason, whichever engine is to train it.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from types import FunctionType
from typing import Any, Literal, NoReturn
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.parameter import is_lazy

from hetfl_core import checks
from hetfl_core.errors import WrongType, WrongValue
from hetfl_core.networks.identity import module_described
from hetfl_core.networks.layers import RUNNING, Draw, Network, Params, Tensors

Shape = tuple[int, ...]

REFUSED: tuple[tuple[tuple[type, ...], str], ...] = (
    (
        (nn.modules.batchnorm._BatchNorm,),
        "normalises by its batches and keeps running statistics of them, which are no parameters that a client could "
        "train or send; use nn.GroupNorm or nn.LayerNorm, or hetfl_core.networks.NormalisedCNN, which has them",
    ),
    (
        (nn.RNNBase, nn.LSTMCell),
        "cannot be computed for a stack of clients (torch.func.vmap has no rule for it); use nn.Conv1d, or attention",
    ),
    (
        (nn.AlphaDropout, nn.FeatureAlphaDropout, nn.RReLU),
        "draws random numbers itself, which would not come from the client's own stream; use nn.Dropout",
    ),
    ((torch.jit.ScriptModule,), "is compiled, so that its parameters cannot be replaced; hand over what was compiled"),
)
"""Layers that cannot be lifted, and what to do about each."""

DROPOUT = {nn.Dropout: 0, nn.Dropout1d: 1, nn.Dropout2d: 2, nn.Dropout3d: 3}
"""Layers that drop single numbers, or whole channels, which have so many axes."""

ATTENTION = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)
"""Layers that compute in use by operations without gradients; in training they do the same where nothing is dropped."""


def lifted(value: Any) -> Any:
    """A module of PyTorch, or a function that makes one, as a `Module`, also within a mapping; all else as it is."""
    if isinstance(value, Mapping):
        return {key: lifted(each) for key, each in value.items()}
    own = isinstance(value, nn.Module | FunctionType) and not isinstance(value, Network)
    return Module(value) if own else value


class Module(Network):
    r"""A `torch.nn.Module`, or a function that makes one for inputs of a shape, as an embedding.

    Where a network is expected, either can be given as it is: ``Model(phi=nn.Sequential(…))``.

    Parameters
    ----------
    network : torch.nn.Module, or callable
        Computes a batch, shape (n, \*shape) → (n, k), each sample by itself. Or ``network(shape)``, which makes such a
        module for clients with inputs of that shape, all of one width k:
        ``Module(lambda shape: nn.Sequential(nn.Linear(shape[0], 64), nn.ReLU(), nn.Linear(64, 16)))``. A module is
        copied, so that nothing that is done to it later matters.
    start : {"drawn", "own"}
        What parameters begin with: drawn as the layers' ``reset_parameters`` do (or as the function does that makes
        the module), from the streams of the run, so that they depend on its seed alone; or the module's own values.

    Notes
    -----
    Frozen parameters (``requires_grad=False``) and buffers stay as they are in the module, and never leave a client.
    `torch.nn.Dropout` is on in training, by draws from the client's stream, and off in use. Inputs cannot be padded, so
    that clients share a stack where their inputs have one shape.
    """

    def __init__(
        self, network: nn.Module | Callable[[Shape], nn.Module], start: Literal["drawn", "own"] = "drawn"
    ) -> None:
        checks.choice("start", start, ("drawn", "own"))
        if not callable(network):
            raise WrongType(
                "network must be a torch.nn.Module, or a function that makes one for inputs of a shape, got "
                f"{checks.shown(network)}"
            )
        self.network, self.start = network, start
        self._known: Any = network
        if isinstance(network, nn.Module):
            self.network = _copy(network)
            _refuse_layers(self.network)
            self._known = module_described(self.network, start == "own")["digest"]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Module) and (self.start, self._known) == (other.start, other._known)

    def __hash__(self) -> int:
        return hash((self.start, self._known))

    def __repr__(self) -> str:
        known = self.described([])
        inside = known["network"] if isinstance(known["network"], str) else known["network"]["layers"]
        return f"Module({inside}{', start=' + repr(self.start) if self.start == 'own' else ''})"

    def of(self, shape: Shape) -> Lifted:
        """The network for inputs of a shape, tried out.

        Parameters
        ----------
        shape : tuple of int
            Of one sample.

        Returns
        -------
        Network

        Raises
        ------
        ValueError
            For a module that does not take such inputs, does not give shape (n, k), or cannot be trained here.
        """
        made = _MADE.setdefault(self, {})
        if shape not in made:
            made[shape] = Lifted(self.network, self.start, tuple(shape))
        return made[shape]

    def of_client(self, name: str, shape: Any) -> Network:
        """The network of a client, whose inputs have this shape.

        Parameters
        ----------
        name : str
            The client's.
        shape : tuple of int
            Of one of its samples.

        Returns
        -------
        Network

        Raises
        ------
        ValueError
            As for `of`.
        """
        return self if isinstance(shape, Mapping) else self.of(shape)

    def described(self, shapes: Iterable[Shape]) -> dict[str, Any]:
        """The module in plain Python, for records and checkpoints; a function by what it makes for these shapes.

        Parameters
        ----------
        shapes : iterable of tuple of int
            Of the samples that it is to be described for.

        Returns
        -------
        dict
        """
        if isinstance(self.network, nn.Module):
            found: Any = module_described(self.network, self.start == "own")
        else:
            found = getattr(self.network, "__qualname__", type(self.network).__qualname__)
            for shape in sorted(set(shapes)):
                try:
                    made = {str(shape): self.of(shape).known}
                except ValueError:  # of clients that have another network
                    continue
                found = {**({"function": found} if isinstance(found, str) else found), **made}
        return {"class": "Module", "network": found, "start": self.start}

    @property
    def out(self) -> int:
        """The width k, which is not known before the inputs are: an AttributeError says so."""
        raise AttributeError("the width of a Module depends on the inputs: ask Model.of(spec), or Module.of(shape)")

    def init(self, shape: Shape, rng: torch.Generator, part: str = "phi") -> Params:
        """Parameters for inputs of the given sample shape.

        Parameters
        ----------
        shape, rng, part
            As for `Network.init`.

        Returns
        -------
        dict of str to Tensor
            ``<part>.<name>`` of each parameter that is trained.

        Raises
        ------
        ValueError
            As for `of`.
        """
        return self.of(shape).init(shape, rng, part)

    def __call__(self, params: Params, x: Tensor, noise: Tensors | None = None, part: str = "phi") -> Tensor:
        r"""Embed a batch, shape (n, \*shape) → (n, k).

        Parameters
        ----------
        params, x, noise, part
            As for `Network.__call__`.

        Returns
        -------
        Tensor, shape (n, k)
        """
        return self.of(tuple(x.shape[1:]))(params, x, noise, part)


class Lifted(Network):
    """A module for inputs of one shape (`Module.of`)."""

    out: int = 0

    def __init__(
        self, network: nn.Module | Callable[[Shape], nn.Module], start: Literal["drawn", "own"], shape: Shape
    ) -> None:
        self.network, self.start, self.shape = network, start, shape
        self.name = getattr(network, "__qualname__", type(network).__name__)
        with torch.inference_mode(False), torch.enable_grad():
            self.base = self._made(0)
            self.name = type(self.base).__name__
            _refuse_layers(self.base)
            self.known = module_described(self.base, start == "own")
            self.pattern = _with_masks(_prepared(self.base))
            self.dropped = self._masks()
            self.names = [name for name, p in self.base.named_parameters() if p.requires_grad]
            self._idle: dict[Any, list[nn.Module]] = {}
            self.out = self._tried()

    def __repr__(self) -> str:
        return f"{self.known['layers']} [{self.known['digest']}]"

    # --- what a network offers ---

    def init(self, shape: Shape, rng: torch.Generator, part: str = "phi") -> Params:
        """Parameters as the module's layers draw them, or the module's own."""
        if self.start == "own":
            drawn = self.base
        else:
            drawn = self._made(int(torch.randint(2**62, (), generator=rng, dtype=torch.int64)))
        params = dict(drawn.named_parameters())
        return {f"{part}.{name}": params[name].detach().clone() for name in self.names}

    def draws(self, part: str = "phi") -> dict[str, Draw]:
        """The masks of its dropout layers, for training."""
        return {f"{part}.{name}": draw for name, draw in self.dropped.items()}

    def __call__(self, params: Params, x: Tensor, noise: Tensors | None = None, part: str = "phi") -> Tensor:
        r"""Embed a batch, shape (n, \*shape) → (n, k)."""
        tensors = {name: params[f"{part}.{name}"] for name in self.names}
        tensors |= {name: noise[f"{part}.{name}"] for name in self.dropped if noise and f"{part}.{name}" in noise}
        idle = self._idle.setdefault((x.dtype, x.device), [])  # a module computes for one thread at a time
        with torch.inference_mode(False):
            template = idle.pop() if idle else deepcopy(self.pattern).to(x.device, x.dtype)
        found = _computed(template, tensors, x)
        idle.append(template)
        return found

    # --- how it is made ---

    def _made(self, seed: int) -> nn.Module:
        """A module with parameters that depend on nothing but the seed."""
        with _seeded(seed):
            if isinstance(self.network, nn.Module):
                net = deepcopy(self.network)
                net = net if self.start == "own" else net.float()
                if any(is_lazy(p) for p in net.parameters()):
                    _attempt(self.name, net.eval(), torch.zeros(3, *self.shape, dtype=torch.float32))
                if self.start == "drawn":
                    _draw(net)
                return net
            try:
                net = self.network(self.shape)
            except Exception as error:
                _refuse(self.name, f"cannot be made for shape {self.shape}: {_words(error)}", error)
            if not isinstance(net, nn.Module):
                _refuse(self.name, f"must make a torch.nn.Module, got {checks.shown(net)}")
            return _copy(net)

    def _masks(self) -> dict[str, Draw]:
        """The masks of the dropout layers, one for each time that they are used, which is seen by trying."""
        x = torch.rand(3, *self.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
        uses = []
        for training in (True, False):
            net = deepcopy(self.pattern).float().train(training)
            with torch.no_grad(), _seeded(0):
                _attempt(self.name, net, x)
            uses.append({path: layer.given for path, layer in net.named_modules() if isinstance(layer, _Masked)})
        if uses[0] != uses[1]:
            _refuse(self.name, "applies dropout by a condition of its own; nn.Dropout is off in use by itself")
        draws: dict[str, Draw] = {}
        for path, shapes in uses[0].items():
            layer = self.pattern.get_submodule(path)
            assert isinstance(layer, _Masked)
            for i, shape in enumerate(shapes):
                if shape[0] != len(x):
                    why = f"drops numbers of shape {shape}, whose first axis must be that of the batch, of 3 samples"
                    _refuse(self.name, why)
                layer.register_buffer(f"mask{i}", None)
                axes = shape[1 : len(shape) - layer.channels] + (1,) * layer.channels
                draws[f"{path}.mask{i}".lstrip(".")] = Draw(axes, "keep", "sample", layer.keep)
        return draws

    # --- what it is tried for ---

    def _tried(self) -> int:
        """The module's width, once it computes the same whoever shares its batch or its stack."""
        first, again, second = (self.init(self.shape, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1))
        self._check_draws(first, again, second)
        trial = Trial(self, self.name, self.shape, [first, second])
        width = trial.width()
        self._check_modes(trial)
        trial.check()
        return width

    def _check_draws(self, first: Params, again: Params, second: Params) -> None:
        for name, p in first.items():
            where = f"parameter {name.removeprefix('phi.')!r}"
            if name.endswith(RUNNING):
                why = f"calls a {where}, as running statistics are called, which no training moves; rename it"
                _refuse(self.name, why)
            if not p.is_floating_point():
                _refuse(self.name, f"has a {where} of {p.dtype}; only real numbers can be trained")
            if not torch.equal(p, again[name]):
                why = f"draws its {where} from other random numbers than PyTorch's, so that no seed repeats it"
                _refuse(self.name, why)
            drawn = self.start == "own" or not isinstance(self.network, nn.Module) or not torch.equal(p, second[name])
            if not drawn and p.numel() and bool((p != p.flatten()[0]).any()):
                _refuse(
                    self.name,
                    f"has a {where} that no layer's reset_parameters draws, so that no seed would decide it; give its "
                    "layer one, hand over a function, networks.Module(lambda shape: …), or take the module's own "
                    'values, networks.Module(…, start="own")',
                )

    def _check_modes(self, trial: Trial) -> None:
        params, x, y = trial.params[0], trial.x[0], trial.alone[0]
        net = deepcopy(self.pattern).float()
        tensors = {name: params[f"phi.{name}"] for name in self.names}
        before = {name: b.clone() for name, b in net.named_buffers()}
        found = []
        for training, seed in ((True, 1), (True, 2), (False, 1), (False, 2)):
            with torch.no_grad(), _seeded(seed):
                found.append(_computed(net.train(training), tensors, x))
        for name, b in net.named_buffers():
            if not torch.equal(b, before[name]):
                why = "which clients would share; buffers must stay as they are"
                _refuse(self.name, f"changes its buffer {name!r} while it computes, {why}")
        if not _alike(found[0], found[1]) or not _alike(found[2], found[3]):
            names = [name for name, m in net.named_modules() if getattr(m, "dropout", 0) not in (0, None)]
            which = "".join(f", in layer {name!r}" for name in names[:1])
            _refuse(self.name, f"draws random numbers itself{which}: use nn.Dropout, whose draws are the client's own")
        if not _alike(found[0], found[2]):
            _refuse(self.name, "computes something else in training than in use (by self.training)")
        loaded = deepcopy(self.base).float().eval()
        with torch.no_grad():
            for name, p in loaded.named_parameters():
                p.copy_(tensors.get(name, p))
            if not _alike(loaded(x), y):
                why = "does not compute by its named parameters alone, as torch.func.functional_call needs"
                _refuse(self.name, why)


class Trial:
    """A network on made-up samples of two clients, which says what would go wrong in training.

    Parameters
    ----------
    network : Network
    name : str
        What errors call it.
    shape : tuple of int
        Of a sample.
    params : sequence of dict of str to Tensor
        Of two clients; by default as the network begins.
    """

    def __init__(self, network: Network, name: str, shape: Shape, params: Sequence[Params] = ()) -> None:
        self.network, self.name, self.shape = network, name, shape
        params = params or [network.init(shape, torch.Generator().manual_seed(seed)) for seed in (0, 1)]
        self.params = [{n: p.float() if p.is_floating_point() else p for n, p in each.items()} for each in params]
        rng = torch.Generator().manual_seed(0)
        self.x = torch.rand(2, 3, *shape, generator=rng, dtype=torch.float32)  # in [0, 1), which are indices of 0 too
        self.alone = [self.call(p, rows) for p, rows in zip(self.params, self.x, strict=True)]

    def call(self, params: Params, x: Tensor) -> Any:
        """What the network computes when it is used."""
        return _attempt(self.name, functools.partial(self.network, params), x)

    def width(self) -> int:
        """The width k of a network that computes shape (n, k)."""
        y = self.alone[0]
        right = isinstance(y, Tensor) and y.dim() == 2 and y.shape[0] == 3 and y.is_floating_point()
        if not right or not y.shape[1]:
            got = f"{y.dtype} of shape {tuple(y.shape)}" if isinstance(y, Tensor) else f"a {type(y).__name__}"
            hint = "; end it with nn.Flatten()" if isinstance(y, Tensor) and y.dim() > 2 else ""
            wanted = "must give one tensor of floating-point numbers of shape (n, k)"
            _refuse(self.name, f"{wanted}, got {got} for 3 samples of shape {self.shape}{hint}")
        return int(y.shape[1])

    def check(self) -> None:
        """Refuse what is random by itself, what mixes samples, and what `torch.func.vmap` cannot lift."""
        params, x, y = self.params[0], self.x[0], self.alone[0]
        if not _alike(self.call(params, x), y):
            how = "declare those of training by `draws` (dropout of a module of PyTorch: networks.Module)"
            _refuse(self.name, f"draws random numbers itself when it is used; {how}")
        if not _alike(self.call(params, x[:1]), y[:1]):
            _refuse(
                self.name,
                "computes another output for a sample when others are in its batch, where a short batch is filled up "
                "with zeros; each sample must be computed by itself, without means over the batch (as of BatchNorm; "
                "use GroupNorm or LayerNorm), and a batch may have one sample (no squeeze())",
            )
        stack = {name: torch.stack([p[name] for p in self.params]) for name in params}
        stack = {name: p.requires_grad_() if p.is_floating_point() else p for name, p in stack.items()}
        rng, sizes = torch.Generator().manual_seed(0), {"sample": (2, 3), "step": (2,)}
        noise = {n: d.sample(sizes[d.per], rng, torch.float32) for n, d in self.network.draws().items()}
        try:
            lifted = vmap(self.network)(stack, self.x)
            trained = vmap(self.network)(stack, self.x, noise) if noise else lifted
            if trained.requires_grad:
                trained.sum().backward()
        except Exception as error:
            _refuse(
                self.name,
                f"cannot be computed for a stack of clients by torch.func.vmap: {_words(error)} (it must not branch on "
                "the values of tensors, call .item(), index by masks, nor write into tensors in place; torch.where "
                "does without)",
                error,
            )
        if not _alike(lifted, torch.stack(self.alone)):
            _refuse(self.name, "computes something else for a stack of clients (torch.func.vmap) than for each")


def _refuse(name: str, why: str, cause: Exception | None = None) -> NoReturn:
    raise WrongValue(f"network {name} {why}") from cause


def _attempt(name: str, call: Callable[[Tensor], Any], x: Tensor) -> Any:
    try:
        return call(x)
    except Exception as error:
        hint = "; inputs are floating-point numbers, which x.long() makes indices of" * ("indices" in str(error))
        _refuse(name, f"cannot take inputs of shape {tuple(x.shape[1:])}: {_words(error)}{hint}", error)


def try_out(network: Network, shape: Any) -> None:
    """Refuse a network of the user's own that cannot be trained here, as `Module.of` does.

    Raises
    ------
    ValueError
        With its name and the reason.
    """
    if isinstance(shape, Mapping) or type(network).__module__.startswith("hetfl_core."):
        return
    with torch.inference_mode(False), torch.enable_grad(), _seeded(0):
        trial = Trial(network, type(network).__name__, shape)
        if (width := trial.width()) != network.out:
            _refuse(trial.name, f"says out={network.out!r}, but computes {width} numbers for a sample")
        trial.check()


_MADE: WeakKeyDictionary[Module, dict[Shape, Lifted]] = WeakKeyDictionary()
_LOCK = threading.RLock()


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Let PyTorch's layers draw by a seed; its own generator is as it was afterwards."""
    with _LOCK, torch.random.fork_rng(devices=[]), torch.device("cpu"):
        default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float32)
        torch.default_generator.manual_seed(seed)
        try:
            yield
        finally:
            torch.set_default_dtype(default)


def _copy(net: nn.Module) -> nn.Module:
    try:
        return deepcopy(getattr(net, "_orig_mod", net)).cpu()  # of torch.compile, what it compiles
    except Exception as error:
        how = "torch.nn.utils.weight_norm cannot; that of torch.nn.utils.parametrizations can"
        _refuse(type(net).__name__, f"cannot be copied: {_words(error)} ({how})", error)


def _draw(net: nn.Module) -> None:
    """Let every layer draw its parameters; frozen ones, and buffers, stay as they are."""
    fixed = {id(p): p.detach().clone() for p in [*net.parameters(), *net.buffers()] if not p.requires_grad}
    for layer in net.modules():
        reset = getattr(layer, "reset_parameters", getattr(layer, "_reset_parameters", None))
        if callable(reset):
            reset()
    with torch.no_grad():
        for p in [*net.parameters(), *net.buffers()]:
            p.copy_(fixed.get(id(p), p))


def _refuse_layers(net: nn.Module) -> None:
    for name, layer in net.named_modules():
        reasons = [why for kinds, why in REFUSED if isinstance(layer, kinds)]
        if getattr(layer, "running_mean", None) is not None:  # as of nn.InstanceNorm2d, where asked for
            reasons.append(REFUSED[0][1])
        if type(layer) in DROPOUT and layer.p == 1:
            reasons.append("drops all; expected p < 1")
        if reasons:
            raise WrongValue(f"network {type(net).__name__}: layer {name!r}, {type(layer).__name__}, {reasons[0]}")


def _prepared(net: nn.Module) -> nn.Module:
    """A copy with tensors that were plain attributes as buffers; attention is kept from what has no gradient."""
    net = deepcopy(net)
    for layer in net.modules():
        layer.training = isinstance(layer, ATTENTION)
        for name, value in list(vars(layer).items()):
            if isinstance(value, Tensor):
                delattr(layer, name)
                layer.register_buffer(name, value.detach())
    return net


class _Masked(nn.Module):
    """Dropout by masks that are handed in, one for each time that it is used; without them nothing is dropped."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.keep, self.channels = 1 - layer.p, DROPOUT[type(layer)]
        self.given: list[Shape] = []

    def forward(self, x: Tensor) -> Tensor:
        mask = getattr(self, f"mask{len(self.given)}", None)
        self.given.append(tuple(x.shape))
        return x if mask is None else x * mask


def _with_masks(net: nn.Module) -> nn.Module:
    """A module with `_Masked` in the place of dropout."""
    masked = {layer: _Masked(layer) for layer in net.modules() if type(layer) in DROPOUT and layer.p}
    for parent in list(net.modules()):
        for name, layer in list(parent._modules.items()):
            if layer in masked:
                setattr(parent, name, masked[layer])
    return masked.get(net, net)


def _computed(net: nn.Module, tensors: Tensors, x: Tensor) -> Any:
    """What a module computes with these tensors in it; they are taken out again."""
    for layer in net.modules():
        if isinstance(layer, _Masked):
            layer.given.clear()
    return functional_call(net, dict(tensors), (x,))


def _alike(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape:
        return False
    size = 1 + float(b.detach().abs().nan_to_num(posinf=0).max()) if b.numel() else 1.0
    return torch.allclose(a.detach(), b.detach(), rtol=1e-3, atol=1e-3 * size, equal_nan=True)


def _words(error: Exception) -> str:
    """The first sentence of another library's error."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:300]

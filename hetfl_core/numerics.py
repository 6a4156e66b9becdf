"""Which instructions compute: the same on every machine, unless the fastest are asked for.

PyTorch, MKL, oneDNN, OpenBLAS and NumPy each choose, when they are loaded, the widest vector instructions that a CPU
has. Wider vectors add the same numbers in another order, so the last bit of a sum depends on the CPU; training
amplifies it over some thousand steps into points of accuracy. On x86 all five can be held to AVX2, which every such CPU
since 2015 has: `hold`, before the first of them is imported. The settings are environment variables of these libraries
([1]_, [2]_, [3]_, [4]_, [5]_).

What stays open: MKL promises equal bits between CPUs of one maker only, and takes the hint on Intel's alone ([2]_); on
ARM nothing is set, for nothing could be tried there. Records say what computed (`in_effect`), whatever was wished for.

References
----------
.. [1] PyTorch, aten/src/ATen/native/cpu/README.md: ATEN_CPU_CAPABILITY.
.. [2] Intel oneMKL, Developer Guide: Instruction Set Specific Dispatching; Specifying Code Branches.
.. [3] oneDNN, Developer Guide: CPU Dispatcher Control.
.. [4] OpenBLAS, Runtime variables: OPENBLAS_CORETYPE.
.. [5] NumPy, CPU build options: Runtime dispatch, NPY_DISABLE_CPU_FEATURES.
"""

from __future__ import annotations

import ctypes
import os
import platform
import shlex
import sys
import warnings
from collections.abc import Mapping, MutableMapping
from functools import cache
from importlib import import_module, metadata
from importlib.util import find_spec
from typing import Any, Literal, get_args

from hetfl_core.errors import WrongValue

__all__ = ["REVISION", "hold", "in_effect", "what_differs"]


REVISION = 4
"""Raised whenever a change of the code may change a bit of a result. Records without one are older: revision 0.

1: PyTorch, MKL, oneDNN, OpenBLAS and NumPy are held to the same instructions; clipping in float64.
2: most convolutions are trained by the loop on a CPU (stacks of one before), and with several channels have them
innermost; noise of more than `NOISE_NUMBERS` is drawn for fewer steps at once. Networks of vectors keep their bits
in float32; in float64 FLIC's anchor term counts more directions as flat.
3: Fed-CMA's fixed minibatch has no empty rows, so that its sums are added in another order; other methods keep their
bits.
4: HyFEM matches by sums in float64, a client's own taken off everybody's. Where two matchings cost the same to
rounding it may choose the other; else it keeps its bits, and so do other methods.
"""

Mode = Literal["portable", "fastest", "scalar"]
MODES: tuple[Mode, ...] = get_args(Mode)

SWITCH = "HETFL_FASTEST"
"""Environment variable: 1 lets every library take the fastest instructions that the CPU has."""

X86 = ("x86_64", "amd64", "i386", "i686")


def settings(mode: Mode = "portable", machine: str | None = None) -> dict[str, str]:
    """Environment variables that hold the libraries to an instruction set.

    Parameters
    ----------
    mode : {"portable", "fastest", "scalar"}
        AVX2; whatever the CPU has; or no vectors wider than SSE, which is slow and only good for comparison.
    machine : str, optional
        As `platform.machine` has it; by default this one.

    Returns
    -------
    dict of str to str
        Empty for the fastest, and on CPUs other than x86.
    """
    if mode == "fastest" or (machine or platform.machine()).lower() not in X86:
        return {}
    wide = mode == "portable"
    return {
        "ATEN_CPU_CAPABILITY": "avx2" if wide else "default",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2" if wide else "SSE4_2",
        "ONEDNN_MAX_CPU_ISA": "AVX2" if wide else "SSE41",
        "OPENBLAS_CORETYPE": "Haswell" if wide else "Nehalem",
        "NPY_DISABLE_CPU_FEATURES": " ".join(_numpy_features(mode)),
    }


def _numpy_features(mode: Mode) -> list[str]:
    """What NumPy is not to use, by the names of its version: 2.4 gathered them into levels of x86."""
    new = tuple(int(part) for part in metadata.version("numpy").split(".")[:2]) >= (2, 4)
    wide = ["X86_V4", "AVX512_ICL", "AVX512_SPR"] if new else ["AVX512F", "AVX512CD", "AVX512_SKX", "AVX512_ICL"]
    return wide if mode == "portable" else [*(["X86_V3"] if new else ["AVX2", "FMA3"]), *wide]


def hold(fastest: bool | None = None, environment: MutableMapping[str, str] | None = None) -> dict[str, str]:
    """Hold this process, and those that it starts, to the portable instructions; to be called before torch is imported.

    What the user has set by hand stays as it is.

    Parameters
    ----------
    fastest : bool, optional
        Take the fastest instead; by default what the variable HETFL_FASTEST says.
    environment : mapping, optional
        Where to set it, for processes that are to be started; by default `os.environ`, for this one, too.

    Returns
    -------
    dict of str to str
        What is set now of `settings`.

    Raises
    ------
    ValueError
        If HETFL_FASTEST is neither 0 nor 1.

    Warns
    -----
    RuntimeWarning
        Where PyTorch or NumPy are loaded, so that the change comes too late for this process.
    """
    target = os.environ if environment is None else environment
    wish = target.get(SWITCH, "0") or "0"
    if wish not in ("0", "1"):
        raise WrongValue(f"{SWITCH} must be 1 (the fastest instructions) or 0 (portable ones), got {wish!r}")
    portable = settings()
    fast = wish == "1" if fastest is None else fastest
    new = {} if fast else {name: value for name, value in portable.items() if name not in target}
    old = [name for name, value in portable.items() if fast and target.get(name) == value]
    loaded = [name for name in ("torch", "numpy") if name in sys.modules]
    if (new or old) and loaded and environment is None:
        warnings.warn(
            f"{' and '.join(loaded)} had been imported before the instructions were chosen, and keep those they have; "
            "call hetfl_core.numerics.hold() first",
            RuntimeWarning,
            stacklevel=2,
        )
    target.update(new)
    for name in old:
        del target[name]
    if fastest is not None:
        target[SWITCH] = str(int(fastest))
    return {name: target[name] for name in portable if name in target}


def keep_freed_memory() -> bool:
    """Have the C library keep what is freed for the next tensor, where it is glibc; no bit of a result depends on it.

    Otherwise it hands tensors of more than some 100 KiB back to the system, and each new one costs a page fault every
    4 KiB: a fifth of the time of a step of a small convolutional network, nine tenths of filling a large tensor.
    The process does not shrink below its peak.

    Returns
    -------
    bool
        Whether that was possible.
    """
    trim_threshold, mmap_max = -1, -4  # M_TRIM_THRESHOLD and M_MMAP_MAX of mallopt(3)
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(mmap_max, 0)) and bool(mallopt(trim_threshold, 2**31 - 1))


# --- what computed ----------------------------------------------------------------------------------------------------


def usable_cores() -> int:
    """The cores that this process may use, by its affinity and by what a container is given; at least 1."""
    import joblib

    return int(joblib.cpu_count())


def in_effect() -> dict[str, Any]:
    """What a record says: the instructions that each library uses in this process, and the revision of the numerics.

    Returns
    -------
    dict
        ``isa`` (PyTorch's: ``avx2``, ``avx512``, ``default`` without vectors, ``sve256`` …), ``numpy`` (``avx2``,
        ``avx512``, or ``sse`` on x86; the machine's name elsewhere), ``blas`` (the kernels of NumPy's and SciPy's
        OpenBLAS, e.g. ``haswell``; empty where they have another library) and ``revision``.
    """
    import torch

    isa = torch.backends.cpu.get_cpu_capability().lower().replace(" ", "-")
    return {"isa": isa, "numpy": _numpy_isa(), "blas": _blas(), "revision": REVISION}


def versions(*packages: str) -> dict[str, str]:
    """The versions of packages; ``"unknown"`` of one that is not installed."""
    found = {}
    for name in packages:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "unknown"
    return found


def _numpy_isa() -> str:
    if platform.machine().lower() not in X86:
        return platform.machine().lower()
    home = "numpy._core" if find_spec("numpy._core") else "numpy.core"  # the latter before NumPy 2
    return _widest(import_module(f"{home}._multiarray_umath").__cpu_features__)


def _widest(features: Mapping[str, bool]) -> str:
    """The widest vectors among the features that NumPy may use."""
    new = "X86_V4" in features  # the levels are what NumPy 2.4 chooses by; single features stay as the CPU has them
    known = {"avx512": "X86_V4", "avx2": "X86_V3"} if new else {"avx512": "AVX512_SKX", "avx2": "AVX2"}
    return next((isa for isa, name in known.items() if features.get(name)), "sse")


@cache
def _blas() -> str:
    import numpy as np  # noqa: F401  # loads its OpenBLAS
    import scipy.linalg  # noqa: F401
    from threadpoolctl import threadpool_info

    found = {str(lib.get("architecture")).lower() for lib in threadpool_info() if lib["internal_api"] == "openblas"}
    return "+".join(sorted(found))


def what_differs(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """What two records' `in_effect` differ in, in words; empty where they are the same.

    Parameters
    ----------
    there, here : dict
        As `in_effect` gives them; empty where nothing was recorded.

    Returns
    -------
    str

    Examples
    --------
    >>> what_differs({}, {"isa": "avx2", "revision": 1})
    'instructions not recorded (here avx2)'
    >>> what_differs({"isa": "avx512", "numpy": "avx2", "revision": 1}, {"isa": "avx2", "numpy": "avx2", "revision": 1})
    'isa avx512 → avx2'
    """
    if not there.get("isa"):
        return f"instructions not recorded (here {here.get('isa')})"
    names = [name for name in ("isa", "numpy", "blas", "revision") if there.get(name) != here.get(name)]
    return ", ".join(f"{name} {there.get(name, 'not recorded')} → {here.get(name)}" for name in names)


if __name__ == "__main__":  # for a shell: eval "$(python -m hetfl_core.numerics)"
    for name, value in hold().items():
        print(f"export {name}={shlex.quote(value)}")

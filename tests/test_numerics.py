"""The instructions that compute are chosen before PyTorch is loaded, and bits do not change unnoticed."""

import ast
import functools
import hashlib
import os
import platform
import re
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small import ragged
from test_blocks import FED, PHI

from hetfl_book import ledger
from hetfl_core import numerics, simulate
from hetfl_core.engine import checkpoint
from hetfl_core.methods import FLIC, HetFedRep, HyFEM, Local
from hetfl_core.networks import CNN, MLP, Model

x86 = pytest.mark.skipif(platform.machine().lower() not in numerics.X86, reason="other CPUs have nothing to hold")
CPU = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""


def child(code, **environment):
    """What a fresh process prints; variables of this process's portable mode are not handed on."""
    kept = {k: v for k, v in os.environ.items() if k not in numerics.settings("portable", "x86_64")}
    kept.pop(numerics.SWITCH, None)
    done = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", "-c", code],
        env=kept | environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_the_package_loads_neither_pytorch_nor_numpy():
    """Else nobody could choose the instructions in time; and it changes no variable of a user's session."""
    said = child(
        "import os, sys; before = dict(os.environ); import hetfl_core, hetfl_core.cli, hetfl_core.numerics; "
        "print('torch' in sys.modules, 'numpy' in sys.modules, os.environ == before)"
    )
    assert said == "False False True"


COMPUTES = """\
from hetfl_core import numerics
{hold}
import hashlib, numpy as np, torch
x = np.random.default_rng(0).normal(size=(100, 100))
found = np.exp(x), x @ x, torch.softmax(torch.tensor(x, dtype=torch.float32), 1).numpy()
print((numerics.in_effect(), [hashlib.md5(y.tobytes()).hexdigest()[:6] for y in found]))
"""


@functools.cache
def computed(hold="numerics.hold()", **environment):
    """What computes in a process, and digests of what it computes."""
    return ast.literal_eval(child(COMPUTES.format(hold=hold), **environment))


@pytest.mark.nightly
@x86
@pytest.mark.skipif("avx2" not in CPU, reason="this CPU has no AVX2, or does not say so")
def test_held_libraries_compute_with_avx2():
    expected = {"isa": "avx2", "numpy": "avx2", "blas": "haswell", "revision": numerics.REVISION}
    assert computed()[0] == expected
    assert computed(HETFL_FASTEST="1") == computed(""), "as if nothing were held"
    scalar, _ = computed(**numerics.settings("scalar"))
    assert scalar == expected | {"isa": "default", "numpy": "sse", "blas": "nehalem"}, "what a user has set stays"


@pytest.mark.nightly
@x86
@pytest.mark.skipif("avx512f" not in CPU, reason="this CPU has no AVX-512, or does not say so")
def test_wider_vectors_round_otherwise_and_holding_undoes_it():
    """The reason for all this: without it, the same call gives other bits on a newer CPU."""
    (_, held), (_, free) = computed(), computed(HETFL_FASTEST="1")
    assert held == computed(HETFL_FASTEST="0")[1], "in another process, too"
    assert all(a != b for a, b in zip(held, free, strict=True))


def test_settings_of_other_machines_and_modes():
    assert numerics.settings("portable", "aarch64") == numerics.settings("portable", "arm64") == {}
    assert numerics.settings("fastest", "x86_64") == {}
    held = numerics.settings("portable", "AMD64")
    assert (held["ATEN_CPU_CAPABILITY"], held["MKL_ENABLE_INSTRUCTIONS"], held["ONEDNN_MAX_CPU_ISA"]) == (
        "avx2", "AVX2", "AVX2"
    )  # fmt: skip


@x86
def test_hold_keeps_what_the_user_set_and_takes_back_its_own():
    place = {"ATEN_CPU_CAPABILITY": "default"}
    assert numerics.hold(environment=place)["ATEN_CPU_CAPABILITY"] == "default"
    assert place["OPENBLAS_CORETYPE"] == "Haswell"
    numerics.hold(fastest=True, environment=place)
    assert place == {"ATEN_CPU_CAPABILITY": "default", "HETFL_FASTEST": "1"}, "processes it starts are as fast"
    with pytest.raises(ValueError, match=r"HETFL_FASTEST must be 1 .* got 'yes'"):
        numerics.hold(environment={"HETFL_FASTEST": "yes"})


@x86
def test_too_late_is_said(monkeypatch):
    monkeypatch.delenv("OPENBLAS_CORETYPE", raising=False)
    with pytest.warns(RuntimeWarning, match="torch and numpy had been imported before the instructions were chosen"):
        numerics.hold()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        numerics.hold()  # nothing is left to change


def test_the_widest_of_numpys_features():
    """NumPy 2.4 chooses by levels; that the CPU has single features says nothing then."""
    assert numerics._widest({"AVX512F": True, "AVX2": True, "X86_V3": True, "X86_V4": False}) == "avx2"
    assert numerics._widest({"AVX512_SKX": True, "AVX2": True}) == "avx512"
    assert numerics._widest({"AVX512_SKX": False, "AVX2": False}) == "sse"


def test_the_shell_gets_lines_to_export():
    said = subprocess.run(
        [sys.executable, "-m", "hetfl_core.numerics"], capture_output=True, text=True, check=True
    ).stdout
    held = numerics.settings()
    assert said.count("export ") == len(held)
    assert all(f"export {name}=" in said for name in held)


def test_difference_in_words():
    now = {"isa": "avx2", "numpy": "avx2", "blas": "haswell", "revision": 2}
    assert numerics.what_differs(now, dict(now)) == ""
    assert numerics.what_differs({}, now) == "instructions not recorded (here avx2)"
    assert numerics.what_differs({"isa": "avx512", "revision": 1}, now) == (
        "isa avx512 → avx2, numpy not recorded → avx2, blas not recorded → haswell, revision 1 → 2"
    )


# --- records and checkpoints ------------------------------------------------------------------------------------------


def test_a_record_says_what_computed():
    run = simulate(ragged(), Local(Model(MLP((4,), 3))), rounds=1, participation=0.5, progress=False)
    record = ledger.RunRecord.of(run, "tests/numerics", "own")
    assert (record.numerics, record.numerics_revision) == (numerics.in_effect(), numerics.REVISION)
    assert record.isa == numerics.in_effect()["isa"]
    old = replace(record, numerics={})
    assert (old.isa, old.numerics_revision) == (None, 0)
    with pytest.raises(ValueError, match="numerics must be a mapping whose revision is a whole number"):
        replace(record, numerics={"isa": "avx2", "revision": "1"})


def test_a_file_without_the_field_is_read_as_before(tmp_path):
    run = simulate(ragged(), Local(Model(MLP((4,), 3))), rounds=1, participation=0.5, progress=False)
    path = ledger.write(ledger.RunRecord.of(run, "tests/numerics", "own", numerics={}), tmp_path)
    path.write_text("".join(line for line in path.read_text().splitlines(True) if not line.startswith('"numerics"')))
    assert ledger.read(path).isa is None


def test_a_checkpoint_of_other_instructions_warns(tmp_path, monkeypatch):
    options = {"participation": 0.5, "progress": False, "checkpoint": tmp_path, "device": "cpu"}
    simulate(ragged(), Local(Model(MLP((4,), 3))), rounds=1, **options)
    real = numerics.in_effect()
    monkeypatch.setattr(checkpoint.numerics, "in_effect", lambda: real | {"isa": "sve256"})
    with pytest.warns(RuntimeWarning, match=f"computed with {real['isa']} instructions, this process .* sve256"):
        simulate(ragged(), Local(Model(MLP((4,), 3))), rounds=2, **options)


# --- bits -------------------------------------------------------------------------------------------------------------

VECTORS, IMAGES = (ragged(sizes=(7, 40), images=images) for images in (False, True))
TINY = {
    "FLIC": (FLIC(Model(MLP((6,), 4), alpha=4), local_epochs=1, pretrain_epochs=2), VECTORS),
    "HetFedRep": (HetFedRep(Model(MLP((6,), 4), alpha=4), local_epochs=2), VECTORS),
    "HyFEM": (HyFEM(Model(PHI), local_epochs=2), FED),
    "Local, images": (Local(Model(CNN()), local_epochs=1), IMAGES),
}
BITS = {
    "AuthenticAMD": {
        "FLIC": "b899872fbd8309fc",
        "HetFedRep": "586b45e11d913bc1",
        "HyFEM": "bff04c5b2eda4629",
        "Local, images": "0608c8cf62b742a6",
    },
    "GenuineIntel 6.207": {
        "FLIC": "82e10835aa3ec371",
        "HetFedRep": "df79a0d3694e0f52",
        "Local, images": "dd11ee5c255c8d96",
    },
}
"""Digests of what the runs of `TINY` trained, at `REVISION_OF_BITS`, by CPU (`vendor`)."""

REVISION_OF_BITS = 4
MADE_WITH = {"torch": "2.13.0", "isa": "avx2"}
"""Other versions round otherwise."""


def vendor():
    """Who made the CPU, and of Intel's which one it is: MKL looks at that, too."""
    told = dict(re.findall(r"^(vendor_id|cpu family|model)\s*: (.+)$", CPU.split("\n\n")[0], re.M))
    maker = told.get("vendor_id", "unknown")
    return f"{maker} {told['cpu family']}.{told['model']}" if maker == "GenuineIntel" else maker


def digest(method, federation):
    run = simulate(federation, method, rounds=2, participation=0.5, progress=False, device="cpu")
    found = hashlib.blake2b(digest_size=8)
    for params in run.params:
        for name, p in sorted(params.items()):
            found.update(name.encode() + p.detach().numpy().tobytes())
    return found.hexdigest()


@pytest.mark.parametrize("name", TINY)
def test_bits_change_only_with_the_revision(name):
    """Where this fails after a change that was meant to: raise `numerics.REVISION`, and write the new digests here."""
    here = {"torch": torch.__version__.split("+")[0], "isa": numerics.in_effect()["isa"]}
    if here != MADE_WITH or name not in BITS.get(vendor(), {}):
        pytest.skip(f"digests are of {MADE_WITH} and certain CPUs, {name} not of all; this is {here}, {vendor()}")
    assert numerics.REVISION == REVISION_OF_BITS, "the revision was raised: write the new digests, and it, here"
    assert digest(*TINY[name]) == BITS[vendor()][name], (
        "results change in their bits: raise numerics.REVISION (CONTRIBUTING.md)"
    )


@pytest.mark.nightly
def test_freed_memory_is_kept_where_the_c_library_can():
    """Tensors of 35 megabytes that come and go, more than glibc keeps by itself (32): each page is a fault again."""
    program = """
import resource, sys
from hetfl_core import numerics
kept = sys.argv[1] == "keep" and numerics.keep_freed_memory()
import torch
def faults(steps):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(steps):
        x.tanh().square().sum().backward()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
x = torch.rand(2500, 6, 24, 24, dtype=torch.float32, requires_grad=True)
faults(3)
print(kept, faults(5))
"""
    found = {}
    for how in ("keep", "leave"):
        command = [sys.executable, "-c", program, how]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        kept, faults = done.stdout.split()
        found[how] = kept == "True", int(faults)
    if not found["keep"][0]:
        pytest.skip("another C library than glibc")
    assert 2 * found["keep"][1] < found["leave"][1]

"""The tool behind `make mutants`: what it changes, and what it leaves alone."""

import ast
import tomllib

import pytest

mutants = pytest.importorskip("mutants", reason="needs os.fork", exc_type=ImportError)


def changes(code):
    return [m.now for site in mutants.sites("x.py", code.encode()) for m in site]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("a + b", ["a - b"]),
        ("(a) * (b)", ["(a) / (b)"]),
        ("x -= y", ["x += y"]),
        ("a < b <= c", ["a <= b <= c", "a > b <= c", "a < b < c", "a < b >= c"]),
        ("a and b", ["a or b"]),
        ("not a", ["(a)"]),
        ("é = 3", ["é = 4", "é = 2"]),
        ("a = 0, 0.5, True", ["a = 1, 0.5, True", "a = 0, 1.0, True", "a = 0, 0.25, True", "a = 0, 0.5, False"]),
        ("if a: pass", ["if (not (a)): pass"]),
        ("[a for a in b if a]", ["[a for a in b if (not (a))]"]),
        ("x.max()", ["x.min()"]),
        ("a is not None", ["a is None"]),
    ],
)
def test_one_operator_or_constant_is_changed(code, expected):
    assert changes(code) == expected
    for now in expected:
        ast.parse(now)


@pytest.mark.parametrize(
    "code",
    ['"""1 + 1"""', "a: int | None", "f'{x + 1}'", "def f(x: 'a | b') -> A: pass", "raise E(f(1 + 1))", "A = B | C"],
)
def test_words_and_types_are_left_alone(code):
    assert changes(code) == []


@pytest.mark.parametrize(
    "code",
    [
        "zip(a, b, strict=True)",
        "field(repr=False)",
        "x = 2 if sys.platform == 'darwin' else 1",
        "if os.name != 'posix' and a: x = 1 + 1",
        "if TYPE_CHECKING: x = 1",
        "numpy_stream(seed, name, 0, 'x')",
        "Generator().manual_seed(0)",
    ],
)
def test_what_no_test_on_one_machine_could_see_is_left_alone(code):
    assert changes(code) == []


def test_of_what_is_rough_or_checks_itself_the_rest_is_changed():
    assert changes("checks.memory(8 * n, n=n)") == ["checks.memory(8 / n, n=n)"]
    assert changes("stream(seed, t + 1)") == ["stream(seed, t - 1)"]
    assert changes("zip(a, b, strict=False)") == ["zip(a, b, strict=True)"]
    assert changes("f(strict=True, repr=False)") == ["f(strict=False, repr=False)", "f(strict=True, repr=True)"]


def test_a_draw_is_repeatable_and_takes_each_place_at_most_once():
    one, two, other = (mutants.draw(50, seed, ["partition"]) for seed in (0, 0, 1))
    assert one == two != other
    assert len({m.start for m in one}) > 45  # a negation starts where its condition does
    every = mutants.draw(0, 0, ["partition/_classes:100-140"])
    assert {m.line for m in every} <= set(range(100, 141))


def test_every_module_of_the_core_is_looked_at_or_carries_no_numbers():
    root = mutants.ROOT / "hetfl_core"
    modules = {path.relative_to(root).with_suffix("").as_posix() for path in root.rglob("*.py")}
    modules = {name for name in modules if not name.endswith(("__init__", "__main__"))}
    assert modules - set(mutants.TESTS) == set(mutants.WORDS)


def test_the_known_equivalent_changes_are_changes():
    """Each has a reason, and can be drawn: its line is still there."""
    entries = tomllib.loads(mutants.EQUIVALENT.read_text("utf8"))["equivalent"]
    assert len(mutants.known()) == len(entries), "none is listed twice"
    for entry in entries:
        assert mutants.module_of(entry["file"]) in mutants.TESTS
        assert entry["was"] != entry["now"]
        assert entry["why"]
    paths = {path: (mutants.ROOT / path).read_bytes() for path in map(mutants.path_of, mutants.TESTS)}
    every = {m.key for path, source in paths.items() for site in mutants.sites(path, source) for m in site}
    assert set(mutants.known()) - every == set()


def test_a_line_belongs_to_the_innermost_function_around_it():
    source = (
        b"x = 1\nclass A:\n    y = 2\n    def f(self, z=3):\n        def g():\n            return 4\n        return g\n"
    )
    assert [mutants.function_at(source, line) for line in range(1, 8)] == [
        None, None, None, None, "A.f", "A.f.<locals>.g", "A.f"
    ]  # fmt: skip
    scope = {}
    exec(source, scope)
    assert scope["A"]().f().__code__.co_qualname == "A.f.<locals>.g", "as Python names it"


def test_what_is_known_of_a_test_file_outlives_a_change_of_the_core_but_not_one_of_its_own(tmp_path, monkeypatch):
    """Else a draw of twelve changes would begin with minutes of measuring after each edit."""
    for name in ("tests/test_x.py", "hetfl_core/x.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("1")
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    before = mutants.fingerprint("tests/test_x.py")
    (tmp_path / "hetfl_core/x.py").write_text("2")
    assert mutants.fingerprint("tests/test_x.py") == before
    (tmp_path / "tests/test_x.py").write_text("2")
    assert mutants.fingerprint("tests/test_x.py") != before

"""Docstrings of public names: they say the shapes of arrays that go in or out, and name our errors that are raised."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import pytest
from test_layout import statements

SOURCE = Path(__file__).parents[1] / "src" / "tirage"

ARRAYS = frozenset({"NDArray", "ndarray", "ArrayLike", "Tensor", "Array"})
"""Names of array types; aliases of them that a module of ours defines count too."""

ARRAY_ARGUMENTS = frozenset({"logits"})
"""Arguments that are arrays of any library, and so are annotated `Any`."""

DIMENSION = r"(?:\.\.\.|\*?[\w.]+(?: ?[-+*/] ?[\w.]+)*|\w+\([^()]*\))"
SHAPE = re.compile(
    rf"(?<![\w\])])\[(?=[^\]]*[A-Za-z.]|\d+\]){DIMENSION}(?:, {DIMENSION})*,?\]|\bscalars?\b|\b(?:any|same) shape\b"
)
"""`[B, V]`, `[n]`, `[..., V]`, `[V + 1]`; or words: a scalar, of any shape, the shape of `x`."""

ELEMENTWISE = re.compile(r"\barrays\s+of\s+one\s+shape\b")
"""What the docstring of a module says whose every function is elementwise."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    """The source of one module, and what its names stand for."""

    name: str
    source: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.source)

    @cached_property
    def classes(self) -> dict[str, ast.ClassDef]:
        return {node.name: node for node in self.tree.body if isinstance(node, ast.ClassDef)}

    @cached_property
    def aliases(self) -> dict[str, ast.expr]:
        """Types that the module gives a name: `Logits = NDArray[np.float32]`."""
        return {
            node.targets[0].id: node.value
            for node in self.tree.body
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        }

    @cached_property
    def imported(self) -> dict[str, str]:
        """Names that come from another module of ours, and that module."""
        return {
            alias.asname or alias.name: (node.module or "").removeprefix("tirage.")
            for node in statements(self.tree)
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tirage.")
            for alias in node.names
        }


@dataclass(frozen=True)
class Public:
    """A public function or method, with the class that it belongs to."""

    module: Module
    function: Function
    owner: ast.ClassDef | None

    @property
    def name(self) -> str:
        return ".".join([self.module.name, *([self.owner.name] if self.owner else []), self.function.name])

    @property
    def docstring(self) -> str:
        return ast.get_docstring(self.function) or ""


@dataclass(frozen=True)
class Sources:
    """Modules together: which names are array types, which classes are errors, what breaks a rule."""

    modules: tuple[Module, ...]

    @cached_property
    def classes(self) -> dict[str, ast.ClassDef]:
        return {name: node for module in self.modules for name, node in module.classes.items()}

    def is_array(self, module: Module, name: str) -> bool:
        """Whether a name in a module is an array type, or an alias for one; text that may be an array is neither."""
        if name in module.aliases:
            meant = words(module.aliases[name])
            return "str" not in meant and any(self.is_array(module, each) for each in meant - {name})
        if name in module.imported:
            home = next((each for each in self.modules if each.name == module.imported[name]), None)
            return home is not None and self.is_array(home, name)
        return name in ARRAYS

    @cached_property
    def errors(self) -> dict[str, frozenset[str]]:
        """Every exception class of ours, with its base classes of ours."""
        return {name: frozenset(self.bases(name)) for name in self.classes if self.is_error(name)}

    def bases(self, name: str) -> Iterator[str]:
        for base in self.classes[name].bases if name in self.classes else ():
            for word in words(base):
                yield word
                yield from self.bases(word)

    def is_error(self, name: str) -> bool:
        return any(base.endswith(("Error", "Exception")) for base in self.bases(name))

    def public(self) -> Iterator[Public]:
        for module in self.modules:
            yield from (Public(module, each, None) for each in functions(module.tree))
            for node in module.classes.values():
                if not node.name.startswith("_"):
                    yield from (Public(module, each, node) for each in functions(node))

    def has_arrays(self, each: Public) -> bool:
        """Whether a signature takes or returns an array."""
        arguments = [*each.function.args.posonlyargs, *each.function.args.args, *each.function.args.kwonlyargs]
        names = set().union(words(each.function.returns), *(words(one.annotation) for one in arguments))
        return any(self.is_array(each.module, name) for name in names) or any(
            one.arg in ARRAY_ARGUMENTS for one in arguments
        )

    def without_shape(self) -> list[str]:
        """Public functions with arrays whose docstring, class and base class say no shape."""
        return [
            each.name
            for each in self.public()
            if self.has_arrays(each) and not any(SHAPE.search(text) for text in self.texts(each))
        ]

    def without_error(self) -> list[str]:
        """Public functions that raise an error of ours which their docstring does not name, and that error."""
        found = []
        for each in self.public():
            for error in sorted(raised(each.function) & set(self.errors)):
                accepted = {error} | self.errors[error] - {"TirageError", "Exception", "ValueError"}
                documented = set(re.findall(r"\w+", " ".join(self.texts(each))))
                if not error.startswith("_") and not accepted & documented:
                    found.append(f"{each.name}: {error}")
        return found

    def texts(self, each: Public) -> Iterator[str]:
        """The docstrings that speak of a function: its own, its class's, those of what it implements.

        That of its module does where it says `arrays of one shape`.
        """
        yield each.docstring
        if ELEMENTWISE.search(ast.get_docstring(each.module.tree) or ""):
            yield "[...]"
        if each.owner is None:
            return
        yield ast.get_docstring(each.owner) or ""
        for name in {*self.bases(each.owner.name), *self.protocols_of(each.owner)} & set(self.classes):
            yield ast.get_docstring(self.classes[name]) or ""
            same = [one for one in functions(self.classes[name]) if one.name == each.function.name]
            yield from (ast.get_docstring(one) or "" for one in same)

    def protocols_of(self, owner: ast.ClassDef) -> Iterator[str]:
        """Protocols whose every method a class has."""
        lineage = [owner, *(self.classes[name] for name in self.bases(owner.name) if name in self.classes)]
        own = {name for each in lineage for name in members(each)}
        for name, node in self.classes.items():
            if any("Protocol" in words(base) for base in node.bases):
                wanted = {method.name for method in functions(node)}
                if wanted and wanted <= own:
                    yield name


def words(node: ast.AST | None) -> set[str]:
    """The names in an annotation, those in quotes included, the arguments of a Callable left out."""
    found: set[str] = set()
    pending = [node] if node else []
    while pending:
        each = pending.pop()
        if isinstance(each, ast.Subscript) and words(each.value) == {"Callable"}:
            continue
        if isinstance(each, ast.Name):
            found.add(each.id)
        elif isinstance(each, ast.Attribute):
            found.add(each.attr)
        elif isinstance(each, ast.Constant) and isinstance(each.value, str):
            found |= set(re.findall(r"\w+", each.value))
        else:
            pending.extend(ast.iter_child_nodes(each))
    return found


def functions(node: ast.Module | ast.ClassDef) -> list[Function]:
    """The public functions of a module, or methods of a class; overloads are documented where they are implemented."""
    found = [each for each in node.body if isinstance(each, Function) and not each.name.startswith("_")]
    return [each for each in found if not any("overload" in words(one) for one in each.decorator_list)]


def members(node: ast.ClassDef) -> Iterator[str]:
    """The names of the public methods and of the annotated fields of a class."""
    yield from (each.name for each in functions(node))
    for each in node.body:
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            yield each.target.id


def raised(function: Function) -> set[str]:
    """Classes that the body of a function raises, those of functions inside it aside."""
    found: set[str] = set()
    pending: list[ast.AST] = list(function.body)
    while pending:
        node = pending.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            continue
        if isinstance(node, ast.Raise) and node.exc is not None:
            called = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            found |= words(called) if isinstance(called, (ast.Name, ast.Attribute)) else set()
        pending.extend(ast.iter_child_nodes(node))
    return found


@cache
def tirage() -> Sources:
    paths = sorted(SOURCE.rglob("*.py"))
    return Sources(
        tuple(
            Module(".".join(path.relative_to(SOURCE).with_suffix("").parts), path.read_text(encoding="utf-8"))
            for path in paths
        )
    )


@pytest.mark.slow
def test_public_functions_of_arrays_say_the_shapes() -> None:
    assert tirage().without_shape() == []


@pytest.mark.slow
def test_public_functions_name_the_errors_of_ours_that_they_raise() -> None:
    assert tirage().without_error() == []


@pytest.mark.slow
def test_the_checks_find_something_to_check() -> None:
    public = list(tirage().public())
    assert sum(tirage().has_arrays(each) for each in public) > 100
    assert sum(bool(raised(each.function) & set(tirage().errors)) for each in public) > 50
    assert {"ParamsError", "GrammarError", "ModelError", "RowError", "UnavailableError"} <= set(tirage().errors)


EXAMPLE = '''
Logits = NDArray[np.float32]
class OurError(Exception):
    """Something is wrong."""
class Narrow(OurError):
    """Something in particular."""
class Rows:
    """Rows of logits [B, V]."""
    def take(self, logits): "Some of them."
class Model(Protocol):
    def forward(self, ids: "Tensor"):
        """Logits [B, V] of ids [B]."""
class Tiny:
    def forward(self, ids: Tensor): "The same."
class Other:
    def run(self, ids: Tensor): "No shape, and no protocol has it."
def silent(x: Logits): "What it does; x[0] and 0 in [0, 1] are no shapes."
def shaped(x: Logits): "The sum over [B, V], or list[int]."
def plain(x: int): "No array."
def _private(x: Logits): "Not public."
def fails(): raise OurError("no")
def fails_and_says():
    """Raises OurError."""
    raise Narrow("no")
def inner():
    def nested(): raise OurError("no")
    raise ValueError
'''


ELEMENTWISE_EXAMPLE = '''"""Sums and products of arrays of one shape."""
def add(x: Array, y: Array): "The sum."
'''


def test_the_checks_can_fail() -> None:
    example = Sources((Module("example", EXAMPLE), Module("wide", ELEMENTWISE_EXAMPLE)))
    assert example.without_shape() == ["example.silent", "example.Other.run"]
    assert example.without_error() == ["example.fails: OurError"]

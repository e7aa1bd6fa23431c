"""The rules of the source tree that no linter knows: names, hooks, messages, sizes, and the map in CONTRIBUTING.md.

The tests read files and run nothing.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from support.source_trees import SOURCE, source_paths, source_trees, uncollected

REPOSITORY = Path(__file__).parents[2]

SHRINK: Final = "these are no exceptions any more: delete their lines"
MAX_FILE_LINES: Final = 520
MAX_FUNCTION_LINES: Final = 100

LONG_FUNCTIONS: Final[dict[str, int]] = {
    "catalog/migrations/versions/v0001_first_tables.py:upgrade": 125,  # a migration stays as it was released
}

# Functions that recognise what a foreign library says only in words; each has a test of its own.
RECOGNISERS: Final = {
    "checkpoints/ranks/peers.py:is_gloo_timeout",
    "checkpoints/ranks/peers.py:_gloo_summary",  # of gloo's long errors, for our own message
    "backends/memory/out_of_memory.py:is_out_of_memory",  # the allocator of the CPU raises a RuntimeError
    "backends/ray/group.py:_first_line",  # of Ray's many-line errors, for our own message
    "sampling/vllm/connection.py:has_no_output_layer",
    "sampling/vllm/connection.py:is_loaded_already",
}

# Words that are gone altogether: no text has them and no identifier contains them.
RETIRED_WORDS: Final = frozenset(
    ["ailment", "auditor", "blueprint", "crew", "hearsay", "herald", "lookout", "mould", "rota", "tenure", "workshop"]
)
# Names that are gone, though English keeps the word: looked for among identifiers and in the code of documents.
RETIRED_NAMES: Final = frozenset(
    re.findall(
        r"\w+",
        """
        Ailment Alone Auditor Blueprint Company Crew CrewLost Cut Debt Door Execution FrontContext Herald Judges
        Keeper LeanBatch LeanNetwork LeanReading LedTurns Lesson Library Lifecycle LiveRun Looked Lookout Mixture Mould
        Passage Past Patience Patient Performing Player PreparedAdapters Remains Rota Shelf StockFile Surroundings
        Survival Suspects Orders Tally Tenure Trace Trial UnnamedSamplers UsageBuckets VOID Workshop
        check_stock clear_stock confer create_front draw_blueprint fetch_stock find_remains heard_error list_stock
        is_on_trial is_unnamed make_lesson make_mould on_unmade on_unnamed refresh_stock run_front shelf_of tell_error
        unnamed_idle_seconds unnamed_samplers
        """,
    )
)
SEARCHED: Final = ("src", "tests", "benchmarks", "docs", "examples", "deploy", "README.md", "CONTRIBUTING.md")
TEXT_SUFFIXES: Final = {".py", ".md", ".toml", ".yaml", ".yml", ".sh"}


Node = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.Assign | ast.AnnAssign | ast.Call | ast.Compare


class Definition(NamedTuple):
    """A class or function and the definitions around it."""

    path: str  # relative to src/chockstone
    scopes: tuple[ast.AST, ...]  # the outermost first, the definition itself last

    @property
    def function(self) -> str:
        names = [scope.name for scope in self.scopes if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef)]
        return f"{self.path}:{names[-1] if names else '<module>'}"


@cache
def sources() -> dict[str, ast.Module]:
    return {str(path.relative_to(SOURCE)): tree for path, tree in source_trees().items()}


@cache
def statements() -> list[tuple[Node, Definition]]:
    """Every definition, assignment, call and comparison of the sources, with the definitions around it."""
    with uncollected():
        return [found for path, tree in sources().items() for found in _statements_of(path, tree)]


def _statements_of(path: str, tree: ast.Module) -> Iterator[tuple[Node, Definition]]:
    waiting: list[tuple[ast.AST, tuple[ast.AST, ...]]] = [(tree, ())]
    while waiting:
        node, scopes = waiting.pop()
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            scopes = (*scopes, node)
        if isinstance(node, Node):
            yield node, Definition(path, scopes)
        waiting += [(child, scopes) for child in ast.iter_child_nodes(node)]


def test_a_public_class_name_exists_once() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for node, where in statements():
        is_nested_in_classes = all(isinstance(scope, ast.ClassDef) for scope in where.scopes)
        if isinstance(node, ast.ClassDef) and is_nested_in_classes and not node.name.startswith("_"):
            places[node.name].append(where.path)

    assert not {name: paths for name, paths in places.items() if len(paths) > 1}


def assigned_attributes(node: ast.AST) -> list[tuple[ast.Attribute, ast.expr]]:
    """The attributes that a statement sets, each with its value."""
    if isinstance(node, ast.AnnAssign) and node.value is not None:
        pairs: list[tuple[ast.expr, ast.expr]] = [(node.target, node.value)]
    elif isinstance(node, ast.Assign):
        pairs = []
        for target in node.targets:
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs += zip(target.elts, node.value.elts, strict=False)
            else:
                pairs.append((target, node.value))
    else:
        pairs = []
    return [(target, value) for target, value in pairs if isinstance(target, ast.Attribute)]


def is_own(target: ast.expr) -> bool:
    return isinstance(target, ast.Name) and target.id == "self"


def is_callback(value: ast.expr, where: Definition) -> bool:
    """Whether a value is a lambda, a partial, or a method of the class that the statement stands in."""
    if isinstance(value, ast.Lambda):
        return True
    if isinstance(value, ast.Call):
        return ast.unparse(value.func) in {"partial", "functools.partial"}
    if not (isinstance(value, ast.Attribute) and is_own(value.value)):
        return False
    classes = [scope for scope in where.scopes if isinstance(scope, ast.ClassDef)]
    methods = [m for each in classes[-1:] for m in each.body if isinstance(m, ast.FunctionDef | ast.AsyncFunctionDef)]
    return any(m.name == value.attr and "property" not in ast.unparse(m).partition("def ")[0] for m in methods)


def sets_a_hook(node: ast.AST, where: Definition) -> bool:
    """``a.on_b = …``, ``a.b = lambda: …`` and ``a.set_b(self._method)``, unless a constructor sets its own object's."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr.startswith("set_") and any(is_callback(each, where) for each in node.args)
    in_constructor = where.function.endswith((":__init__", ":__post_init__"))
    for target, value in assigned_attributes(node):
        is_removal = isinstance(value, ast.Constant) and value.value is None
        if is_removal or (is_own(target.value) and in_constructor):
            continue
        if target.attr.lstrip("_").startswith("on_") or (not is_own(target.value) and is_callback(value, where)):
            return True
    return False


def test_hooks_arrive_in_the_constructor() -> None:
    found: dict[str, list[int]] = defaultdict(list)
    for node, where in statements():
        if sets_a_hook(node, where):
            found[where.path].append(node.lineno)

    assert not found, "pass what is to be called to the constructor"


READERS: Final = {"search", "match", "fullmatch", "findall", "finditer", "sub", "split", "partition", "rpartition"} | {
    "startswith",
    "endswith",
    "removeprefix",
    "find",
    "index",
}


def is_message(node: ast.AST) -> bool:
    """``str(error)`` of a plain name, or an exception's ``args[…]``."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "str":
        return bool(node.args) and isinstance(node.args[0], ast.Name) and is_error_name(node.args[0].id)
    return isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute) and node.value.attr == "args"


def is_error_name(name: str) -> bool:
    return name in {"e", "ex", "err", "cause"} or any(part in name for part in ("error", "exc", "failure", "lost"))


def parses_a_message(node: ast.AST) -> bool:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in READERS:
        return any(is_message(each) for part in (node.func.value, *node.args) for each in ast.walk(part))
    if isinstance(node, ast.Compare) and all(isinstance(operator, ast.In | ast.NotIn) for operator in node.ops):
        return any(is_message(each) for each in node.comparators)
    return False


def test_messages_are_not_parsed() -> None:
    found = {where.function for node, where in statements() if parses_a_message(node)}

    assert not found - RECOGNISERS, "give the error an attribute"
    assert not RECOGNISERS - found, SHRINK


@cache
def texts() -> dict[str, str]:
    """All searched texts by path, but this one."""
    roots = [REPOSITORY / name for name in SEARCHED]
    paths = [path for root in roots for path in ([root] if root.is_file() else sorted(root.rglob("*")))]
    chosen = [path for path in paths if path.suffix in TEXT_SUFFIXES and path != Path(__file__)]
    return {str(path.relative_to(REPOSITORY)): path.read_text() for path in chosen}


def word_parts(text: str) -> set[str]:
    """The words of a text in lower case, those inside identifiers too: ``make_Mould`` has "make" and "mould"."""
    return {part.lower() for part in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", text)}


def identifiers(code: ast.AST) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(code):
        for field in ("id", "attr", "arg", "name", "asname"):
            value = getattr(node, field, None)
            if isinstance(value, str):
                found |= set(value.split("."))
    return found


def code_words(document: str) -> set[str]:
    """The words of a document's code blocks and of what stands in backticks."""
    pieces = re.findall(r"```.*?```|`[^`\n]+`", document, flags=re.DOTALL)
    return {word for piece in pieces for word in re.findall(r"\w+", piece)}


_A_RETIRED_NAME: Final = re.compile(rf"\b(?:{'|'.join(RETIRED_NAMES)})\b")


def retired_in(path: str, text: str) -> set[str]:
    lower = text.lower()
    found = word_parts(text) & RETIRED_WORDS if any(word in lower for word in RETIRED_WORDS) else set()
    if not _A_RETIRED_NAME.search(text):
        return found
    if path.endswith(".py"):
        return found | identifiers(ast.parse(text)) & RETIRED_NAMES
    return found | code_words(text) & RETIRED_NAMES if path.endswith(".md") else found


def test_retired_names_are_gone() -> None:
    found = {path: retired for path, text in texts().items() if (retired := retired_in(path, text))}

    assert not found


def test_files_are_short() -> None:
    lengths = {path: len((SOURCE / path).read_text().splitlines()) for path in sources()}

    assert not {path: lines for path, lines in lengths.items() if lines > MAX_FILE_LINES}


def test_functions_are_short() -> None:
    lengths = {
        where.function: (node.end_lineno or 0) - node.lineno + 1
        for node, where in statements()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }

    assert not {name: n for name, n in lengths.items() if n > LONG_FUNCTIONS.get(name, MAX_FUNCTION_LINES)}
    assert all(lengths.get(name, 0) > MAX_FUNCTION_LINES for name in LONG_FUNCTIONS), SHRINK


def test_the_map_in_contributing_names_every_room() -> None:
    rooms = {str(path.parent.relative_to(SOURCE)) for path in source_paths()} - {"."}

    on_the_map = re.findall(r"^\| `([a-z0-9_/]+)/` \|", (REPOSITORY / "CONTRIBUTING.md").read_text(), re.MULTILINE)

    assert sorted(on_the_map) == sorted(rooms)


def test_the_files_that_contributing_names_exist() -> None:
    named = re.findall(r"`([a-z0-9_/*]+/[a-z0-9_]+\.py)`", (REPOSITORY / "CONTRIBUTING.md").read_text())

    assert named
    assert not [path for path in named if not (any(REPOSITORY.glob(path)) or (SOURCE / path).is_file())]

"""The architecture (docs/architecture.md): import directions, read from the imports of every module."""

from __future__ import annotations

import ast
import importlib
import io
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import TypeGuard

import flax.linen as nn
import pytest

import lenmem

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "lenmem"

NETWORKS = ("types", "ops", "nn", "models")
EXPERIMENTS = ("types", "data", "tasks", "evaluation", "training")
SHARED = {"serialize": {"types"}, "papers": set[str](), "parallel": {"types", "ops"}, "keys": {"types"}}
SHARED |= {"leaves": {"types"}, "share": {"types", "serialize", "leaves"}}
TOP = {
    "__init__",
    "__main__",
    "bars",
    "cli",
    "configs",
    "contract",
    "experiment",
    "options",
    "queue",
    "records",
    "reproduce",
    "restarts",
    "runs",
    "sweep",
}
TOP |= {"aot", "beyond", "catalogue", "compiled", "drawing", "figures", "gallery", "map", "subject", "workers", "zoo"}

ALLOWED = {unit: set(wing[: wing.index(unit)]) for wing in (NETWORKS, EXPERIMENTS) for unit in wing} | SHARED
ALLOWED["training"] |= {"serialize", "leaves"}
ALLOWED = {
    unit: may | {"errors", "fields", "files", "keys", "lazy", "placement", "progress", "reuse", "seeds", "stopping"}
    for unit, may in ALLOWED.items()
}
ALLOWED |= {"fields": {"types", "errors"}} | {
    unit: set[str]() for unit in ("errors", "files", "lazy", "placement", "progress", "reuse", "seeds", "stopping")
}
"""unit (a module or folder of the package) -> the units it may import beside itself; TOP may import everything."""

AT_HOME = {
    "orbax": "training/checkpoint.py",
    "matplotlib": "evaluation/plots/",
    "tensorflow_datasets": "data/",
    "array_record": "data/",
}
"""Third-party package -> the only file or folder that may import it."""
LAZY = {"tensorflow_datasets", "array_record", "sklearn", "tensorboardX", "orbax", "lenmem.evaluation.plots"}
"""Imported inside functions only: parts of an extra, and what is slow to import."""
NEVER = {"pickle", "dill", "cloudpickle", "clu", "tensorflow", "torch"}
LINES, MODEL_LINES = 250, 200
"""Most lines of code in a file, and in one of models/: without docstrings, comments and empty lines."""
TABLES = {"models/__init__.py", "tasks/__init__.py"}
"""Files that may be longer: a table of names, with nothing to read from top to bottom."""


def imports(tree: ast.Module, module: str) -> Iterator[tuple[str, bool]]:
    """(absolute dotted name, whether it runs when the module is imported) for every import in a module."""
    bodies = [node for node in ast.walk(tree) if isinstance(node, _FUNCTIONS)]
    bodies += [line for node in ast.walk(tree) if _is_for_types(node) for line in node.body]
    lazy = {id(inner) for node in bodies for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, id(node) not in lazy) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join([*module.split(".")[: -node.level], *([base] if base else [])])
            yield from ((f"{base}.{alias.name}", id(node) not in lazy) for alias in node.names)


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def _folder(package: str) -> str:
    """The path of a package's files, such as `lenmem/evaluation/plots/`."""
    return f"{package.replace('.', '/')}/"


def _is_for_types(node: ast.AST) -> TypeGuard[ast.If]:
    """Whether the test is `if TYPE_CHECKING:`, whose body never runs."""
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def violations(package: Path) -> list[str]:
    """Every broken rule of a package called lenmem, as `file: what is wrong`."""
    found = []
    for path in sorted(package.rglob("*.py")):
        file = path.relative_to(package).as_posix()
        source = path.read_text()
        tree = ast.parse(source)
        unit = file.split("/")[0].removesuffix(".py")
        if unit not in ALLOWED and unit not in TOP:
            found.append(f"{file}: {unit} has no place in ALLOWED or TOP")
        # A package's own name is the base of its relative imports, so __init__ stays as the last part.
        for name, eager in imports(tree, f"lenmem.{file.removesuffix('.py').replace('/', '.')}"):
            first, *rest = name.split(".")
            if first == "lenmem" and unit in ALLOWED and (not rest or rest[0] not in ALLOWED[unit] | {unit}):
                found.append(f"{file}: {unit} may not import {name}")
            home = AT_HOME.get(first)
            if home and not file.startswith(home):
                found.append(f"{file}: {first} is for {home} alone")
            slow = next((slow for slow in LAZY if f"{name}.".startswith(f"{slow}.")), None)
            if (
                eager
                and slow is not None
                and not file.startswith("cli/")
                and not f"lenmem/{file}".startswith(_folder(slow))
            ):
                found.append(f"{file}: {name} has to be imported inside a function")
            if first in NEVER:
                found.append(f"{file}: {first} is not used here")
        found += [f"{file}: {what} has no docstring" for what in undocumented(tree)]
        most = MODEL_LINES if unit == "models" else LINES
        if file not in TABLES and code_lines(source) > most:
            found.append(f"{file}: more than {most} lines of code")
    return found


def code_lines(source: str) -> int:
    """The number of lines that are neither empty nor a part of a comment or of a text that stands alone."""
    words = [node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Expr)]
    texts = [word for word in words if isinstance(word, ast.Constant) and isinstance(word.value, str)]
    told = {number for text in texts for number in range(text.lineno, (text.end_lineno or 0) + 1)}
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    code = (token for token in tokens if token.string.strip() and token.type != tokenize.COMMENT)
    return len({number for token in code for number in range(token.start[0], token.end[0] + 1)} - told)


def undocumented(tree: ast.Module) -> Iterator[str]:
    """The module, and its public functions and classes, that have no docstring."""
    if ast.get_docstring(tree) is None:
        yield "the module"
    for node in tree.body:
        public = isinstance(node, (*_FUNCTIONS, ast.ClassDef)) and not node.name.startswith("_")
        if public and ast.get_docstring(node) is None:
            yield node.name


def test_the_house_is_in_order():
    """Import directions are right, third parties are imported only where allowed, everything public is documented."""
    found = violations(PACKAGE)
    assert not found, "\n" + "\n".join(found)


def linen_modules() -> set[str]:
    """The names of lenmem's Linen modules."""
    paths = (name for name in public_modules() if name.startswith(("lenmem.nn", "lenmem.models")))
    values = (value for path in paths for value in vars(importlib.import_module(path)).values())
    kinds = {value for value in values if isinstance(value, type) and issubclass(value, nn.Module)}
    return {kind.__name__ for kind in kinds if kind.__module__.startswith("lenmem.")}


def by_position(tree: ast.Module, kinds: set[str]) -> list[str]:
    """The calls of `kinds` that pass more than one argument by position."""
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    named = ((call, getattr(call.func, "id", getattr(call.func, "attr", ""))) for call in calls)
    return [
        f"{name} (line {call.lineno})"
        for call, name in named
        if name in kinds and (len(call.args) > 1 or any(isinstance(argument, ast.Starred) for argument in call.args))
    ]


def test_fields_of_modules_are_passed_by_name():
    """All except the first, so that two fields of one type cannot be swapped unnoticed."""
    kinds = linen_modules()
    assert {"LANTM", "MultiHeadAttention", "LSTMCell", "EncoderDecoder"} <= kinds
    for folder in ("nn", "models"):
        for path in sorted((PACKAGE / folder).rglob("*.py")):
            assert by_position(ast.parse(path.read_text()), kinds) == [], path
    swapped = ast.parse("LSTMCell(3, 1.0)\nGRUCell(*sizes)\nLSTMCell(3, forget_bias=1.0)\nother(1, 2)")
    assert by_position(swapped, kinds) == ["LSTMCell (line 1)", "GRUCell (line 2)"]


@pytest.mark.parametrize(
    ("file", "source", "complaint"),
    [
        ("ops/a.py", "from lenmem.nn.cells import LSTMCell", "ops may not import lenmem.nn.cells.LSTMCell"),
        ("ops/a.py", "from ..nn import cells", "ops may not import lenmem.nn.cells"),
        ("ops/__init__.py", "from .. import models", "ops may not import lenmem.models"),
        ("nn/a.py", "def f():\n    'Doc.'\n    import lenmem.models", "nn may not import lenmem.models"),
        ("models/a.py", "from lenmem.tasks.base import Task", "models may not import lenmem.tasks.base.Task"),
        ("tasks/a.py", "from lenmem import models", "tasks may not import lenmem.models"),
        ("tasks/a.py", "import lenmem", "tasks may not import lenmem"),
        ("evaluation/a.py", "from lenmem.training import loop", "evaluation may not import lenmem.training.loop"),
        ("training/a.py", "from lenmem.experiment import load", "training may not import lenmem.experiment.load"),
        (
            "training/loop.py",
            "def f():\n    'Doc.'\n    import orbax.checkpoint",
            "orbax is for training/checkpoint.py alone",
        ),
        ("training/checkpoint.py", "import orbax", "orbax has to be imported inside a function"),
        ("cli/a.py", "def f():\n    'Doc.'\n    import matplotlib", "matplotlib is for evaluation/plots/ alone"),
        (
            "tasks/a.py",
            "def f():\n    'Doc.'\n    import tensorflow_datasets",
            "tensorflow_datasets is for data/ alone",
        ),
        ("data/a.py", "import tensorflow_datasets", "tensorflow_datasets has to be imported inside a function"),
        ("experiment.py", "from lenmem.evaluation import plots", "lenmem.evaluation.plots has to be imported inside"),
        ("share.py", "import pickle", "pickle is not used here"),
        ("helpers.py", "", "helpers has no place in ALLOWED or TOP"),
        ("models/a.py", "x = 1\n" * (MODEL_LINES + 1), f"more than {MODEL_LINES} lines of code"),
        ("ops/a.py", "x = [\n" + "1,\n" * LINES + "]", f"more than {LINES} lines of code"),
        ("ops/a.py", "def public(): ...", "public has no docstring"),
        ("ops/a.py", "class Public: ...", "Public has no docstring"),
    ],
)
def test_each_broken_rule_is_noticed(tmp_path: Path, file: str, source: str, complaint: str):
    """Negative control: one fault in an otherwise empty tree is found, and nothing else."""
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'"""Doc."""\n{source}\n')
    (found,) = violations(tmp_path)
    assert found.startswith(f"{file}: ")
    assert complaint in found


def test_a_sound_tree_passes(tmp_path: Path):
    """The same tree without a fault: right directions, lazy imports, private names."""
    files = {
        "types.py": "import jax",
        "models/a.py": "from lenmem import ops\nfrom ..nn.cells import LSTMCell\nfrom .b import c\ndef _f(): ...",
        "models/b.py": "x = 1\n" * (MODEL_LINES - 1) + "x = 2  # why\n" + "# why\n\n" + '"""\nWhat it is.\n"""\n',
        "data/text.py": "def load():\n    'Doc.'\n    import tensorflow_datasets",
        "training/checkpoint.py": "from lenmem.tasks import base\ndef _f():\n    from orbax.checkpoint import v1",
        "evaluation/__init__.py": "if TYPE_CHECKING:\n    from lenmem.evaluation import plots",
        "evaluation/plots/maps.py": "import matplotlib.figure\nfrom lenmem.evaluation.plots.look import style",
        "cli/a.py": "from lenmem import models, tasks",
    }
    for file, source in files.items():
        (tmp_path / file).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / file).write_text(f'"""Doc."""\n{source}\n')
    assert violations(tmp_path) == []


def child(program: str) -> None:
    """Run a program in a Python of its own."""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_importing_lenmem_loads_nothing_it_does_not_need():
    """`import lenmem` loads no other package. Its networks and training start no backend and import no extras.

    Of the evaluation only plots import matplotlib, and never pyplot.
    """
    unwanted = ("matplotlib", "orbax", "rich.progress", "scipy.stats", "sklearn", "tensorboardX", "tensorflow_datasets")
    child(
        "import sys\n"
        "before = set(sys.modules)\n"
        "import lenmem\n"
        "loaded = {name.split('.')[0] for name in set(sys.modules) - before} - {'lenmem'} - sys.stdlib_module_names\n"
        "assert not loaded, loaded\n"
        "lenmem.train, lenmem.measure, lenmem.models, lenmem.nn, lenmem.ops, lenmem.tasks, lenmem.load_config\n"
        "from jax._src import xla_bridge\n"
        "assert not xla_bridge.backends_are_initialized(), 'a backend was started'\n"
        f"loaded = [name for name in {unwanted!r} if name in sys.modules]\n"
        "assert not loaded, loaded\n"
        "import lenmem.evaluation.lengths, lenmem.evaluation.tables, lenmem.evaluation.traces\n"
        "assert 'matplotlib' not in sys.modules\n"
        "import lenmem.evaluation.plots\n"
        "assert 'matplotlib' in sys.modules and 'matplotlib.pyplot' not in sys.modules"
    )


def public_modules() -> list[str]:
    """All modules without an underscore in their path, below `lenmem`."""
    names = [path.relative_to(PACKAGE.parent).with_suffix("").as_posix() for path in PACKAGE.rglob("*.py")]
    modules = {name.removesuffix("/__init__").replace("/", ".") for name in names}
    return sorted(name for name in modules - {"lenmem"} if "._" not in name)


def test_every_module_is_an_attribute():
    """After `import lenmem`, `lenmem.parallel`, `lenmem.evaluation.plots` and all other modules can be used.

    The exception is a module whose package has a function with the same name.
    """
    child(
        "import lenmem, operator, types\n"
        f"for path in {public_modules()!r}:\n"
        "    package, _, name = path.removeprefix('lenmem.').rpartition('.')\n"
        "    owner = operator.attrgetter(package)(lenmem) if package else lenmem\n"
        "    found = getattr(owner, name)\n"
        "    assert isinstance(found, types.ModuleType) or name in owner.__all__, path"
    )


def test_what_is_imported_late_is_what_type_checkers_read():
    """The imports under TYPE_CHECKING are all that the package exports: every submodule, and every name."""
    block = next(node for node in ast.walk(ast.parse((PACKAGE / "__init__.py").read_text())) if _is_for_types(node))
    typed = [(node.module, alias.name) for node in block.body for alias in node.names]
    modules = {f"lenmem.{name}" for module, name in typed if module == "lenmem"}
    assert modules == {name for name in public_modules() if name.count(".") == 1} - {"lenmem.lazy"}
    names = {name: module for module, name in typed if module != "lenmem"}
    assert {*names, *(name.removeprefix("lenmem.") for name in modules)} >= set(lenmem.__all__) - {"__version__"}
    for name, module in names.items():
        assert getattr(lenmem, name) is getattr(importlib.import_module(module), name)
    assert {*names, *(name.removeprefix("lenmem.") for name in modules)} <= set(dir(lenmem))


def test_an_unknown_attribute_is_an_attribute_error():
    """Also for a package whose names are imported lazily."""
    with pytest.raises(AttributeError, match="module 'lenmem' has no attribute 'trian'"):
        getattr(lenmem, "trian")  # noqa: B009
    with pytest.raises(ImportError, match="cannot import name 'plot'"):
        from lenmem.evaluation import plot  # pyright: ignore[reportAttributeAccessIssue]  # noqa: F401
    assert not hasattr(lenmem, "__wrapped__")

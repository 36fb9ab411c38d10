"""The command line. tyro generates the options from the dataclasses of the experiment.

Each module holds some verbs: their options as dataclasses, and the functions that connect them with the library, where
the work is done.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shlex
import sys
from collections.abc import Callable, Sequence

import jax

from lenmem import __version__, progress, stopping
from lenmem.cli.beyond import Beyond, go_beyond
from lenmem.cli.checking import Check, check
from lenmem.cli.comparing import Compare, compare
from lenmem.cli.compiling import Compile, compile_ahead
from lenmem.cli.networks import Evaluate, Export, Import, Plot, Predict, evaluate, export, import_file, plot, predict
from lenmem.cli.programs import keep_programs
from lenmem.cli.shelves import Data, Gallery, List, Zoo, data, list_names, show, zoo
from lenmem.cli.tables import Map, Reproduce, draw_map, reproduce
from lenmem.cli.terminal import bars, console, discard_output, fail, say
from lenmem.cli.training import Sweep, Train, sweep, train
from lenmem.errors import nearest, users_line
from lenmem.training import DivergedError

VERBS: dict[str, tuple[Callable[[list[str]], None], type]] = {
    "train": (train, Train),
    "evaluate": (evaluate, Evaluate),
    "predict": (predict, Predict),
    "compare": (compare, Compare),
    "sweep": (sweep, Sweep),
    "plot": (plot, Plot),
    "check": (check, Check),
    "compile": (compile_ahead, Compile),
    "reproduce": (reproduce, Reproduce),
    "map": (draw_map, Map),
    "beyond": (go_beyond, Beyond),
    "export": (export, Export),
    "import": (import_file, Import),
    "zoo": (zoo, Zoo),
    "data": (data, Data),
    "gallery": (show, Gallery),
    "list": (list_names, List),
}
"""Each verb with its function, which takes the words after the verb, and its options."""


def main(arguments: Sequence[str] | None = None) -> None:
    """`lenmem VERB ...`. An error that a user can cause prints one message and exits with status 2, and so does any
    error in a user's own code.

    With the environment variable LENMEM_TRACEBACK=1, it is raised instead.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if not arguments or arguments[0] in ("-h", "--help"):
        _usage()
        return
    if arguments[0] in ("-V", "--version"):
        console.print(_version(), highlight=False)
        return
    verb, rest = arguments[0], arguments[1:]
    command = f"  {shlex.join(['lenmem', *arguments])}"
    try:
        if verb not in VERBS:
            raise ValueError(f"there is no verb {verb!r}.{nearest(verb, VERBS)} Verbs: {', '.join(VERBS)}")
        if verb != "compile":  # which measures how long compilation takes
            keep_programs()
        if verb in ("compare", "sweep", "reproduce", "map", "beyond"):
            stopping.advise(lambda: f"stopped; finished work is kept, continue with\n{command}")
        with progress.listened(bars.shown):
            VERBS[verb][0](rest)
    except DivergedError as error:
        fail(str(error), 1)
    except BrokenPipeError:  # as after `| head`
        discard_output()
        raise SystemExit(1) from None
    except KeyboardInterrupt as stopped:
        console.print(str(stopped) or "stopped")
        if "the same command" in str(stopped):
            say(command)
        raise SystemExit(stopping.status()) from None
    except Exception as error:
        if isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" in str(error):
            fail(_out_of_memory(str(error)), 1)
        line = users_line(error)
        too_large = line is None and isinstance(error, OverflowError)
        expected = too_large or isinstance(error, ValueError | OSError)
        if os.environ.get("LENMEM_TRACEBACK", "0") != "0" or (line is None and not expected):
            raise
        if too_large:
            fail(f"a number, or what is computed from it, is larger than 2^31 - 1: {error}", 2)
        said = str(error) if expected else f"{type(error).__name__}: {error}; LENMEM_TRACEBACK=1 shows the traceback"
        fail(said if line is None or line in said else f"{said}\n(in {line})", 2)


def _usage() -> None:
    console.print("usage: lenmem VERB ... [options]\n", markup=False, highlight=False)
    for verb, (_, kind) in VERBS.items():
        console.print(f"  {verb:10} {(kind.__doc__ or '').splitlines()[0]}", highlight=False, markup=False)
    console.print("\nlenmem VERB --help describes a verb, lenmem --version the installed packages.", highlight=False)


def _version() -> str:
    """The versions that a bug report needs."""
    packages = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("jax", "flax", "optax"))
    return f"lenmem {__version__} ({packages}, Python {platform.python_version()})"


def _out_of_memory(said: str) -> str:
    """XLA's error about an array that does not fit, in plain words."""
    asked = re.search(r"allocat\w* (\d+) bytes", said)
    size = f" {int(asked[1]) / 2**30:,.1f} GiB" if asked else " more"
    return f"out of memory: a step needs{size}; try a smaller batch, network or memory, or fewer seeds"

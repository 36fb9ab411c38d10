"""Options of the command line, which tyro makes of dataclasses. What is wrong with them is said in one line."""

from __future__ import annotations

import dataclasses
import inspect
import io
import typing
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from typing import Any, Literal, TypeVar

import jax.numpy as jnp
import numpy as np
import tyro

from lenmem.errors import choices, nearest
from lenmem.fields import described, kinds
from lenmem.training.lanes import owner_of, replaced, settable

T = TypeVar("T")
MANY = 20
"""Of more options `--help` shows names and defaults, and `--help-verbose` also what they are."""
HELP = ("-h", "--help", "-H", "--help-verbose")

_Renamed: Any = type(tyro.conf.arg(name=""))
registry = tyro.constructors.ConstructorRegistry()


@registry.primitive_rule
def _dtype_rule(info: Any) -> tyro.constructors.PrimitiveConstructorSpec | None:
    """`--model.dtype bfloat16`."""
    if np.dtype not in getattr(info.type, "__args__", ()):
        return None
    allowed = {name: getattr(jnp, name) for name in ("float32", "bfloat16", "float16", "float64")}

    def parse(words: list[str]) -> Any:
        if words[0] == "None":
            return None
        if words[0] not in allowed:
            raise ValueError(f"{words[0]!r} is no dtype; allowed are {', '.join(allowed)}")
        return allowed[words[0]]

    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="{" + ",".join(allowed) + "}",
        instance_from_str=parse,
        is_instance=lambda value: value is None or value in allowed.values(),
        str_from_instance=lambda value: ["None" if value is None else jnp.dtype(value).name],
    )


def parse(kind: type[T], program: str, arguments: list[str], **defaults: Any) -> T:
    """The options as a `kind`; `defaults` replace its own. ValueError for what is wrong with them, in one line.

    With `--help` it prints the options and exits; the docstring of `kind` comes first, and names the common ones.
    """
    fields = {field.name for field in dataclasses.fields(kind) if field.default is dataclasses.MISSING}  # type: ignore[arg-type]
    default = kind(**(dict.fromkeys(fields, tyro.MISSING) | defaults)) if defaults else tyro.MISSING_NONPROP
    known = names(kind(**defaults))
    helping = not set(HELP).isdisjoint(arguments)
    try:
        with registry, nullcontext() if helping else _silence():
            return tyro.cli(
                kind,
                prog=f"lenmem {program}",
                description=inspect.getdoc(kind),
                args=arguments,
                default=default,
                config=(tyro.conf.AvoidSubcommands,),
                compact_help=len(known) > MANY,
            )
    except SystemExit as ended:
        if not ended.code:
            raise
    raise _complaint(kind(**defaults), known, arguments, program)


def names(config: Any) -> dict[str, str]:
    """Option -> the path of its field, for all fields of dataclasses and Linen modules within each other."""
    found = {}
    for path in _paths(config):
        owner, field = owner_of(config, path)
        above = path.removesuffix(field)
        marks = getattr(kinds(type(owner)).get(field), "__metadata__", ())
        own = next((mark.name for mark in marks if isinstance(mark, _Renamed)), None) or field
        found[_option(above + own)] = path
        if isinstance(getattr(owner, field), bool):
            found[_option(f"{above}no_{own}")] = path
    return found


def value_of(name: str, kind: Any, words: list[str]) -> Any:
    """Words as a value of a type; ValueError with what the type holds."""
    try:
        with registry, _silence():
            return tyro.cli(kind, args=words, config=(tyro.conf.FlagConversionOff,))
    except SystemExit:
        got = repr(" ".join(words)) if words else "nothing"
        hint = ""
        if typing.get_origin(kind) is Literal and words:
            hint = "." + nearest(words[0], map(str, typing.get_args(kind)))
        raise ValueError(f"{name} takes {described(kind)}, got {got}{hint}") from None


@contextmanager
def _silence() -> Iterator[None]:
    """What tyro says of an error, a box of many lines, is not printed."""
    with io.StringIO() as nowhere, redirect_stderr(nowhere), redirect_stdout(nowhere):
        yield


def _complaint(config: Any, known: dict[str, str], arguments: list[str], program: str) -> ValueError:
    """What to raise where options are wrong: of the first that is, if it is known."""
    changes = {}
    for option, words in _split(arguments):
        if option is None:
            return ValueError(f"{words[0]!r} is one word too many; options begin with --")
        below = [name for name in known if name.startswith(f"{option}.")]
        if below:
            more = ", ..." if below[3:] else ""
            return ValueError(f"{option} is a group of options: {', '.join(below[:3])}{more}")
        if option not in known:
            return ValueError(f"there is no option {option}.{choices(option, known, f'lenmem {program} --help')}")
        path = known[option]
        owner, field = owner_of(config, path)
        kind = kinds(type(owner))[field]
        if isinstance(getattr(owner, field), bool):
            if words:
                return ValueError(f"{option} takes no value, got {' '.join(words)!r}")
            changes[path] = f"no-{field}".replace("_", "-") not in option
        elif tyro.conf.UseAppendAction in getattr(kind, "__metadata__", ()):
            if not words:
                return ValueError(f"{option} takes a field and its values, got nothing")
        else:
            changes[path] = value_of(option, kind, words)
    replaced(config, changes)  # Each is right by itself; this raises if they are not together.
    return ValueError(f"these options cannot be read: {' '.join(arguments)}")


def _split(arguments: list[str]) -> Iterator[tuple[str | None, list[str]]]:
    """Each option with the words after it; what comes before the first has None."""
    groups: list[tuple[str | None, list[str]]] = [(None, [])]
    for word in arguments:
        if word.startswith("-") and not _is_number(word):
            option, equals, value = word.partition("=")
            groups.append((option.replace("_", "-"), [value] if equals else []))
        else:
            groups[-1][1].append(word)
    yield from groups if groups[0][1] else groups[1:]


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _paths(config: Any) -> Iterator[str]:
    for name in settable(config):
        value = getattr(config, name)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            yield from (f"{name}.{path}" for path in _paths(value))
        else:
            yield name


def _option(path: str) -> str:
    return f"--{path}".replace("_", "-")

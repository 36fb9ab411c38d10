"""The verbs that list and show: `zoo`, `gallery`, `data` and `list`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from lenmem import configs, models, progress, runs, tasks
from lenmem.cli.terminal import console, say
from lenmem.cli.words import Modules, names_ahead
from lenmem.errors import nearest
from lenmem.fields import NonNegativeInt
from lenmem.models import supports
from lenmem.options import parse
from lenmem.subject import ahead
from lenmem.zoo import shelf


@dataclasses.dataclass(frozen=True)
class Zoo:
    """List trained networks that verbs take like runs; add or share one.

    Forms:
      lenmem zoo [WORD]                     networks, of one paper or task
      lenmem zoo card NAME                  the model card of a network
      lenmem zoo add RUN [options]          put a run into zoo/, with a card
      lenmem zoo push NAME TARGET           to owner/name on Hugging Face,
                                            or to ./directory
      lenmem zoo pull SOURCE [--name NAME]  fetch one into zoo/
    """

    name: str | None = None
    """Name of the new network, such as own/copy-gru. None: own/<name of the run>, or that of the source."""
    licence: str = shelf.LICENCE
    """`add`: licence of the parameters, by its identifier on Hugging Face."""
    notes: str = ""
    """`add`: further limits, for its card."""
    command: str = ""
    """`add`: the command that trained it, for its card."""
    modules: Modules = ()


@dataclasses.dataclass(frozen=True)
class Data:
    """Show where a data set is published, and check its files.

    Nothing is downloaded. Without a name, all data sets are listed.
    """

    directory: Path | None = None
    """A directory to check: names, sizes, hashes where they are published, and every line."""


@dataclasses.dataclass(frozen=True)
class Gallery:
    """Write a static site that shows networks at work, step by step.

    The site needs no server and no network: open index.html.

    Forms:
      lenmem gallery                     networks of the zoo, of many memories
      lenmem gallery RUN zoo:NAME ...    runs, files and names of the zoo
    """

    output: Path = Path("site")
    """The folder, which must be new or empty."""
    lengths: tuple[int, ...] = ()
    """Lengths of the examples. None given: up to four times the longest training length."""
    example: NonNegativeInt = 0
    """Number of the example of each length; networks of one task get the same."""
    seed: int | None = None
    """Seed whose network is shown. None: the one that reaches furthest."""
    modules: Modules = ()


@dataclasses.dataclass(frozen=True)
class List:
    """List the configurations, tasks and models."""

    markdown: bool = False
    """Print models and tasks as two Markdown tables, as in docs/networks_and_tasks.md."""


def _refuse_unused(options: Zoo, command: str, uses: Sequence[str]) -> None:
    for field in dataclasses.fields(Zoo):
        if field.name not in (*uses, "modules") and getattr(options, field.name) != field.default:
            raise ValueError(f"--{field.name} has no effect on {command}")


def zoo(arguments: list[str]) -> None:
    """`lenmem zoo [WORD]`, and `lenmem zoo card | add | push | pull ...`."""
    what, *rest = arguments or [""]
    takes = {"card": ("NAME",), "add": ("RUN",), "push": ("NAME", "TARGET"), "pull": ("SOURCE",)}
    if what not in takes:
        words, rest = names_ahead(arguments)
        _refuse_unused(parse(Zoo, "zoo [WORD]", rest), "zoo", ())
        _say_zoo(words)
        return
    given, rest = ahead(rest, modules="+")
    words, rest = names_ahead(rest)
    options = parse(Zoo, f"zoo {what}", rest)
    if len(words) != len(takes[what]):
        raise ValueError(f"usage: lenmem zoo {what} {' '.join(takes[what])}; lenmem zoo --help says more")
    uses = {"add": ("name", "licence", "notes", "command"), "pull": ("name",)}.get(what, ())
    _refuse_unused(options, f"zoo {what}", uses)
    from lenmem.zoo import cards, hub

    if what == "card":
        say(cards.card(shelf.find(words[0])))
    elif what == "add":
        run = runs.open_run(words[0], modules=configs.own_modules(given.modules or ()))
        name = options.name or f"own/{run.name}"
        folder = cards.add(run, name, licence=options.licence, notes=options.notes, command=options.command)
        say(f"wrote {folder}: {', '.join(cards.FILES)}; its name is {shelf.PREFIX}{name}")
    elif what == "push":
        say(f"sent to {hub.push(words[0], words[1])}")
    else:
        say(f"fetched; its name is {shelf.PREFIX}{hub.pull(words[0], options.name)}")


def _say_zoo(words: Sequence[str]) -> None:
    """The networks whose name contains all words, as a table."""
    known = shelf.entries()
    short = {entry.name for entry in shelf.short_names(known.values()).values()}
    chosen = [entry for name, entry in known.items() if all(word.removeprefix(shelf.PREFIX) in name for word in words)]
    if not chosen:
        near = nearest(" ".join(words), known)
        raise ValueError(f"no network of the zoo is called {' '.join(words)}.{near} lenmem zoo lists all of them")
    table = Table(box=None, pad_edge=False)
    table.add_column("network", overflow="fold")  # in a narrow terminal names fold, and the numbers stay whole
    for title in ("", "trained", "95% up to", "kB", ""):
        table.add_column(title, no_wrap=True, justify="right" if title else "left")
    for entry in chosen:
        table.add_row(
            escape(entry.name),
            "*" if entry.name in short else "",
            "{}-{}".format(*entry.train_lengths),
            str(entry.reach) if entry.reach else "none",
            f"{entry.size / 1000:.0f}",
            "" if entry.path else "elsewhere",
        )
    console.print(table)
    if any(entry.path is None for entry in chosen):
        say(
            "\nelsewhere: not on this machine; set LENMEM_ZOO to the results/ of a clone or to its address (https://...)"
        )
    say(
        f"\n{len(chosen)} networks. Use one as zoo:NAME, as in: lenmem predict zoo:lantm/reverse --length 70\n"
        "95% up to: the longest measured length with at least 95% exact match, of the best seed.\n"
        "* has a short name, such as lantm/reverse: it reaches furthest of the networks for its task."
    )


def show(arguments: list[str]) -> None:
    """`lenmem gallery [RUN|zoo:NAME ...] --output site/`."""
    from lenmem import gallery

    given, rest = ahead(arguments, modules="+")
    names, rest = names_ahead(rest)
    options = parse(Gallery, "gallery [RUN ...]", rest)
    modules = configs.own_modules(given.modules or ())
    chosen = {"lengths": options.lengths, "example": options.example, "seed": options.seed}
    page = gallery.write(options.output, names, modules=modules, say=say, **chosen)
    say(f"wrote {page}; open it in a browser")


def data(arguments: list[str]) -> None:
    """`lenmem data`, `lenmem data NAME` or `lenmem data NAME --directory D`."""
    from lenmem import catalogue

    if not arguments or arguments[0].startswith("-"):
        if parse(Data, "data [NAME]", arguments).directory is not None:
            raise ValueError(f"say which data set is in the directory: {', '.join(catalogue.names())}")
        for name in catalogue.names():
            say(f"{name:12} {catalogue.find(name).title}")
        for name, text in catalogue.DRAWN.items():
            say(f"{name}: {text}")
        return
    name, options = arguments[0], parse(Data, f"data {arguments[0]}", arguments[1:])
    if options.directory is None:
        say(catalogue.described(name))
        return
    with progress.track(f"reading {name}"):
        lines = catalogue.checked(name, options.directory)
    use = catalogue.find(name).use.replace("DIRECTORY", str(options.directory))
    say("\n".join([*lines, f"{options.directory} can be used: {use}"]))


def list_names(arguments: list[str]) -> None:
    """`lenmem list [--markdown]`: configurations, tasks, models, and the pairs that do not fit together."""
    if parse(List, "list", arguments).markdown:
        say(markdown_tables())
        return
    console.print("[bold]configurations[/] " + ", ".join(configs.names()), highlight=False)
    for title, about in (("task", tasks.ABOUT), ("model", models.ABOUT)):
        table = Table(title, "what it is" if title == "model" else "the answer", box=None, pad_edge=False)
        for names, text in about.items():
            text = text if isinstance(text, str) else f"{text[0]} ({text[1]})"
            table.add_row("\n".join(names), escape(text.replace("`", "")))
        console.print()
        console.print(table)
    refused = _refused(
        {name: models.make(name) for name in models.names()}, {name: tasks.make(name) for name in tasks.names()}
    )
    console.print("\nEvery model takes every task" + (", except:" if refused else "."))
    for line in refused:
        console.print(line, highlight=False)


def markdown_tables() -> str:
    """All models and all tasks as two Markdown tables, as in docs/networks_and_tasks.md."""
    lines = ["| model | what it is | from |", "|---|---|---|"]
    lines += [f"| {_quoted(names)} | {what} | {source} |" for names, (what, source) in models.ABOUT.items()]
    lines += ["", "| task | the answer |", "|---|---|"]
    lines += [f"| {_quoted(names)} | {answer} |" for names, answer in tasks.ABOUT.items()]
    return "\n".join(lines)


def _quoted(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _refused(made_models: dict[str, Any], made_tasks: dict[str, Any]) -> list[str]:
    """`model: tasks (reason)` for the tasks that a model cannot take."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for model_name, model in made_models.items():
        for task_name, task in made_tasks.items():
            if reason := supports(model, task.spec):
                reasons.setdefault((model_name, reason), []).append(task_name)
    return [f"{model}: {', '.join(names)} ({reason})" for (model, reason), names in reasons.items()]

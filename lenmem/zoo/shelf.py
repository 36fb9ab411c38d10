"""Finds trained networks by their records.

A network is a safetensors file with a record, a JSON file of the same name that `lenmem reproduce` or `lenmem zoo add`
wrote. Its name is their path without the suffix, `lantm/reverse-lantm-L`; files called `model` have the name of their
folder. Records are read from, in this order:

    1. `results/` of a clone, or the networks included in an installed package
    2. `zoo/` in the working directory
    3. $LENMEM_ZOO, a directory, or the address (https://...) of a `results/` from which missing files are fetched

This module needs only the standard library, since the build of the wheel uses it too.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lenmem.files import read_json, write_whole

PREFIX = "zoo:"
SUFFIX = ".safetensors"
INDEX = "records.json"
"""The file with all records in the wheel: name -> record with the size and the SHA-256 of the parameters."""
MASTERED = 0.95
"""Exact match from which a length counts as mastered."""
SMALL = 500_000
"""Networks with a short name are included in the package if their file has fewer bytes than this."""
GALLERY = (
    "panm/reverse-beyond",
    "panm/reverse-lstm-small",
    "lantm/reverse-lantm-L",
    "panm/reverse-dnc-small",
    "lantm/copy-slantm-warm-L",
    "nam/palindrome-nam_tm_no_jump-small",
    "panm/dyck_3-stack_rnn",
    "ndr/ctl_forward-ndr-tiny",
    "beyond/reverse",
)
"""The networks of the gallery: one for each kind of memory, and an LSTM that fails, for comparison. All are included in
the package."""
LICENCE = "apache-2.0"
"""Licence of the networks in `results/`."""

_PACKAGE = Path(__file__).parent.parent
OWN = Path("zoo")
"""The directory of one's own networks."""
BUILT_IN = _PACKAGE / "_zoo" if (_PACKAGE / "_zoo").is_dir() else _PACKAGE.parent / "results"
"""The directory of the clone's records and networks, or of those included in the package."""


@dataclasses.dataclass(frozen=True)
class Entry:
    """A network of the zoo and its record."""

    name: str
    """The full name."""
    record: Mapping[str, Any] = dataclasses.field(repr=False, compare=False)
    """The record."""
    path: Path | None
    """The file with the parameters; None if it is not on this machine."""
    size: int
    """Size of this file in bytes."""

    @property
    def paper(self) -> str:
        """The first part of the name."""
        return self.name.split("/", 1)[0]

    @property
    def short(self) -> str:
        """The short name, `<paper>/<task>`. Names of rows begin with the task: `<task>-<variant>`."""
        return f"{self.paper}/{self.record.get('task') or self.name.split('/', 1)[-1].split('-', 1)[0]}"

    @property
    def model(self) -> str:
        """The class of the network."""
        return self.record["experiment"]["model"]["class"].rpartition(".")[2]

    @property
    def train_lengths(self) -> tuple[int, int]:
        """Shortest and longest training length."""
        low, high = self.record["curves"][0]["train_lengths"]
        return low, high

    @functools.cached_property
    def exact(self) -> dict[int, list[float]]:
        """Length -> exact match of each seed; 0 for a diverged seed."""
        return {
            length: [row[at] or 0.0 for row in curve["values"]["exact_match"]]
            for curve in self.record["curves"]
            for at, length in enumerate(curve["lengths"])
            if "exact_match" in curve["values"]
        }

    @functools.cached_property
    def reaches(self) -> list[int]:
        """The reach of each seed (`reach_of`)."""
        seeds = range(len(self.record["alive"]))
        return [reach_of({n: row[seed] for n, row in self.exact.items()}, self.train_lengths[0]) for seed in seeds]

    @property
    def reach(self) -> int:
        """The reach of the best seed."""
        return max(self.reaches, default=0)

    @functools.cached_property
    def best_seed(self) -> int:
        """The living seed with the longest reach; ties are broken by the mean beyond the training lengths."""
        alive = self.record["alive"]
        return max(range(len(alive)), key=lambda seed: (alive[seed], self.reaches[seed], self._mean(seed), -seed))

    @property
    def solved(self) -> bool:
        """Whether a seed masters a length beyond the training lengths."""
        return self.reach > self.train_lengths[1]

    @property
    def rank(self) -> tuple[Any, ...]:
        """A sort key: solved, reach, the best seed's mean beyond the training lengths, then the smaller file."""
        return (self.solved, self.reach, self._mean(self.best_seed), -self.size, self.name)

    def _mean(self, seed: int) -> float:
        beyond = [row[seed] for length, row in self.exact.items() if length > self.train_lengths[1]]
        return sum(beyond) / len(beyond) if beyond else 0.0

    def file(self) -> Path:
        """The file with the parameters, fetched if it is not on this machine and $LENMEM_ZOO is an address."""
        return self.path or _fetched(self)


def is_name(text: object) -> bool:
    """Whether this is a name of the zoo, `zoo:...`."""
    return isinstance(text, str | os.PathLike) and os.fspath(text).startswith(PREFIX)


def entries() -> dict[str, Entry]:
    """All networks by full name, in alphabetical order."""
    found: dict[str, Entry] = {}
    for directory in shelves():
        for name, record in records_in(directory).items():
            path = file_in(directory, name)
            # A file goes with the record beside it: that of another shelf may describe other parameters.
            if name not in found or (found[name].path is None and path is not None):
                size = path.stat().st_size if path else record["file"]["size"]
                found[name] = Entry(name, record, path, size)
    return dict(sorted(found.items()))


def reach_of(exact: Mapping[int, float], shortest: int) -> int:
    """The longest length up to which exact match is at least 95% at all measured lengths from the shortest training
    length on; 0 if there is none."""
    reach = 0
    for length in sorted(n for n in exact if n >= shortest):
        if exact[length] < MASTERED:
            break
        reach = length
    return reach


def shelves() -> list[Path]:
    """The directories that are searched."""
    asked = os.environ.get("LENMEM_ZOO", "")
    own = [] if not asked or _is_address(asked) else [Path(asked)]
    if own and not own[0].is_dir():
        raise ValueError(f"LENMEM_ZOO is {asked}; it must be a directory, or an address that starts with https://")
    return [directory for directory in (BUILT_IN, OWN, *own) if directory.is_dir()]


def records_in(directory: Path) -> dict[str, dict[str, Any]]:
    """name -> record, of the networks in a directory."""
    if (directory / INDEX).exists():
        return read_json(directory / INDEX)
    found = {}
    for path in sorted(directory.rglob(f"*{SUFFIX}")):
        record = path.with_suffix(".json")
        if record.exists():
            whole = path.relative_to(directory).with_suffix("")
            name = whole.parent if whole.name == "model" else whole
            content = read_json(record)
            if name.parts and is_record(content):
                found[name.as_posix()] = content
    return found


def is_record(content: Any) -> bool:
    """Whether the contents of a JSON file are the record of a network."""
    return isinstance(content, dict) and {"experiment", "curves", "alive"} <= content.keys()


def short_names(networks: Iterable[Entry]) -> dict[str, Entry]:
    """Short name -> the network of that task with the longest reach beyond the training lengths.

    Ties are broken by the mean exact match beyond the training lengths, then by size. A task that no network solves has
    no short name.
    """
    best: dict[str, Entry] = {}
    for entry in networks:
        if entry.solved and (entry.short not in best or entry.rank > best[entry.short].rank):
            best[entry.short] = entry
    return best


def find(name: str | os.PathLike[str]) -> Entry:
    """The network with this full or short name, with or without `zoo:`. Raises ValueError with the nearest names if
    there is none."""
    text = os.fspath(name).removeprefix(PREFIX)
    known = entries()
    short = short_names(known.values())
    if text in known or text in short:
        return known[text] if text in known else short[text]
    unsolved = [full for full, entry in known.items() if entry.short == text]
    if unsolved:
        raise ValueError(
            f"no network of the zoo solves {text}, so it has no short name; full names are {', '.join(unsolved[:4])}"
            + (f" and {len(unsolved) - 4} more" if len(unsolved) > 4 else "")
        )
    from lenmem.errors import choices

    raise ValueError(f"the zoo has no {text!r}.{choices(text, [*short, *known], listed='lenmem zoo')}")


def travelling(networks: Iterable[Entry]) -> list[Entry]:
    """The networks in the wheel: those of the gallery, and those with a short name and a file of less than 0.5 MB."""
    networks = list(networks)
    short = {entry.name for entry in short_names(networks).values() if entry.size < SMALL}
    return [entry for entry in networks if entry.name in short or entry.name in GALLERY]


def index(networks: Iterable[Entry]) -> dict[str, dict[str, Any]]:
    """The contents of `INDEX`: every record with the size and the hash of its parameters."""
    return {
        entry.name: {**entry.record, "file": {"size": entry.size, "sha256": sha256(entry.file().read_bytes())}}
        for entry in networks
    }


def sha256(data: bytes) -> str:
    """The SHA-256 of data, as hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def file_in(directory: Path, name: str) -> Path | None:
    """The file with the parameters of a network in a directory; None if there is none."""
    places = (directory / f"{name}{SUFFIX}", directory / name / f"model{SUFFIX}")
    return next((place for place in places if place.is_file()), None)


def _is_address(text: str) -> bool:
    return text.startswith(("https://", "http://"))


def _fetched(entry: Entry) -> Path:
    """The file of a network that is not on this machine: from the cache, or from the address in $LENMEM_ZOO."""
    from lenmem.data.cache import cache_directory

    target = cache_directory() / "zoo" / f"{entry.name}{SUFFIX}"
    expected = entry.record["file"]["sha256"]
    if target.exists() and sha256(target.read_bytes()) == expected:
        return target
    base = os.environ.get("LENMEM_ZOO", "")
    if not _is_address(base):
        raise ValueError(
            f"{PREFIX}{entry.name} ({entry.size / 1e6:.1f} MB) is not on this machine; set LENMEM_ZOO to the results/ "
            "of a clone, or to the address of one (https://...)"
        )
    address = f"{base.rstrip('/')}/{urllib.parse.quote(entry.name)}{SUFFIX}"
    try:
        with urllib.request.urlopen(address, timeout=60) as answer:  # the scheme was checked
            data = answer.read()
    except OSError as error:  # URLError is one
        if isinstance(error, urllib.error.HTTPError):
            error.close()
        raise ValueError(f"{address} cannot be fetched: {error}") from None
    if sha256(data) != expected:
        raise ValueError(f"{address} is not the file that the record describes: its hash differs")
    target.parent.mkdir(parents=True, exist_ok=True)
    write_whole(target, data)
    return target

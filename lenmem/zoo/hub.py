"""Sharing networks on Hugging Face, which needs `pip install 'lenmem[hub]'`, or in a directory.

A target is a repository of the Hub (`owner/name`), or a directory (`./shared/name`, `/mnt/name`, `file:///mnt/name`).
"""

from __future__ import annotations

import shutil
import tempfile
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from lenmem import share
from lenmem.errors import first_line
from lenmem.files import make_directory, read_json, write_whole
from lenmem.zoo import cards, shelf


def push(name: str, target: str) -> str:
    """Writes a network of the zoo with its card to a target; returns its location. A repository of the Hub gets a new
    commit. Raises ValueError for a directory that is not empty."""
    entry = shelf.find(name)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "network"
        cards.write_folder(entry, folder)
        directory = directory_of(target)
        if directory is not None:
            if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
                raise ValueError(f"{directory} is not empty; nothing was written")
            shutil.copytree(folder, directory, dirs_exist_ok=True)
            return str(directory)
        hub = _hub()
        try:
            hub.create_repo(target, exist_ok=True)
            hub.upload_folder(repo_id=target, folder_path=folder, commit_message=f"{entry.name}, from lenmem")
        except Exception as error:
            raise ValueError(f"{target} cannot be written on the Hub: {first_line(error)}") from error
        return f"https://huggingface.co/{target}"


def pull(source: str, name: str | None = None) -> str:
    """Copies a network from a target to the zoo in the working directory; returns its name, by default the source's.

    Parameters and record are checked before they are copied. Nothing in them is executed. Raises ValueError if they are
    damaged.
    """
    directory = directory_of(source)
    name = name or (source if directory is None else f"own/{directory.resolve().name}")
    target = cards.free(name)
    with tempfile.TemporaryDirectory() as scratch:
        if directory is None:
            hub = _hub()
            try:
                hub.snapshot_download(repo_id=source, allow_patterns=list(cards.FILES), local_dir=scratch)
            except Exception as error:
                raise ValueError(f"{source} cannot be fetched from the Hub: {first_line(error)}") from error
            directory = Path(scratch)
        missing = [file for file in cards.FILES if not (directory / file).is_file()]
        if missing:
            raise ValueError(f"{source} is not a network of a zoo: it has no {', '.join(missing)}")
        share.import_params(directory / "model.safetensors")  # raises for a damaged file
        if not shelf.is_record(read_json(directory / "model.json")):
            raise ValueError(f"{source}: model.json is not the record of a network")
        make_directory(target)
        for file in reversed(cards.FILES):  # the parameters last
            write_whole(target / file, (directory / file).read_bytes())
    return name


def directory_of(target: str) -> Path | None:
    """The directory of a target; None for a repository of the Hub."""
    if target.startswith("file://"):
        return Path(urllib.request.url2pathname(urllib.parse.urlsplit(target).path))
    if target.startswith((".", "/", "~")):
        return Path(target).expanduser()
    if target.count("/") != 1 or "" in target.split("/"):
        raise ValueError(f"got {target!r}; it must be owner/name on the Hub, or a directory such as ./{target}")
    return None


def _hub() -> Any:
    try:
        import huggingface_hub
    except ImportError:
        raise ValueError("huggingface_hub is missing: pip install 'lenmem[hub]'") from None
    return huggingface_hub

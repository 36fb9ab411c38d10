"""Networks on Hugging Face, or in a directory that is shared in another way. Needs `pip install 'lenmem[hub]'`.

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
from lenmem.zoo import cards, shelf


def push(name: str, target: str) -> str:
    """Sends a network of the zoo with its card; returns where it is. A directory that holds files is not overwritten,
    a repository of the Hub gets a new commit."""
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
            raise ValueError(f"{target} cannot be written on the Hub: {_first_line(error)}") from error
        return f"https://huggingface.co/{target}"


def pull(source: str, name: str | None = None, *, zoo: Path = Path("zoo")) -> str:
    """Fetches a network into the zoo of the working directory; returns its name, by default that of the source.

    It is checked before it is kept: readable parameters, and a record. Nothing in it is executed.
    """
    directory = directory_of(source)
    name = name or (source if directory is None else f"own/{directory.resolve().name}")
    target = cards.free(name, zoo)
    with tempfile.TemporaryDirectory() as scratch:
        if directory is None:
            try:
                _hub().snapshot_download(repo_id=source, allow_patterns=list(cards.FILES), local_dir=scratch)
            except ValueError:
                raise
            except Exception as error:
                raise ValueError(f"{source} cannot be fetched from the Hub: {_first_line(error)}") from error
            directory = Path(scratch)
        missing = [file for file in cards.FILES if not (directory / file).is_file()]
        if missing:
            raise ValueError(f"{source} is no network of a zoo: it has no {', '.join(missing)}")
        share.import_params(directory / "model.safetensors")  # raises for a damaged file
        if not shelf.is_record(shelf.read(directory / "model.json")):
            raise ValueError(f"{source}: model.json is no record of a network")
        target.mkdir(parents=True, exist_ok=True)
        for file in reversed(cards.FILES):  # the parameters last
            shutil.copyfile(directory / file, target / file)
    return name


def directory_of(target: str) -> Path | None:
    """The directory that a target means; None for a repository of the Hub."""
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


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]

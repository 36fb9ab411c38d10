"""The build puts trained networks into the package: all records, and the parameters that `shelf.travelling` names.

They go to `lenmem/_zoo`. A wheel that is built from the source distribution finds them there already. The addresses of
the project are those of the GitHub repository whose workflow builds it; elsewhere they are unknown.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface


class Addresses(MetadataHookInterface):
    """Adds the addresses of the repository in GITHUB_REPOSITORY."""

    def update(self, metadata: dict[str, Any]) -> None:
        """`Documentation` is where `docs.yml` publishes the pages."""
        owner, _, name = os.environ.get("GITHUB_REPOSITORY", "").partition("/")
        if name:
            source = f"https://github.com/{owner}/{name}"
            metadata["urls"] = {
                "Source": source,
                "Documentation": f"https://{owner.lower()}.github.io/{name}/",
                "Issues": f"{source}/issues",
                "Changes": f"{source}/blob/main/CHANGELOG.md",
            }


class TrainedNetworks(BuildHookInterface):
    """Adds `lenmem/_zoo` to the wheel and to the source distribution."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """An editable installation uses the clone."""
        root = Path(self.root)
        if version == "editable" or (root / "lenmem/_zoo").is_dir() or not (root / "results").is_dir():
            return
        sys.path.insert(0, str(root))
        from lenmem.zoo import shelf

        whole = shelf.records_in(root / "results")
        networks = [
            shelf.Entry(name, record, path, path.stat().st_size)
            for name, record in whole.items()
            for path in [shelf.file_in(root / "results", name)]
            if path
        ]
        self.scratch = tempfile.TemporaryDirectory()
        index = Path(self.scratch.name) / shelf.INDEX
        index.write_text(json.dumps(shelf.index(networks), separators=(",", ":")) + "\n")
        files = {entry.path: entry.name for entry in shelf.travelling(networks)}
        build_data["force_include"] |= {str(index): f"lenmem/_zoo/{shelf.INDEX}"} | {
            str(path): f"lenmem/_zoo/{name}{shelf.SUFFIX}" for path, name in files.items()
        }

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Removes the index that was written for this build."""
        if hasattr(self, "scratch"):
            self.scratch.cleanup()

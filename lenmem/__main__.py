"""The entry point: `lenmem`, or `python -m lenmem`. It installs signal handlers before importing the rest."""

from __future__ import annotations

import shlex
import sys

from lenmem import stopping, workers


def main() -> None:
    """Runs `lenmem.cli.main`."""
    with stopping.watched(f"nothing was changed; start again with\n  {shlex.join(['lenmem', *sys.argv[1:]])}"):
        if workers.is_worker():
            workers.end_with_parent()
        from lenmem.cli import main as command_line

        command_line()


if __name__ == "__main__":
    main()

"""Records a network of the gallery, step by step, as an animated picture. Needs Chromium.

    lenmem gallery zoo:lantm/reverse --lengths 12 --output site
    python scripts/moving_picture.py site lantm.reverse-lantm-L 12 26 docs/pictures/head.webp

The site is not changed; every frame is a screenshot of its page.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

FLAGS = "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --hide-scrollbars"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the picture, and returns the exit status."""
    parser = argparse.ArgumentParser(description="Film a network of the gallery, step by step.")
    parser.add_argument("site", type=Path, help="folder that `lenmem gallery` wrote")
    parser.add_argument("network", help="name of a file in its folder networks, without .js")
    parser.add_argument("length", type=int, help="length of the example, one of the site's")
    parser.add_argument("steps", type=int, help="number of steps")
    parser.add_argument("output", type=Path, help="picture to write, such as head.webp")
    parser.add_argument("--crop", type=int, nargs=4, default=(0, 535, 560, 1045), help="left, top, right, bottom")
    options = parser.parse_args(arguments)
    page = options.site.resolve() / "index.html"
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if not page.is_file() or not (page.parent / "networks" / f"{options.network}.js").is_file():
        parser.error(f"{options.site} is no gallery with {options.network}")
    if browser is None:
        parser.error(f"none of {', '.join(BROWSERS)} is installed")
    with tempfile.TemporaryDirectory() as scratch:
        frames = []
        for step in range(options.steps):
            shot = Path(scratch) / f"{step}.png"
            where = f"{page.as_uri()}#{options.network}//{options.length}/{step}"
            size = f"--window-size={options.crop[2]},{options.crop[3] + 100}"
            command = [browser, *FLAGS.split(), f"--user-data-dir={scratch}/profile", size]
            subprocess.run(
                [*command, "--virtual-time-budget=4000", f"--screenshot={shot}", where], check=True, capture_output=True
            )
            frames.append(Image.open(shot).convert("RGB").crop(options.crop))
        waits = [350] * (len(frames) - 1) + [2500]
        frames[0].save(options.output, save_all=True, append_images=frames[1:], duration=waits, loop=0, quality=80)
    print(f"wrote {options.output}, {len(frames)} steps")
    return 0


if __name__ == "__main__":
    sys.exit(main())

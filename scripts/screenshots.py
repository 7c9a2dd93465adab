#!/usr/bin/env python
"""Takes pictures of pages of the built site in headless Chromium, at two widths.

It needs a Chromium on the PATH (Debian: apt-get install chromium).

bash scripts/docs.sh && python scripts/screenshots.py build/docs build/screenshots
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PAGES = (
    "index.html",
    "layer.html",
    "results.html",
    "api.html",
    "generated/api/sheafprop.nn.SheafPropagation.html",
    "generated/gallery/index.html",
    "generated/gallery/hetero_classifier.html",
)
WIDTHS = (1400, 480)

if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("site", type=Path, help="folder of the built site")
    parser.add_argument("out", type=Path, help="folder of the pictures")
    parser.add_argument("--pages", nargs="+", default=PAGES, help="pages, relative to the site")
    parser.add_argument("--height", type=int, default=2200, help="height of a picture in pixels")
    options = parser.parse_args()
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        parser.exit(1, "there is no chromium: install it, as by 'apt-get install chromium'\n")
    options.out.mkdir(parents=True, exist_ok=True)
    for page in options.pages:
        for width in WIDTHS:
            picture = options.out / f"{page.removesuffix('.html').replace('/', '-')}-{width}.png"
            with tempfile.TemporaryDirectory() as profile:
                command = [browser, "--headless", "--disable-gpu", "--no-sandbox"]
                command += ["--hide-scrollbars", f"--user-data-dir={profile}"]
                command += ["--virtual-time-budget=4000", f"--screenshot={picture.resolve()}"]
                command += [f"--window-size={width},{options.height}"]
                url = (options.site / page).resolve().as_uri()
                subprocess.run([*command, url], check=True, capture_output=True, timeout=120)
            print(picture)
            sys.stdout.flush()

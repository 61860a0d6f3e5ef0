#!/usr/bin/env python3
"""Makes the pictures of prices again: pictures.py PROGRAM [FOLDER] writes docs/pictures/{step,sweep,search}.png.

PROGRAM writes pages with --html, and headless Chromium shows them. With FOLDER it writes there, for each page
whole and at 1,200 and 400 pixels, light and dark, to be looked at; nothing of docs changes.
"""
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = {
    "step": "price --preset nemo-405b-576-bf16",
    "sweep": "sweep --preset nemo-405b-576-bf16 gpus=144,288,576,1152,2304",
    "search": "search --cluster h100 --gpus 64 --model.flavor=70B --training.seq_len=8192 "
              "--training.global_batch_size=128",
}
LIGHT, DARK = [], ["--blink-settings=preferredColorScheme=0"]


def screenshot(page, picture, width, height, options):
    """Draws the top of a page."""
    subprocess.run(["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                    "--virtual-time-budget=3000", *options,
                    f"--window-size={width},{height}", f"--screenshot={picture}", page.resolve().as_uri()],
                   check=True, capture_output=True)


def height_of(page, width):
    """The height that a page takes at this width, as its own layout says."""
    probe = page.with_suffix(".probe.html")
    probe.write_text(page.read_text().replace("</body>", "<script>document.title='height '+"
                                              "document.documentElement.scrollHeight</script></body>"))
    dom = subprocess.run(["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--window-size={width},100",
                          "--dump-dom", probe.resolve().as_uri()], check=True, capture_output=True, text=True).stdout
    probe.unlink()
    return min(int(re.search(r"height (\d+)", dom).group(1)), 16_000)


def figures_alone(text):
    """The page without its tables."""
    begin = text.index('id="data">') + len('id="data">')
    end = text.index("</script>", begin)
    page = json.loads(text[begin:end])
    page["blocks"] = [block for block in page["blocks"] if "chart" in block]
    return text[:begin] + json.dumps(page).replace("<", "\\u003c") + text[end:]


def main():
    program = Path(sys.argv[1]).resolve()
    folder = Path(sys.argv[2]) if len(sys.argv) > 2 else None
    with tempfile.TemporaryDirectory() as scratch:
        for name, words in PAGES.items():
            page = Path(scratch) / f"{name}.html"
            subprocess.run([program, *words.split(), "--html", page], check=True, cwd=scratch,
                           stdout=subprocess.DEVNULL)
            print(f"{name}: {page.stat().st_size / 1000:.0f} kB")
            if folder:
                folder.mkdir(parents=True, exist_ok=True)
                for width in (1200, 400):
                    for mode, options in (("light", LIGHT), ("dark", DARK)):
                        screenshot(page, folder / f"{name}_{width}_{mode}.png", width, height_of(page, width), options)
                continue
            page.write_text(figures_alone(page.read_text()))
            screenshot(page, ROOT / "docs/pictures" / f"{name}.png", 1000, height_of(page, 1000), LIGHT)


if __name__ == "__main__":
    main()

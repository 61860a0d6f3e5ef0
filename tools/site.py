"""What mkdocs.yml hooks into: README and the other pages of the root become pages of the site, beside those of docs/.

Pages link as a browser of the source tree needs it (../CONTRIBUTING.md, docs/guide.md); in the site all are in one
folder, so these links lose their folder.
"""
import re
from pathlib import Path

from mkdocs.structure.files import File, InclusionLevel

ROOT = Path(__file__).resolve().parent.parent
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md", "SECURITY.md": "reporting.md",
         "CODE_OF_CONDUCT.md": "conduct.md", "recipes/README.md": "recipes.md", "docs/README.md": "pages.md"}
TEXTS = ["LICENSE", "data/shakespeare.txt", *(f"recipes/{p.name}" for p in sorted((ROOT / "recipes").glob("*.toml")))]


def on_files(files, config):
    for old in [f for f in files if f.src_uri == "README.md"]:
        files.remove(old)
    for source, name in PAGES.items():
        files.append(File.generated(config, name, content=(ROOT / source).read_text()))
    for text in TEXTS:
        files.append(File.generated(config, text, content=(ROOT / text).read_text(), inclusion=InclusionLevel.NOT_IN_NAV))
    return files


def on_page_markdown(markdown, page, config, files):
    source = next((s for s, name in PAGES.items() if name == page.file.src_uri), "docs/" + page.file.src_uri)

    def link(found):
        target, anchor = found[1], found[2] or ""
        if "://" in target or target.startswith("mailto:") or not target:
            return found[0]
        path = (ROOT / source).parent.joinpath(target).resolve().relative_to(ROOT).as_posix().rstrip("/")
        path = f"{path}/README.md" if (ROOT / path).is_dir() else path
        to = PAGES.get(path, path.removeprefix("docs/"))
        up = "../" * page.file.src_uri.count("/")
        return f"]({up}{to}{anchor})"

    return re.sub(r"\]\(([^)#\s]*)(#[^)\s]*)?\)", link, markdown)

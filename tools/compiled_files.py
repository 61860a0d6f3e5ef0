"""Print the tracked sources of a compile database, one path from the repository's root a line."""
import json
import pathlib
import sys

root = pathlib.Path.cwd().resolve()
files = set()
for entry in json.loads(pathlib.Path(sys.argv[1]).read_text()):
    path = pathlib.Path(entry["directory"], entry["file"]).resolve()
    if root in path.parents and root / "build" not in path.parents:
        files.add(path.relative_to(root).as_posix())
print("\n".join(sorted(files)))

#!/usr/bin/env python3
"""Collects a release, or compares two builds of one:

    release.py BUILD OUT       from the portable build in BUILD: deb, wheel, tarball, SBOM, notes and SHA256SUMS in OUT
    release.py --compare A B   names each file, and each member of an archive, that differs; exits with 1 if one does

Times in archives are SOURCE_DATE_EPOCH, which must be set.
"""
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def write_tarball(stage, path, prefix, epoch):
    with open(path, "wb") as raw, gzip.GzipFile("", "wb", mtime=epoch, fileobj=raw) as packed, \
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for file in sorted(stage.rglob("*")):
            info = archive.gettarinfo(file, f"{prefix}/{file.relative_to(stage)}")
            info.uid = info.gid = 0
            info.uname = info.gname = "root"
            info.mtime = epoch
            with open(file, "rb") if info.isreg() else io.BytesIO() as data:
                archive.addfile(info, data)


def bill_of_materials(version):
    """CycloneDX 1.5: the packages of this distribution that setup.sh has the program built with, and GCC's runtime."""
    listed = re.search(r'^build="([^"]*)"', (ROOT / "tools/setup.sh").read_text(), re.M)[1].split()
    packages = sorted(name for name in listed if name.startswith(("lib", "nlohmann")) and name not in ("libbenchmark-dev", "libgtest-dev"))
    found = subprocess.run(["dpkg-query", "-W", "-f=${Package} ${Version}\n", *packages, "libgomp1"],
                           check=True, capture_output=True, text=True).stdout
    parts = [line.split() for line in found.splitlines()]
    return {"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
            "metadata": {"component": {"type": "application", "name": "tokamak", "version": version,
                                       "licenses": [{"license": {"id": "Apache-2.0"}}]}},
            "components": [{"type": "library", "name": name, "version": of, "purl": f"pkg:deb/debian/{name}@{of}"}
                           for name, of in sorted(parts)]}


def newest_notes(version):
    title, text = re.search(r"^## (\S+)[^\n]*\n(.*?)(?=^## |\Z)", (ROOT / "CHANGELOG.md").read_text(), re.M | re.S).groups()
    if title != version:
        sys.exit(f"release.py: the newest section of CHANGELOG.md is {title}: wanted {version}, the version of CMakeLists.txt")
    return text.strip() + "\n"


def make(build, out):
    epoch = int(os.environ["SOURCE_DATE_EPOCH"])
    stage = build / "stage"
    version = re.search(r"VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text().split("project(", 1)[1])[1]
    notes = newest_notes(version)
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    for pattern in (f"tokamak_{version}_*.deb", f"tokamak-{version}-*.whl"):
        found = list(build.glob(pattern))
        if len(found) != 1:
            sys.exit(f"release.py: {build}/{pattern}: wanted one file, got {len(found)}")
        shutil.copy(found[0], out)
    write_tarball(stage, out / f"tokamak-{version}-x86_64.tar.gz", f"tokamak-{version}", epoch)
    (out / f"tokamak-{version}.cdx.json").write_text(json.dumps(bill_of_materials(version), indent=1) + "\n")
    (out / "NOTES.md").write_text(notes)
    sums = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in sorted(out.iterdir())]
    (out / "SHA256SUMS").write_text("".join(sums))
    print(f"{out}: {len(sums) + 1} files; tag it by: git tag -a v{version} -F {out}/NOTES.md")


def members(path):
    """The members of an archive, as text or bytes that can be compared, by name; a file itself under no name."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as archive:
            return {i.filename: (i.date_time, i.external_attr, archive.read(i)) for i in archive.infolist()}
    if path.suffix not in (".deb", ".gz"):
        return {"": path.read_bytes()}
    parts = {}
    if path.suffix == ".gz":
        tars = {"": gzip.decompress(path.read_bytes())}
    else:
        tars = {f"{part}:": subprocess.run(["dpkg-deb", f"--{part}-tarfile", path], check=True, capture_output=True).stdout
                for part in ("ctrl", "fsys")}
    for part, data in tars.items():
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            for info in archive:
                body = archive.extractfile(info).read() if info.isreg() else info.linkname
                parts[part + info.name] = (info.mtime, info.mode, info.uid, body)
    return parts


def compare(a, b):
    differs = 0
    names = sorted({f.name for f in a.iterdir()} | {f.name for f in b.iterdir()})
    if not names:
        sys.exit(f"release.py: {a} and {b} are empty: wanted two releases")
    for name in names:
        one, other = a / name, b / name
        if not (one.exists() and other.exists()):
            print(f"{name}: in one of them only")
        elif one.read_bytes() == other.read_bytes():
            continue
        else:
            left, right = members(one), members(other)
            inner = [m for m in left | right if left.get(m) != right.get(m)]
            print(f"{name}: " + (", ".join(filter(None, inner)) if any(inner) else "its bytes, not those of a member"))
        differs = 1
    print("the files differ" if differs else "equal bytes")
    return differs


if __name__ == "__main__":
    if sys.argv[1] == "--compare":
        sys.exit(compare(Path(sys.argv[2]), Path(sys.argv[3])))
    make(Path(sys.argv[1]), Path(sys.argv[2]))

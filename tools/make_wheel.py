#!/usr/bin/env python3
"""Packs an installed tree as a wheel: make_wheel.py STAGE FOLDER.

STAGE is a prefix with bin/, lib/, libexec/ and share/. Its bin/ becomes the wheel's scripts and the rest its
data, so that pip puts the same tree below the environment's prefix, where the program finds its parts. The package
`tokamak` is that of python/.
"""
import base64
import hashlib
import re
import stat
import subprocess
import sys
import zipfile
from pathlib import Path


def glibc_of(programs):
    """The newest glibc that the programs ask for, as "2_36"."""
    versions = set()
    for program in programs:
        symbols = subprocess.run(["objdump", "-T", program], check=True, capture_output=True, text=True).stdout
        versions |= {tuple(map(int, v)) for v in re.findall(r"GLIBC_(\d+)\.(\d+)", symbols)}
    return "_".join(map(str, max(versions)))


def main():
    stage, out = Path(sys.argv[1]), Path(sys.argv[2])
    version = subprocess.run([stage / "bin/tokamak", "-V"], check=True, capture_output=True, text=True).stdout.split()[1]
    files = [p for p in sorted(stage.rglob("*")) if p.is_file()]
    # A wheel has no links: of a library and the link by which it is found, the link's name stays.
    linked = {p.resolve() for p in files if p.is_symlink()}
    files = [p for p in files if p.is_symlink() or p.resolve() not in linked]
    tag = f"py3-none-manylinux_{glibc_of(p for p in files if p.read_bytes()[:4] == bytes([127]) + b'ELF')}_x86_64"
    name = f"tokamak-{version}"
    entries = []  # (path in the wheel, bytes, mode)
    for path in files:
        inside = path.relative_to(stage)
        kind = "scripts" if inside.parts[0] == "bin" else "data"
        at = Path(*inside.parts[1:]) if kind == "scripts" else inside
        entries.append((f"{name}.data/{kind}/{at}", path.read_bytes(), stat.S_IMODE(path.stat().st_mode)))
    python = Path(__file__).resolve().parent.parent / "python"
    entries += [(str(p.relative_to(python)), p.read_bytes(), 0o644) for p in sorted(python.glob("tokamak/*.py"))]
    entries.append((f"{name}.dist-info/METADATA", (
        f"Metadata-Version: 2.1\nName: tokamak\nVersion: {version}\nLicense: Apache-2.0\n"
        "Summary: Pretrains Llama and GPT class language models; a native program\n").encode(), 0o644))
    entries.append((f"{name}.dist-info/WHEEL", (
        f"Wheel-Version: 1.0\nGenerator: tools/make_wheel.py\nRoot-Is-Purelib: false\nTag: {tag}\n").encode(), 0o644))
    record = ""
    for at, data, _ in entries:
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record += f"{at},sha256={digest},{len(data)}\n"
    record += f"{name}.dist-info/RECORD,,\n"
    entries.append((f"{name}.dist-info/RECORD", record.encode(), 0o644))

    wheel = out / f"{name}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for at, data, mode in entries:
            info = zipfile.ZipInfo(at)
            info.external_attr = (stat.S_IFREG | mode) << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, data)
    print(f"{wheel}: {wheel.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()

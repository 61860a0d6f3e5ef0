"""Make stand-ins for the libraries of CUDA that PyTorch's wheel is linked against, 2 GB that a CPU does not need. Only the
runtime, libcudart, must be the real one: it is asked whether there is a GPU.

usage: stub_cuda.py TORCH/lib   (needs gcc and binutils)
"""
import pathlib
import re
import subprocess
import sys
import tempfile

LIBRARY = r"lib(?:cu(?!dart)|nv|nccl)\S+"
UNVERSIONED = re.compile("nccl|cusparseLt|cuFile")


def output(*words):
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def main():
    folder = pathlib.Path(sys.argv[1])
    libraries, symbols = {}, set()  # a library's version; names with the version wanted of each
    for path in map(str, folder.glob("*.so*")):
        head = output("objdump", "-p", path)
        for name in re.findall(rf"NEEDED +({LIBRARY})", head):
            libraries.setdefault(name, name)
        libraries.update(re.findall(rf"required from ({LIBRARY}):\n.* (\S+)\n", head))
        symbols |= set(re.findall(r"^ +U (\w+)(?:@(\S+))?$", output("nm", "-D", "--undefined-only", path), re.M))
    with tempfile.TemporaryDirectory() as scratch:
        source, versions = pathlib.Path(scratch, "stub.c"), pathlib.Path(scratch, "stub.map")
        for library, version in libraries.items():
            names = {name for name, of in symbols if of == version or not of and UNVERSIONED.match(name)}
            source.write_text("".join(f"int {name}(void) {{ return 1; }}\n" for name in sorted(names)))
            versions.write_text(f"{version} {{ *; }};\n")
            subprocess.run(["gcc", "-w", "-fno-builtin", "-shared", "-fPIC", "-nostdlib", "-o", folder / library, source,
                            f"-Wl,-soname={library},--version-script={versions}"], check=True)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Writes man pages and shell completion from what the program says of itself.

manual.py PROGRAM FOLDER: FOLDER/man/man1/*.1, FOLDER/man/man5/tokamak.toml.5 and FOLDER/completion/.
Verbs, flags and keys are read from `--help` of each verb and `help all`, so that neither can differ from
the program.
"""
import re
import subprocess
import sys
from pathlib import Path


def ask(program, *words):
    return subprocess.run([program, *words], check=True, capture_output=True, text=True).stdout


def roff(text):
    """Escapes a text that is shown as it stands."""
    return "\n".join(("\\&" + line if line[:1] in ".'" else line)
                     for line in text.replace("\\", "\\e").replace("-", "\\-").split("\n"))


def page(name, section, what, parts, version):
    lines = [f'.TH "{name.upper()}" {section} "" "{version}" "Tokamak"', ".SH NAME",
             f"{roff(name)} \\- {roff(what)}"]
    for title, text in parts:
        lines += [f".SH {title}", ".nf", roff(text.rstrip("\n")), ".fi"]
    return "\n".join(lines) + "\n"


def verbs_of(usage):
    """[(verb, what it does)] of the program's own --help."""
    return re.findall(r"^  ([a-z][a-z-]*) +(\S.*)$", usage, re.M)


def flags_of(text):
    """The flags that a help text lists at the beginning of its lines."""
    flags = []
    for line in text.split("\n"):
        match = re.match(r"^ {2,}((?:-{1,2}[\w-]+(?:=\S+)?,? ?)+)", line)
        if match:
            flags += re.findall(r"--?[\w-]+=?", match.group(1))
    return sorted({f for f in flags if f.startswith("--")} | {"--help"})


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def main():
    program, out = sys.argv[1], Path(sys.argv[2])
    usage = ask(program, "--help")
    version = ask(program, "-V").split("\n")[0].split(" (")[0]
    verbs = verbs_of(usage)
    keys = ask(program, "help", "all")
    names = re.findall(r"^  (--[\w.]+)=", keys, re.M)
    see = ", ".join(f"tokamak-{v}(1)" for v, _ in verbs if v != "help") + ", tokamak.toml(5)"

    write(out / "man/man1/tokamak.1",
          page("tokamak", 1, "pretrains Llama and GPT class language models",
               [("SYNOPSIS", "tokamak VERB ..."), ("VERBS", usage.split("\n\n", 2)[2]),
                ("ENVIRONMENT", "NO_COLOR       no colours on terminals\n"
                                "TOKAMAK_CPU    x86-64-v4-bf16, x86-64-v4, x86-64-v3 or x86-64-v2: kernels for such a "
                                "CPU\nOMP_NUM_THREADS  threads of a rank"),
                ("EXIT STATUS", "0    done\n2    a mistake of the user: a key, a file, a word\n3    the loss or the "
                                "gradient norm is not finite\n70   a bug of the program\n75   a fault of the machine: "
                                "try again\n85   stopped by a signal, and saved"),
                ("SEE ALSO", see)], version))
    flags = {}
    for verb, what in verbs:
        if verb == "help":
            continue
        text = ask(program, verb, "--help")
        flags[verb] = flags_of(text)
        write(out / f"man/man1/tokamak-{verb}.1",
              page(f"tokamak-{verb}", 1, what, [("DESCRIPTION", text), ("SEE ALSO", "tokamak(1), tokamak.toml(5)")],
                   version))
    write(out / "man/man5/tokamak.toml.5",
          page("tokamak.toml", 5, "keys of a run",
               [("DESCRIPTION", "A TOML file of sections and keys, or the same as words: --section.key=value."),
                ("KEYS", keys)], version))

    takes_keys = "train|plan|price|sweep|search"
    cases = "\n".join(f"    {verb}) words=\"{' '.join(flags[verb])}\" ;;" for verb in flags)
    bash = f"""# bash completion of tokamak; tools/manual.py writes it.
_tokamak() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} verb=${{COMP_WORDS[1]}} words=
  local keys="{' '.join(n + '=' for n in names)}"
  # Bash takes = for the end of a word.
  [[ $cur == = || ${{COMP_WORDS[COMP_CWORD - 1]}} == = ]] && {{ COMPREPLY=(); compopt -o default; return; }}
  if [[ $COMP_CWORD == 1 ]]; then
    mapfile -t COMPREPLY < <(compgen -W "{' '.join(v for v, _ in verbs)} --help -V" -- "$cur")
    return
  fi
  case $verb in
{cases}
    help) words="${{keys//=/}}"; words="${{words//--/}}" ;;
  esac
  if [[ $verb =~ ^({takes_keys})$ && $cur == --*.* ]]; then words="$words $keys"; fi
  if [[ $verb =~ ^({takes_keys})$ && $cur != --*.* ]]; then
    words="$words {' '.join(sorted({n.split('.')[0] + '.' for n in names}))}"
  fi
  if [[ $cur == -* || $verb == help ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur")
    [[ ${{#COMPREPLY[@]}} == 1 && ${{COMPREPLY[0]}} == *[.=] ]] && compopt -o nospace
  else
    compopt -o default
  fi
}}
complete -F _tokamak tokamak
"""
    write(out / "completion/tokamak.bash", bash)
    quoted = "\n".join(f"    '{v}:{w.replace(chr(39), '').replace(':', chr(92) + ':')}'" for v, w in verbs)
    zsh_cases = "\n".join(f"    {verb}) _values -w flag {' '.join(repr(f.rstrip('=')) for f in flags[verb])} || _files ;;"
                          for verb in flags)
    write(out / "completion/_tokamak", f"""#compdef tokamak
# zsh completion of tokamak; tools/manual.py writes it.
local -a verbs keys
verbs=(
{quoted}
)
keys=({' '.join(n + '=' for n in names)})
if (( CURRENT == 2 )); then
  _describe verb verbs
elif [[ $PREFIX == --*.* ]]; then
  compadd -S '' -- $keys
elif [[ $PREFIX == -* ]]; then
  case $words[2] in
{zsh_cases}
  esac
elif [[ $words[2] == help ]]; then
  compadd -- ${{${{keys%=}}#--}}
else
  _files
fi
""")
    fish = ["# fish completion of tokamak; tools/manual.py writes it.", "complete -c tokamak -f"]
    for verb, what in verbs:
        text = what.replace("'", "")
        fish.append(f"complete -c tokamak -n __fish_use_subcommand -a {verb} -d '{text}'")
    for verb in flags:
        fish += [f"complete -c tokamak -F -n '__fish_seen_subcommand_from {verb}' -l {f.strip('-=')}" for f in flags[verb]]
    fish += [f"complete -c tokamak -n '__fish_seen_subcommand_from {takes_keys.replace('|', ' ')}' -a '{n}='" for n in names]
    write(out / "completion/tokamak.fish", "\n".join(fish) + "\n")


if __name__ == "__main__":
    main()

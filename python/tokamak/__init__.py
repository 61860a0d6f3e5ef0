"""Tokamak pretrains large language models. The program is `tokamak`; this package starts it and reads its files.

    import tokamak
    for step in tokamak.run("my.toml", training={"steps": 100}):
        print(step["step"], step["loss"])

Keys of the configuration are overridden by section, training={"steps": 10}, or by name, **{"training.steps": 10}.
TOKAMAK_PROGRAM names a program other than the one beside this Python or in PATH.
"""
from tokamak.files import read_run
from tokamak.program import Error, plan, price, run

__all__ = ["Error", "plan", "price", "read_run", "run"]

#!/usr/bin/env python3
"""Tests of the package in python/ with the program: package_test.py PROGRAM. Those of tables skip without pandas and pyarrow."""
import importlib.util
import json
import os
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "python"))
import tokamak  # noqa: E402
from tokamak.program import override_words  # noqa: E402

CONFIG = """
[model]
name = "llama3"
flavor = "debugmodel"
[training]
dataset = "synthetic"
seq_len = 32
local_batch_size = 2
steps = 1000000
[metrics]
log_freq = 1
"""


def has(*modules):
    return all(importlib.util.find_spec(module) for module in modules)


class Package(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.addCleanup(self.scratch.cleanup)
        self.dump = Path(self.scratch.name) / "run"
        self.config = Path(self.scratch.name) / "a.toml"
        self.config.write_text(CONFIG)

    def run_it(self, steps, **more):
        return tokamak.run(self.config, training={"steps": steps}, job={"dump_folder": self.dump}, **more)

    def test_overrides_are_words_of_the_command_line(self):
        words = override_words({"training": {"steps": 10, "deterministic": True}, "a.list": [[1, 2], [3]], "a.b": ["x", "y"]})
        self.assertEqual(words, ["--training.steps=10", "--training.deterministic=true", "--a.list=1,2;3", "--a.b=x,y"])
        with self.assertRaisesRegex(tokamak.Error, "steps=3: wanted a section"):
            override_words({"steps": 3})

    def test_iterates_over_every_step_of_the_file(self):
        steps = list(self.run_it(4))
        self.assertEqual([step["step"] for step in steps], [1, 2, 3, 4])
        written = [json.loads(line) for line in (self.dump / "metrics.jsonl").read_text().splitlines()]
        self.assertEqual(steps, written)

    def test_a_resumed_run_begins_after_its_checkpoint(self):
        save = {"enable": True, "interval": 2}
        list(self.run_it(2, checkpoint=save))
        self.assertEqual([step["step"] for step in self.run_it(4, checkpoint=save)], [3, 4])

    def test_another_run_in_a_folder_shows_no_old_step(self):
        first = list(self.run_it(3))
        second = list(self.run_it(2, debug={"seed": 7}))
        self.assertEqual([step["step"] for step in second], [1, 2])
        self.assertNotEqual(first[0]["loss"], second[0]["loss"])

    def test_ends_the_program_when_the_iterator_is_closed(self):
        steps = self.run_it(1000000)
        self.assertEqual(next(steps)["step"], 1)
        steps.close()
        self.assertIn("SIGTERM", (self.dump / "events.jsonl").read_text())

    def test_raises_the_line_of_the_program(self):
        with self.assertRaisesRegex(tokamak.Error, "^--training.stepz: no such key; the nearest is training.steps$"):
            list(tokamak.run(self.config, training={"stepz": 1}))
        with self.assertRaisesRegex(tokamak.Error, "nearest"):
            tokamak.price(self.config, cluster="h10", gpus=8)
        with self.assertRaisesRegex(tokamak.Error, "no-such.toml"):
            tokamak.plan("no-such.toml")

    def test_prices_and_plans(self):
        self.assertEqual(tokamak.price(self.config, cluster="h100", gpus=8)["gpus"], 8)
        small = tokamak.plan(self.config)
        large = tokamak.plan(self.config, training={"seq_len": 64})
        self.assertEqual(small["parameters"], 6163712)
        self.assertGreater(small["tasks"], 100)
        self.assertEqual(small["memory"]["parameters"], 4 * 6163712)
        self.assertLess(small["memory"]["saved activations"], large["memory"]["saved activations"])

    def write_files(self):
        self.dump.mkdir()
        (self.dump / "metrics.jsonl").write_text(
            '{"step": 1, "loss": 2.5, "mfu": null}\n{"step": 10, "loss": 2.0, "mfu": 40.5}\n{"step": 20, "lo')
        (self.dump / "validation.jsonl").write_text('{"step": 10, "loss": 2.25}\n')

    @unittest.skipUnless(has("pandas"), "no pandas")
    def test_reads_a_run_as_a_frame(self):
        self.write_files()
        frame = tokamak.read_run(self.dump)
        self.assertEqual(list(frame.index), [1, 10])
        self.assertEqual(frame["loss"].tolist(), [2.5, 2.0])
        self.assertEqual(frame["validation_loss"][10], 2.25)
        self.assertTrue(frame["mfu"].isna()[1])

    @unittest.skipUnless(has("pyarrow"), "no pyarrow")
    def test_reads_a_run_as_a_table(self):
        self.write_files()
        table = tokamak.read_run(self.dump, as_arrow=True)
        self.assertEqual(table.column("step").to_pylist(), [1, 10])
        self.assertEqual(table.column("mfu").to_pylist(), [None, 40.5])

    def test_a_folder_without_a_run_is_named(self):
        with self.assertRaisesRegex(FileNotFoundError, "metrics.jsonl"):
            tokamak.read_run(self.scratch.name)


if __name__ == "__main__":
    os.environ["TOKAMAK_PROGRAM"] = os.path.abspath(sys.argv.pop(1))
    unittest.main()

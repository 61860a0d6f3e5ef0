#!/usr/bin/env python3
"""Trains the model of tests/extra on its dataset: extra_test.py PROGRAM, which was built with -DTOK_EXTRA=tests/extra."""
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PROGRAM = ""


class Extra(unittest.TestCase):
    def train(self, text, *more):
        with tempfile.TemporaryDirectory() as folder:
            data = Path(folder) / "ids.txt"
            data.write_text(text)
            return subprocess.run(
                [PROGRAM, "train", "--model.name=llama_qk_norm", "--model.flavor=debugmodel", "--training.dataset=decimal_ids",
                 f"--training.dataset_path={data}", "--training.seq_len=32", "--training.local_batch_size=4",
                 "--training.steps=3", f"--job.dump_folder={folder}/run", *more], capture_output=True, text=True)

    def test_trains(self):
        done = self.train(" ".join(str(i % 50) for i in range(2000)))
        self.assertEqual(done.returncode, 0, done.stderr)
        # Llama's debugmodel and two norms of 16 in each of 6 blocks.
        self.assertIn("llama_qk_norm debugmodel size: 6,163,904 total parameters", done.stdout)
        self.assertIn("Training completed", done.stdout)

    def test_a_damaged_file_is_named(self):
        done = self.train("1 2 x")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("ids.txt: wanted token ids as decimal numbers, got something else after 2", done.stderr)

    def test_the_names_are_among_the_choices(self):
        done = self.train("1", "--model.name=lama")
        self.assertIn("llama_qk_norm", done.stderr)


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main()

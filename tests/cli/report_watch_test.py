#!/usr/bin/env python3
"""Tests of `tokamak report --watch`: report_watch_test.py PROGRAM."""
import json
import re
import signal
import subprocess
import sys
import tempfile
import unittest
import urllib.error
import urllib.request
from pathlib import Path

PROGRAM = ""


class Watch(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = Path(scratch.name)
        self.log(1, 8.5)

    def log(self, step, loss):
        with open(self.folder / "metrics.jsonl", "a") as file:
            file.write(json.dumps({"step": step, "loss": loss, "tokens_seen": 64 * step, "world_size": 1}) + "\n")

    def watch(self):
        program = subprocess.Popen([PROGRAM, "report", self.folder, "--watch", "--port=0"], stdout=subprocess.PIPE, text=True)
        self.addCleanup(program.stdout.close)
        self.addCleanup(program.wait)
        self.addCleanup(program.kill)
        return program, re.search(r"http://localhost:(\d+)", program.stdout.readline())[1]

    def get(self, port, path, host="localhost"):
        request = urllib.request.Request(f"http://127.0.0.1:{port}/{path}", headers={"Host": f"{host}:{port}"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.read().decode()

    def losses(self, port):
        charts = next(block["charts"] for block in json.loads(self.get(port, "data"))["blocks"] if "charts" in block)
        return [point[1] for point in charts[0]["series"][0]["points"]]

    def refused(self, *request):
        with self.assertRaises(urllib.error.HTTPError) as caught:
            self.get(*request)
        self.addCleanup(caught.exception.close)
        return caught.exception.code, caught.exception.read().decode()

    def test_renews_the_page_until_ctrl_c(self):
        program, port = self.watch()
        self.assertIn('"live":true', self.get(port, ""))
        self.assertEqual(self.losses(port), [8.5])
        self.log(2, 7.25)
        self.assertEqual(self.losses(port), [8.5, 7.25])
        program.send_signal(signal.SIGINT)
        self.assertEqual(program.wait(10), 0)

    def test_a_run_that_cannot_be_read_ends_nothing(self):
        _, port = self.watch()
        metrics = self.folder / "metrics.jsonl"
        metrics.rename(self.folder / "aside")
        code, line = self.refused(port, "data")
        self.assertEqual(code, 503)
        self.assertIn(str(self.folder), line)
        (self.folder / "aside").rename(metrics)
        self.assertEqual(self.losses(port), [8.5])

    def test_other_hosts_and_paths_are_refused(self):
        _, port = self.watch()
        self.assertEqual(self.refused(port, "data", "evil.example")[0], 400)
        self.assertEqual(self.refused(port, "../etc/passwd")[0], 404)

    def test_a_port_that_is_taken_is_named(self):
        _, port = self.watch()
        second = subprocess.run([PROGRAM, "report", self.folder, "--watch", f"--port={port}"], capture_output=True, text=True)
        self.assertEqual(second.returncode, 2)
        self.assertIn(f"--port {port}: Address already in use", second.stderr)


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main()

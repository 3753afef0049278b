"""Tests that ask a program of the build one request after the other, each a line of JSON that it answers with another."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "testing"))
from paths import BIN


class AskedProgram(unittest.TestCase):
    PROGRAM = None  # Its name.

    @classmethod
    def setUpClass(cls):
        # In memory where there is such a folder: what is synced is not what is tested here.
        cls.folder = tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
        cls.root = pathlib.Path(cls.folder.name)
        cls.program = subprocess.Popen([BIN.parent / "tests" / cls.PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                       text=True, encoding="utf-8")

    @classmethod
    def tearDownClass(cls):
        cls.program.stdin.close()
        cls.program.wait()
        cls.program.stdout.close()
        cls.folder.cleanup()

    def reply_to(self, request):
        self.program.stdin.write(json.dumps(request) + "\n")
        self.program.stdin.flush()
        line = self.program.stdout.readline()
        self.assertTrue(line, f"the reader died of {request}")
        return json.loads(line)

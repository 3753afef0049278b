"""Base of tests that send requests to a program of the build, one after the other: each is a line of JSON, and so is its
answer."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "testing"))
from paths import BIN


class RequestProgram(unittest.TestCase):
    PROGRAM = None  # Name of the program.

    @classmethod
    def setUpClass(cls):
        # The folder is in memory if possible, because these tests do not depend on syncing.
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
        self.assertTrue(line, f"the program died on {request}")
        return json.loads(line)

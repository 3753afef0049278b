"""Tests that start titanctl with private daemons: in a temporary folder, with every process marked, and none left at
the end."""

import os
import subprocess
import tempfile
import unittest
import uuid
from pathlib import Path

import processes
from cluster import BIN, MARK


class TitanctlCase(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.mark = uuid.uuid4().hex
        self.addCleanup(self.kill_all)

    def left(self):
        return processes.all_with(MARK, self.mark)

    def kill_all(self):
        for process in self.left():
            process.kill()

    def start(self, *words, identity=None, **environment):
        """Starts titanctl. `identity`: arguments of Popen for another user: user, group, extra_groups, umask."""
        environment = {**os.environ, MARK: self.mark, "XDG_CACHE_HOME": str(self.folder / "cache"), **environment}
        return subprocess.Popen([BIN / "titanctl", *map(str, words)], env=environment, cwd=self.folder, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, **(identity or {}))

"""No program that is shipped has the bugs that tests plant; the test program that has them shows that this would be seen."""

import os
import sys
import unittest
from pathlib import Path

BIN = Path(os.environ["TITAN_BIN"])
PLANTED = Path(sys.argv.pop(1))
MARK = b"_ZN5titan7testing11planted_bugE"  # titan::testing::planted_bug: which one is there now.
PROGRAMS = ("titan-controller", "titan-worker", "titan-shim", "titanctl")


class NoPlantedBugsTest(unittest.TestCase):
    def test_programs_lack_them(self):
        for program in PROGRAMS:
            with self.subTest(program):
                self.assertNotIn(MARK, (BIN / program).read_bytes())

    def test_the_test_program_has_them(self):
        self.assertIn(MARK, PLANTED.read_bytes())


if __name__ == "__main__":
    unittest.main()

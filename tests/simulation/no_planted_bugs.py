"""Shipped programs and their tests have no mutations; the test program that has them shows that this check would find
them."""

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "testing"))
from paths import BIN

MUTATED = Path(sys.argv.pop(1))
MARK = b"_ZN5titan10simulation15active_mutationE"  # Mangled name of titan::simulation::active_mutation.
PROGRAMS = ("titan-controller", "titan-worker", "titan-shim", "titanctl")


class NoPlantedBugsTest(unittest.TestCase):
    def test_programs_have_no_mutations(self):
        for program in (*(BIN / name for name in PROGRAMS), MUTATED.with_name("simulation_test")):
            with self.subTest(program.name):
                self.assertNotIn(MARK, program.read_bytes())

    def test_mutated_program_has_mutations(self):
        self.assertIn(MARK, MUTATED.read_bytes())


if __name__ == "__main__":
    unittest.main()

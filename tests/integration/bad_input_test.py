"""Passes every bad input of the two tables to the real titanctl and controller. Each gives exit code 2, key, value and suggestion
on stderr, and nothing on stdout. Afterwards no job is queued."""

import json
import sys
import tempfile
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "testing"))
import bad_files
from cluster import SOURCE, Cluster
from jobs import TINY

TABLE = json.loads((SOURCE / "tests/common/plan/config/bad_inputs.json").read_text())


class BadInput(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(Cluster(workers=1))
        cls.folder = Path(cls.enterClassContext(tempfile.TemporaryDirectory()))

    def tearDown(self):
        self.assertEqual([], self.cluster.ask("list")["jobs"], "a bad input was queued")

    def complaint(self, verb, arguments, *expected):
        """Returns the problem with titanctl's answer, or None."""
        done = self.cluster.titanctl(verb, *arguments, check=False)
        missing = [text for text in expected if text not in done.stderr]
        if done.returncode == 2 and not missing and not done.stdout:
            return None
        return f"{verb} {' '.join(map(str, arguments))}: exit {done.returncode}, missing {missing}\n{done.stdout}{done.stderr}"

    def check_all(self, cases):
        """Runs both verbs for `cases` of (name, arguments, texts), several at a time."""
        jobs = [(name, verb, arguments, expected) for name, arguments, expected in cases for verb in ("validate", "submit")]
        with ThreadPoolExecutor(4) as pool:
            results = pool.map(lambda job: (job[0], self.complaint(job[1], job[2], *job[3])), jobs)
        self.assertEqual([], [f"{name}: {wrong}" for name, wrong in results if wrong])

    def test_configurations(self):
        cases = []
        plain = self.folder / "plain.toml"
        plain.write_text('[job]\ndescription = "words alone are wrong"\n')
        for i, case in enumerate(TABLE):
            arguments = list(case.get("args", []))
            if case["lines"]:
                path = self.folder / str(i) / f"config.{case.get('format', 'toml')}"
                path.parent.mkdir()
                path.write_text("\n".join(case["lines"]) + "\n")
                arguments.insert(0, path)
            else:
                arguments.insert(0, plain)
            expected = [case["key"], case["value"], case["suggestion"], *case["expect"]]
            cases.append((case["name"], arguments, [text for text in expected if text]))
        self.assertGreaterEqual(len(cases), 40)
        self.check_all(cases)

    def test_files(self):
        cases = []
        for i, (name, make, key, expected) in enumerate(bad_files.CASES):
            folder = self.folder / f"files-{i}"
            folder.mkdir()
            made = make(folder)
            dump = [] if "--job.dump_folder" in made else ["--job.dump_folder", folder / "dump"]
            # The value is the word after the key; relative and absolute ones name the same path here.
            cases.append((name, [TINY, *dump, *made], [key, str(made[made.index(f"--{key}") + 1]), *expected]))
        self.check_all(cases)

    def test_files_are_documented(self):
        page = (SOURCE / "docs/generated/bad-inputs.md").read_text()
        self.assertEqual([], [name for name, *_ in bad_files.CASES if name not in page])

    def test_unreadable_configurations(self):
        self.assertIsNone(self.complaint("submit", [self.folder / "nosuch.toml"], "nosuch.toml", "No such file"))
        self.assertIsNone(self.complaint("submit", [self.folder], "folder"))
        near = SOURCE / "configs/llama3_tinny.toml"
        self.assertIsNone(self.complaint("validate", [near], "did you mean", "llama3_tiny.toml"))
        self.assertIsNone(self.complaint("validate", [self.folder / "a.ini"], "a.ini"))

    def test_standard_input(self):
        done = self.cluster.titanctl("submit", "-", "--format", "yaml", text="training:\n  stepz: 1\n", check=False)
        self.assertEqual(2, done.returncode)
        self.assertIn("standard input:2: training.stepz", done.stderr)

    def test_the_controller_refuses_what_only_it_knows(self):
        done = self.cluster.titanctl("submit", TINY, "--job.dump_folder", self.folder / "d", "--job-id", "Not An Id", check=False)
        self.assertEqual(2, done.returncode, done.stderr)
        self.assertIn("scheduling.job_id", done.stderr)
        dry = self.cluster.titanctl("submit", TINY, "--job.dump_folder", self.folder / "d", "--dry-run")
        self.assertIn("nothing was queued", dry.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)

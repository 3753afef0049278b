"""Tests the packages of deploy/package.sh: the files of an installation with their dependencies, settings that dpkg asks about
before it replaces them, and scripts that delete nothing in use. With TITAN_BARE_DEBIAN (CMakeLists.txt) it also runs the
packages' whole life on a bare machine."""

import fcntl
import fnmatch
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "testing"))
import processes
from paths import BIN, SOURCE

BARE = shlex.split(os.environ.get("TITAN_BARE_DEBIAN", ""))
PROGRAMS = {"titanctl": ["titanctl"], "titan-controller": ["titan-controller"], "titan-worker": ["titan-shim", "titan-stacks", "titan-worker"], "titan-common": [],
            "titan-doc": []}
if (BIN / "titan-rank").exists():
    PROGRAMS["titan-rank"] = ["titan-checkpoint", "titan-data", "titan-generate", "titan-rank"]
DAEMONS = ("titan-controller", "titan-worker")
# Files in packages that are others' work, and their licences.
THIRD_PARTY = {
    "titanctl": {"usr/bin/titanctl": "BSD-3-clause and BSD-3-clause-Cincinnati and Expat"},
    "titan-common": {"usr/share/titan/assets/c4_test/data.json": "GPL-1+ or Artistic",
                     "usr/share/titan/assets/shapes/shapes-train-000.tar": "BSD-3-clause", "usr/share/titan/configs/a.toml": "BSD-3-clause"},
    "titan-libtorch": {"usr/lib/titan/torch/lib/libtorch_cpu.so": "PyTorch", "usr/lib/titan/nvidia/cu13/lib/libcudart.so.13": "NVIDIA-EULA",
                       "usr/lib/titan/torch/lib/libgomp.so.1": "GPL-3+ with GCC-Runtime-Library exception"},
    "titan-parquet": {"usr/lib/titan/arrow/libarrow.so.2600": "Apache-Arrow", "usr/lib/titan/titan-parquet.so": "BSD-3-clause and Apache-Arrow"},
}


def output(*command, **more):
    return subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True, **more).stdout


def make(out, *flags):
    """Builds the packages and returns their files by name."""
    made = output(SOURCE / "deploy/package.sh", "--out", out, *flags, BIN.parent).splitlines()
    return {Path(file).name.split("_")[0]: Path(file) for file in made}


class Packages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.packages = make(cls.folder / "packages", "--version", "1.2.3")
        cls.root = cls.folder / "root"
        for file in cls.packages.values():
            subprocess.run(["dpkg-deb", "--extract", file, cls.root], check=True)

    def field(self, package, name):
        return output("dpkg-deb", "--field", self.packages[package], name).strip()

    def script(self, package, name):
        """Returns one of the package's maintainer scripts."""
        control = self.folder / "control" / package
        if not control.is_dir():
            control.parent.mkdir(exist_ok=True)
            output("dpkg-deb", "--control", self.packages[package], control)
        return control / name

    def test_each_has_its_programs_and_they_run(self):
        self.assertEqual(sorted(PROGRAMS), sorted(self.packages))
        for package, programs in PROGRAMS.items():
            with self.subTest(package):
                self.assertEqual("1.2.3", self.field(package, "Version"))
                listed = output("dpkg-deb", "--contents", self.packages[package])
                self.assertEqual(programs, sorted(re.findall(r" \./usr/bin/(\S+)$", listed, re.MULTILINE)))
                owners = {line.split()[1] for line in listed.splitlines()}
                self.assertEqual({"root/root"}, owners)
                for program in set(programs) - {"titan-rank", "titan-checkpoint", "titan-generate"}:  # These need LibTorch next to them.
                    self.assertRegex(output(self.root / "usr/bin" / program, "--version"), rf"^{program} ")

    def test_dependencies_match_linked_libraries(self):
        for package, library in (("titanctl", "libgrpc++"), ("titanctl", "libcurl4"), ("titan-controller", "libsqlite3-0"), ("titan-worker", "libprometheus-cpp"),
                                 ("titan-worker", "libdw1")):
            with self.subTest(package):
                self.assertIn(library, self.field(package, "Depends"))
                self.assertRegex(self.field(package, "Depends"), r"libc6 \(>= 2\.\d+\)")
        self.assertEqual("all", self.field("titan-common", "Architecture"))
        if "titan-rank" in self.packages:
            self.assertRegex(self.field("titan-rank", "Depends"), r"titan-common \(= 1\.2\.3\)")
            self.assertIn("libcurl4", self.field("titan-rank", "Depends"))

    def test_settings_are_kept_and_units_read_them(self):
        for daemon in DAEMONS:
            with self.subTest(daemon):
                settings = f"/etc/titan/{daemon.removeprefix('titan-')}.env"
                self.assertEqual(settings, self.script(daemon, "conffiles").read_text().strip())
                unit = (self.root / f"lib/systemd/system/{daemon}.service").read_text()
                self.assertIn(f"={settings}\n", unit.replace("=-", "="))
                self.assertIn(f"ExecStart=/usr/bin/{daemon} ", unit)
                self.assertTrue((self.root / settings[1:]).is_file())
        self.assertEqual([], list((self.root / "usr").rglob("*.env")))

    def run_script(self, package, name, *arguments):
        return subprocess.run([self.script(package, name), *arguments], env={**os.environ, "DPKG_ROOT": str(self.folder / "machine")},
                              capture_output=True, text=True)

    def test_removal_leaves_the_state_and_purging_deletes_it(self):
        for daemon in DAEMONS:
            with self.subTest(daemon):
                state = self.folder / "machine/var/lib" / daemon
                state.mkdir(parents=True)
                self.assertEqual(0, self.run_script(daemon, "postrm", "remove").returncode)
                self.assertTrue(state.is_dir())
                self.assertEqual(0, self.run_script(daemon, "postrm", "purge").returncode)
                self.assertFalse(state.exists())

    # Purging deletes no attempt whose shim lives, which its lock shows.
    def test_purging_keeps_files_in_use(self):
        state = self.folder / "machine/var/lib/titan-worker"
        for attempt in ("attempt-1", "attempt-2"):
            (state / "jobs/aa" / attempt).mkdir(parents=True)
            (state / "jobs/aa" / attempt / "shim.lock").touch()
        with open(state / "jobs/aa/attempt-2/shim.lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            done = self.run_script("titan-worker", "postrm", "purge")
            self.assertEqual(1, done.returncode)
            self.assertIn("jobs/aa/attempt-2", done.stderr)
            self.assertIn("dpkg --purge titan-worker", done.stderr)
            self.assertTrue((state / "jobs/aa/attempt-1").is_dir())
        self.assertEqual(0, self.run_script("titan-worker", "postrm", "purge").returncode)
        self.assertFalse(state.exists())

    def test_first_installation_prints_next_steps(self):
        for daemon in DAEMONS:
            with self.subTest(daemon):
                self.assertIn("systemctl enable --now", self.run_script(daemon, "postinst", "configure", "").stdout)
                self.assertEqual("", self.run_script(daemon, "postinst", "configure", "1.2.2").stdout)

    def copyright_of(self, package):
        """Returns the copyright file as text and as stanzas: fields by name. The last Files stanza that matches counts."""
        wheels = next(Path(os.environ["TITAN_DEPS"]).glob("venv/lib/python3*/site-packages"), "none")
        text = output(SOURCE / "deploy/debian/make_copyright.sh", package, wheels)
        return text, [dict(re.findall(r"^(\S+): (.*(?:\n .*)*)", stanza, re.MULTILINE)) for stanza in text.strip().split("\n\n")]

    # Each file has its licence, each licence its text.
    def test_copyright_files_are_complete_and_correct(self):
        names = sorted(path.stem for path in (SOURCE / "deploy/debian").glob("*.control"))
        self.assertLessEqual(set(self.packages), set(names))
        for package in names:
            with self.subTest(package):
                try:
                    text, stanzas = self.copyright_of(package)
                except subprocess.CalledProcessError as error:
                    self.assertIn("states no licence", error.stderr)  # A build without that wheel makes no such package.
                    self.assertNotIn(package, self.packages)
                    continue
                self.assertEqual("https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/", stanzas[0]["Format"])
                files = [one for one in stanzas if "Files" in one]
                self.assertEqual("*", files[0]["Files"])
                self.assertTrue(all(one["Copyright"] for one in files))
                texts = {one["License"].split("\n")[0] for one in stanzas if "Files" not in one and "\n" in one.get("License", "")}
                self.assertEqual(texts, {name for one in files for name in re.split(r" and | or ", one["License"])})
                self.assertEqual(1 + len(files) + len(texts), len(stanzas))
                titan = (SOURCE / "LICENSE").read_text().splitlines()
                self.assertIn("".join(f" {line or '.'}\n" for line in titan), text)
                for path, licence in THIRD_PARTY.get(package, {}).items():
                    self.assertEqual(licence, [one["License"] for one in files if fnmatch.fnmatchcase(path, one["Files"])][-1], path)
                if package in self.packages:
                    self.assertEqual(text, (self.root / "usr/share/doc" / package / "copyright").read_text())

    @unittest.skipUnless(shutil.which("lintian"), "lintian is not installed")
    def test_lintian_finds_no_errors(self):
        done = subprocess.run(["lintian", "--fail-on", "error", "--tag-display-limit", "0", *self.packages.values()], capture_output=True, text=True)
        self.assertEqual([], [line for line in done.stdout.splitlines() if line.startswith("E:")], done.stderr)

    @unittest.skipUnless(BARE, "TITAN_BARE_DEBIAN names no command")
    def test_a_bare_machine_from_installation_to_purge(self):
        carried = self.folder / "carried"
        carried.mkdir()
        for version in ("1.2.3", "1.2.4"):
            make(carried / version, "--version", version)
        shutil.copy(BIN.parent / "tests/fake_rank", carried)
        shutil.copy(Path(__file__).parent / "bare_machine.sh", carried)
        done = subprocess.run([*BARE, carried, "bash", "bare_machine.sh", "1.2.3", "1.2.4", str(processes.free_port())], capture_output=True, text=True, timeout=540)
        self.assertEqual(0, done.returncode, done.stdout[-6000:] + done.stderr[-6000:])
        self.assertIn("purged\n", done.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)

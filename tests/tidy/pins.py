"""Checks that a build's dependencies are pinned and that names and versions are stated once: wheels by version and hash, the
version number in CMakeLists.txt, the licence in every package."""

import re
import subprocess
import sys
import unittest
from pathlib import Path

from text import tracked

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "testing"))
from paths import SOURCE

REQUIREMENTS = SOURCE / "deploy/requirements"
WHEEL = re.compile(r"^([a-z0-9-]+)==([A-Za-z0-9.+!]+) --hash=sha256:[0-9a-f]{64}$")
WANTED = re.compile(r"^([A-Za-z0-9._-]+)(?:==(\S+))?$")
OWN_FOLDER = "transformers5"  # The others share one environment.
# Stored measurements and decoded files, pinned wheels and the changelog contain versions of their time.
RECORDS = ("CHANGELOG.md", "docs/generated/", "deploy/requirements/", "tests/fuzz/corpus/", "tests/controller/store/data/")


def key(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def code_of(script):
    """Returns the script's lines without comments."""
    return [line for line in (SOURCE / script).read_text().splitlines() if not line.lstrip().startswith("#")]


def locked(file):
    """Returns versions by name; fails at a line of another form."""
    found = {}
    for line in file.read_text().splitlines():
        if line.startswith("#"):
            continue
        wheel = WHEEL.match(line)
        assert wheel, f"{file.name}: '{line}' is not NAME==VERSION --hash=sha256:DIGEST"
        assert wheel[1] not in found, f"{file.name}: {wheel[1]} occurs twice"
        found[wheel[1]] = wheel[2]
    return found


def tracked_names():
    return [path.relative_to(SOURCE).as_posix() for path in tracked()]


class Wheels(unittest.TestCase):
    def test_each_has_a_version_and_a_hash(self):
        files = sorted(REQUIREMENTS.glob("*.txt"))
        self.assertEqual(["base", "clients", "cuda", "oracles", "parquet", "transformers5"], [file.stem for file in files])
        for file in files:
            with self.subTest(file.name):
                self.assertTrue(locked(file))

    def test_groups_of_one_environment_agree(self):
        versions = {}
        for file in REQUIREMENTS.glob("*.txt"):
            for name, version in locked(file).items() if file.stem != OWN_FOLDER else ():
                self.assertEqual(version, versions.setdefault(name, version), f"{file.name}: {name}")

    # After a change to a list, deploy/lock_wheels.py must run.
    def test_lists_and_locks_agree(self):
        for file in REQUIREMENTS.glob("*.in"):
            wheels = locked(REQUIREMENTS / f"{file.name.split('.')[0]}.txt")
            for line in file.read_text().splitlines():
                if line.startswith("#"):
                    continue
                wanted = WANTED.match(line)
                self.assertTrue(wanted, f"{file.name}: {line}")
                self.assertIn(key(wanted[1]), wheels, file.name)
                self.assertEqual(wanted[2] or wheels[key(wanted[1])], wheels[key(wanted[1])], f"{file.name}: run deploy/lock_wheels.py")

    def test_bootstrap_installs_only_pinned_wheels(self):
        lines = code_of("deploy/bootstrap.sh")
        calls = [line for line in lines if re.search(r"\bpip3?\b.*\binstall\b", line)]
        self.assertEqual(1, len(calls), calls)
        self.assertRegex(calls[0], r'--require-hashes --no-deps -r "\$requirements/\$1\.txt" "\$\{@:2\}"$')
        self.assertIn("requirements=$PWD/deploy/requirements", lines)
        self.assertEqual([], [line for line in lines if re.search(r"https?:|--(extra-)?index-url|--find-links|\b(curl|wget|pipx|git clone)\b ", line)])
        groups = re.findall(r"\binstall_group (\w+)", "\n".join(lines))
        self.assertEqual(sorted(file.stem for file in REQUIREMENTS.glob("*.txt")), sorted(groups))

    def test_no_other_script_installs_wheels(self):
        scripts = [name for name in tracked_names() if name.startswith(("deploy/", ".ci/")) and not name.startswith("deploy/requirements/")
                   and not name.endswith(".safetensors")]
        installs = {name for name in scripts if re.search(r"\bpip3?\b.*\binstall\b", "\n".join(code_of(name)))}
        self.assertLessEqual(installs, {"deploy/bootstrap.sh", "deploy/lock_wheels.py"})


class Version(unittest.TestCase):
    def test_version_is_stated_once(self):
        version = re.search(r"^project\(titan VERSION (\d+\.\d+\.\d+) ", (SOURCE / "CMakeLists.txt").read_text(), re.MULTILINE)[1]
        number = re.compile(rf"(?<![\d.]){re.escape(version)}(?![\d.]*\d)")
        found = []
        for name in tracked_names():
            if name.startswith(RECORDS):
                continue
            try:
                text = (SOURCE / name).read_text()
            except UnicodeDecodeError:
                continue
            found += [name for _ in number.findall(text)]
        self.assertEqual(["CMakeLists.txt"], found)


class Licence(unittest.TestCase):
    def setUp(self):
        self.text = (SOURCE / "LICENSE").read_text()

    def test_licence_is_bsd_3_clause(self):
        self.assertRegex(self.text, r"\ABSD 3-Clause License\n\nCopyright \(c\) 2026, The Titan authors\n")

    def test_licence_is_installed(self):
        self.assertRegex((SOURCE / "cmake/TitanInstall.cmake").read_text(), r"install\(FILES LICENSE [^)]*DESTINATION share/doc/titan ")

    def test_every_package_ships_it(self):
        packages = [file.stem for file in (SOURCE / "deploy/debian").glob("*.control")]
        self.assertIn("titanctl", packages)
        stanza = "License: BSD-3-clause\n" + "".join(f" {line or '.'}\n" for line in self.text.splitlines())
        for package in set(packages) - {"titan-libtorch", "titan-parquet"}:  # The files of these two need wheels; tests/packages reads them.
            made = subprocess.run(["bash", SOURCE / "deploy/debian/make_copyright.sh", package, "none"], check=True, capture_output=True, text=True)
            self.assertIn(stanza, made.stdout, package)
            self.assertIn("Files: *\nCopyright: 2026 The Titan authors\nLicense: BSD-3-clause\n", made.stdout, package)
        self.assertRegex("\n".join(code_of("deploy/package.sh")), r'make_copyright\.sh" "\$1" "\$wheels" >"\$texts/copyright"')


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)

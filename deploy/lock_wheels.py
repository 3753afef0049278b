#!/usr/bin/env python3
"""Writes deploy/requirements/GROUP.txt: every wheel that deploy/bootstrap.sh installs, with its exact version and hash.

    deploy/lock_wheels.py                        applies a change of a list GROUP.in; other versions stay the same
    deploy/lock_wheels.py NAME[==VERSION]...     upgrades these, to the newest version that the lists allow or to VERSION
    deploy/lock_wheels.py --all                  upgrades all packages for which the lists give no version

GROUP.in lists packages that are installed with all their requirements, GROUP.alone.in those without. All groups except transformers5
are installed into one environment, so they are resolved together. Needs a network and Debian's python3-venv; installs nothing.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "requirements"
PYTHON = "/usr/bin/python3"  # The Python of deploy/bootstrap.sh: the matching wheels depend on it.
OWN_FOLDER = {"transformers5"}
PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;]+)")
CONSTRAINED = re.compile(r"The user requested \(constraint\) ([A-Za-z0-9._-]+)==")


def key(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def pins_of(*files):
    """Returns versions by name."""
    found = (PIN.match(line) for file in files for line in file.read_text().splitlines())
    return {key(match[1]): match[2] for match in found if match}


def lists_of(group):
    """Returns a group's list with requirements and its list without; None for a list that does not exist."""
    files = [FOLDER / f"{group}.in", FOLDER / f"{group}.alone.in"]
    return [file if file.exists() else None for file in files]


class Resolver:
    """A newer pip in a separate environment: Debian's would download every wheel to read its requirements."""

    def __init__(self, folder):
        self.folder = Path(folder)
        # A folder of wheels on this machine must not decide what is locked.
        self.environment = {name: value for name, value in os.environ.items() if name != "PIP_FIND_LINKS"}
        subprocess.run([PYTHON, "-m", "venv", self.folder / "venv"], check=True)
        code, said = self.pip(["install", "--quiet", "--upgrade", "pip>=24"])
        if code != 0:
            sys.exit(f"lock_wheels: cannot install a newer pip:\n{said}")

    def pip(self, words):
        """Returns its exit code and stderr."""
        done = subprocess.run([self.folder / "venv/bin/python", "-m", "pip", *words], env=self.environment, stderr=subprocess.PIPE, text=True)
        return done.returncode, done.stderr

    def resolve(self, lists, pins, *flags):
        """Returns {name: (version, sha256)} of what pip would install. Removes `pins` that the lists contradict."""
        constraints, report = self.folder / "constraints.txt", self.folder / "report.json"
        wanted = [word for file in lists for word in ("-r", file)]
        while True:
            constraints.write_text("".join(f"{name}=={version}\n" for name, version in pins.items()))
            code, said = self.pip(["install", "--quiet", "--dry-run", "--only-binary", ":all:", "--report", report, "-c", constraints, *flags, *wanted])
            if code == 0:
                return dict(self.locked(item) for item in json.loads(report.read_text())["install"])
            loose = {key(name) for name in CONSTRAINED.findall(said)} & set(pins)
            if not loose:
                sys.exit(f"lock_wheels: pip finds no compatible versions:\n{said}")
            print(f"lock_wheels: also unpinned: {' '.join(sorted(loose))}")
            for name in loose:
                del pins[name]

    @staticmethod
    def locked(item):
        return key(item["metadata"]["name"]), (item["metadata"]["version"], item["download_info"]["archive_info"]["hashes"]["sha256"])


def lock_group(resolver, group, pins):
    plain, alone = lists_of(group)
    wheels = resolver.resolve([plain], dict(pins)) if plain else {}
    if alone:
        wheels |= resolver.resolve([alone], dict(pins), "--no-deps")
    lists = " and ".join(file.name for file in (plain, alone) if file)
    lines = [f"{name}=={version} --hash=sha256:{digest}\n" for name, (version, digest) in sorted(wheels.items())]
    head = f"# Made by deploy/lock_wheels.py from {lists}, for Debian's Python 3.11 on x86-64: change those, then run it.\n"
    (FOLDER / f"{group}.txt").write_text(head + "".join(lines))
    print(f"lock_wheels: {group}: {len(wheels)} wheels")


def set_version(name, version):
    """Sets the version of this package to `version` in each list that gives one."""
    for file in FOLDER.glob("*.in"):
        lines = file.read_text().splitlines()
        changed = [f"{match[1]}=={version}" if (match := PIN.match(line)) and key(match[1]) == key(name) else line for line in lines]
        if changed != lines and not OWN_FOLDER & set(file.name.split(".")):
            file.write_text("\n".join(changed) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", nargs="*", metavar="NAME[==VERSION]")
    parser.add_argument("--all", action="store_true")
    arguments = parser.parse_args()

    groups = sorted({file.name.split(".")[0] for file in FOLDER.glob("*.in")})
    shared = [group for group in groups if group not in OWN_FOLDER]
    pins = {} if arguments.all else pins_of(*(file for group in shared if (file := FOLDER / f"{group}.txt").exists()))
    for package in arguments.packages:
        name, _, version = package.partition("==")
        pins.pop(key(name), None)
        if version:
            set_version(name, version)
            pins[key(name)] = version
    lists = [file for group in shared for file in lists_of(group) if file]
    for name in pins_of(*lists):  # The lists decide their versions.
        pins.pop(name, None)

    with tempfile.TemporaryDirectory() as folder:
        resolver = Resolver(folder)
        together = {name: version for name, (version, _) in resolver.resolve(lists, pins).items()}
        for group in groups:
            lock_group(resolver, group, {} if group in OWN_FOLDER else together)


if __name__ == "__main__":
    main()

"""Checks, without packing anything, that everything that deploy/gpu_pack.sh, deploy/package.sh and deploy/debian name exists:
files of the tree, programs of the build, packages that others depend on. Libraries of the programs come from packages that
dpkg-shlibdeps finds, or from titan-libtorch; packages of other linked libraries are in the control file."""

import functools
import glob
import re
import shutil
import subprocess
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "testing"))
from paths import BIN, SOURCE

DEBIAN = SOURCE / "deploy/debian"
INSTALLED = (SOURCE / "cmake/TitanInstall.cmake").read_text()
MADE_LATER = ("build/", ".deps/")
OF_LIBTORCH = ("libtorch_cpu.so", "libc10.so", "libgomp.so.1", "libcudart.so.13", "libcupti.so.13")  # cmake/TitanInstall.cmake.
LIBRARIES = {"titan-parquet": ("titan-parquet.so", ("libarrow.so", "libparquet.so"))}  # Linked by no program, with the libraries that come with them.


def control(package):
    return dict(re.findall(r"^(\S+): (.*)", (DEBIAN / f"{package}.control").read_text(), re.MULTILINE))


def names_in(field):
    return [re.split(r"[ (]", one.strip())[0] for one in field.split(",") if one.strip()]


def needed(file):
    text = subprocess.run(["readelf", "-d", file], check=True, capture_output=True, text=True).stdout
    return re.findall(r"\(NEEDED\).*\[(.*)\]", text)


@functools.cache
def owners_of(library):
    """Returns the Debian packages that have a file of this name, as dpkg writes them."""
    return {Path(found).stem for found in _files_of_packages().get(library, ())}


@functools.cache
def _files_of_packages():
    found = {}
    for listed in glob.glob("/var/lib/dpkg/info/*.list"):
        for name in re.findall(r"/([^/\n]+\.so(?:\.[\w.]+)?)$", Path(listed).read_text(), re.MULTILINE):
            found.setdefault(name, set()).add(listed)
    return found


def is_found_for(library):
    """Returns whether dpkg-shlibdeps finds a package for the library; it silently skips packages without such a list."""
    return any(Path(f"/var/lib/dpkg/info/{owner}.{kind}").exists() for owner in owners_of(library) for kind in ("shlibs", "symbols"))


class PackageLists(unittest.TestCase):
    def test_files_that_scripts_name_exist(self):
        for script, variables in (("gpu_pack.sh", {"root": SOURCE}), ("package.sh", {"source": SOURCE}), ("debian/make_copyright.sh", {"here": DEBIAN})):
            text = (SOURCE / "deploy" / script).read_text()
            named = re.findall(rf"\$({'|'.join(variables)})/([\w./-]+)(?!\S*\$)", text)
            self.assertTrue(named, script)
            self.assertEqual([], [path for variable, path in named if not path.startswith(MADE_LATER) and not (variables[variable] / path).exists()], script)

    def test_programs_of_gpu_check_are_packed_and_built(self):
        pack, check = ((SOURCE / f"deploy/gpu_{name}.sh").read_text() for name in ("pack", "check"))
        copied = set(re.findall(r"\$root/deploy/([\w.]+)", pack))
        read = set(re.findall(r"\$here/(\w+\.\w+)", check))
        for script in [name for name in copied | read if name.endswith(".py")]:
            text = (SOURCE / "deploy" / script).read_text()
            read |= {name for name in re.findall(r'HERE / "([\w.]+)"', text) if "." in name}
            read |= {f"{name}.py" for name in re.findall(r"^(?:import|from) (\w+)", text, re.MULTILINE) if (SOURCE / f"deploy/{name}.py").exists()}
        self.assertEqual(set(), read - copied)
        programs = re.search(r'^programs="(.*)"$', pack, re.MULTILINE)[1].split()
        self.assertEqual(set(), set(re.findall(r"\$build/((?:bin|tests)/[\w.-]+)", check)) - set(programs))
        rules = (BIN.parent / "build.ninja").read_text()
        built = [one for one in programs if re.search(rf"^build {re.escape(one)}[ :|]", rules, re.MULTILINE)]
        self.assertLessEqual(set(programs) - set(built), {"bin/libtitan_cuda.so"})  # This needs nvcc; gpu_pack.sh reports it.

    def test_packages_match_the_installation(self):
        packages = {file.stem for file in DEBIAN.glob("*.control")}
        script = (SOURCE / "deploy/package.sh").read_text()
        self.assertEqual(packages, {name for names in re.findall(r"\bpackages\+?=\(([\w -]+)\)", script) for name in names.split()})
        self.assertEqual(set(), packages - set(re.findall(r"COMPONENT (titan[\w-]*)", INSTALLED)))
        for file in DEBIAN.iterdir():
            if file.suffix != ".sh" and file.name != "copyright":
                self.assertIn(file.stem, packages, file.name)
        for package in packages:
            fields = control(package)
            self.assertEqual(package, fields["Package"])
            ours = [name for field in ("Depends", "Recommends", "Suggests") for name in names_in(fields.get(field, "")) if name.startswith("titan")]
            self.assertEqual([], [name for name in ours if name not in packages], package)
        # Jobs name its configurations and texts, which must be of the same version.
        self.assertIn("titan-common (= @VERSION@)", control("titan-rank").get("Depends", ""))

    @unittest.skipUnless(shutil.which("dpkg"), "not on Debian")
    def test_linked_libraries_have_packages(self):
        for targets, package in re.findall(r"^ *install\(TARGETS ([\w -]+?) RUNTIME .*COMPONENT ([\w-]+)\)", INSTALLED, re.MULTILINE):
            for program in targets.split():
                libraries = set(needed(BIN / program) if (BIN / program).exists() else ()) - set(OF_LIBTORCH)
                self.assertEqual([], [name for name in sorted(libraries) if not is_found_for(name)], f"{package}: {program}")

    @unittest.skipUnless(shutil.which("dpkg"), "not on Debian")
    def test_loaded_libraries_have_packages(self):
        for package, (library, brought) in LIBRARIES.items():
            if not (BIN / library).exists():
                continue
            depends = set(names_in(control(package).get("Depends", "")))
            for name in needed(BIN / library):
                owners = {owner.split(":")[0] for owner in owners_of(name)}
                self.assertTrue(name.startswith(brought) or owners & depends, f"{package}: {name} of {owners or 'no package'}")


if __name__ == "__main__":
    unittest.main(verbosity=1)

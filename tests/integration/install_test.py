"""Tests that the result of `cmake --install` works alone: for a user who is not root and has no home, after it was moved, without
the build tree and its wheel. A missing part is named at once."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "testing"))
from paths import BUILD

DEPS = os.path.realpath(os.environ["TITAN_DEPS"])
TORCH = (BUILD / "bin/titan-rank").exists()
PROGRAMS = ("titanctl", "titan-controller", "titan-worker", "titan-shim", "titan-stacks", *(("titan-rank", "titan-checkpoint", "titan-data", "titan-generate") if TORCH else ()))
COMPONENTS = ("titanctl", "titan-controller", "titan-worker", "titan-common", "titan-doc", *(("titan-rank", "titan-sdk") if TORCH else ()))
NOBODY = 65534
needs_rank = unittest.skipUnless(TORCH, "built without LibTorch")


def install(prefix, component, mode="COPY"):
    subprocess.run(["cmake", "--install", BUILD, "--prefix", prefix, "--component", component], check=True, stdout=subprocess.DEVNULL,
                   umask=0o022, env={**os.environ, "CMAKE_INSTALL_MODE": mode})


def link_hard(path):
    """Replaces a link to the wheel, which may be in a folder that only its owner can enter, by a hard link or a copy."""
    target = os.path.realpath(path)
    path.unlink()
    try:
        os.link(target, path)
    except OSError:
        shutil.copy(target, path)


def dynamic(program):
    return subprocess.run(["readelf", "-d", program], check=True, capture_output=True, text=True).stdout


class Install(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.folder.chmod(0o755)
        cls.prefix = cls.folder / "prefix"
        for component in COMPONENTS:
            install(cls.prefix, component)
        install(cls.prefix, "titan-libtorch", "ABS_SYMLINK")
        for library in (cls.prefix / "lib/titan").rglob("*.so*"):
            if library.is_symlink():
                link_hard(library)

    def titanctl(self, program, *arguments, cwd, environment=()):
        """Runs with an empty environment except for a temporary folder and `environment`, and as nobody if that is possible."""
        drop = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"] if os.getuid() == 0 else []
        return subprocess.run([*drop, "env", "-i", "PATH=/usr/bin:/bin", f"TMPDIR={cwd}", *environment, program, *map(str, arguments)], cwd=cwd,
                              capture_output=True, text=True, timeout=150)

    def work_folder(self):
        folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        if os.getuid() == 0:
            os.chown(folder, NOBODY, NOBODY)
        return folder

    def hide(self, path):
        """Hides the path until the test ends."""
        path.rename(self.folder / "hidden")
        self.addCleanup((self.folder / "hidden").rename, path)

    def tiny(self, cwd):
        recipe = self.prefix / "share/titan/configs/llama3_tiny.toml"
        return self.titanctl(self.prefix / "bin/titanctl", "run", recipe, "--nproc", 1, cwd=cwd, environment=["HOME=/nonexistent"])

    # Programs find their libraries relative to themselves, not in the build tree or the wheel.
    def test_no_path_of_the_build_is_left(self):
        for name in PROGRAMS:
            with self.subTest(name):
                paths = re.findall(r"\((?:RUNPATH|RPATH)\).*\[(.*)\]", dynamic(self.prefix / "bin" / name))
                self.assertEqual([], [p for line in paths for p in line.split(":") if not p.startswith("$ORIGIN/")])

    @needs_rank
    def test_rank_finds_libraries_next_to_it(self):
        printed = subprocess.run(["ldd", self.prefix / "bin/titan-rank"], check=True, capture_output=True, text=True).stdout
        found = dict(re.findall(r"(\S+) => (\S+)", printed))
        for library in ("libtorch_cpu.so", "libc10.so", "libgomp.so.1", "libcudart.so.13", "libcupti.so.13"):
            self.assertTrue(os.path.normpath(found[library]).startswith(f"{self.prefix}/lib/titan/"), f"{library}: {printed}")
        self.assertNotIn(DEPS, printed)

    @unittest.skipUnless((BUILD / "bin/libtitan_cuda.so").exists(), "built without CUDA")
    def test_the_library_for_gpus_finds_what_it_is_linked_with(self):
        install(self.prefix, "titan-cuda", "ABS_SYMLINK")
        library = self.prefix / "lib/titan/libtitan_cuda.so"
        self.assertNotIn(DEPS, dynamic(library))
        printed = subprocess.run(["ldd", library], check=True, capture_output=True, text=True).stdout
        self.assertEqual([], [line for line in printed.splitlines() if "not found" in line])

    def test_licence_is_installed(self):
        for name in ("LICENSE", "third-party.md", "CHANGELOG.md"):
            self.assertTrue((self.prefix / "share/doc/titan" / name).is_file(), name)

    def test_every_program_reports_its_version(self):
        self.assertEqual(sorted(PROGRAMS), sorted(path.name for path in (self.prefix / "bin").iterdir()))
        for name in PROGRAMS:
            with self.subTest(name):
                printed = subprocess.run([self.prefix / "bin" / name, "--version"], check=True, capture_output=True, text=True).stdout
                self.assertRegex(printed, rf"^{name} \d+\.\d+\.\d+")

    def test_shells_find_their_completions(self):
        for shell, file in (("bash", "bash-completion/completions/titanctl"), ("zsh", "zsh/vendor-completions/_titanctl"),
                            ("fish", "fish/vendor_completions.d/titanctl.fish")):
            with self.subTest(shell):
                text = (self.prefix / "share" / file).read_text()
                self.assertIn("titanctl __complete", text)
                if shutil.which(shell):
                    subprocess.run([shell, "-n", self.prefix / "share" / file], check=True)

    # A model library compiles for this installation's titan-rank, with its headers and those of its LibTorch.
    @needs_rank
    def test_model_libraries_need_nothing_of_the_build(self):
        sdk = self.prefix / "lib/titan/sdk"
        printed = subprocess.run([sdk / "build", "out.so", "model.cc"], check=True, capture_output=True, text=True, env={**os.environ, "CXX": "echo"}).stdout
        words = printed.split()
        paths = [words[i + 1] for i, word in enumerate(words) if word in ("-isystem", "-I")]
        self.assertEqual(3, len(paths), printed)
        self.assertTrue((Path(paths[0]) / "ATen/ATen.h").is_file(), printed)
        self.assertTrue((Path(paths[2]) / "worker/rank/model/plugin.h").is_file(), printed)
        self.assertNotIn(DEPS, printed + (sdk / "flags").read_text())

    # A whole job: daemons, shim, rank, text and tokenizer; called by a link, in a moved tree.
    @needs_rank
    def test_trains_for_a_user_without_a_home(self):
        moved = self.folder / "moved"
        self.prefix.rename(moved)
        self.addCleanup(moved.rename, self.prefix)
        folder = self.work_folder()
        (folder / "titanctl").symlink_to(moved / "bin/titanctl")
        done = self.titanctl("./titanctl", "run", moved / "share/titan/configs/llama3_tiny.toml", "--nproc", 1, "--training.steps", 2,
                             "--metrics.log_freq", 1, "--metrics.enable_wandb", "--validation.no_enable", cwd=folder)
        self.assertEqual(0, done.returncode, done.stderr + done.stdout)
        self.assertTrue((folder / "outputs/llama3_tiny/wandb/sidecar.log").is_file(), "titan_wandb.py was not found")
        self.assertEqual(2, len(re.findall(r"loss:", done.stdout)))
        self.assertTrue((folder / "outputs/llama3_tiny/checkpoint/step-2/manifest.json").is_file())

    # A retry cannot bring the library: the error shows one attempt and the missing file.
    @needs_rank
    def test_a_missing_library_is_named_by_one_attempt(self):
        self.hide(self.prefix / "lib/titan/torch/lib/libtorch_cpu.so")
        done = self.tiny(self.work_folder())
        self.assertEqual(1, done.returncode, done.stderr)
        self.assertIn("LAUNCH_FAILED", done.stderr)
        self.assertIn("libtorch_cpu.so", done.stderr)
        self.assertEqual(1, done.stderr.count("RankExited"), done.stderr)
        self.assertNotIn("AttemptEnded", done.stderr)  # It would repeat the message of the job's end.

    @needs_rank
    def test_missing_assets_stop_the_run_early(self):
        self.hide(self.prefix / "share/titan/assets")
        done = self.tiny(self.work_folder())
        self.assertEqual(2, done.returncode, done.stderr)
        for key in ("model.hf_assets_path", "training.dataset", "validation.dataset"):
            self.assertRegex(done.stderr, rf"{key} = .*share/titan/assets")

    # systemd finds the programs where they were installed, and they accept the flags of the units.
    def test_units_start_installed_programs(self):
        units = sorted((self.prefix / "lib/systemd/system").glob("*.service"))
        self.assertEqual(["titan-controller.service", "titan-worker.service"], [unit.name for unit in units])
        for unit in units:
            with self.subTest(unit.name):
                command = re.search(r"^ExecStart=(.*)$", unit.read_text(), re.MULTILINE)[1].split()
                self.assertEqual(str(self.prefix / "bin" / unit.stem), command[0])
                flags = [word for word in command if word.startswith("--")]
                known = subprocess.run([command[0], "--help"], check=True, capture_output=True, text=True).stdout
                self.assertEqual([], [flag for flag in flags if f"{flag} " not in known])
                settings = (self.prefix / "share/titan/env" / f"{unit.stem.removeprefix('titan-')}.env").read_text()
                self.assertEqual([], [name for name in re.findall(r"^#?(TITAN_\w+)=", settings, re.MULTILINE) if name not in unit.read_text()])
                page = re.search(r"^Documentation=file://(.*)$", unit.read_text(), re.MULTILINE)[1]
                self.assertTrue(Path(page).is_file(), page)
        if shutil.which("systemd-analyze"):
            done = subprocess.run(["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", *units], capture_output=True, text=True)
            self.assertEqual("", "".join(line for line in done.stderr.splitlines(True) if "titan" in line))


if __name__ == "__main__":
    unittest.main(verbosity=2)

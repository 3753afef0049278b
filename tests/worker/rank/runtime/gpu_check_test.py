"""Tests deploy/gpu_check.sh without a GPU: what gpu_pack.sh packs needs only its own folder and torch's libraries, and every step
of the script works (on the CPU). If there is no device, the script says so and checks nothing."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import torch

BIN = os.environ["TITAN_BIN"]
SOURCE = os.environ["TITAN_SOURCE"]
SITE = os.path.realpath(os.path.dirname(os.path.dirname(torch.__file__)))
PROGRAMS = ["bin/titan-rank", "bin/libtitan_cuda.so", "tests/gpu_test", "tests/gpu_rows_bench", "tests/gpu_ops_bench", "tests/random_math_test"]
# Any machine with torch has these libraries.
SYSTEM = re.compile(r"^(linux-vdso|ld-linux-x86-64|libc|libm|libdl|librt|libpthread|libutil|libresolv|libstdc\+\+|libgcc_s)\.so")
MAX_MIB = 48  # The pack must be quick to copy. A third of it is libcurl's, with which titan-rank reads datasets of a hub.


class GpuCheckTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp()
        cls.pack = os.path.join(cls.folder, "pack")
        environment = dict(os.environ, TITAN_ASSETS=os.path.join(os.environ["TITAN_DEPS"], "assets"))
        subprocess.run([os.path.join(SOURCE, "deploy", "gpu_pack.sh"), cls.pack, "--build", os.path.dirname(BIN)],
                       check=True, env=environment, timeout=60)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def run_check(self, *flags, **variables):
        """Runs the script as on a machine that does not have this tree."""
        environment = {"PATH": "/usr/bin:/bin", "HOME": self.folder, "TMPDIR": self.folder, "OMP_NUM_THREADS": "2",
                       **variables}
        return subprocess.run([os.path.join(self.pack, "gpu_check.sh"), "--python", sys.executable, *flags], cwd="/",
                              env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=420)

    def test_it_is_small(self):
        size = sum(os.path.getsize(os.path.join(folder, name))
                   for folder, _, names in os.walk(self.pack) for name in names)
        print(f"{size / 2**20:.1f} MiB")
        self.assertLess(size, MAX_MIB * 2**20)

    def test_uses_only_its_own_and_torchs_libraries(self):
        folders = [os.path.join(SITE, "torch", "lib"), os.path.join(SITE, "nvidia", "cu13", "lib"),
                   os.path.join(SITE, "nvidia", "nccl", "lib"), os.path.join(self.pack, "lib")]
        for program in PROGRAMS:
            listing = subprocess.run(["ldd", os.path.join(self.pack, program)], text=True, stdout=subprocess.PIPE,
                                     env={"LD_LIBRARY_PATH": ":".join(folders)}, check=True, timeout=60).stdout
            for line in listing.splitlines():
                name, _, path = line.strip().partition(" => ")
                if SYSTEM.match(os.path.basename(name.split()[0])):
                    continue
                path = os.path.realpath(path.rsplit(" (", 1)[0])
                self.assertTrue(path.startswith((SITE + os.sep, os.path.realpath(self.pack) + os.sep)), (program, line))

    @unittest.skipIf(torch.cuda.is_available(), "there is a device")
    def test_without_a_device_it_checks_nothing(self):
        ran = self.run_check()
        self.assertEqual(ran.returncode, 77, ran.stdout)
        self.assertIn("nothing was checked", ran.stdout)
        self.assertNotIn("passed", ran.stdout)

    def test_every_step_works_on_the_cpu(self):
        ran = self.run_check("--rehearse", "--compile", "--steps", "4",
                             GTEST_FILTER="GpuDeviceTest.GroupedProduct*:GpuTest.Offload:GpuRowsTest.Rope")
        self.assertEqual(ran.returncode, 0, ran.stdout)
        self.assertIn("are not those of a GPU", ran.stdout)
        self.assertRegex(ran.stdout, r"\[  PASSED  \] \d+ tests?\.")
        self.assertRegex(ran.stdout, r"GpuDeviceTest\.GroupedProductMatches")
        self.assertRegex(ran.stdout, r"GpuRowsTest\.Rope")
        for name in ("rms_norm", "rope", "swiglu", "cross_entropy"):
            self.assertRegex(ran.stdout, rf"{name} [^\n]*backward +\d+\.\d+ +\d+\.\d+ +\d+\.\d+ +\d+\.\d+")
        number = r" +\d+\.\d+"
        for name in ("attention 1 x 128, heads of 64, causal", "attention 1 x 128, heads of 192 and 128, causal",
                     "attention 1 x 128, heads of 128, window of an eighth", "attention 1 x 128, heads of 128, eight documents",
                     "attention 1 x 128, heads of 64, window of a 32nd, sinks", "head and loss 128 x 64 x 2048"):
            for what in (name, name + ", backward"):
                self.assertRegex(ran.stdout, re.escape(what) + number * 3 + r" TFLOP/s" + number)
        for name in ("product 128 x 256 x 768", "grouped product, 8 experts, 128 x 64 x 96"):
            self.assertEqual(3, len(re.findall(rf"^{re.escape(name)}.*TFLOP/s{number}$", ran.stdout, re.MULTILINE)), ran.stdout)
        for name in ("router", "order by expert", "rows to experts", "combine", "AdamW", "squared norm"):
            self.assertRegex(ran.stdout, rf"(?m)^{name} .*GB/s{number}$")
        self.assertRegex(ran.stdout, r"largest difference of the loss: 0\.0e\+00")
        self.assertRegex(ran.stdout, r"with graphs: largest difference of the loss from the run without: 0\.0e\+00")
        self.assertRegex(ran.stdout, r"tokens/s with graphs \d+, without \d+: \d+\.\d\d x")
        for split in ("fsdp", "pipeline"):
            self.assertRegex(ran.stdout, rf"{split}: largest difference of the loss from one rank's: \d")
        self.assertRegex(ran.stdout, r"loss \d+\.\d+ -> \d+\.\d+ in 4 steps")
        self.assertRegex(ran.stdout, r"tokens/s \d+   MFU \d+\.\d+ %")
        self.assertRegex(ran.stdout, r"memory, peak: active \d+\.\d+ GiB")
        self.check_pytorch_comparison(ran.stdout)
        self.assertIn("rehearsed: nothing was checked on a GPU", ran.stdout)
        self.assertNotIn("passed", ran.stdout.splitlines()[-1])

    def check_pytorch_comparison(self, printed):
        self.assertRegex(printed, r"rehearsal: [\d,]+ parameters, 1 x 64 tokens per step, 1 rounds")
        for program in ("PyTorch", "PyTorch compiled", "Titan", "Titan compiled"):
            self.assertRegex(printed, rf"(?m)^  {program} +\d+ tokens/s   \d+\.\d\d \(.*\) ms per step   \d+\.\d\d, \d+\.\d\d GiB$")
        for ratio in ("Titan / PyTorch", "Titan compiled / PyTorch compiled", "Titan compiled / PyTorch"):
            self.assertRegex(printed, rf"(?m)^  {ratio}: \d+\.\d\d \(\d+\.\d\d \.\. \d+\.\d\d\) x$")
        operations = {}
        for program in ("PyTorch", "PyTorch compiled", "Titan", "Titan compiled", "Titan compiled, no graphs"):
            line = re.search(rf"(?m)^  {program} {{2,}}((?: +\d+\.\d){{6}})$", printed)
            self.assertTrue(line, program)
            numbers = [float(word) for word in line[1].split()]
            self.assertEqual([0] * 5, numbers[:5], "a CPU has no launches")
            operations[program] = numbers[5]
        self.assertGreater(operations["Titan"], 100)
        self.assertGreater(operations["PyTorch"], 100)

    def test_hanging_ranks_are_ended(self):
        broken = os.path.join(self.folder, "hanging")
        shutil.copytree(self.pack, broken)
        program = os.path.join(broken, "bin", "titan-rank")
        with open(program, "w") as file:
            file.write('#!/bin/sh\ncase "$*" in *--world*) exec sleep 600;; esac\n')
        ran = subprocess.run([os.path.join(broken, "gpu_check.sh"), "--python", sys.executable, "--rehearse", "--only", "ranks"],
                             env={"PATH": "/usr/bin:/bin", "TMPDIR": self.folder, "TITAN_GPU_CHECK_RANKS_SECONDS": "1"},
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
        self.assertEqual(1, ran.returncode, ran.stdout)
        self.assertIn("the two ranks of fsdp did not finish within 1 s", ran.stdout)

    def test_a_failing_test_fails_the_check(self):
        broken = os.path.join(self.folder, "broken")
        shutil.copytree(self.pack, broken)
        with open(os.path.join(broken, "tests", "gpu_test"), "w") as program:
            program.write("#!/bin/sh\necho '[  FAILED  ] GpuTest.Something'\nexit 1\n")
        with open(os.path.join(broken, "tests", "random_math_test"), "w") as program:
            program.write("#!/bin/sh\nexit 0\n")
        ran = subprocess.run([os.path.join(broken, "gpu_check.sh"), "--python", sys.executable, "--rehearse", "--only", "tests"],
                             env={"PATH": "/usr/bin:/bin", "TMPDIR": self.folder}, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True, timeout=60)
        self.assertNotEqual(ran.returncode, 0, ran.stdout)
        self.assertNotIn("==> rehearsed", ran.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)

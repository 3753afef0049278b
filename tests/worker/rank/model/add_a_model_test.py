"""Follows docs/howto/add-a-model.md exactly: the files of its listings, and its one line, make a family. The test compiles the
changed sources with the build's own commands and links titan-rank and titanctl again. The model then trains, with the same losses
on one rank and on two."""

import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import unittest
import unittest.mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "testing"))
from paths import BUILD, SOURCE

sys.path.insert(0, str(SOURCE / "tests/worker/rank/runtime"))
import titan_rank_test  # noqa: E402

PAGE = SOURCE / "docs/howto/add-a-model.md"
LIST = "common/plan/models/families.h"
READERS = ["common/plan/models/registry.cc", "worker/rank/model/registry.cc"]  # Sources that include the list: a build would compile them again.


def files_of_page():
    """Returns {path: text} of the listings. Each follows a paragraph that starts with its path."""
    text = PAGE.read_text().split("## As a library")[0]
    return dict(re.findall(r"^`(worker/rank/model/my_model/\w+\.cc)`.*?```cpp\n(.*?)```", text, re.DOTALL | re.MULTILINE))


class AddAModelTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = BUILD / "tests/add_a_model.scratch"  # A fixed name: the compiler's cache knows the files.
        shutil.rmtree(cls.folder, ignore_errors=True)
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        commands = json.loads((BUILD / "compile_commands.json").read_text())
        cls.commands = {os.path.relpath(one["file"], SOURCE): one for one in commands}
        cls.files = files_of_page()
        for path, text in cls.files.items():
            target = cls.folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
        (cls.folder / LIST).parent.mkdir(parents=True)
        line = "  FAMILY(llama4) "
        text = (SOURCE / LIST).read_text()
        assert text.count(line) == 1
        (cls.folder / LIST).write_text(text.replace(line, "  FAMILY(my_model) \\\n" + line))
        without_torch = [cls.compile(READERS[0], SOURCE / READERS[0]),
                         cls.compile(READERS[0], cls.folder / "worker/rank/model/my_model/flavors.cc")]
        ours = [cls.compile(READERS[1], SOURCE / READERS[1])]
        ours += [cls.compile(READERS[1], cls.folder / path) for path in cls.files if not path.endswith("flavors.cc")]
        cls.rank = cls.link("titan-rank", without_torch + ours)
        cls.ctl = cls.link("titanctl", without_torch)

    @classmethod
    def compile(cls, like, source):
        """Compiles as the build does for `like`, with the changed list before the tree's."""
        one = cls.commands[like]
        words = shlex.split(one["command"])
        output = cls.folder / f"{len(list(cls.folder.glob('*.o')))}.o"
        words[words.index("-o") + 1] = str(output)
        words[words.index("-c") + 1] = str(source)
        first = next(i for i, word in enumerate(words) if word.startswith("-I"))  # After the compiler and its launcher.
        words.insert(first, f"-I{cls.folder}")
        cache = shutil.which("ccache")
        if cache and not any(os.path.basename(word) == "ccache" for word in words):
            words.insert(0, cache)
        sloppiness = {"CCACHE_SLOPPINESS": "pch_defines,time_macros"}  # Like the build, for the precompiled header.
        subprocess.run(words, check=True, cwd=one["directory"], env=os.environ | sloppiness)
        return str(output)

    @classmethod
    def link(cls, program, objects):
        """Links as the build does; these objects' definitions come first."""
        commands = subprocess.run(["ninja", "-C", BUILD, "-t", "commands", program], check=True, capture_output=True, text=True)
        command = commands.stdout.splitlines()[-1]
        output = cls.folder / program
        assert f" -o bin/{program} " in command, command
        first = f"-Wl,--allow-multiple-definition {' '.join(objects)}"
        changed = re.sub(r"^: && (\S+) ", rf": && \1 {first} ", command).replace(f" -o bin/{program} ", f" -o {output} ")
        subprocess.run(changed, shell=True, check=True, cwd=BUILD)
        return str(output)

    def test_the_page_shows_every_file_of_a_family(self):
        shown = sorted(pathlib.Path(path).name.replace("my_model", "llama3") for path in self.files)
        self.assertEqual(shown, sorted(path.name for path in (SOURCE / "worker/rank/model/llama3").iterdir()))

    def test_titanctl_knows_the_family(self):
        for flavor, code in (("tiny", 0), ("large", 2)):
            done = subprocess.run([self.ctl, "validate", SOURCE / "configs/llama3_tiny.toml", "--model.name", "my_model",
                                   "--model.flavor", flavor], capture_output=True, text=True)
            self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        self.assertIn("known: tiny", done.stdout + done.stderr)

    def test_it_trains(self):
        losses = {}
        assets = unittest.mock.patch.dict(os.environ, TITAN_ASSETS=str(SOURCE / ".deps/assets"))  # The assets are not next to this program.
        with assets, unittest.mock.patch.object(titan_rank_test, "RANK", self.rank):
            for world, extra in ((1, []), (2, []), (2, ["--parallelism.tensor_parallel_degree", "2"])):
                name = "-".join(["ranks", str(world), *extra[1:]])
                ranks = titan_rank_test.Ranks(str(self.folder / name), world, [
                    "--model.name", "my_model", "--model.flavor", "tiny", "--training.dtype", "float64",
                    "--training.steps", "2", *extra])
                self.assertEqual(ranks.wait(), [0] * world, "\n".join(ranks.outputs))
                losses[name] = titan_rank_test.losses(ranks.folder)
        one = losses["ranks-1"]
        self.assertEqual(sorted(one), [1, 2])
        for name, split in losses.items():
            for step, loss in one.items():
                self.assertAlmostEqual(split[step], loss, delta=1e-10, msg=f"{name}, step {step}")


if __name__ == "__main__":
    unittest.main(argv=["add_a_model_test.py"])

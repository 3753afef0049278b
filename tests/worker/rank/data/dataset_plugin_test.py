"""Tests a dataset in a library that was compiled outside of the tree with only the exported headers, as
docs/howto/add-a-dataset.md shows. A job trains on it as on JSON lines of the same documents, loss for loss, alone and together
with one of Titan's built-in sources, and resumes on other ranks. titanctl accepts it without loading the library. Errors of a library or
a key are reported by name."""

import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "testing"))
from paths import BIN, SOURCE

ASSETS = pathlib.Path(os.environ["TITAN_DEPS"]) / "assets"
EXAMPLE = SOURCE / "tests/worker/rank/data/plugin/fortunes.cc"
JOB = {
    "training.seq_len": 32, "training.local_batch_size": 1, "training.global_batch_size": 4, "training.dtype": "float64",
    "lr_scheduler.warmup_steps": 1, "lr_scheduler.total_steps": 4, "metrics.log_freq": 1, "debug.seed": 0, "checkpoint.enable": "true",
    "checkpoint.interval": 100, "checkpoint.last_save_model_only": "false", "validation.enable": "false",
    "resources.threads_per_rank": 1, "comm.mode": "local_tensor",
}  # fmt: skip

# The example, with mistakes that TITAN_TEST_MISTAKE selects.
MISTAKEN = """std::vector<data::PluginDataset> datasets() {
  const char* selected = std::getenv("TITAN_TEST_MISTAKE");
  const std::string mistake = selected == nullptr ? "" : selected;
  data::PluginDataset dataset{.name = "fortunes", .ending = ".fortunes", .open = open};
  if (mistake == "throws") throw std::runtime_error("no table");
  if (mistake == "nothing") return {};
  if (mistake == "taken") dataset.name = "c4";
  if (mistake == "no name") dataset.name = "a/b";
  if (mistake == "no open") dataset.open = nullptr;
  if (mistake == "exit") std::exit(7);
  if (mistake == "reader") dataset.open = [](const std::string&, const data_files::FilePlace& place) {
    if (place.offset > 0) throw std::runtime_error("lost");
    return open("TITAN", {});
  };
  if (mistake == "twice") return {dataset, dataset};
  return {dataset};
}
"""


def flags(**keys):
    return [f"--{key}={value}" for key, value in keys.items()]


class DatasetPluginTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.scratch.cleanup)
        cls.folder = pathlib.Path(cls.scratch.name)
        cls.sdk = cls.folder / "sdk"
        subprocess.run([SOURCE / "deploy/plugin_sdk.sh", cls.sdk, BIN.parent], check=True)
        cls.library = cls.compile("fortunes", EXAMPLE.read_text())
        random_ = random.Random(4)
        texts = ["".join(f"{' '.join(random_.choices(['one', 'two', 'perl', 'é'], k=random_.randrange(1, 9)))}\n" for _ in range(1 + i % 4))
                 for i in range(160)]  # fmt: skip
        for name in ("fortunes", "json"):
            (cls.folder / name).mkdir()
        for part in range(2):
            mine = texts[80 * part:80 * part + 80]
            (cls.folder / "fortunes" / f"{part}.fortunes").write_text("".join(text + "%\n" for text in mine))
            (cls.folder / "json" / f"{part}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in mine))
        (cls.folder / "fortunes/readme.md").write_text("no data\n")

    @classmethod
    def compile(cls, name, text):
        (cls.folder / f"{name}.cc").write_text(text)
        library = cls.folder / f"{name}.so"
        subprocess.run([cls.sdk / "build", library, f"{name}.cc"], check=True, cwd=cls.folder)
        return library

    def rank(self, dump, keys, mistake=""):
        args = flags(**{**JOB, "job.dump_folder": self.folder / dump, **keys})
        return subprocess.run([BIN / "titan-rank", "--config", SOURCE / "configs/llama3_tiny.toml", *args], capture_output=True, text=True,
                              env={**os.environ, "TITAN_ASSETS": str(ASSETS), "TITAN_TEST_MISTAKE": mistake}, timeout=240)

    def mine(self, **keys):
        return {"experimental.custom_import": self.library, "training.dataset": "fortunes",
                "training.dataset_path": self.folder / "fortunes", **keys}

    def train(self, dump, keys, steps=4, ranks=1):
        done = self.rank(dump, {"training.steps": steps, "resources.ranks": ranks, **keys})
        self.assertEqual(done.returncode, 0, done.stdout[-2000:] + done.stderr[-2000:])
        rows = map(json.loads, (self.folder / dump / "metrics.jsonl").read_text().splitlines())
        return {row["step"]: row["loss_metrics/global_avg_loss"] for row in rows}

    def assert_same(self, got, expected, what):
        self.assertEqual(sorted(got), sorted(expected), what)
        for step, loss in expected.items():
            self.assertAlmostEqual(got[step], loss, delta=1e-10, msg=f"{what}, step {step}")

    def test_trains_as_on_json_lines_and_resumes_on_other_ranks(self):
        own = {"training.dataset_path": self.folder / "json"}
        packed = {"training.dataloader.shuffle": "documents", "training.dataloader.packing": "best_fit"}
        mixed = [json.dumps([{"name": "a", "dataset_path": str(self.folder / "json"), "weight": 2},
                             {"name": "b", "dataset_path": str(self.folder / kind), "dataset": name}])
                 for kind, name in (("json", "c4_test"), ("fortunes", "fortunes"))]  # fmt: skip
        library = {"experimental.custom_import": self.library, "training.dataloader.format": "jsonl"}  # For sources that do not name a format.
        for name, expected, keys in (("plain", own, self.mine()),
                                     ("mixed", {**packed, "training.dataloader.sources": mixed[0]},
                                      {**library, **packed, "training.dataloader.sources": mixed[1]})):
            whole = self.train(f"{name}-json", expected)
            self.train(f"{name}-mine", keys, steps=2, ranks=4)
            self.assert_same(self.train(f"{name}-mine", keys, steps=4, ranks=2), whole, name)

    def test_runs_through_titanctl(self):
        """titanctl and the controller do not load the library; a relative path becomes absolute."""
        args = flags(**{**self.mine(), "experimental.custom_import": "fortunes.so", "training.dataset_path": "fortunes",
                         "training.steps": 1, "training.seq_len": 64, "validation.enable": "false", "lr_scheduler.warmup_steps": 1,
                         "job.dump_folder": "daemons"})
        for verb in ("validate", "run"):
            done = subprocess.run([BIN / "titanctl", verb, SOURCE / "configs/llama3_tiny.toml", *args], cwd=self.folder,
                                  capture_output=True, text=True, timeout=240)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        done = subprocess.run([BIN / "titan-rank", "--config", SOURCE / "configs/llama3_tiny.toml", *args, "--comm.mode=fake_backend"], cwd=self.folder,
                              capture_output=True, text=True, timeout=240, env={**os.environ, "TITAN_ASSETS": str(ASSETS)})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def refusal(self, keys, mistake="", code=10):
        done = self.rank("refused", {"training.steps": 1, "resources.ranks": 1, **keys}, mistake)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def test_unknown_dataset_names_are_refused(self):
        output = self.refusal(self.mine(**{"training.dataset": "fortune"}))
        self.assertIn('training.dataset: there is no dataset "fortune"; did you mean \'fortunes\'? (known: ', output)
        self.assertIn("c4_validation, fortunes", output)
        sources = json.dumps([{"name": "b", "dataset_path": str(self.folder / "fortunes"), "dataset": "riddles"}])
        output = self.refusal({"experimental.custom_import": self.library, "training.dataloader.sources": sources})
        self.assertIn('training.dataloader.sources: source "b": there is no dataset "riddles"', output)
        self.assertIn("holds no *.fortunes file", self.refusal(self.mine(**{"training.dataset_path": self.folder / "json"}), code=11))

    def test_unsuitable_keys_are_refused(self):
        def refused(keys):
            done = subprocess.run([BIN / "titanctl", "validate", SOURCE / "configs/llama3_tiny.toml", *flags(**keys)],
                                  cwd=self.folder, capture_output=True, text=True)
            self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
            return done.stdout + done.stderr

        self.assertIn("there is no library (experimental.custom_import) with others", refused({"training.dataset": "fortunes"}))
        no_path = self.mine()
        del no_path["training.dataset_path"]
        self.assertIn("needs a path to its files", refused(no_path))
        self.assertIn("no such file or folder", refused(self.mine(**{"training.dataset_path": self.folder / "none"})))
        self.assertIn("reads local files", refused(self.mine(**{"training.dataset_path": "hf://datasets/org/texts/*.jsonl"})))
        for key, value in (("format", "parquet"), ("text_key", "body"), ("text_documents", "blank_lines"), ("shuffle", "rows")):
            output = refused(self.mine(**{f"training.dataloader.{key}": value}))
            self.assertIn("library", output)
            self.assertIn(f"training.dataloader.{key}", output)
            source = {"name": "b", "dataset_path": str(self.folder / "fortunes"), "dataset": "fortunes", key: value}
            self.assertIn("library", refused({"experimental.custom_import": self.library, "training.dataloader.sources": json.dumps([source])}))

    def test_registered_datasets_are_checked(self):
        text = EXAMPLE.read_text()
        begin, end = text.index("std::vector<data::PluginDataset> datasets()"), text.index("}  // namespace")
        text = "#include <cstdlib>\n#include <stdexcept>\n" + text[:begin] + MISTAKEN.replace('"TITAN"', f'"{self.folder}/fortunes/0.fortunes"') + text[end:]
        library = {"experimental.custom_import": self.compile("mistaken", text)}
        for mistake, expected in {
                "twice": 'registers dataset "fortunes" twice', "taken": 'there is a dataset "c4" already', "nothing": "registers no dataset",
                "no name": 'dataset "a/b": a name has letters', "no open": 'dataset "fortunes" needs a function that opens a file',
                "throws": "its datasets' function threw: no table",
                "exit": "loading it ends the process with exit status 7"}.items():
            with self.subTest(mistake):
                output = self.refusal(self.mine(**library), mistake)
                self.assertIn(expected, output)
                self.assertIn("mistaken.so", output)
        output = self.refusal(self.mine(**library), "reader", code=11)
        self.assertRegex(output, r'dataset "fortunes" of .*mistaken.so: .*0.fortunes at \(\d+, 0\): open threw: lost')

    def test_other_libraries_are_refused(self):
        other = self.folder / "other.cc"
        other.write_text("""struct { unsigned form; const char* words[4]; void* datasets; } plugin = {
            0x7174d001, {"other", "", "other", "other"}, 0}; extern "C" void* titan_data_plugin() { return &plugin; }""")
        subprocess.run(["g++", "-shared", "-fPIC", "-w", "-o", self.folder / "other.so", other], check=True)
        output = self.refusal(self.mine(**{"experimental.custom_import": self.folder / "other.so"}))
        self.assertIn('was compiled with Titan "other" where this titan-rank has', output)
        self.assertNotIn("LibTorch", output)
        subprocess.run(["g++", "-shared", "-fPIC", "-o", self.folder / "empty.so", "-x", "c++", "-"], check=True, input="int nothing;", text=True)
        output = self.refusal(self.mine(**{"experimental.custom_import": self.folder / "empty.so"}))
        self.assertIn("has no TITAN_MODEL_PLUGIN(...) and no TITAN_DATA_PLUGIN(...)", output)


if __name__ == "__main__":
    unittest.main(argv=["dataset_plugin_test.py"])

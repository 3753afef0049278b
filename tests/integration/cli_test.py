"""Tests titanctl without any daemon: flags, suggestions, exit codes, output formats, completion."""

import base64
import json
import os
import re
import struct
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "testing"))
from paths import BIN, SOURCE

TINY = SOURCE / "configs/llama3_tiny.toml"
NOBODY = "127.0.0.1:1"
ASSETS = Path(os.environ.get("TITAN_DEPS", SOURCE / ".deps")) / "assets"
# Parquet files with a column "text": one with one row, one without rows.
ONE_ROW = base64.b64decode(
    "UEFSMRUAFRYVFiwVAhUAFQYVBhwAAAACAAAAAgEBAAAAeBUEGSw1ABgGc2NoZW1hFQIAFQwlAhgEdGV4dCUATBwAAAAWAhkcGRwmABwVDBklBgAZGAR0ZXh0FQAWAhY8FjwmCEkcFQAV"
    "ABUCADwWAhkGGSYAAgAAABY8FgImCBY8ACggcGFycXVldC1jcHAtYXJyb3cgdmVyc2lvbiAyNi4wLjEZHBwAAACIAAAAUEFSMQ==")
NO_ROWS = base64.b64decode(
    "UEFSMRUEGSw1ABgGc2NoZW1hFQIAFQwlAhgEdGV4dCUATBwAAAAWABkcGRwmABwVDBkVBhkYBHRleHQVABYAFgAWACYASQwAABYAFgAmABYAACggcGFycXVldC1jcHAtYXJyb3cgdmVy"
    "c2lvbiAyNi4wLjEZHBwAAAB2AAAAUEFSMQ==")


def titanctl(*arguments, text=None):
    environment = {**os.environ, "TITAN_CONTROLLER": NOBODY}
    return subprocess.run([BIN / "titanctl", *map(str, arguments)], env=environment, input=text, capture_output=True, text=True, timeout=30)


class Cli(unittest.TestCase):
    def refused(self, code, printed, *arguments):
        done = titanctl(*arguments)
        self.assertEqual(code, done.returncode, done.stderr)
        self.assertEqual("", done.stdout)
        self.assertIn(printed, done.stderr)

    def test_unknown_verbs_and_flags_suggest_the_nearest(self):
        self.refused(2, "did you mean 'submit'?", "sumbit", TINY)
        self.refused(2, "did you mean 'cordon'?", "node", "cordn", "n1")
        self.refused(2, "did you mean '--dry-run'?", "submit", TINY, "--dryrun")
        self.refused(2, "did you mean '--output'?", "list", "--outptu", "json")
        self.refused(2, "must be table, wide, json or yaml", "list", "-o", "xml")
        self.refused(2, "did you mean 'RUNNING'?", "list", "--state", "runing")
        self.refused(2, "takes no --training.steps", "list", "--training.steps", "3")
        self.refused(2, "job is required", "describe")
        self.refused(2, "number of seconds", "list", "--timeout", "soon")
        self.refused(2, "did you mean 'submit'?", "help", "sumbit")
        for verb in (["cancel"], ["delete"], ["update", "--priority", "1"]):
            self.refused(2, "name a job, or give --label, --owner or --all", *verb)
            self.refused(2, "--all takes no job names", *verb, "a", "--all")
            self.refused(2, "--label and --owner take no job names", *verb, "a", "--owner", "alice")
            self.refused(2, "--all-owners needs --all", *verb, "--all-owners", "--owner", "alice")
        self.refused(2, "nothing to update", "update", "a")
        self.refused(2, "node is required", "node", "delete")
        self.refused(2, "KEY- to remove it", "update", "a", "--label", "x")
        self.refused(2, "write KEY=VALUE", "submit", TINY, "--label", "x")
        self.refused(2, "write KEY=VALUE, KEY!=VALUE or KEY", "list", "-l", "=x")
        self.refused(2, "--steps", "profile", "a", "--steps", "101")
        self.refused(2, "--ranks", "profile", "a", "--ranks", "0,x")
        self.refused(2, "at least 0", "wait", "a", "--for", "step=-1")
        self.refused(2, "at least 0", "wait", "a", "--for", "committed=-1")
        self.refused(2, "--timeout is '1e400'", "list", "--timeout", "1e400")
        self.refused(2, "is not an integer from", "update", "a", "--priority", "99999999999")
        self.refused(5, NOBODY, "cluster", "backup", Path(tempfile.gettempdir()) / f"backup-{os.getpid()}.db", "--timeout", "0.2")
        for missing in (["list", "--token-file", "/nowhere/t"], ["list", "--tls-ca", "/nowhere/ca.pem"], ["cluster", "backup", "/nowhere/b.db"]):
            self.refused(2, "No such file", *missing)
            self.assertNotIn("titanctl list", titanctl(*missing).stderr)

    # A word after the verb is its argument, even if it is spelt like a verb.
    def test_verbs_do_not_win_over_arguments(self):
        for section in ("checkpoint", "job", "validation"):
            done = titanctl("config", "help", section)
            self.assertEqual(0, done.returncode, done.stderr)
            self.assertTrue(done.stdout.startswith(f"[{section}]"), done.stdout[:80])
            self.assertNotIn("[training]", done.stdout)
        self.refused(5, NOBODY, "events", "wait", "--timeout", "0.2")
        self.refused(5, NOBODY, "cancel", "a", "list", "--timeout", "0.2")
        self.refused(5, NOBODY, "wait", "a", "--timeout", "0.2")
        self.refused(2, "unexpected 'node' for `titanctl list`", "list", "node")

    # An empty pipe or an unset variable in place of the configuration does not queue a job of defaults.
    def test_missing_configuration_queues_no_job(self):
        for verb in ("submit", "run", "validate"):
            self.refused(2, "a configuration file is required", verb)
            self.refused(2, "a configuration file is required", verb, "--training.steps", "3")
            for text in ("", "# nothing\n", "{}", "[training]\n"):
                done = titanctl(verb, "-", "--nproc", "2", text=text)
                self.assertEqual(2, done.returncode, done.stderr)
                self.assertIn("standard input: sets no key", done.stderr)
        self.refused(2, "/dev/null", "submit", "/dev/null")
        done = titanctl("validate", "-", "--training.steps", "7", text="[training]\nsteps = 9\n")  # The key counts though it is overridden.
        self.assertEqual(0, done.returncode, done.stderr)

    # Lost output is not a success: a full disk is reported, a closed pipe ends quietly as for other tools.
    def test_lost_output(self):
        with open("/dev/full", "w") as full:
            done = subprocess.run([BIN / "titanctl", "version"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=30)
        self.assertEqual(1, done.returncode)
        self.assertIn("cannot write the output: No space left on device", done.stderr)
        reader, writer = os.pipe()
        os.close(reader)
        with open(writer, "w") as closed:
            done = subprocess.run([BIN / "titanctl", "schema"], stdout=closed, stderr=subprocess.PIPE, text=True, timeout=30)
        self.assertEqual((141, ""), (done.returncode, done.stderr))

    def test_addresses_are_checked_before_anything_is_tried(self):
        for address in ("nonsense", "host:", "host:70000", "http://host:7700"):
            self.refused(2, f"--controller (or TITAN_CONTROLLER) is '{address}': it must be HOST:PORT", "list", "--controller", address)
        self.refused(2, "it must be HOST:PORT", "events", "--controller", "nonsense")
        done = titanctl("validate", TINY, "--controller", "nonsense")
        self.assertEqual(0, done.returncode, done.stderr)  # validate does not call a controller.
        for program, flag in (("titan-controller", "--listen"), ("titan-worker", "--controller")):
            done = subprocess.run([BIN / program, flag, "garbage"], capture_output=True, text=True, timeout=30)
            self.assertEqual(2, done.returncode, done.stderr)
            self.assertIn("is 'garbage': it must be HOST:PORT", done.stdout + done.stderr)

    # Plaintext beyond this machine can be read on the network, so it needs --insecure.
    def test_plaintext_stays_on_this_machine(self):
        self.refused(2, "192.0.2.1:7700 is beyond this machine", "list", "--controller", "192.0.2.1:7700")
        self.refused(2, "--insecure", "events", "--controller", f"{NOBODY},controller.example:7700")
        with tempfile.TemporaryDirectory() as folder:
            for command in (["titan-controller", "--listen", "0.0.0.0:0"], ["titan-controller", "--listen", "[::]:0"],
                            ["titan-worker", "--controller", "192.0.2.1:7700"]):
                done = subprocess.run([BIN / command[0], *command[1:], "--metrics-port", "-1", "--state", folder], capture_output=True,
                                      text=True, timeout=30)
                self.assertEqual(2, done.returncode, command)
                self.assertIn("--insecure", done.stderr)

    # If the user's own file is wrong, the error does not suggest to start a controller.
    def test_files_without_their_content_are_named(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(0, titanctl("cluster", "init-ca", folder + "/ca").returncode)
            wrong = Path(folder, "wrong")
            wrong.write_text("no PEM\n")
            right = {"--tls-ca": folder + "/ca/ca.crt", "--tls-cert": folder + "/ca/admin/tls.crt", "--tls-key": folder + "/ca/admin/tls.key"}
            for flag in right:
                words = [word for pair in {**right, flag: wrong}.items() for word in pair]
                self.refused(2, f"{flag} {wrong} holds no", "list", "--timeout", "0.3", *words)
            other = {**right, "--tls-key": folder + "/ca/ca.key"}
            self.refused(2, "is not the key of --tls-cert", "list", "--timeout", "0.3", *(word for pair in other.items() for word in pair))
            self.refused(5, NOBODY, "list", "--timeout", "0.3", *(word for pair in right.items() for word in pair))

    # gRPC's own log lines appear only on request.
    def test_only_titan_logs(self):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([BIN / "titan-controller", "--listen", "192.0.2.1:1", "--insecure", "--metrics-port", "-1", "--state", folder],
                                  capture_output=True, text=True, timeout=30)
        self.assertEqual(1, done.returncode)
        self.assertEqual([], [line for line in done.stderr.splitlines() if " event=StartFailed " not in line and " event=Insecure " not in line], done.stderr)

    # The controller returns from main with its page open: every destructor runs, and none takes long.
    def test_the_controller_ends_in_order(self):
        with tempfile.TemporaryDirectory() as folder:
            ports = Path(folder) / "ports"
            process = subprocess.Popen([BIN / "titan-controller", "--listen", "127.0.0.1:0", "--metrics-host", "127.0.0.1", "--metrics-port",
                                        "0", "--state", folder, "--port-file", ports], stderr=subprocess.PIPE, text=True)
            self.addCleanup(process.kill)
            deadline = time.monotonic() + 60
            while not ports.exists() and process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.01)
            port = json.loads(ports.read_text())["metrics"]
            page = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", method="HEAD")
            with urllib.request.urlopen(page, timeout=30) as answer:
                self.assertEqual((200, b""), (answer.status, answer.read()))
            process.terminate()
            _, printed = process.communicate(timeout=30)
        self.assertEqual(0, process.returncode, printed)

    # Errors are for programs, too: they follow -o.
    def test_errors_are_json_with_json_output(self):
        for code, name, arguments in ((5, "UNAVAILABLE", ["list", "--timeout", "0.2"]), (2, "INVALID_ARGUMENT", ["describe"]),
                                      (2, "INVALID_ARGUMENT", ["validate", "nosuch.toml"]), (2, "INVALID_ARGUMENT", ["lits"])):
            for form in (["-o", "json"], ["--output=yaml"]):
                done = titanctl(*arguments, *form)
                error = json.loads(done.stderr)["error"]
                self.assertEqual((code, name, ""), (done.returncode, error["code"], done.stdout))
                if code == 5:
                    self.assertEqual("NO_CONTROLLER", error["reason"])
                    self.assertIn("--controller", error["remedy"])
                self.assertEqual({"code", "reason", "message", "remedy", "metadata", "violations"}, set(error))

    def test_no_controller_is_exit_code_5(self):
        for arguments in (["list"], ["describe", "x"], ["node", "list"], ["cancel", "x"], ["submit", TINY], ["logs", "x"]):
            with self.subTest(arguments):
                self.refused(5, NOBODY, *arguments, "--timeout", "0.3")

    def test_validate_needs_no_controller(self):
        done = titanctl("validate", TINY, "--nproc", "2")
        self.assertEqual((0, ""), (done.returncode, done.stdout), done.stderr)
        self.assertIn("2 ranks", done.stderr)
        flat, grouped = titanctl("validate", TINY, "-o", "json"), titanctl("job", "validate", TINY, "-o", "json")
        self.assertEqual(flat.stdout, grouped.stdout)
        self.assertEqual("llama3", json.loads(flat.stdout)["model"]["name"])

    # Without this check only the ranks would notice, after the job had waited for its nodes.
    def test_missing_assets_are_reported_at_once(self):
        with tempfile.TemporaryDirectory() as empty, unittest.mock.patch.dict(os.environ, TITAN_ASSETS=empty):
            for key in ("model.hf_assets_path", "training.dataset", "validation.dataset"):
                self.refused(2, f"{key} = ", "submit", TINY)
            self.assertEqual(0, titanctl("validate", TINY, "--no-file-checks").returncode)
            mine = ["--training.dataset_path", SOURCE / "configs", "--validation.no_enable", "--model.hf_assets_path", empty]
            self.assertNotIn("comes with", titanctl("validate", TINY, *mine).stderr)

    def test_data_of_every_format_is_checked(self):
        """The check uses the ranks' readers: the first rows of JSON lines, the headers of formats that are not text."""
        with tempfile.TemporaryDirectory() as scratch:
            root = Path(scratch)

            def written(name, text):
                (root / name).parent.mkdir(exist_ok=True)
                (root / name).write_bytes(text if isinstance(text, bytes) else text.encode())
                return root / name

            def job(path, *flags):
                return ["validate", TINY, "--training.dataset_path", path, *flags]

            chat, body = '{"messages": [{"role": "assistant", "content": "x"}], "score": NaN}\n', '{"body": "x"}\n'
            index = struct.pack("<9sQBQQ", b"MMIDIDX", 1, 8, 1, 2) + struct.pack("<iqqq", 3, 0, 0, 1)  # One document of three 16-bit tokens.
            written("megatron/text.bin", b"\1\0\2\0\3\0")
            written("tokenizer/tokenizer.json", (ASSETS / "tokenizer/tokenizer.json").read_text())
            written("tokenizer/chat_template.jinja", "{{ messages }}")
            talks = ["--model.hf_assets_path", root / "tokenizer", "--training.dataloader.messages_key"]
            accepted = [(written("parquet/a.parquet", ONE_ROW).parent,), (root / "parquet/*.parquet",), (written("texts/a.txt", "Once\n").parent,),
                        (root / "texts/a.txt", "--training.dataloader.format", "text"),
                        (written("megatron/text.idx", index).with_suffix(""),), (root / "megatron",),
                        (written("chat/a.jsonl", chat).parent, *talks, "messages"),
                        (written("body/a.jsonl", body), "--training.dataloader.text_key", "body")]  # fmt: skip
            for words in accepted:
                done = titanctl(*job(*words))
                self.assertEqual(0, done.returncode, f"{words}: {done.stderr}")
            self.refused(2, 'a.jsonl:1: no "text" (there are "messages"', *job(root / "chat"))
            self.refused(2, 'a.jsonl:1: no "turns"', *job(root / "chat", *talks, "turns"))
            cut = "it does not end with PAR1, so it is truncated"
            self.refused(2, f"b.parquet: cannot be read as Parquet: {cut}", *job(written("parquet/b.parquet", ONE_ROW[:-20]).parent))
            self.refused(2, "is truncated", *job(written("megatron/text.idx", index[:20])))
            written("megatron/text.bin", b"\1\0")
            self.refused(2, "ends at byte 6 of", *job(written("megatron/text.idx", index)))
            self.refused(2, "is not a manifest of a token index", *job(written("index/titan-tokens.json", "{}").parent))
            if (BIN / "titan-parquet.so").exists():
                (root / "parquet/b.parquet").write_bytes(NO_ROWS)
                self.assertEqual(0, titanctl(*job(root / "parquet")).returncode)
                self.refused(2, "holds no document: ", *job(root / "parquet/b.parquet"))
                self.refused(2, 'no column "body" (there are: text)', *job(root / "parquet", "--training.dataloader.text_key", "body"))
                self.refused(2, 'no column "turns" (there are: "text")', *job(root / "parquet", *talks, "turns"))
            written("splits/train-0.jsonl", '{"text": "x"}\n')
            written("splits/test.jsonl", '{"text": "x"}\n')
            done = titanctl(*job(root / "splits"))
            self.assertEqual(1, done.stderr.count(f"dataset_path {root}/splits: 2 files are read as one dataset, "
                                                 "including files that by name belong to another split (test.jsonl)"), done.stderr)
            self.assertIn(f"the glob {root}/splits/train* to leave them out", done.stderr)
            self.assertNotIn("test.jsonl", titanctl(*job(root / "splits/train*")).stderr)
            self.refused(2, "no such file or folder", *job(root / "none", "--training.dataloader.format", "parquet"))

    def test_all_recipes_are_valid(self):
        for config in sorted((SOURCE / "configs").glob("*.toml")):
            with self.subTest(config.name):
                done = titanctl("validate", config, "--no-file-checks")
                self.assertEqual(0, done.returncode, done.stderr)

    def test_overrides_win_and_paths_become_absolute(self):
        done = titanctl("validate", TINY, "--training.steps=7", "--checkpoint.no_enable", "--job.dump_folder", "out/x",
                        "--training.dataset_path", "hf://datasets/org/texts/*.jsonl", "-o", "json")
        config = json.loads(done.stdout)
        self.assertEqual(7, config["training"]["steps"])
        self.assertFalse(config["checkpoint"]["enable"])
        self.assertEqual(str(Path.cwd() / "out/x"), config["job"]["dump_folder"])
        self.assertEqual("hf://datasets/org/texts/*.jsonl", config["training"]["dataset_path"])

    def test_a_bare_switch_does_not_swallow_the_file(self):
        done = titanctl("validate", "--checkpoint.enable", TINY, "-o", "json")
        self.assertTrue(json.loads(done.stdout)["checkpoint"]["enable"], done.stderr)

    def test_standard_input_in_each_format(self):
        for text, extra in (("[training]\nsteps = 9\n", []), ("training:\n  steps: 9\n", []), ('{"training": {"steps": 9}}', []),
                            ("training:\n  steps: 9\n", ["--format", "yaml"])):
            done = titanctl("validate", "-", "-o", "json", *extra, text=text)
            self.assertEqual(9, json.loads(done.stdout)["training"]["steps"], done.stderr)

    def test_dumped_configuration_reads_back(self):
        for extra in ([], ["--changed"]):
            dumped = titanctl("config", "dump", *extra, TINY).stdout
            again = titanctl("validate", "-", "-o", "json", "--format", "toml", text=dumped)
            self.assertEqual(titanctl("validate", TINY, "-o", "json").stdout, again.stdout)

    def test_schedule_show(self):
        show = ["schedule", "show", "--ranks", "2", "--microbatches", "3"]
        drawn = titanctl(*show)
        self.assertIn("rank 1       1F0 1B0---- 1F1 1B1----", drawn.stdout, drawn.stderr)
        self.assertIn("bubble 25.0 %", drawn.stdout)
        measured = json.loads(titanctl(*show, "--schedule", "zbvzerobubble", "--costs", "2,2,2", "-o", "json").stdout)
        self.assertEqual(("ZBVZeroBubble", 38), (measured["schedule"], measured["makespan"]))
        self.assertEqual([0, 3], measured["ranks"][0]["stages"])
        with tempfile.TemporaryDirectory() as folder:
            csv, svg = f"{folder}/mine.csv", f"{folder}/mine.svg"
            Path(csv).write_text(titanctl(*show, "--as-csv").stdout)
            again = titanctl("schedule", "show", "--csv", csv, "--svg", svg)
            self.assertEqual(drawn.stdout.split("\n", 1)[1], again.stdout.split("\n", 1)[1])
            self.assertIn("<title>0F0: 0 to 1</title>", Path(svg).read_text())
            Path(csv).write_text("0F0,0B0\n1F0,1B1\n")
            self.refused(2, "mine.csv: row 1 has no forward pass of stage 0 for microbatch 1", "schedule", "show", "--csv", csv)
        self.refused(2, "as many microbatches as stages (4), but has 3", *show, "--schedule", "DualPipeV")
        self.refused(2, "did you mean", "schedule", "show", "--csv", str(SOURCE / "configs/llama3_tiny.tml"))
        job = titanctl("schedule", "show", SOURCE / "configs/llama3_debug.toml", "--nproc", "4", "--parallelism.pipeline_parallel_degree",
                       "4", "--parallelism.pipeline_parallel_schedule", "interleavedzerobubble")
        self.assertIn("InterleavedZeroBubble: 4 ranks, 8 stages, 8 microbatches; a step takes 51, bubble 5.9 %", job.stdout, job.stderr)
        self.assertIn("stage 0: tok_embeddings (1 block)", job.stderr)
        self.assertIn("stage 7: output (1 block)", job.stderr)
        one = titanctl("schedule", "show", TINY)  # A job without a pipeline has one stage.
        self.assertIn("1 rank, 1 stage, 1 microbatch;", one.stdout, one.stderr)

    def test_schedule_show_prints_bytes_and_uneven_stages(self):
        job = ["schedule", "show", SOURCE / "configs/llama3_8b.toml", "--parallelism.pipeline_parallel_degree", "4",
               "--training.local_batch_size", "8", "--activation_checkpoint.mode", "full"]
        plain, weighed = (json.loads(titanctl(*job, *more, "-o", "json").stdout) for more in ([], ["--by-flops"]))
        edge = 8192 * 4096 * 2  # A layer's input in bf16; the first stage's first block saves only tokens.
        self.assertEqual([8 * edge, 9 * edge, 8 * edge], plain["stage_bytes"][:3])
        self.assertEqual([4 * 8 * edge, 3 * 9 * edge, 2 * 8 * edge], [rank["peak_bytes"] for rank in plain["ranks"]][:3])
        self.assertEqual(max(now["bytes"] for now in plain["ranks"][1]["memory"]), plain["ranks"][1]["peak_bytes"])
        self.assertEqual(0, plain["ranks"][1]["memory"][-1]["bytes"])
        self.assertEqual(33, plain["makespan"])
        first, last = (weighed["ranks"][rank]["actions"][0] for rank in (0, 3))
        self.assertLess(first["end"] - first["start"], last["end"] - last["start"], "the head is work")
        text = titanctl(*job)
        self.assertRegex(text.stdout, r"\n0     0 +27.3 % +2.00 GiB +4\n")
        self.assertIn("stage 1: layers.8 to layers.16 (9 blocks), 576.00 MiB a microbatch", text.stderr)
        self.assertIn("full recomputation), estimated", text.stderr)
        wide = titanctl("schedule", "show", "--ranks", "16", "--microbatches", "64", "--schedule", "ZBVZeroBubble")
        self.assertLessEqual(max(map(len, wide.stdout.splitlines())), 160)
        named = titanctl("schedule", "show", "--ranks", "16", "--microbatches", "64", "--width", "0")
        self.assertIn(" 15F63 ", named.stdout)

    def test_schedule_show_refuses(self):
        show = ["schedule", "show"]
        for why, flags in [("2 numbers; it takes the times F,I,W", ["--costs", "1,1"]), ("'x' is not a number", ["--costs", "1,x,1"]),
                           ("-1 is not between 0 and", ["--costs=-1,1,1"]), ("no work takes any time", ["--costs", "0,0,0"]),
                           ("--ranks is 0: it must be at least 1", ["--ranks", "0"]),
                           ("--stages-per-rank is -1", ["--stages-per-rank", "-1"]),
                           ("a pipeline has at most 1024", ["--ranks", "99999999"]),
                           ("--svg: cannot write /nowhere/x.svg: No such file", ["--svg", "/nowhere/x.svg"]),
                           ("--csv: /dev/zero is not a file", ["--csv", "/dev/zero"]),
                           ("--schedule and --csv cannot be given together", ["--csv", "x", "--schedule", "GPipe"]),
                           ("set --parallelism.pipeline_parallel_degree instead", [TINY, "--ranks", "4"]),
                           ("--by-flops needs a configuration", ["--by-flops"])]:
            with self.subTest(flags=flags):
                self.refused(2, why, *show, *flags)
        with tempfile.NamedTemporaryFile(suffix=".so") as library:  # Only a rank can look up the library's layers.
            job = [*show, TINY, "--model.name", "mine", "--model.flavor", "small", "--experimental.custom_import", library.name]
            self.assertIn("no bytes are given", (plain := titanctl(*job)).stderr)
            self.assertEqual(0, plain.returncode)
            self.refused(2, "--by-flops: model \"mine\" is a library's", *job, "--by-flops")

    def test_short_flag_is_not_a_value(self):
        done = titanctl("schedule", "show", TINY, "--checkpoint.enable", "-o", "json")
        self.assertEqual(1, json.loads(done.stdout or "{}").get("stages"), done.stderr)
        self.refused(2, "training.steps", "validate", TINY, "--training.steps", "-1")

    def test_every_program_prints_its_version(self):
        mine = titanctl("version").stdout.removeprefix("titanctl ")
        for program in ("titanctl", "titan-controller", "titan-worker", "titan-shim", "titan-rank", "titan-checkpoint", "titan-data"):
            done = subprocess.run([BIN / program, "--version"], capture_output=True, text=True, timeout=30)
            self.assertEqual(0, done.returncode, done.stderr)
            self.assertRegex(done.stdout, rf"^{program} \d+\.\d+\.\d+( \([0-9a-f]{{12}}\))?\n$")
            self.assertEqual(mine.count("("), done.stdout.count("("), f"{done.stdout}: titanctl says {mine}")  # The revision.
            done = subprocess.run([BIN / program, "--help"], capture_output=True, text=True, timeout=30)
            self.assertEqual((0, ""), (done.returncode, done.stderr))
            self.assertIn("--version", done.stdout)

    def test_every_program_prints_its_build(self):
        build = json.loads(titanctl("version", "-o", "json").stdout)["build"]
        self.assertRegex(build["commit"], r"^([0-9a-f]{12}(, modified)?|unknown)$")
        for name in ("build type", "compiler", "CUDA", "LibTorch", "gRPC", "protobuf", "abseil", "OpenSSL", "SQLite", "curl", "zstd", "pcre2", "yaml-cpp"):
            self.assertTrue(build.get(name), name)
        self.assertEqual(titanctl("--version", "--verbose").stdout, titanctl("version", "-o", "wide").stdout)
        for program in ("titanctl", "titan-controller", "titan-worker", "titan-shim", "titan-stacks", "titan-rank", "titan-checkpoint", "titan-data",
                        "titan-generate"):
            done = subprocess.run([BIN / program, "--version", "--verbose"], capture_output=True, text=True, timeout=30)
            self.assertEqual((0, ""), (done.returncode, done.stderr))
            printed = done.stdout.splitlines()
            self.assertEqual(subprocess.run([BIN / program, "--version"], capture_output=True, text=True, timeout=30).stdout, printed[0] + "\n")
            self.assertEqual(build, dict(re.split(r" {2,}", line.strip(), maxsplit=1) for line in printed[1:]), program)

    def test_schema_and_version(self):
        self.assertIn("training", json.loads(titanctl("schema").stdout)["properties"])
        self.assertEqual(titanctl("version").stdout.split()[1], json.loads(titanctl("version", "-o", "json").stdout)["version"])

    def test_help_shows_examples_first_and_every_flag(self):
        text = titanctl("submit", "--help").stdout
        self.assertLess(text.index("Examples:"), text.index("Options:"))
        for flag in ("--dry-run", "--wait", "--quiet", "--nproc", "--nodes", "--format", "--job-id"):
            self.assertIn(flag, text)
        self.assertIn("Exit codes:", titanctl("--help").stdout)

    def test_help_of_a_verb_lists_common_flags(self):
        self.assertEqual(titanctl("--help").stdout, titanctl("help").stdout)
        for verb in (["submit"], ["node", "drain"], ["job", "wait"], ["auth", "token", "create"]):
            done = titanctl("help", *verb)
            self.assertEqual((0, titanctl(*verb, "--help").stdout), (done.returncode, done.stdout))
            for flag in ("--timeout", "--output", "--controller", "--tls", "--token-file", "--utc"):
                self.assertIn(flag, done.stdout)

    def test_validate_prints_peak_device_memory(self):
        self.assertRegex(titanctl("validate", TINY).stderr, r"the fullest rank takes about [0-9.]+ [KMG]iB of a device at its peak \(weights ")

    # Every key that holds a list takes JSON; a list between commas also works where that is unambiguous.
    def test_lists_are_json_in_every_source(self):
        wanted = ["a, b", "c"]
        prompts = lambda *words, text=None: json.loads(titanctl("config", "dump", *words, "-o", "json", text=text).stdout)["validation"]["sample_prompts"]
        self.assertEqual(wanted, prompts(TINY, "--validation.sample_prompts", '["a, b", "c"]'))
        self.assertEqual(wanted, prompts("-", text='[validation]\nenable = true\nsample_prompts = \'["a, b", "c"]\'\n'))
        self.assertEqual(wanted, prompts("-", text='[validation]\nenable = true\nsample_prompts = ["a, b", "c"]\n'))
        self.assertEqual(["a", "b"], prompts(TINY, "--validation.sample_prompts", "a, b"))
        self.refused(2, "not a JSON array of strings", "validate", TINY, "--validation.sample_prompts", "['a', 'b']")

    # The environment sets the project, unless the configuration names one.
    def test_titan_project_is_the_project_of_new_jobs(self):
        project = lambda *words: json.loads(titanctl("validate", TINY, *words, "-o", "json").stdout)["scheduling"]["project"]
        self.assertEqual("default", project())
        with unittest.mock.patch.dict(os.environ, TITAN_PROJECT="vision"):
            self.assertEqual("vision", project())
            self.assertEqual("audio", project("--scheduling.project", "audio"))

    # Tries a terminal with colours, a dumb one, and one for a user who wants no colours.
    def test_colours_only_on_capable_terminals(self):
        def printed(**environment):
            ours, theirs = os.openpty()
            clean = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "TERM")}
            subprocess.run([BIN / "titanctl", "validate", "nosuch.toml"], env={**clean, **environment}, stderr=theirs, timeout=30)
            os.close(theirs)
            text = os.read(ours, 65536)
            os.close(ours)
            return text
        self.assertIn(b"\033[", printed(TERM="xterm"))
        self.assertNotIn(b"\033[", printed(TERM="dumb"))
        self.assertNotIn(b"\033[", printed())
        self.assertNotIn(b"\033[", printed(TERM="xterm", NO_COLOR="1"))

    def test_no_colour_off_a_terminal(self):
        for arguments in (["--help"], ["list", "--timeout", "0.2"], ["validate", "nosuch.toml"]):
            done = titanctl(*arguments)
            self.assertIsNone(re.search("\033", done.stdout + done.stderr))

    def test_completion(self):
        self.assertEqual(["submit"], titanctl("__complete", "su").stdout.split())
        self.assertEqual(["cordon"], titanctl("__complete", "node", "c").stdout.split())
        self.assertIn("--training.steps", titanctl("__complete", "submit", TINY, "--training.st").stdout.split())
        self.assertEqual("", titanctl("__complete", "describe", "").stdout)  # No controller: no names, no error.
        self.assertIn("drain", titanctl("__complete", "help", "node", "d").stdout.split())
        self.assertEqual(["checkpoint"], titanctl("__complete", "config", "help", "checkp").stdout.split())
        self.assertEqual(["table", "wide", "json", "yaml"], titanctl("__complete", "list", "-o", "").stdout.split())
        self.assertEqual({"step=", "starting", "stopping", "succeeded", "suspended"}, set(titanctl("__complete", "wait", "J", "--for", "s").stdout.split()))
        self.assertEqual({"--state=running", "--state=reserving", "--state=recovering"}, set(titanctl("__complete", "list", "--state=r").stdout.split()))
        self.assertEqual(["running,queued"], titanctl("__complete", "list", "--state", "running,q").stdout.split())
        self.assertEqual("", titanctl("__complete", "update", "J", "--label", "").stdout)  # Completes a label, not a job.
        for shell in ("bash", "zsh", "fish"):
            self.assertIn("__complete", titanctl("completion", shell).stdout)
        self.refused(2, "bash, zsh and fish", "completion", "csh")

    def test_bash_completion_works(self):
        script = f'PATH={BIN}:$PATH; source <(titanctl completion bash); COMP_WORDS=(titanctl node un); COMP_CWORD=2; _titanctl; echo "${{COMPREPLY[@]}}"'
        self.assertEqual("uncordon", subprocess.run(["bash", "-c", script], capture_output=True, text=True).stdout.strip())

    def test_starts_in_milliseconds(self):
        start = time.monotonic()
        titanctl("version")
        self.assertLess(time.monotonic() - start, 0.5)  # It takes 10 ms on the reference machine.


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)

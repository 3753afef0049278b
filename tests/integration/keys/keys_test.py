"""Every configuration key has the effect that docs/generated/keys.md lists: the test tries each value in keys_table.py.

A key without a row fails, and so does a choice or a switch that no row tries, so no key is accepted and ignored. Trainings of a model
32 wide run as threads of one process and dry runs in another; the controller's records and decisions come from a program without LibTorch.
`keys_test.py --write` writes docs/generated/keys.md; `--only TEXT` tries the keys whose name contains TEXT and prints what it sees.
"""

import contextlib
import gzip
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "common/io/hub"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "testing"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "worker/rank/model/flux"))
from fake_hub import FakeHub
from keys_table import ELSEWHERE, ONE_VALUE, PREPARATIONS, ROWS, SHOWN, SITUATIONS, SMALL
from paths import BIN, SOURCE
from tiny_flux import AUTOENCODER, CLIP, T5, write_archive, write_encoders

TESTS = BIN.parent / "tests"
ASSETS = Path(os.environ["TITAN_DEPS"]) / "assets"
PAGE = SOURCE / "docs" / "generated" / "keys.md"
REPORTED = ("refused", "warned")
DECIDED = ("record", "placement", "restarts", "model")
DRY_RUN = ("bytes", "activations", "split", "schedule", "sent")


def row_of(entry):
    key, value, shown, *rest = entry
    situation, text = [*rest, "", ""][:2]
    return key, value, shown, situation, text


# Returns the catalog: key -> its JSON schema.
def catalog():
    schema = json.loads(subprocess.check_output([TESTS / "titan_config_dump", "--schema"], text=True))
    found = {}

    def walk(node, prefix):
        for name, inner in node["properties"].items():
            if "properties" in inner:
                walk(inner, f"{prefix}{name}.")
            else:
                found[prefix + name] = inner

    walk(schema, "")
    return found


def untried(keys):
    """Returns values that no row tries: whole keys, choices, and the other position of switches."""
    tried = {}
    for key, value, *_ in map(row_of, ROWS):
        tried.setdefault(key, []).append(value)
    unknown = [key for key in [*tried, *(entry[0] for entry in ELSEWHERE), *ONE_VALUE] if key not in keys]
    missing = [f"{key}: there is no such key" for key in unknown]
    for key, schema in keys.items():
        choices = schema.get("enum", schema.get("items", {}).get("enum", []))
        if key in ONE_VALUE:
            if len(choices) != 1:
                missing.append(f"{key}: has more than one value")
        elif key in tried:
            left = [c for c in choices if c not in (None, schema["default"]) and c not in tried[key]]
            missing += [f"{key} = {choice}" for choice in left]
            if schema["type"] == "boolean" and (not schema["default"]) not in tried[key]:
                missing.append(f"{key} = {not schema['default']}")
        elif key not in [entry[0] for entry in ELSEWHERE]:
            missing.append(key)
    return missing


# Returns a hub with a small dataset named c4.
def hub_of_c4():
    hub = FakeHub()
    lines = "".join(json.dumps({"text": f"the {i}th line that a hub has, and {i} more of its words"}) + "\n" for i in range(400))
    names = ("c4-train.00000-of-01024", "c4-validation.00000-of-00008")
    hub.add("allenai/c4", {f"en/{name}.json.gz": gzip.compress(lines.encode()) for name in names}, kind="datasets")
    return hub


def words_of(flags):
    words = []
    for key, value in flags.items():
        if isinstance(value, bool):
            section, name = key.rsplit(".", 1)
            words.append(f"--{key}" if value else f"--{section}.no_{name}")
        else:
            words += [f"--{key}", str(value)]
    return words


class Runs:
    """Runs the programs, each set of flags only once, and has their answers."""

    def __init__(self, scratch, hub):
        self.scratch = scratch
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        self.environment |= {"TITAN_ASSETS": str(ASSETS), "HF_ENDPOINT": hub.url(), "HF_HOME": str(scratch / "home")}
        self.places = {"full": scratch / "full" / "dump", "hf": scratch / "hf" / "dump", "assets": scratch / "assets",
                       "damaged": scratch / "damaged", "data": scratch / "data", "texts": scratch / "texts", "csv": scratch / "schedule.csv"}
        self.questions = {}  # Name of the question -> its folder.
        self.trainings, self.dry_runs, self.decisions, self.answers = [], [], [], {}

    def prepare(self):
        for name, lines in [("damaged", ["{", "{"]), ("data", [])]:
            self.places[name].mkdir()
            texts = [json.dumps({"text": f"the {i}th line of some other text, which no other file has", "again": f"{i} and {i}"})
                     for i in range(400)]
            (self.places[name] / "part.jsonl").write_text("\n".join(texts[:1] + lines + texts[1:]) + "\n")
        self.places["texts"].mkdir()
        for folder in ("data", "texts"):
            (self.places[folder] / "part.txt").write_text("".join(f"paragraph {i}\n\n" for i in range(2000)))
        self.places["csv"].write_text("0F0,0F1,,,0B0,0B1\n,1F0,1F1,1B0,1B1,\n")
        self.prepare_flux()
        for name, flags in PREPARATIONS.items():
            self.trainings.append(self.training(self.scratch / name, flags))
        self.train()
        self.trainings = []
        shutil.copytree(ASSETS / "tokenizer", self.places["assets"])
        for path in (self.places["hf"] / "checkpoint" / "step-3").iterdir():
            if "safetensors" in path.name:
                shutil.copy(path, self.places["assets"])

    def prepare_flux(self):
        """Writes pictures and encoders without weights, and others with other numbers."""
        self.places["pictures"] = self.scratch / "pictures"
        write_archive(self.places["pictures"] / "part.tar")
        self.places["masks"] = self.scratch / "masks"
        write_archive(self.places["masks"] / "part.tar", masks=True)
        others = {"other_t5": {**T5, "d_ff": 24}, "other_clip": {**CLIP, "intermediate_size": 32},
                  "other_autoencoder": {**AUTOENCODER, "layers_per_block": 2}}
        write_encoders(self.scratch, **others)
        for name in ["t5", "clip", "autoencoder", *others]:
            self.places[name] = self.scratch / name

    # str.format() does not work here: braces may be part of JSON.
    def placed(self, text):
        for name, place in self.places.items():
            text = text.replace("{%s}" % name, str(place))
        return text

    def fill(self, flags):
        return {key: self.placed(value) if isinstance(value, str) else value for key, value in flags.items()}

    def training(self, folder, flags):
        folder.mkdir()
        flags = {**SMALL, "experimental.custom_import": TESTS / "libsmall_models.so", "job.dump_folder": folder / "dump", **flags}
        after = flags.pop("after", None)
        if after:
            shutil.copytree(self.places[after], folder / "dump")
        return [str(folder), "--config", str(self.scratch / "empty.toml"), *words_of(self.fill(flags))]

    def ask(self, shown, flags, twin=False):
        """Returns a function that gives the answer once the programs have run. A twin runs the same a second time."""
        name = json.dumps(flags, default=str) + (" again" if twin else "")
        if "plain" in flags or shown in REPORTED:
            flags = {key: value for key, value in flags.items() if key != "plain"}
            name = "decide " + name
            if name not in self.answers:
                self.answers[name] = None
                self.decisions.append((name, words_of(self.fill(flags))))
            return lambda: self.answers[name]
        if name not in self.questions:
            folder = self.questions[name] = self.scratch / f"run-{len(self.questions)}"
            queue = self.dry_runs if flags.get("comm.mode") == "fake_backend" else self.trainings
            queue.append(self.training(folder, flags))
        return lambda: Seen(self.questions[name])

    def train(self, queue=None):
        lines = "".join(json.dumps(words) + "\n" for words in (self.trainings if queue is None else queue))
        return subprocess.run([TESTS / "titan_trainings"], input=lines, text=True, check=True, timeout=540,
                              env=self.environment)

    def run(self):
        self.train()
        self.train(self.dry_runs)
        lines = "".join(json.dumps(words) + "\n" for _, words in self.decisions)  # None if --only selected none.
        done = subprocess.run([TESTS / "titan_decisions"], input=lines, text=True, check=True, timeout=60, capture_output=True)
        for (name, _), line in zip(self.decisions, done.stdout.splitlines(), strict=True):
            self.answers[name] = json.loads(line)


class Seen:
    """The output of one run in its folder, without times."""

    def __init__(self, folder):
        self.folder, self.dump = folder, folder / "dump"

    def metrics(self):
        path = self.dump / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def figures(self, name):
        return [(row["step"], row[name]) for row in self.metrics() if name in row]

    def tree(self):
        return sorted(path for path in self.dump.rglob("*") if path.is_file() and path.relative_to(self.dump).parts[0] != "run")

    def dry(self, *names):
        result = json.loads((self.folder / "dry.json").read_text())
        return {name: result[name] for name in names}

    def loss(self):
        return self.figures("loss_metrics/global_avg_loss")

    def lr(self):
        return self.figures("lr")

    def tokens(self):
        return self.figures("n_tokens_seen")

    def validation(self):
        return self.figures("validation_metrics/loss")

    def rows(self):
        return [(row["step"], sorted(row)) for row in self.metrics()]

    def experts(self):
        return [{name: value for name, value in row.items() if "tokens_per_expert" in name} for row in self.metrics()]

    def files(self):
        names = [re.sub(r"\d{8}-\d{4}", "TIME", path.relative_to(self.dump).as_posix()) for path in self.tree()]
        return [re.sub(r"events\.out\..*", "events", name) for name in names]

    def sizes(self):
        return [(path.name, path.stat().st_size) for path in self.tree() if path.suffix not in (".json", ".jsonl")]

    def traffic(self):
        return [json.loads(path.read_text())["total"] for path in sorted((self.dump / "run").glob("*.ledger.json"))]

    def events(self):
        lines = (self.dump / "run" / "rank-0.events.jsonl").read_text().splitlines()
        kept = ("kind", "step", "source", "message", "blocking")
        return [{name: event[name] for name in kept if name in event} for event in map(json.loads, lines) if event["kind"] != "step"]

    def recordings(self):
        found = [path for path in self.tree() if re.search(r"\d$", path.name)]
        return [(path.relative_to(self.dump).as_posix(), len(pickle.loads(path.read_bytes())["entries"])) for path in found]

    def log(self):
        return re.sub(r"\d[\d.,]*", "N", (self.folder / "log").read_text())

    def facts(self):
        return json.loads((self.folder / "facts.json").read_text())

    def bytes(self):
        return self.dry("bytes", "shards_on_host")

    def activations(self):
        return self.dry("activations")

    def split(self):
        return self.dry("parameters")

    def schedule(self):
        return self.dry("schedule")

    def sent(self):
        return self.dry("collectives")


def look(answer, shown):
    if isinstance(answer, dict):
        return answer.get(shown, answer.get("refused"))
    return getattr(answer, shown)()


# Returns None, or why a row fails: then the key has no effect, or the row is wrong.
def judge(row, base, changed):
    key, value, shown, situation, text = row
    what = f"{key} = {value}" + (f" ({situation})" if situation else "")
    if shown in REPORTED:
        if "refused" in base:
            return f"{what}: refused without it too: {base['refused']}"
        problem = changed.get("refused", "") if shown == "refused" else "\n".join(changed.get("warnings", []))
        lines = [line for line in problem.splitlines() if key.rsplit(".", 1)[1] in line and text in line]
        if shown == "warned" and len(lines) != 1:
            return f"{what}: {len(lines)} warnings with \"{text}\": {changed.get('refused', problem)}"
        return None if lines else f"{what}: not refused with \"{text}\": {problem or 'accepted'}"
    if isinstance(changed, Seen) and shown not in ("facts", "recordings"):
        for name, seen in (("without", base), ("with", changed)):
            if seen.facts()["code"] != 0:
                return f"{what}: {name} it the run ends with {seen.facts()['code']}: {(seen.folder / 'log').read_text()[-400:]}"
    if isinstance(changed, dict) and "refused" in {**base, **changed}:
        return f"{what}: refused: {changed.get('refused', base.get('refused'))}"
    before, after = look(base, shown), look(changed, shown)
    if not before and not after:
        return f"{what}: nothing to compare in {SHOWN[shown]}"
    return f"{what}: no difference in {SHOWN[shown]}: {str(before)[:300]}" if before == after else None


def default_text(value):
    return "" if value is None or value == "" else f"`{json.dumps(value) if not isinstance(value, str) else value}`"


def page(keys):
    lines = ["# Configuration keys and their effects", "",
             "This page lists where each key's effect is visible in a small training or dry run. `tests/integration/keys/keys_test.py` tries every value and",
             "fails if nothing changes; `--write` generates this page from keys_table.py. For what a key means, run `titanctl config help SECTION`.", "",
             "- **Tried**: the values that the test sets; \"other values\" are tried by the test named in the last column.",
             "- **Seen in**: what changes, with the situation in parentheses. Process facts are exit code, threads, kernels, determinism and",
             "  optimizer operations; collectives are their calls and bytes; dry runs show one rank.",
             "- **Refused** and **warning**: the feature does not exist yet, or the key belongs to a feature that is off.",
             ""]  # fmt: skip
    rows = [row_of(entry) for entry in ROWS]
    section = None
    for key, schema in keys.items():
        name = key.rsplit(".", 1)[0]
        if name != section:
            section = name
            lines += ["", f"## {section}", "", "| key | default | tried | seen in |", "|---|---|---|---|"]
        by_effect = {}
        for _, value, shown, situation, _ in (row for row in rows if row[0] == key):
            effect = SHOWN[shown] + (f" ({situation})" if situation and situation not in ("a job", "a dry run") else "")
            by_effect.setdefault(effect, []).append(str(value))
        for other, test, path in ELSEWHERE:
            if other == key:
                by_effect[f"`{test}` in {path}"] = ["other values"]
        if key in ONE_VALUE:
            by_effect["the only value"] = ["-"]
        for effect, values in by_effect.items():
            tried = ", ".join(value.replace("|", "\\|").replace("{", "").replace("}", "") for value in values)
            lines.append(f"| {key.rsplit('.', 1)[1]} | {default_text(schema['default'])} | {tried} | {effect} |")
    return "\n".join(lines).replace("\n\n\n", "\n\n") + "\n"


def main():
    keys = catalog()
    wrong = untried(keys)
    for _, test, path in ELSEWHERE:
        if not test or test not in (SOURCE / path).read_text():
            wrong.append(f"{path} has no test {test}")
    if "--write" in sys.argv:
        PAGE.write_text(page(keys))
    elif PAGE.read_text() != page(keys):
        wrong.append("docs/generated/keys.md is not what keys_table.py gives: run tests/integration/keys/keys_test.py --write")
    only = sys.argv[sys.argv.index("--only") + 1] if "--only" in sys.argv else ""
    rows = [row for row in map(row_of, ROWS) if only in row[0]]
    if not rows:
        sys.exit(f"--only {only}: no key's name contains it")
    with tempfile.TemporaryDirectory() as folder, contextlib.closing(hub_of_c4()) as hub:
        (Path(folder) / "empty.toml").touch()
        runs = Runs(Path(folder), hub)
        runs.prepare()
        requested, twins = [], {}
        for row in rows:
            key, value, shown, situation, _ = row
            flags = SITUATIONS[situation]
            if shown in REPORTED and "plain" not in flags:
                flags = {**SMALL, "experimental.custom_import": "models.so", **flags}
            requested.append((row, runs.ask(shown, flags), runs.ask(shown, {**flags, key: value})))
            if shown not in REPORTED:
                twins[shown, situation] = runs.ask(shown, flags), runs.ask(shown, flags, twin=True)
        runs.run()
        for (shown, situation), (one, other) in twins.items():
            if look(one(), shown) != look(other(), shown):
                wrong.append(f"{SHOWN[shown]} {situation}: differs between two runs of the same configuration")
        for row, base, changed in requested:
            problem = judge(row, base(), changed())
            wrong += [problem] if problem else []
            if only:
                print(row, look(base(), row[2]) if row[2] not in REPORTED else base(), "->",
                      look(changed(), row[2]) if row[2] not in REPORTED else changed(), sep="\n  ")
    print(*wrong, sep="\n", end="\n" if wrong else "")
    print(f"{len(keys)} keys, {len(rows)} values tried, {len(runs.trainings)} trainings, {len(runs.dry_runs)} dry runs; {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

"""Exports models as ONNX, checks the files with ONNX's own package, and runs them with ONNX Runtime and onnxruntime-genai: logits of Titan's
own model for left-padded rows at once and token by token with caches, greedy tokens of titan-generate, layout of the data, refusals and damage.

Only --long runs every small model in every form, every opset, and a data file above 2 GiB."""

import json
import pathlib
import shutil
import sys
import tempfile

import numpy
import onnx
import onnxruntime
import onnxruntime_genai
import safetensors.numpy
from interop_models import DEPS, configs, drawn, run

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "testing"))
from paths import BIN

LONG = "--long" in sys.argv
TOKENIZER = DEPS / "assets/tokenizer"
SMALL = BIN.parent / "tests/export_small_onnx"
# MODEL/DTYPE/OPERATORS/OPSET. Names of models are those of tests/worker/rank/model/testing.h.
EXPORTS = ["llama/float32/standard/0", "llama/float16/standard/0", "llama_tied/float32/microsoft/0", "qwen3/float32/standard/24",
           "qwen3_experts/float32/standard/0", "qwen3_experts/float32/microsoft/23", "gpt_oss/float32/standard/0", "gpt_oss/float32/microsoft/0",
           "deepseek_groups/float32/standard/0", "deepseek_yarn/float32/microsoft/0", "llama4_released/float32/standard/25",
           "llama4_irope/float32/microsoft/0"]
# Tolerances as a share of the largest logit.
TOLERANCE = {"float32": 1e-4, "float16": 2e-2}
PREFILL, PADDING = 8, 5


def session(path):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


class Rows:
    """A batch whose last row is padded on the left, with the caches of a session."""

    def __init__(self, runner, tokens):
        self.runner, self.tokens = runner, tokens
        self.mask = numpy.ones_like(tokens)
        self.mask[-1, :PADDING] = 0
        self.positions = numpy.maximum(self.mask.cumsum(1) - 1, 0)
        types = {"tensor(float)": numpy.float32, "tensor(float16)": numpy.float16}
        self.caches = {one.name: numpy.zeros((len(tokens), one.shape[1], 0, one.shape[3]), types[one.type])
                       for one in runner.get_inputs() if one.name.startswith("past_key_values.")}
        self.seen = 0

    def feed(self, count):
        begin, end = self.seen, self.seen + count
        values = self.runner.run(None, {"input_ids": self.tokens[:, begin:end], "attention_mask": self.mask[:, :end],
                                        "position_ids": self.positions[:, begin:end], **self.caches})
        named = dict(zip((one.name for one in self.runner.get_outputs()), values))
        self.caches = {name: named[name.replace("past_key_values", "present")] for name in self.caches}
        self.seen = end
        return named["logits"]


def padded(rows):
    """Returns tokens and logits of the rows, the last one moved to the right."""
    moved = {name: value.copy() for name, value in rows.items()}
    for value in moved.values():
        value[-1, PADDING:] = value[-1, :-PADDING].copy()
        value[-1, :PADDING] = 0
    return moved["tokens"], moved["logits"]


def compare(what, got, want, tolerance):
    error = numpy.abs(got - want).max() / numpy.abs(want).max()
    assert numpy.isfinite(got).all() and error <= tolerance, (what, error)
    return error


def check_numbers(what, folder, batch, tolerance):
    tokens, want = padded(batch)
    runner = session(folder / "model.onnx")
    whole = Rows(runner, tokens).feed(tokens.shape[1])
    rows = Rows(runner, tokens)
    steps = numpy.concatenate([rows.feed(PREFILL)] + [rows.feed(1) for _ in range(tokens.shape[1] - PREFILL)], axis=1)
    errors = []
    for got in (whole, steps):
        errors.append(compare(what, got[:-1], want[:-1], tolerance))
        errors.append(compare(what, got[-1, PADDING:], want[-1, PADDING:], tolerance))
    return max(errors)


def check_file(path, opset):
    """The checker of ONNX, with its inference of shapes, and the layout that runtimes map into memory."""
    model = onnx.load(path, load_external_data=False)
    if all(node.domain == "" and node.op_type != "SimplifiedLayerNormalization" for node in model.graph.node):
        onnx.checker.check_model(path, full_check=True)
    versions = {entry.domain: entry.version for entry in model.opset_import}
    assert versions[""] == opset and set(versions) <= {"", "com.microsoft"}, versions
    end = 0
    for tensor in model.graph.initializer:
        entries = {entry.key: entry.value for entry in tensor.external_data}
        if not entries:
            assert len(tensor.raw_data) < 1024, tensor.name
            continue
        assert entries["location"] == "model.onnx.data" and int(entries["offset"]) % 4096 == 0, tensor.name
        assert int(entries["offset"]) >= end, tensor.name
        end = int(entries["offset"]) + int(entries["length"])
    size = path.with_name("model.onnx.data").stat().st_size
    assert end <= size < end + 4096, (end, size)
    return model


def check_small_models(folder, exports):
    run(SMALL, folder, *exports)
    for one in exports:
        what, dtype, operators, opset = one.split("/")
        place = folder / what / f"{dtype}-{operators}-{opset}"
        check_file(place / "model.onnx", int(opset) or {"standard": 23, "microsoft": 21}[operators])
        error = check_numbers(one, place, safetensors.numpy.load_file(folder / what / "batch.safetensors"), TOLERANCE[dtype])
        print(f"{one}: {error:.1e}")


def greedy(folder, prompt, count):
    model = onnxruntime_genai.Model(str(folder))
    params = onnxruntime_genai.GeneratorParams(model)
    params.set_search_options(max_length=len(prompt) + count, do_sample=False, batch_size=1)
    generator = onnxruntime_genai.Generator(model, params)
    generator.append_tokens(prompt)
    while len(generator.get_sequence(0)) < len(prompt) + count:
        generator.generate_next_token()
    return [int(token) for token in generator.get_sequence(0)[len(prompt):]]


def check_generation(folder, step, operators):
    """onnxruntime-genai opens the folder with its tokenizer, and its greedy tokens are titan-generate's."""
    out = folder / operators
    said = run(BIN / "titan-checkpoint", "export", step, out, "--format", "onnx", "--tokenizer", TOKENIZER, "--onnx-operators", operators)
    assert "warning" not in said and " as float32" in said, said
    names = {path.name for path in out.iterdir()}
    assert {"model.onnx", "model.onnx.data", "genai_config.json", "config.json", "tokenizer.json"} <= names, names
    prompt = [3, 500, 7, 90, 21]
    text = run(BIN / "titan-generate", "--checkpoint", step, "--prompt-tokens", " ".join(map(str, prompt)), "--max-new-tokens", 64, "--ignore-eos",
               "--dtype", "float32", "-o", "json", "--tokenizer", TOKENIZER)
    want = json.loads([line for line in text.splitlines() if line.startswith("{")][-1])["tokens"]
    # Generation stops at the end of a text, which the comparison ignores.
    config = json.loads((out / "genai_config.json").read_text())
    assert config["model"]["eos_token_id"] == [1], config["model"]
    config["model"]["eos_token_id"] = [10**6]
    (out / "genai_config.json").write_text(json.dumps(config))
    got = greedy(out, prompt, 64)
    assert got == want, (operators, got, want)
    return out


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        check_small_models(folder, EXPORTS)
        model = drawn(configs()["llama3", "debugmodel"])
        model.save_pretrained(folder / "in")
        step = folder / "step-0"
        run(BIN / "titan-checkpoint", "import", folder / "in", step, "--model", "llama3", "--flavor", "debugmodel")
        for operators in ("standard", "microsoft"):
            check_generation(folder, step, operators)


main()

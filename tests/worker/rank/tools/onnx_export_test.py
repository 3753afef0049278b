"""Exports models as ONNX, checks the files with ONNX's own package, and runs them with ONNX Runtime and onnxruntime-genai: logits of Titan's
own model for left-padded rows at once and token by token with caches, greedy tokens of titan-generate, layout of the data, refusals and damage.

Only --long runs every small model in every form, every opset, and a data file above 2 GiB."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import numpy
import onnx
import onnxruntime
import onnxruntime_genai
import safetensors.numpy

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "testing"))
from paths import BIN

LONG = "--long" in sys.argv
TOKENIZER = pathlib.Path(os.environ["TITAN_DEPS"]) / "assets/tokenizer"
SMALL = BIN.parent / "tests/export_small_onnx"
# MODEL/DTYPE/OPERATORS/OPSET. Names of models are those of tests/worker/rank/model/testing.h.
EXPORTS = ["llama/float32/standard/0", "llama/float16/standard/0", "llama/bfloat16/standard/0", "llama_tied/float32/microsoft/0", "qwen3/float32/standard/24",
           "qwen3_experts/float32/standard/0", "qwen3_experts/float32/microsoft/23", "gpt_oss/float32/standard/0", "gpt_oss/float32/microsoft/0",
           "deepseek_groups/float32/standard/0", "deepseek_yarn/float32/microsoft/0", "llama4_released/float32/standard/25",
           "llama4_irope/float32/microsoft/0"]
# Tolerances as a share of the largest logit.
TOLERANCE = {"float32": 1e-4, "float16": 2e-2}
PREFILL, PADDING = 8, 5


def run(*arguments, expect=0):
    done = subprocess.run([str(word) for word in arguments], capture_output=True, text=True)
    assert done.returncode == expect, (arguments, done.stdout, done.stderr)
    return done.stdout + done.stderr


def export(step, out, *arguments, expect=0):
    return run(BIN / "titan-checkpoint", "export", step, out, "--format", "onnx", *arguments, expect=expect)


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
    of_tokens = numpy.abs(got - want).max(-1) / numpy.abs(want).max()
    # With 16 bits, the router may choose another expert for a few tokens.
    error = numpy.quantile(of_tokens, 0.9 if "float16" in what else 1)
    assert numpy.isfinite(got).all() and error <= tolerance, (what, error, of_tokens)
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
    said = run(SMALL, folder, *exports)
    assert ("warning: ONNX Runtime's CPU provider does not compute in bfloat16" in said) == any("bfloat16" in one for one in exports), said
    for one in exports:
        what, dtype, operators, opset = one.split("/")
        place = folder / what / f"{dtype}-{operators}-{opset}"
        model = check_file(place / "model.onnx", int(opset) or {"standard": 23, "microsoft": 21}[operators])
        assert model.model_version == 7 and model.producer_name == "Titan", model.producer_name
        if dtype == "bfloat16":
            continue  # Not on this runtime's CPU.
        error = check_numbers(one, place, safetensors.numpy.load_file(folder / what / "batch.safetensors"), TOLERANCE[dtype])
        print(f"{one}: {error:.1e}")


def every_form():
    """All small models whose rows are one document, in both forms and with 16 bits."""
    for what in run(SMALL).split():
        if "documents" not in what:
            yield from (f"{what}/float32/standard/{opset}" for opset in (23, 24, 25))
            yield f"{what}/float16/standard/0"
            # Other small models of DeepSeek have heads of 10, which GroupQueryAttention has not.
            if not what.startswith("deepseek") or what == "deepseek_yarn":
                yield from (f"{what}/{dtype}/microsoft/{opset}" for dtype, opset in (("float32", 21), ("float32", 25), ("float16", 0)))


def check_large(folder):
    """Tensors that lie beyond 2 GiB of the data file. The large model's vocabulary repeats that of the small one."""
    run(SMALL, folder, "llama_tied_large/float32/standard/0")
    place = folder / "llama_tied_large/float32-standard-0"
    model = check_file(place / "model.onnx", 23)
    offsets = [int(entry.value) for tensor in model.graph.initializer for entry in tensor.external_data if entry.key == "offset"]
    assert max(offsets) > 2**31, max(offsets)
    batch = safetensors.numpy.load_file(folder / "llama_tied_large/batch.safetensors")
    vocabulary = batch["logits"].shape[-1]
    got = Rows(session(place / "model.onnx"), batch["tokens"][:, :PADDING + 3] + vocabulary * 500_000).feed(PADDING + 3)
    compare("beyond 2 GiB", got[0, :, -vocabulary:], batch["logits"][0, :PADDING + 3], 1e-4)


def drawn_step(folder, large=1.0):
    """Returns a step of Llama's debug model with random weights, of which one number is `large`."""
    rows = map(json.loads, run(BIN.parent / "tests/list_hf_tensors", 8).splitlines())
    shapes = next(row["tensors"] for row in rows if (row["name"], row["flavor"]) == ("llama3", "debugmodel"))
    random = numpy.random.default_rng(1)
    tensors = {name: random.standard_normal(shape, numpy.float32) * (0.5 if len(shape) == 1 else 0.05) for name, shape in shapes.items()}
    tensors["lm_head.weight"][3, 4] = large
    weights = folder / f"weights-{large}"
    weights.mkdir()
    safetensors.numpy.save_file(tensors, weights / "model.safetensors", {"format": "pt"})
    step = folder / f"large-{large}/step-0"
    run(BIN / "titan-checkpoint", "import", weights, step, "--model", "llama3", "--flavor", "debugmodel")
    return step


def greedy(folder, prompt, count):
    model = onnxruntime_genai.Model(str(folder))
    params = onnxruntime_genai.GeneratorParams(model)
    params.set_search_options(max_length=len(prompt) + count, do_sample=False, batch_size=1)
    generator = onnxruntime_genai.Generator(model, params)
    generator.append_tokens(prompt)
    while len(generator.get_sequence(0)) < len(prompt) + count:
        generator.generate_next_token()
    return [int(token) for token in generator.get_sequence(0)[len(prompt):]]


def check_generation(folder, step, forms):
    """onnxruntime-genai opens the folder with its tokenizer, and its greedy tokens are titan-generate's."""
    prompt = [3, 500, 7, 90, 21]
    text = run(BIN / "titan-generate", "--checkpoint", step, "--prompt-tokens", " ".join(map(str, prompt)), "--max-new-tokens", 64, "--ignore-eos",
               "--dtype", "float32", "-o", "json", "--tokenizer", TOKENIZER, "--threads", 1)
    want = json.loads([line for line in text.splitlines() if line.startswith("{")][-1])["tokens"]
    for operators in forms:
        out = folder / operators
        said = export(step, out, "--tokenizer", TOKENIZER, "--onnx-operators", operators)
        assert "warning" not in said and " as float32" in said, said
        names = {path.name for path in out.iterdir()}
        assert {"model.onnx", "model.onnx.data", "genai_config.json", "config.json", "tokenizer.json"} <= names, names
        config = json.loads((out / "genai_config.json").read_text())
        assert config["model"]["bos_token_id"] == 0 and config["model"]["eos_token_id"] == [1], config["model"]
        # Generation stops at the end of a text, which the comparison does not.
        config["model"]["eos_token_id"] = next(token for token in range(2048) if token not in want)
        (out / "genai_config.json").write_text(json.dumps(config))
        assert greedy(out, prompt, 64) == want, operators
    tokenizer = onnxruntime_genai.Tokenizer(onnxruntime_genai.Model(str(out)))
    assert tokenizer.decode(tokenizer.encode("once upon a time")).strip() == "once upon a time"


def check_small_generation(folder):
    """onnxruntime-genai runs every family, also one whose keys and values have different sizes, and a folder without a tokenizer."""
    for what in ("gpt_oss", "deepseek_yarn", "llama4_released", "qwen3_experts"):
        for operators in ("standard-23", "microsoft-21"):
            place = folder / what / f"float32-{operators}"
            prompt = [3, 5, 7, 9, 21]
            tokens = prompt + greedy(place, prompt, 30)
            rows = Rows(session(place / "model.onnx"), numpy.array([[0] * PADDING + tokens]))
            logits = rows.feed(PADDING + len(tokens))[0, PADDING + len(prompt) - 1:-1]
            assert logits.argmax(-1).tolist() == tokens[len(prompt):], place


def check_damage(folder, exported):
    """The runtime does not open a model whose data is missing or short."""
    for size, says in ((None, "model.onnx.data"), (10**6, "file_length: 1000000 are out of bounds")):
        broken = shutil.copytree(exported, folder / f"broken-{size}")
        if size is None:
            (broken / "model.onnx.data").unlink()
        else:
            os.truncate(broken / "model.onnx.data", size)
        try:
            session(broken / "model.onnx")
        except Exception as error:  # The package has no class for it.
            assert says in str(error), error
        else:
            raise AssertionError(f"opened with data of {size} bytes")


def refused(folder, step, *arguments, says, expect=1):
    said = export(step, folder / "no", *arguments, expect=expect)
    assert says in said and not (folder / "no").exists(), said


def check_refusals(folder, step):
    """Nothing is written, and the message names the cause and the flag that helps."""
    refused(folder, step, "--onnx-opset", 22, says="--onnx-opset 22 has no RMSNormalization, RotaryEmbedding and Attention: use 23 or later, or "
            "--onnx-operators microsoft")
    said = run(BIN / "titan-checkpoint", "export", step, folder / "no", "--onnx-opset", 23, expect=2)
    assert "--onnx-operators and --onnx-opset are for --format onnx" in said, said


def check_bad_values(folder):
    """Numbers beyond float16 and damaged shards."""
    large = drawn_step(folder, 1e6)
    refused(folder, large, "--dtype", "float16", says="model.output.weight: 1 number, 1e+06, is beyond float16")
    assert "warning: model.output.weight" in export(large, folder / "infinite", "--dtype", "float16", "--allow-overflow")
    shard = next(large.glob("*.safetensors"))
    bytes_of_shard = bytearray(shard.read_bytes())
    bytes_of_shard[len(bytes_of_shard) // 2] ^= 1
    shard.write_bytes(bytes_of_shard)
    refused(folder, large, says=shard.name)


def check_many_experts(folder):
    """Standard operators compute all experts of a large mixture, which the export says."""
    rows = map(json.loads, run(BIN.parent / "tests/list_hf_tensors", 8).splitlines())
    row = next(row for row in rows if (row["name"], row["flavor"]) == ("qwen3", "debugmodel_moe"))
    weights = folder / "experts"
    weights.mkdir()
    safetensors.numpy.save_file({name: numpy.zeros(shape, numpy.float32) for name, shape in row["tensors"].items()}, weights / "model.safetensors",
                                {"format": "pt"})
    step = folder / "experts-step/step-0"
    run(BIN / "titan-checkpoint", "import", weights, step, "--model", "qwen3", "--flavor", "debugmodel_moe")
    said = export(step, folder / "dense")
    assert "--onnx-operators microsoft computes only those" in said, said
    assert "warning" not in export(step, folder / "sparse", "--onnx-operators", "microsoft").replace("warning: config.json names no token", ""), said


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        check_small_models(folder, list(every_form()) if LONG else EXPORTS)
        step = drawn_step(folder)
        check_generation(folder, step, ["standard", "microsoft"] if LONG else ["standard"])
        check_damage(folder, folder / "standard")
        check_refusals(folder, step)
        if LONG:
            check_small_generation(folder)
            check_bad_values(folder)
            check_many_experts(folder)
            check_large(folder)


main()

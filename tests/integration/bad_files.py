"""Jobs with a valid configuration and bad files: tokenizers, datasets, checkpoints, schedules. docs/generated/bad-inputs.md lists them."""

import json
import struct


def _write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path.parent


def _tokenizer(folder, content):
    _write(folder / "tok/tokenizer.json", content if isinstance(content, str) else json.dumps(content))
    return ["--model.hf_assets_path", folder / "tok"]


def _tokenizer_model(folder, content):
    _write(folder / "tok/tokenizer.model", content)
    return ["--model.hf_assets_path", folder / "tok"]


def _data(folder, content, name="data.json", encoding="utf-8"):
    if encoding != "utf-8":
        (_write(folder / "text" / name, "") / name).write_bytes(content.encode(encoding))
        return ["--training.dataset_path", folder / "text"]
    return ["--training.dataset_path", _write(folder / "text" / name, content)]


def _saved_to_disk(folder):
    for name in ("data-00000-of-00001.arrow", "dataset_info.json", "state.json"):
        _write(folder / "saved" / name, "{}")
    return ["--training.dataset_path", folder / "saved"]


def _dangling(folder):
    (folder / "a.jsonl").symlink_to(folder / "gone.jsonl")
    return ["--training.dataset_path", folder / "a.jsonl"]


def _step(folder, step, manifest='{"version": 1}'):
    _write(folder / f"dump/checkpoint/step-{step}/manifest.json", manifest)


def _load_step(folder):
    for step in (10, 20):
        _step(folder, step)
    return ["--checkpoint.enable", "--checkpoint.load_step", "15"]


def _initial(folder, *extra):
    return ["--checkpoint.enable", "--checkpoint.initial_load_path", folder, *extra]


def _hf_weights(folder, config, *extra):
    """Makes weights with only a valid config.json: the rest is not read before the job is queued."""
    (_write(folder / "hf/config.json", json.dumps(config)) / "model.safetensors").write_text("")
    return _initial(folder / "hf", "--checkpoint.initial_load_in_hf", *extra)


def _tower(folder, config=None):
    """A vision-language job whose tower comes from `folder`."""
    if config:
        (_write(folder / "config.json", json.dumps(config)) / "model.safetensors").write_text("")
    return ["--model.name", "vlm", "--model.flavor", "debugmodel", "--training.dataset", "cc12m", "--validation.no_enable", "--checkpoint.enable",
            "--checkpoint.initial_load_vision_path", folder]


SIGLIP = {"model_type": "siglip2_vision_model", "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4}
LLAMA = {"model_type": "llama", "hidden_size": 256, "num_hidden_layers": 6, "num_attention_heads": 16, "intermediate_size": 768,
         "vocab_size": 2048, "rms_norm_eps": 1e-6, "rope_theta": 1e4, "rope_scaling": None}


def _safetensors_of_another_size(folder):
    header = json.dumps({"model.embed_tokens.weight": {"dtype": "F32", "shape": [200, 64], "data_offsets": [0, 51200]}}).encode()
    return _initial(_write(folder / "hf/model.safetensors", struct.pack("<Q", len(header)) + header + bytes(51200)), "--checkpoint.initial_load_in_hf")


def _shard_missing(folder):
    index = {"weight_map": {"model.norm.weight": "model-00001-of-00002.safetensors", "lm_head.weight": "model-00002-of-00002.safetensors"}}
    _write(folder / "hf/model-00001-of-00002.safetensors", "")
    return _initial(_write(folder / "hf/model.safetensors.index.json", json.dumps(index)), "--checkpoint.initial_load_in_hf")


def _megatron_cut_short(folder):
    _write(folder / "tokens/a.bin", b"\1\0")
    return ["--training.dataset_path", _write(folder / "tokens/a.idx", struct.pack("<9sQ", b"MMIDIDX", 1))]


def _no_chat_template(folder):
    messages = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}
    return [*_tokenizer(folder, _bpe(100)), *_data(folder, json.dumps(messages) + "\n"), "--training.dataloader.messages_key", "messages"]


def _weights_as_tokenizer_folder(folder):
    _tokenizer(folder, _bpe(100))
    _hf_weights(folder / "tok" / "..", {**LLAMA, "num_hidden_layers": 2})
    (folder / "hf/config.json").rename(folder / "tok/config.json")
    (folder / "hf/model.safetensors").rename(folder / "tok/model.safetensors")
    return ["--model.hf_assets_path", folder / "tok", "--checkpoint.enable", "--checkpoint.initial_load_in_hf"]


def _step_of_another_model(folder):
    _step(folder, 40, json.dumps({"version": 1, "model": {"name": "llama3", "flavor": "8B", "dim": 4096}}))
    return _initial(folder / "dump/checkpoint/step-40")


def _step_of_other_data(folder):
    cursor = {"file": 0, "offset": 0, "line": 0, "file_name": "b.jsonl", "files_folder": "/data/", "file_path": "b.jsonl"}
    _step(folder, 40, json.dumps({"version": 1, "train_state": {"dataloader": {"order": "global", "cursor": cursor}}}))
    return [*_data(folder, '{"text": "x"}\n', "a.jsonl"), "--job.dump_folder", folder / "dump", "--checkpoint.enable"]


def _pad_token_of_config(folder):
    _write(folder / "tok/tokenizer_config.json", json.dumps({"pad_token": "<pad>", "eos_token": "t7"}))
    return _tokenizer(folder, _bpe(2048))


def _checkpoint_folder(folder):
    _step(folder, 40)
    return _initial(folder / "dump/checkpoint")


def _damaged_manifest(folder):
    _step(folder, 40, "{ half")
    return _initial(folder / "dump/checkpoint/step-40")


def _empty(folder, name):
    (folder / name).mkdir(parents=True)
    return folder / name


def _schedule(folder, rows):
    _write(folder / "schedule.csv", rows)
    return _pipeline(folder / "schedule.csv")


def _pipeline(path):
    return ["--nproc", "2", "--parallelism.pipeline_parallel_degree", "2", "--training.local_batch_size", "2",
            "--parallelism.pipeline_parallel_schedule_csv", path]


def _bpe(size):
    return {"model": {"type": "BPE", "vocab": {f"t{i}": i for i in range(size)}, "merges": []}}


# Name, arguments (made in an empty folder), key, and texts that the message must contain as well.
CASES = [
    ("tokenizer folder missing", lambda f: ["--model.hf_assets_path", _empty(f, "tokenizer").parent / "tokenzier"],
     "model.hf_assets_path", ["tokenzier", "no such folder", "did you mean", "tokenizer?"]),
    ("tokenizer folder from another machine", lambda f: ["--model.hf_assets_path", _empty(f, "tests").parent / "assets/hf/Llama"],
     "model.hf_assets_path", ["no such folder", "titanctl assets get ORG/NAME --assets tokenizer",
                              "if only the nodes have it, --no-file-checks skips this check"]),
    ("misspelt folder in the middle of a path",
     lambda f: ["--model.hf_assets_path", _empty(f, "assets/tokenizer").parent.parent / "asets/tokenizer"],
     "model.hf_assets_path", ["no such folder", "did you mean", "assets/tokenizer?"]),
    ("tokenizer.json missing", lambda f: ["--model.hf_assets_path", _empty(f, "tok")], "model.hf_assets_path",
     ["no tokenizer.json", "titanctl assets get ORG/NAME --assets tokenizer"]),
    ("tokenizer.json is not JSON", lambda f: _tokenizer(f, "<html>"), "model.hf_assets_path", ["not a Hugging Face tokenizer"]),
    ("tokenizer.json without a model", lambda f: _tokenizer(f, {"version": "1.0"}), "model.hf_assets_path",
     ["not a Hugging Face tokenizer"]),
    ("unsupported tokenizer type", lambda f: _tokenizer(f, {"model": {"type": "WordPiece", "vocab": {}}}), "model.hf_assets_path",
     ["WordPiece", "BPE and Unigram are read"]),
    ("Unigram without a vocabulary", lambda f: _tokenizer(f, {"model": {"type": "Unigram", "vocab": []}}), "model.hf_assets_path",
     ["no vocabulary"]),
    ("tokenizer.model of unknown format", lambda f: _tokenizer_model(f, "<html>"), "model.hf_assets_path",
     ["tokenizer.model", "neither a SentencePiece model nor tiktoken's lines"]),
    ("truncated SentencePiece model", lambda f: _tokenizer_model(f, "\n\x20a"), "model.hf_assets_path",
     ["tokenizer.model", "not a SentencePiece model", "truncated"]),
    ("tiktoken file with a damaged line", lambda f: _tokenizer_model(f, "IQ== 0\nIg==\n"), "model.hf_assets_path",
     ["tokenizer.model", "line 2", "not a token in base64 with its rank"]),
    ("truncated tiktoken file", lambda f: _tokenizer_model(f, "IQ== 0\n"), "model.hf_assets_path", ["tokenizer.model", "byte 0x00"]),
    ("tokenizer without a vocabulary", lambda f: _tokenizer(f, {"model": {"type": "BPE", "vocab": {}}}), "model.hf_assets_path",
     ["no vocabulary"]),
    ("token without an id", lambda f: _tokenizer(f, {"model": {"type": "BPE", "vocab": {"a": "x"}}}),
     "model.hf_assets_path", ['token "a" has no number']),
    ("tokenizer larger than the model's vocabulary", lambda f: _tokenizer(f, _bpe(2050)), "model.hf_assets_path",
     ["largest token is 2049", "vocabulary of 2048"]),
    ("pad token of tokenizer_config.json beyond the vocabulary", _pad_token_of_config, "model.hf_assets_path",
     ["largest token is 2048", "vocabulary of 2048"]),
    ("data folder missing", lambda f: ["--training.dataset_path", _empty(f, "texts").parent / "text"], "training.dataset_path",
     ["no such file or folder", "did you mean", "texts?"]),
    ("data folder without data", lambda f: ["--training.dataset_path", _write(f / "text/readme.md", "hello")], "training.dataset_path",
     ["holds no *.json"]),
    ("data file empty", lambda f: _data(f, ""), "training.dataset_path", ["data.json is empty"]),
    ("data is plain text", lambda f: _data(f, "Once upon a time\n"), "training.dataset_path", ["data.json:1", "Once upon a time"]),
    ("data lines without text", lambda f: _data(f, '{"content": "x"}\n'), "training.dataset_path", ["data.json:1", '"text"']),
    ("data with a number as text", lambda f: _data(f, '{"text": 5}\n', "a.jsonl"), "training.dataset_path", ["a.jsonl:1", '"text"']),
    ("pattern that matches nothing", lambda f: ["--training.dataset_path", _empty(f, "text") / "*.json"], "training.dataset_path",
     ["no file matches this pattern"]),
    ("data in an array", lambda f: _data(f, '[\n{"text": "x"},\n{"text": "y"}\n]\n'), "training.dataset_path", ["data.json:1", "inside an array", "jq -c '.[]'"]),
    ("data in multi-line objects", lambda f: _data(f, '{\n "text": "x"\n}\n'), "training.dataset_path", ["data.json:1", "inside an object", "jq -c ."]),
    ("data in UTF-16", lambda f: _data(f, '{"text": "x"}\n', encoding="utf-16"), "training.dataset_path", ["data.json:1", "UTF-16", "iconv"]),
    ("data in ShareGPT format", lambda f: _data(f, '{"conversations": [{"from": "human", "value": "x"}]}\n'), "training.dataset_path",
     ["data.json:1", "ShareGPT"]),
    ("data in Alpaca format", lambda f: _data(f, '{"instruction": "x", "input": "", "output": "y"}\n'), "training.dataset_path",
     ["data.json:1", "Alpaca"]),
    ("folder written by datasets.save_to_disk", _saved_to_disk, "training.dataset_path", ["data-00000-of-00001.arrow is Arrow's format", "to_parquet"]),
    ("data compressed with xz", lambda f: ["--training.dataset_path", _write(f / "text/a.jsonl.xz", "")], "training.dataset_path",
     ["a.jsonl.xz is compressed by xz", "unxz"]),
    ("all first lines malformed", lambda f: _data(f, "x\n" * 101 + '{"text": "y"}\n'), "training.dataset_path",
     ["first 101 lines are malformed", "max_bad_lines = 100", "data.json:1"]),
    ("truncated Parquet file", lambda f: ["--training.dataset_path", _write(f / "text/a.parquet", b"PAR1" + bytes(40))], "training.dataset_path",
     ["a.parquet: cannot be read as Parquet", "does not end with PAR1, so it is truncated"]),
    ("truncated Megatron-LM index", _megatron_cut_short, "training.dataset_path", ["a.idx: is truncated"]),
    ("token index with an incomplete manifest", lambda f: ["--training.dataset_path", _write(f / "tokens/titan-tokens.json", "{}")],
     "training.dataset_path", ["titan-tokens.json: is not a manifest of a token index"]),
    ("environment variable in the data path", lambda f: ["--training.dataset_path", "$DATA/text"], "training.dataset_path",
     ["no such file or folder: environment variables are not expanded in a configuration"]),
    ("conversations without a chat template", _no_chat_template, "model.hf_assets_path",
     ["the tokenizer has no chat template", "chat_template.jinja"]),
    ("tokenizer folder is a file", lambda f: ["--model.hf_assets_path", _write(f / "tok/tokenizer.json", "{}") / "tokenizer.json"], "model.hf_assets_path",
     ["is a file, and a folder is needed", "did you mean", "tok?"]),
    ("initial weights are a file", lambda f: _initial(_write(f / "hf/model.safetensors", "") / "model.safetensors"), "checkpoint.initial_load_path",
     ["is a file, and a folder is needed", "did you mean", "hf?"]),
    ("pipeline schedule is a folder", lambda f: _pipeline(_empty(f, "order.csv")), "parallelism.pipeline_parallel_schedule_csv",
     ["is a folder, and a file is needed"]),
    ("dangling link to data", _dangling, "training.dataset_path", ["is a link to nothing"]),
    ("validation data missing", lambda f: ["--validation.dataset_path", f / "nowhere"], "validation.dataset_path",
     ["no such file or folder"]),
    ("initial weights missing", lambda f: _initial(f / "step-7"), "checkpoint.initial_load_path", ["no such folder"]),
    ("initial weights are a folder of steps", _checkpoint_folder, "checkpoint.initial_load_path", ["no manifest.json", "step-40"]),
    ("initial checkpoint damaged", _damaged_manifest, "checkpoint.initial_load_path", ["not JSON", "damaged"]),
    ("vision tower missing", lambda f: _tower(f / "siglip"), "checkpoint.initial_load_vision_path", ["no such folder"]),
    ("vision tower without weights", lambda f: _tower(_write(f / "siglip/pytorch_model.bin", "x")), "checkpoint.initial_load_vision_path",
     ["no *.safetensors"]),
    ("vision tower of other numbers", lambda f: _tower(f / "siglip", SIGLIP), "checkpoint.initial_load_vision_path",
     ["config.json says num_attention_heads 4, need 2"]),
    ("initial weights are not safetensors", lambda f: _initial(_write(f / "hf/pytorch_model.bin", "x"), "--checkpoint.initial_load_in_hf"),
     "checkpoint.initial_load_path", ["no *.safetensors"]),
    ("initial weights of another size", lambda f: _hf_weights(f, {**LLAMA, "num_hidden_layers": 2}), "checkpoint.initial_load_path",
     ["config.json says num_hidden_layers 2, this model has 6", "set model.flavor = \"config.json\""]),
    ("initial weights with an embedding of another size", _safetensors_of_another_size, "checkpoint.initial_load_path",
     ["model.safetensors holds model.embed_tokens.weight of [200,64]", "a vocabulary of 2048 and dim 256"]),
    ("initial weights that lack a file", _shard_missing, "checkpoint.initial_load_path",
     ["lacks model-00002-of-00002.safetensors, which model.safetensors.index.json names"]),
    ("initial weights of another family", lambda f: _hf_weights(f, {"model_type": "qwen3"}), "checkpoint.initial_load_path",
     ['config.json says model_type "qwen3", this model has "llama"']),
    ("initial weights of another flavor", lambda f: _hf_weights(f, LLAMA, "--model.flavor", "8B"), "checkpoint.initial_load_path",
     ["hidden_size 256, this model has 4096", 'model.flavor = "debugmodel"']),
    ("initial weights of an unsupported family", lambda f: _hf_weights(f, {"model_type": "mamba"}), "checkpoint.initial_load_path",
     ['model_type is "mamba"', "smollm3 is supported"]),
    ("initial weights with an unsupported rope_scaling", lambda f: _hf_weights(f, {**LLAMA, "rope_scaling": {
        "rope_type": "dynamic", "factor": 2}}), "checkpoint.initial_load_path", ["rope_scaling is"]),
    ("weights of another size next to the tokenizer", _weights_as_tokenizer_folder, "model.hf_assets_path",
     ["num_hidden_layers 2, this model has 6"]),
    ("initial checkpoint of another model", _step_of_another_model, "checkpoint.initial_load_path", ["holds llama3 8B", "dim 4096, this model has 256"]),
    ("dump folder with a step from other data", _step_of_other_data, "training.dataset_path",
     ["step-40, which was saved in other data", 'file 0 of the dataset was "b.jsonl" and is "a.jsonl" now']),
    ("step to load missing", _load_step, "checkpoint.load_step", ["15", "10, 20", "20"]),
    ("dump folder is a file", lambda f: ["--job.dump_folder", _write(f / "x/out", "") / "out"], "job.dump_folder", ["is a file"]),
    ("dump folder under a file", lambda f: ["--job.dump_folder", _write(f / "x/out", "") / "out/run"], "job.dump_folder",
     ["is a file", "cannot be made"]),
    ("model library missing", lambda f: ["--experimental.custom_import", _write(f / "mine/model.so", "") / "modle.so"],
     "experimental.custom_import", ["no such file", "did you mean", "model.so?"]),
    ("pipeline schedule missing", lambda f: _pipeline(_write(f / "mine/order.csv", "0F0") / "ordre.csv"),
     "parallelism.pipeline_parallel_schedule_csv", ["no such file", "did you mean", "order.csv?"]),
    ("pipeline schedule with an unknown cell", lambda f: _schedule(f, "0F0,0F1,0B0,0B1\n1F0,1G0,1F1,1B1\n"),
     "parallelism.pipeline_parallel_schedule_csv", ["row 2, column 2", "1G0"]),
    ("pipeline schedule with missing work", lambda f: _schedule(f, "0F0,0F1,0B0,0B1\n1F0,1B0,1F1\n"),
     "parallelism.pipeline_parallel_schedule_csv", ["row 2 has no backward pass of stage 1 for microbatch 1"]),
    ("pipeline schedule whose ranks wait for each other", lambda f: _schedule(f, "0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n"),
     "parallelism.pipeline_parallel_schedule_csv", ["wait for each other forever", "row 2, column 2: 1F1 waits for the output of stage 0"]),
    ("pipeline schedule for another batch", lambda f: _schedule(f, "0F0,0B0\n1F0,1B0\n"),
     "parallelism.pipeline_parallel_schedule_csv", ["is for 1 microbatch,", "makes 2"]),
]

"""Compares titan-generate with transformers: the same greedy text, token for token, for every family, from a folder that
transformers wrote.

--long also generates on two ranks for the families that torchtitan lacks, and compares them with transformers 5."""

import gzip
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

import safetensors.torch
import tokenizers
import torch
import torch.distributed.checkpoint
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "testing"))
from paths import BIN
from transformers_5 import is_second_run, run_again_with_5  # noqa: E402

LONG = "--long" in sys.argv
TORCHTITAN = ("llama3", "qwen3", "deepseek", "gpt-oss", "llama4")  # Its families, by the beginnings of their cases.
NEW = 24  # New tokens: enough for texts that are longer than windows and chunks.
SMALL = dict(vocab_size=320, hidden_size=48, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
             intermediate_size=80, max_position_embeddings=512, bos_token_id=1, eos_token_id=2, pad_token_id=0)
YARN = dict(rope_type="yarn", factor=8.0, beta_fast=32.0, beta_slow=1.0, original_max_position_embeddings=32)
DEEPSEEK = {**{key: value for key, value in SMALL.items() if key != "head_dim"}, "num_key_value_heads": 4, "kv_lora_rank": 24, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 10,
            "n_routed_experts": 8, "num_experts_per_tok": 3, "n_shared_experts": 1, "moe_intermediate_size": 32, "first_k_dense_replace": 1}
NO_HEAD_DIM = {key: value for key, value in SMALL.items() if key != "head_dim"}  # Classes without this key.
# Keyed by their features.
MODELS = {
    "llama3": ("llama", {**SMALL, "rope_theta": 500000.0, "rope_scaling": dict(
        rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32)}),
    "llama3, tied and without scaling": ("llama", {**SMALL, "tie_word_embeddings": True}),
    "qwen3": ("qwen3", {**SMALL, "rope_theta": 1e6}),
    "qwen3 with experts": ("qwen3_moe", {**SMALL, "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32, "norm_topk_prob": True}),
    "deepseek v3, groups, q-LoRA and YaRN": ("deepseek_v3", {**DEEPSEEK, "q_lora_rank": 20, "n_group": 4, "topk_group": 2, "rope_scaling": {
        **YARN, "mscale": 1.0, "mscale_all_dim": 1.0}}),
    "deepseek v3": ("deepseek_v3", {**DEEPSEEK, "q_lora_rank": None, "n_group": 1, "topk_group": 1}),
    "gpt-oss, windows and sinks": ("gpt_oss", {**SMALL, "sliding_window": 7, "num_local_experts": 8, "num_experts_per_tok": 3, "rope_scaling": {
        **YARN, "truncate": False, "original_max_position_embeddings": 4096}, "layer_types": ["sliding_attention", "full_attention"] * 2}),
    "llama4, chunks and layers without positions": ("llama4_text", {
        **SMALL, "intermediate_size_mlp": 64, "num_local_experts": 4, "num_experts_per_tok": 1, "interleave_moe_layer_step": 2,
        "attention_chunk_size": 16, "floor_scale": 16, "attn_scale": 0.1, "attn_temperature_tuning": True, "use_qk_norm": True,
        "no_rope_layers": [1, 1, 1, 0]}),
    "mistral, windows": ("mistral", {**SMALL, "sliding_window": 7, "rope_theta": 1e6}),
    "mistral, no window": ("mistral", {**SMALL, "sliding_window": None, "tie_word_embeddings": True}),
    "mixtral": ("mixtral", {**SMALL, "num_local_experts": 6, "num_experts_per_tok": 2}),
    "mixtral, windows and three experts": ("mixtral", {**SMALL, "num_local_experts": 8, "num_experts_per_tok": 3, "sliding_window": 9}),
    "qwen2": ("qwen2", {**NO_HEAD_DIM, "tie_word_embeddings": True}),
    "qwen2, windows in its last layers": ("qwen2", {**NO_HEAD_DIM, "use_sliding_window": True, "sliding_window": 7, "max_window_layers": 2}),
    "smollm3": ("smollm3", {**NO_HEAD_DIM, "rope_theta": 5e6}),
    "smollm3, biases and other layers without positions": ("smollm3", {
        **NO_HEAD_DIM, "attention_bias": True, "mlp_bias": True, "no_rope_layers": [0, 1, 0, 1]}),
    "llama with biases": ("llama", {**SMALL, "attention_bias": True, "mlp_bias": True}),
    "qwen3 with biases and windows": ("qwen3", {**SMALL, "attention_bias": True, "use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1}),
    "phi3, windows": ("phi3", {**NO_HEAD_DIM, "sliding_window": 7}),
    "phi3, half of each head rotated": ("phi3", {**NO_HEAD_DIM, "partial_rotary_factor": 0.5, "tie_word_embeddings": True}),
    "olmo2": ("olmo2", NO_HEAD_DIM),
    "olmo2 with biases": ("olmo2", {**NO_HEAD_DIM, "attention_bias": True, "rope_scaling": dict(type="linear", factor=2.0)}),
    "glm4": ("glm4", {**SMALL, "partial_rotary_factor": 0.5}),
    "glm4 without biases": ("glm4", {**SMALL, "attention_bias": False, "partial_rotary_factor": 0.25}),
    "gemma2": ("gemma2", {**SMALL, "sliding_window": 7, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0, "query_pre_attn_scalar": 10}),
    "gemma2 without caps": ("gemma2", {**SMALL, "sliding_window": 9, "attn_logit_softcapping": None, "final_logit_softcapping": None, "query_pre_attn_scalar": 16,
                                       "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]}),
    "gemma3": ("gemma3_text", {**SMALL, "num_hidden_layers": 7, "sliding_window": 7, "rope_scaling": dict(rope_type="linear", factor=8.0), "query_pre_attn_scalar": 16}),
    "gemma3 with a cap": ("gemma3_text", {**SMALL, "sliding_window": 9, "final_logit_softcapping": 3.0, "query_pre_attn_scalar": 20, "rope_local_base_freq": 500.0,
                                          "layer_types": ["sliding_attention", "full_attention"] * 2}),
    "granite": ("granite", {**NO_HEAD_DIM, "embedding_multiplier": 3.0, "logits_scaling": 2.0, "residual_multiplier": 0.4, "attention_multiplier": 0.3}),
    "granite with biases": ("granite", {**NO_HEAD_DIM, "attention_bias": True, "mlp_bias": True, "logits_scaling": 0.5, "attention_multiplier": 0.1}),
}
# Second configurations of families, which take a while.
if not LONG:
    for name in ("mistral, no window", "mixtral, windows and three experts", "qwen2", "smollm3", "qwen3 with biases and windows", "phi3, windows",
                 "olmo2 with biases", "glm4 without biases", "gemma2 without caps", "gemma3 with a cap", "granite with biases"):
        del MODELS[name]
# Configurations with keys that change the numbers: the tokens equal those of transformers, or the error names the key.
LINEAR, THIRD = {"rope_type": "linear", "factor": 3.0}, {"mscale": 0.7, "mscale_all_dim": 0.7}
SECOND = {**DEEPSEEK, "q_lora_rank": None}  # DeepSeek's second generation, without and with groups.
GPT_OSS = {**SMALL, "sliding_window": 7, "num_local_experts": 8, "num_experts_per_tok": 3}
KEYS = {
    "llama, the class's theta and epsilon": ("llama", SMALL, None),
    "llama, linear": ("llama", {**SMALL, "rope_scaling": LINEAR}, None),
    "llama, YaRN with exact bounds": ("llama", {**SMALL, "rope_scaling": {**YARN, "truncate": False}}, None),
    "llama, YaRN that leaves the rotation alone": ("llama", {**SMALL, "rope_scaling": {**YARN, "attention_factor": 1.0}}, None),
    "llama, YaRN": ("llama", {**SMALL, "rope_scaling": YARN}, None),
    "llama, dynamic": ("llama", {**SMALL, "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "rope_"),
    "qwen3, linear": ("qwen3", {**SMALL, "rope_scaling": LINEAR}, None),
    "qwen3 with experts, the class's norm_topk_prob": (
        "qwen3_moe", {**SMALL, "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32}, None),
    "deepseek v2": ("deepseek_v2", {**SECOND, "topk_method": "greedy"}, None),
    "deepseek v2, groups ranked by their best expert": (
        "deepseek_v2", {**SECOND, "topk_method": "group_limited_greedy", "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2}, None),
    "deepseek v3, halves turn together": ("deepseek_v3", {**DEEPSEEK, "q_lora_rank": None, "n_group": 1, "topk_group": 1,
                                                          "rope_interleave": False}, None),
    "deepseek v3, YaRN": ("deepseek_v3", {**DEEPSEEK, "q_lora_rank": 20, "n_group": 4, "topk_group": 2, "rope_scaling": {**YARN, **THIRD}}, None),
    "deepseek v3, linear": ("deepseek_v3", {**DEEPSEEK, "q_lora_rank": 20, "n_group": 4, "topk_group": 2, "rope_scaling": LINEAR}, None),
    "deepseek v3, YaRN with a custom factor": ("deepseek_v3", {
        **DEEPSEEK, "q_lora_rank": 20, "n_group": 4, "topk_group": 2, "rope_scaling": {**YARN, **THIRD, "attention_factor": 1.5}}, "mscale_all_dim"),
    "gpt-oss, the class's YaRN": ("gpt_oss", {**GPT_OSS, "max_position_embeddings": 131072}, None),
    "gpt-oss, YaRN whose blend leaves the pairs": ("gpt_oss", {**GPT_OSS, "rope_scaling": {**YARN, "truncate": False}}, None),
    "gpt-oss, YaRN with a custom factor": ("gpt_oss", {**GPT_OSS, "rope_scaling": {**YARN, "truncate": False, "attention_factor": 1.9}}, None),
}
if is_second_run():
    KEYS |= {name: (*MODELS[name], None) for name in MODELS if name.startswith(("llama4", "qwen3 with experts"))}
    KEYS |= {name: (*MODELS[name], None) for name in MODELS if LONG and not name.startswith(TORCHTITAN)}
    # transformers 4 does not scale the scores of the second generation; the releases do.
    KEYS["deepseek v2, YaRN"] = ("deepseek_v2", {**SECOND, "rope_scaling": {**YARN, **THIRD}}, None)
PROMPTS = [[7, 300, 21, 5, 90], [11], [(i * i * 7 + i) % 320 for i in range(23)]]


def make(folder, kind, config):
    torch.manual_seed(3)
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(kind, **config), attn_implementation="eager").float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * (0.5 if parameter.dim() == 1 else 0.15))
    model.save_pretrained(folder)
    # transformers computes DeepSeek's experts only in float32; version 5 also those of Qwen3 and GPT-OSS.
    only_float = kind.startswith("deepseek") or (is_second_run() and kind in ("qwen3_moe", "gpt_oss"))
    return model if only_float else model.double()


def likeliest(model, prompt, new=NEW):
    ids = torch.tensor([prompt])
    with torch.no_grad():
        return model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=new, eos_token_id=10**6, pad_token_id=0)[0, len(prompt):].tolist()


def generate(checkpoint, *args, expect=0, stdin=None):
    done = subprocess.run([BIN / "titan-generate", "--checkpoint", checkpoint, *map(str, args)], capture_output=True, text=True, input=stdin)
    assert done.returncode == expect, (args, done.returncode, done.stdout, done.stderr)
    return done


def lines(done):
    return [json.loads(line) for line in done.stdout.splitlines()]


def as_args(prompts):
    return [word for prompt in prompts for word in ("--prompt-tokens", " ".join(map(str, prompt)))]


class KeysTest(unittest.TestCase):
    def test_every_key_is_applied_or_refused_by_name(self):
        for name, (kind, config, refused) in KEYS.items():
            with self.subTest(name), tempfile.TemporaryDirectory() as folder:
                model = make(folder, kind, config)
                args = [*as_args(PROMPTS), "--max-new-tokens", 12, "--ignore-eos", "--dtype", str(model.dtype)[len("torch."):], "-o", "json"]
                if refused:
                    self.assertIn(refused, generate(folder, *args, expect=2).stderr)
                    continue
                got = generate(folder, *args)
                self.assertEqual([line["tokens"] for line in lines(got)], [likeliest(model, prompt, 12) for prompt in PROMPTS])
                self.assertNotIn("warning", got.stderr)


@unittest.skipIf(is_second_run(), "only with transformers 4: the two generations differ in their keys, not in their tokens")
class FamiliesTest(unittest.TestCase):
    def test_greedy_text_equals_transformers(self):
        for name, (kind, config) in MODELS.items():
            with self.subTest(name), tempfile.TemporaryDirectory() as folder:
                model = make(folder, kind, config)
                want = [likeliest(model, prompt) for prompt in PROMPTS]
                for ranks in (1, 2) if LONG or name.startswith(TORCHTITAN) else (1,):
                    got = generate(folder, *as_args(PROMPTS), "--max-new-tokens", NEW, "--ignore-eos", "--dtype", str(model.dtype)[len("torch."):],
                                   "--tensor-parallel", ranks, "-o", "json", "--threads", 2)
                    self.assertEqual([line["tokens"] for line in lines(got)], want, f"{ranks} ranks")
                    self.assertNotIn("warning", got.stderr)


@unittest.skipIf(is_second_run(), "only with transformers 4")
class TextTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        cls.folder = pathlib.Path(cls.scratch.name)
        cls.model = make(cls.folder, *MODELS["llama3"])
        made = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token=None))
        made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = tokenizers.decoders.ByteLevel()
        made.train_from_iterator(["the cat sat on the mat, and then the cat ate the rat"] * 3, tokenizers.trainers.BpeTrainer(
            vocab_size=300, initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(), special_tokens=["<pad>", "<bos>", "<eos>"]))
        made.post_processor = tokenizers.processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 1)])
        cls.tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>")
        cls.tokenizer.save_pretrained(cls.folder)

    @classmethod
    def tearDownClass(cls):
        cls.scratch.cleanup()

    def written(self, name, text):
        (self.folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        return self.folder / name

    def text_of(self, prompt):
        tokens = likeliest(self.model, self.tokenizer(prompt)["input_ids"], 12)
        return tokens, self.tokenizer.decode(tokens)

    def test_text_and_json_output(self):
        tokens, text = self.text_of("the cat")
        args = ["--prompt", "the cat", "--max-new-tokens", 12, "--dtype", "float64", "--ignore-eos"]
        self.assertEqual(generate(self.folder, *args, "-q").stdout, text + "\n")
        line, = lines(generate(self.folder, *args, "-o", "json"))
        self.assertEqual(line, {"prompt": "the cat", "text": text, "tokens": tokens, "stopped": False})

    def test_prompts_from_a_file_in_small_batches(self):
        prompts = ["the cat", "a rat sat", "the", "é"]
        (self.folder / "prompts.txt").write_text(
            "\ufeff" + json.dumps({"prompt": "the cat"}) + "\n\n" + json.dumps({"prompt": "a rat sat", "score": float("nan")}) + "\nthe\r\né\n")
        args = ["--max-new-tokens", 12, "--dtype", "float64", "--ignore-eos", "-o", "json", "--batch", 2]
        got = lines(generate(self.folder, "--prompts", self.folder / "prompts.txt", *args))
        self.assertEqual([line["prompt"] for line in got], prompts)
        self.assertEqual([line["tokens"] for line in got], [self.text_of(prompt)[0] for prompt in prompts])
        self.assertEqual(got, lines(generate(self.folder, "--prompts", "-", *args, stdin=(self.folder / "prompts.txt").read_text())))

    def test_stops_at_the_generation_configs_end_of_text(self):
        tokens, _ = self.text_of("the cat")
        (self.folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [tokens[4], 2]}))
        self.addCleanup((self.folder / "generation_config.json").unlink)
        line, = lines(generate(self.folder, "--prompt", "the cat", "--max-new-tokens", 12, "--dtype", "float64", "-o", "json"))
        self.assertEqual(line["tokens"], tokens[:tokens.index(tokens[4])])
        self.assertTrue(line["stopped"])

    def test_warns_of_ignored_generation_settings(self):
        path = self.folder / "generation_config.json"
        self.addCleanup(path.unlink)
        args = ["--prompt", "a", "--max-new-tokens", 1]
        path.write_text(json.dumps({"repetition_penalty": 1.0, "num_beams": 1, "suppress_tokens": [], "temperature": 0.6, "do_sample": True}))
        self.assertNotIn("not applied", generate(self.folder, *args).stderr)
        path.write_text(json.dumps({"repetition_penalty": 1.8, "suppress_tokens": [145], "no_repeat_ngram_size": 2, "eos_token_id": 2}))
        self.assertIn("no_repeat_ngram_size = 2, repetition_penalty = 1.8, suppress_tokens = [145]: not applied here", generate(self.folder, *args).stderr)

    def test_same_seed_gives_the_same_text_on_any_ranks(self):
        args = ["--prompt", "the cat", "--prompt", "a", "--temperature", 1.3, "--top-p", 0.9, "--max-new-tokens", 20, "--dtype", "float64", "-o", "json"]
        one = generate(self.folder, *args, "--seed", 5).stdout
        self.assertEqual(generate(self.folder, *args, "--seed", 5, "--tensor-parallel", 2).stdout, one)
        self.assertNotEqual(generate(self.folder, *args, "--seed", 6).stdout, one)

    def test_generates_from_a_titan_step(self):
        step = self.folder.parent / (self.folder.name + "-step")
        subprocess.run([BIN / "titan-checkpoint", "export", "--help"], check=True, capture_output=True)
        with tempfile.TemporaryDirectory() as root:
            config = json.loads((self.folder / "config.json").read_text())
            config |= {"hidden_size": 256, "num_hidden_layers": 6, "num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 16,
                       "intermediate_size": 768, "vocab_size": 2048, "max_position_embeddings": 131072,
                       "rope_scaling": {**config["rope_scaling"], "original_max_position_embeddings": 8192}}
            weights, step = pathlib.Path(root) / "weights", pathlib.Path(root) / "steps" / "step-0"
            model = make(weights, "llama", {k: v for k, v in config.items() if k not in ("model_type", "architectures")})
            step.parent.mkdir()
            subprocess.run([BIN / "titan-checkpoint", "import", weights, step, "--model", "llama3", "--flavor", "debugmodel"], check=True, capture_output=True)
            for checkpoint in (step, step.parent):
                line, = lines(generate(checkpoint, "--prompt-tokens", "5 6 7", "--max-new-tokens", 8, "--dtype", "float64", "-o", "json"))
                self.assertEqual(line["tokens"], likeliest(model, [5, 6, 7], 8))
            # The ids that end a text are in a file next to the tokenizer, which an export copies.
            assets = pathlib.Path(root) / "assets"
            assets.mkdir()
            shutil.copy(self.folder / "tokenizer.json", assets)
            tokens = likeliest(model, [5, 6, 7], 8)
            (assets / "generation_config.json").write_text(json.dumps({"eos_token_id": [tokens[3]]}))
            line, = lines(generate(step, "--tokenizer", assets, "--prompt-tokens", "5 6 7", "--max-new-tokens", 8, "--dtype", "float64", "-o", "json"))
            self.assertEqual(line["tokens"], tokens[:tokens.index(tokens[3])])
            self.assertTrue(line["stopped"])
            # The last save of a job may be Hugging Face weights (checkpoint.last_save_in_hf): the newest is used.
            newest = step.parent / "step-4"
            shutil.copytree(self.folder, newest)
            with safetensors.safe_open(newest / "model.safetensors", "pt") as file:
                weight_map = {key: "model.safetensors" for key in file.keys()}
            (newest / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
            line, = lines(generate(step.parent, "--prompt-tokens", "5 6 7", "--max-new-tokens", 8, "--dtype", "float64", "--ignore-eos", "-o", "json"))
            self.assertEqual(line["tokens"], likeliest(self.model, [5, 6, 7], 8))
            inspected = subprocess.check_output([BIN / "titan-checkpoint", "inspect", step.parent], text=True)
            self.assertIn(f"{newest}: skipped, holds Hugging Face weights", inspected)
            self.from_torchtitans_names(model, pathlib.Path(root) / "torchtitan")

    # Generates from a folder that torchtitan saved, which holds its training state in addition to the weights.
    def from_torchtitans_names(self, model, folder):
        def interleaved(weight):  # For each head, interleaves the two halves of a rotation.
            return weight.view(16, 2, 8, 256).transpose(1, 2).reshape(256, 256)

        own = {"model.embed_tokens": "tok_embeddings", "model.norm": "norm", "lm_head": "output"}
        parts = {"self_attn.q_proj": "attention.wq", "self_attn.k_proj": "attention.wk", "self_attn.v_proj": "attention.wv",
                 "self_attn.o_proj": "attention.wo", "mlp.gate_proj": "feed_forward.w1", "mlp.down_proj": "feed_forward.w2",
                 "mlp.up_proj": "feed_forward.w3", "input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm"}
        own |= {f"model.layers.{layer}.{theirs}": f"layers.{layer}.{ours}" for layer in range(6) for theirs, ours in parts.items()}
        state = {own[key.removesuffix(".weight")] + ".weight": interleaved(value) if key.endswith(("q_proj.weight", "k_proj.weight")) else value
                 for key, value in model.float().state_dict().items()}
        state |= {"optimizer": {"state.norm.weight.step": torch.tensor(4.0)}, "train_state": {"step": torch.tensor(4)}}
        torch.distributed.checkpoint.save(state, checkpoint_id=folder / "step-4", no_dist=True)
        args = ["--prompt-tokens", "5 6 7", "--model", "llama3", "--max-new-tokens", 8, "--dtype", "float64", "-o", "json"]
        for checkpoint, ranks in ((folder / "step-4", 1), (folder, 2)):
            line, = lines(generate(checkpoint, *args, "--flavor", "debugmodel", "--tensor-parallel", ranks))
            self.assertEqual(line["tokens"], likeliest(model.double(), [5, 6, 7], 8))
        self.assertIn("--model and --flavor", generate(folder, "--prompt-tokens", "5", expect=2).stderr)
        # Refused before it allocates.
        self.assertIn("tok_embeddings.weight is [2048, 256] in the checkpoint, but [128256, 16384]",
                      generate(folder, *args, "--flavor", "405B", expect=1).stderr)

    def test_non_finite_logits_are_an_error(self):
        """Non-finite logits yield no token, with any sampling, in any batch and on any number of ranks."""
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            shutil.copytree(self.folder, folder, dirs_exist_ok=True)
            state = safetensors.torch.load_file(folder / "model.safetensors")
            state["model.layers.1.mlp.down_proj.weight"][3, 4] = float("nan")
            safetensors.torch.save_file(state, folder / "model.safetensors", {"format": "pt"})
            args = ["--prompt", "the cat", "--prompt", "a", "--max-new-tokens", 3, "-o", "json"]
            for more in ([], ["--temperature", 1], ["--temperature", 1, "--top-k", 3], ["--temperature", 1, "--top-p", 0.5],
                         ["--tensor-parallel", 2], ["--batch", 1], ["--dtype", "bfloat16"]):
                with self.subTest(more):
                    failed = generate(folder, *args, *more, expect=1)
                    self.assertRegex(failed.stderr, r"prompt 1: the model.s logits after \d+ tokens are not finite")
                    self.assertEqual(failed.stdout, "")

    def test_refusals_and_exit_codes(self):
        refusals = [
            ([], 2, "no prompt: give --prompt"),
            (["--prompt", "x", "--temperature", -1], 2, "temperature (-1)"),
            (["--prompt", "x", "--temperature", "nan"], 2, "temperature (nan)"),
            (["--prompt", "x", "--temperature", "inf"], 2, "temperature (inf)"),
            (["--prompt", "x", "--top-p", 0], 2, "top-p (0)"),
            (["--prompt", "x", "--top-p", "nan"], 2, "top-p (nan)"),
            (["--prompt-tokens", "1 x"], 2, '"x" is not a token id'),
            (["--prompt-tokens", "5000"], 2, "beyond the model's vocabulary of 320"),
            (["--prompt", "x", "--tensor-parallel", 3], 2, "3"),
            (["--prompts", "/nowhere"], 3, "/nowhere"),
            (["--prompts", self.written("cut.jsonl", 'the cat\n{"prompt": "the')], 2, "cut.jsonl:2: not JSON: the line ends inside an object"),
            (["--prompts", self.written("packed.jsonl.gz", gzip.compress(b"the cat\n"))], 2, "packed.jsonl.gz: is not text in UTF-8 but compressed by gzip"),
            (["--prompts", self.written("keys.jsonl", '\ufeff{"text": "the"}')], 2, 'keys.jsonl:1: no "prompt" (its keys: "text"'),
            (["--prompt", "x", "--bos", "--no-bos"], 2, "--no-bos"),
            (["--prompt", "x", "--model", "qwen3", "--flavor", "8B"], 1, "model_type"),
        ]
        for args, code, text in refusals:
            with self.subTest(args):
                self.assertIn(text, generate(self.folder, *args, expect=code).stderr)
        with tempfile.TemporaryDirectory() as empty:
            self.assertIn("no checkpoint", generate(empty, "--prompt", "x", expect=3).stderr)
            (pathlib.Path(empty) / "model.safetensors").write_bytes((self.folder / "model.safetensors").read_bytes())
            self.assertIn("--model", generate(empty, "--prompt-tokens", "1", expect=2).stderr)
            (pathlib.Path(empty) / "config.json").write_text((self.folder / "config.json").read_text())
            self.assertIn("--tokenizer", generate(empty, "--prompt", "x", expect=2).stderr)
            data = bytearray((self.folder / "model.safetensors").read_bytes())
            (pathlib.Path(empty) / "model.safetensors").write_bytes(data[:-100])
            self.assertIn("model.safetensors", generate(empty, "--prompt-tokens", "1", expect=1).stderr)
        self.assertIn("not a folder", generate("/nowhere", "--prompt", "x", expect=3).stderr)


if __name__ == "__main__":
    torch.set_num_threads(1)
    run_again_with_5()
    unittest.main(argv=[word for word in sys.argv if word != "--long"])

"""Trains transformers' own GPT-OSS class as torchtitan's trainer would (same text, loss, clipping, AdamW, schedule), on CPU in fp32.

  transformers_train.py --out DIR --weights HF_DIR --seed S --steps N --rows B --seq-len T --learning-rate R --assets DIR

Writes HF_DIR/model.safetensors (drawn from the seed) and the files of run_peer.py: steps.jsonl, step1.safetensors (tokens and
labels), initial.safetensors and final.safetensors (the experts' biases alone), result.json.
transformers has no bias that balances the experts; its routers get one here, moved before each optimizer step as torchtitan moves
its own. The learning rate has torchtitan's shape: 2 steps of warm-up, then falling linearly over the rest of the run.
"""

import argparse
import importlib.metadata
import json
import os

import torchtitan_cpu  # noqa: F401

import torch
import transformers
from safetensors.torch import save_file
from torchtitan.components.tokenizer import HuggingFaceTokenizer
from torchtitan.hf_datasets.text_datasets import build_text_dataloader
from weights import draw

WARMUP, BALANCE = 2, 1e-3


def model_for(layers=4):
    """Titan's debug model."""
    config = transformers.GptOssConfig(
        vocab_size=201088, hidden_size=256, num_hidden_layers=layers, intermediate_size=2880, head_dim=64, num_attention_heads=64,
        num_key_value_heads=8, num_local_experts=8, num_experts_per_tok=4, sliding_window=128, rms_norm_eps=1e-5,
        rope_theta=150000.0, tie_word_embeddings=False, attn_implementation="eager",
        rope_scaling={"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
                      "original_max_position_embeddings": 4096})
    return transformers.GptOssForCausalLM(config).float()


class BalancedRouter:
    """Adds a bias to what the router chooses by, never to what the chosen count."""

    def __init__(self, router):
        self.router, self.bias = router, torch.zeros(router.num_experts)
        self.counts = torch.zeros(router.num_experts)
        router.forward = self.forward

    def forward(self, hidden):
        hidden = hidden.reshape(-1, self.router.hidden_dim)
        logits = torch.nn.functional.linear(hidden, self.router.weight, self.router.bias)
        chosen = (logits.softmax(-1) + self.bias).topk(self.router.top_k, -1).indices
        self.counts += torch.bincount(chosen.flatten(), minlength=len(self.bias))
        weights = logits.gather(1, chosen).softmax(-1)
        return torch.zeros_like(logits).scatter(1, chosen, weights), chosen

    def move(self):
        step = BALANCE * torch.sign(self.counts.mean() - self.counts)
        self.bias += step - step.mean()
        self.counts.zero_()


def batches(options):
    from torchtitan.config import ConfigManager

    config = ConfigManager().parse_args(["--training.dataset_path", os.path.join(options.assets, "c4_test"), "--training.seq_len",
                                         str(options.seq_len), "--training.local_batch_size", str(options.rows)])
    tokenizer = HuggingFaceTokenizer(os.path.join(options.assets, "tokenizer"))
    return iter(build_text_dataloader(dp_world_size=1, dp_rank=0, tokenizer=tokenizer, job_config=config))


def factor(step, steps):
    """torchtitan's schedule: warm-up, then linear decay over what is left."""
    warmup = min(WARMUP, steps)
    decay = steps - warmup
    if step < warmup:
        return (step + 1) / warmup
    stable = steps + 1 - warmup - decay
    if step + 1 < warmup + stable:
        return 1.0
    return 1 - (step + 1 - warmup - stable) / decay


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, kind in (("out", str), ("weights", str), ("assets", str), ("seed", int), ("steps", int), ("rows", int), ("seq-len", int),
                       ("learning-rate", float)):
        parser.add_argument("--" + name, type=kind, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    model = model_for()
    draw(model, 5)
    os.makedirs(options.weights, exist_ok=True)
    save_file({key: value.detach().clone() for key, value in model.state_dict().items()},
              os.path.join(options.weights, "model.safetensors"), metadata={"format": "pt"})

    routers = [BalancedRouter(layer.mlp.router) for layer in model.model.layers]
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=options.learning_rate, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: factor(step, options.steps))
    data = batches(options)
    with open(os.path.join(options.out, "steps.jsonl"), "w") as steps:
        for step in range(1, options.steps + 1):
            inputs, labels = next(data)
            tokens = inputs["input"]
            if step == 1:
                save_file({"tokens": tokens.contiguous(), "labels": labels.contiguous()}, os.path.join(options.out, "step1.safetensors"))
            optimizer.zero_grad()
            logits = model(input_ids=tokens, use_cache=False).logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum") / labels.numel()
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            for router in routers:
                router.move()
            optimizer.step()
            schedule.step()
            row = {"step": step, "loss": loss.item(), "max_loss": loss.item(), "grad_norm": norm.item()}
            steps.write(json.dumps(row) + "\n")
    biases = {f"layers.{layer}.moe.expert_bias": router.bias for layer, router in enumerate(routers)}
    for name, values in (("initial", {key: torch.zeros_like(value) for key, value in biases.items()}), ("final", biases)):
        save_file(values, os.path.join(options.out, name + ".safetensors"))
    with open(os.path.join(options.out, "result.json"), "w") as file:
        json.dump({"versions": {name: importlib.metadata.version(name) for name in ("torch", "transformers")}, "nproc": 1,
                   "seed": options.seed, "sha256": {}}, file)


if __name__ == "__main__":
    main()

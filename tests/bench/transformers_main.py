"""Trains the GPT-OSS class of transformers as torchtitan, which lacks this model, would train it: FSDP2 over torchrun's ranks on
a CPU, torchtitan's own rows, AdamW and clipping. It takes torchtitan's flags, reads those that flags_of (measures.py) writes, and
prints one line per step as torchtitan does.
"""

import datetime
import os
import sys
import time

import torchtitan_cpu  # tests/peer; adapts torch before torchtitan is imported.
import torch
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torchtitan.components.tokenizer import HuggingFaceTokenizer
from torchtitan.config import TORCH_DTYPE_MAP, ConfigManager
from torchtitan.hf_datasets.text_datasets import build_text_dataloader
from transformers import GptOssConfig, GptOssForCausalLM

# Titan's flavor of this name (worker/rank/model/gpt_oss/flavors.cc).
FLAVORS = {"debugmodel": {"hidden_size": 256, "num_hidden_layers": 4, "num_local_experts": 8}}


def sharded(flavor, dtype):
    """Returns the model with one FSDP unit for each layer, the embedding and the head, as torchtitan shards its models."""
    config = GptOssConfig(**FLAVORS[flavor], intermediate_size=2880, num_attention_heads=64, num_key_value_heads=8, head_dim=64,
                          num_experts_per_tok=4, sliding_window=128, vocab_size=201088, rope_theta=150000.0, tie_word_embeddings=False,
                          attn_implementation="eager")  # The only implementation in transformers with sinks.
    model = GptOssForCausalLM(config).float().train()
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    for unit in [model.model.embed_tokens, *model.model.layers, [model.model.norm, model.lm_head], model]:
        fully_shard(unit, mp_policy=policy)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)  # Gloo cannot average.
    return model


def print_all(text):
    now = datetime.datetime.now()
    print(f"{now:%Y-%m-%d %H:%M:%S},{now.microsecond // 1000:03d} {text}", flush=True)


def train(config, rank, ranks):
    model = sharded(config.model.flavor, TORCH_DTYPE_MAP[config.training.mixed_precision_param])
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.optimizer.lr, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, fused=True)
    tokenizer = HuggingFaceTokenizer(config.model.hf_assets_path)
    rows = iter(build_text_dataloader(dp_world_size=ranks, dp_rank=rank, tokenizer=tokenizer, job_config=config))
    for step in range(1, config.training.steps + 1):
        began = time.perf_counter()
        inputs, labels = next(rows)
        optimizer.zero_grad()
        logits = model(input_ids=inputs["input"], use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())
        loss.backward()
        for parameter in model.parameters():
            if parameter.grad is None:  # An expert that no token chose.
                parameter.grad = torch.zeros_like(parameter)
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.training.max_norm)
        optimizer.step()
        mean = loss.detach().double()
        torch.distributed.all_reduce(mean)
        if rank == 0:
            speed = labels.numel() / (time.perf_counter() - began)
            print_all(f"step: {step:2}  loss: {mean.item() / ranks:7.5f}  tps: {speed:,.0f}")


def main():
    config = ConfigManager().parse_args(sys.argv[1:])
    torch.manual_seed(0)
    torch.distributed.init_process_group("gloo")
    train(config, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()

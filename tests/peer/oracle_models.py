"""Small models of every family in the oracles' own classes: torchtitan 0.2.2 and transformers.

Each case is a flavor of Titan with a few changed numbers (`spec`, by the names of common/plan/models/model_spec.h), so that both
sides build the same model. Sizes are small, and options are such that every feature of a family matters: positions are stretched
inside the sequence, windows and blocks are shorter than it, groups limit the routing.
"""

import dataclasses

import torchtitan_cpu

import torch

VOCABULARY, ROWS, SEQ_LEN = 2048, 4, 40  # The vocabulary of the test tokenizer.
IGNORED = -100  # The label of a token that does not count.
DOCUMENT_END, DOCUMENTS = 2, 4  # The last token of a document, and the number of documents in a row of such a case.
GROUPED = dict(dim=64, n_layers=3, n_heads=4, n_kv_heads=2, head_dim=16, v_head_dim=16, vocab_size=VOCABULARY)
LATENT = dict(dim=64, n_layers=3, n_heads=4, n_kv_heads=4, vocab_size=VOCABULARY, ffn_hidden=96, kv_lora_rank=24,
              qk_nope_head_dim=16, qk_rope_head_dim=8, head_dim=24, v_head_dim=12)
EXPERTS = {"moe.num_experts": 8, "moe.top_k": 2, "moe.hidden": 48}
# Second to third generation of DeepSeek's routers and positions: a small form of the 671B model.
GENERATION_3 = {**LATENT, "q_lora_rank": 20, "moe.num_experts": 8, "moe.top_k": 2, "moe.hidden": 48, "moe.num_shared_experts": 1,
                "moe.num_expert_groups": 4, "moe.num_limited_groups": 2, "moe.first_layer": 1, "yarn.original_seq_len": 16,
                "yarn.mscale": 0.7}


@dataclasses.dataclass
class Oracle:
    """One model, ready to run after its weights are filled in."""

    library: str
    family: str  # Titan's model.name and model.flavor that `spec` changes.
    flavor: str
    spec: dict
    module: torch.nn.Module
    arguments: object = None  # Arguments of torchtitan's class.
    adapter: object = None  # Converts to torchtitan's names; None: the module's own names are Hugging Face's.
    config: dict = None  # transformers' configuration, which Titan's exports must match.
    document_end: int = None  # The last token of each document in a row; None: a row is one document.
    _masks: tuple = (None, None, None)  # The last tokens, their type and masks: masks come with a batch, so no step makes them.

    def logits(self, tokens):
        if self.library == "torchtitan":
            return self.module(tokens)
        return self.module(input_ids=tokens, use_cache=False, attention_mask=self.masks(tokens)).logits

    def masks(self, tokens):
        """The additive mask of transformers' eager attention, [rows, 1, queries, keys]: it uses a mask of four dims unchanged.
        Positions continue through the row, as in torchtitan."""
        if self.document_end is None:
            return None
        dtype = next(self.module.parameters()).dtype
        if self._masks[0] is not tokens or self._masks[1] != dtype:
            self._masks = (tokens, dtype, document_masks(tokens, self.document_end, self.module.config, dtype))
        return self._masks[2]

    def hf_weights(self):
        state = self.module.state_dict()
        if self.adapter is not None:
            return self.adapter.to_hf({key: value for key, value in state.items() if key not in ("freqs_cis", "rope_cache")})
        tied = set(self.module._tied_weights_keys or []) if self.module.config.tie_word_embeddings else set()
        prefix = "language_model." if self.family == "llama4" else ""  # Like complete releases.
        return {prefix + key: value for key, value in state.items() if key not in tied}

    def gradients(self):
        """Gradients by Titan's names ("grad.") or Hugging Face's ("hf_grad."), in the layout of either."""
        prefix = "grad."
        if self.adapter is None:
            prefix = "hf_grad.language_model." if self.family == "llama4" else "hf_grad."
        return {prefix + name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                for name, parameter in self.module.named_parameters()}  # None: an expert without tokens.

    def buffers(self):
        """The biases that balance experts, by Titan's names: not all families' weights have an entry for them."""
        return {"buffer." + name: value for name, value in self.module.named_buffers() if name.endswith("moe.expert_bias")}


def document_masks(tokens, end, config, dtype):
    """Causal inside each document; keyed by kind of layer if the model has several."""
    ends = (tokens == end).long()
    document = ends.cumsum(-1) - ends
    place = torch.arange(tokens.shape[1])
    query, key = place[:, None], place[None, :]
    seen = (document[:, :, None] == document[:, None, :]) & (key <= query)

    def additive(allowed):
        return torch.zeros(allowed.shape, dtype=dtype).masked_fill(~allowed, torch.finfo(dtype).min).unsqueeze(1)

    if config.model_type == "gpt_oss":
        return {"full_attention": additive(seen), "sliding_attention": additive(seen & (query - key < config.sliding_window))}
    if config.model_type == "llama4_text":
        chunk = place // config.attention_chunk_size  # Chunks of the row, independent of where documents begin.
        return {"full_attention": additive(seen), "chunked_attention": additive(seen & (chunk[:, None] == chunk[None, :]))}
    return additive(seen)


# --- torchtitan

def _torchtitan(family, flavor, spec, **changes):
    from torchtitan.protocols.train_spec import get_train_spec

    torchtitan_cpu.install_models()
    train = get_train_spec(family)
    arguments = dataclasses.replace(train.model_args[flavor], max_seq_len=SEQ_LEN, vocab_size=VOCABULARY, **changes)
    arguments.moe_impl = "standard"
    if hasattr(arguments, "moe_args"):
        arguments.moe_args = dataclasses.replace(arguments.moe_args, use_grouped_mm=False)
    model = train.model_cls(arguments)
    with torch.no_grad():
        model.init_weights()
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    spec = dict(spec)
    for name, shape in shapes.items():  # Widths that follow from other numbers.
        if name.endswith("feed_forward.w1.weight"):
            spec["ffn_hidden"] = shape[0]
        if name.endswith("moe.experts.w1"):
            spec["moe.hidden"] = shape[1]
    return Oracle("torchtitan", family, flavor, spec, model, arguments, train.state_dict_adapter(arguments, None))


def _moe_arguments(family, flavor, **changes):
    from torchtitan.protocols.train_spec import get_train_spec

    return dataclasses.replace(get_train_spec(family).model_args[flavor].moe_args, **changes)


def llama3_torchtitan():
    from torchtitan.models.llama3.model.args import RoPEScalingArgs

    return _torchtitan("llama3", "debugmodel", {**GROUPED, "rope_scaling.original_seq_len": 32}, dim=64, n_layers=3, n_heads=4,
                       n_kv_heads=2, multiple_of=32, rope_scaling_args=RoPEScalingArgs(original_max_position_embeddings=32))


def llama4_torchtitan():
    from torchtitan.models.llama4.model.args import RoPEScalingArgs

    return _torchtitan("llama4", "debugmodel", {**GROUPED, "n_layers": 4, "rope_scaling.original_seq_len": 32}, dim=64, n_layers=4,
                       n_heads=4, n_kv_heads=2, multiple_of=32,
                       rope_scaling_args=RoPEScalingArgs(original_max_position_embeddings=32))


def qwen3_torchtitan():
    return _torchtitan("qwen3", "debugmodel", GROUPED, dim=64, n_layers=3, n_heads=4, n_kv_heads=2, head_dim=16, hidden_dim=96)


def qwen3_moe_torchtitan():
    return _torchtitan("qwen3", "debugmodel_moe", {**GROUPED, **EXPERTS}, dim=64, n_layers=3, n_heads=4, n_kv_heads=2, head_dim=16,
                       moe_inter_dim=48, moe_args=_moe_arguments("qwen3", "debugmodel_moe", num_experts=8, top_k=2))


LATENT_ARGUMENTS = dict(dim=64, n_layers=3, n_heads=4, inter_dim=96, moe_inter_dim=48, kv_lora_rank=24, qk_nope_head_dim=16,
                        qk_rope_head_dim=8, v_head_dim=12)


def deepseek_v2_torchtitan():
    """Without q-LoRA and groups: softmax scores, as in the 16B model."""
    return _torchtitan("deepseek_v3", "debugmodel", {**LATENT, **EXPERTS}, **LATENT_ARGUMENTS,
                       moe_args=_moe_arguments("deepseek_v3", "debugmodel", num_experts=8, top_k=2))


def deepseek_v3_torchtitan():
    return _torchtitan("deepseek_v3", "671B", GENERATION_3, **LATENT_ARGUMENTS, q_lora_rank=20, n_dense_layers=1, mscale=0.7,
                       original_seq_len=16, attn_type="sdpa", attn_mask_type="causal",
                       moe_args=_moe_arguments("deepseek_v3", "671B", num_experts=8, top_k=2, num_expert_groups=4,
                                               num_limited_groups=2))


def llama4_debug():
    """torchtitan's debug models unchanged, for slow runs."""
    return _torchtitan("llama4", "debugmodel", {})


def deepseek_v3_debug():
    return _torchtitan("deepseek_v3", "debugmodel", {})


def qwen3_debug():
    return _torchtitan("qwen3", "debugmodel", {})


# --- transformers

def _transformers(family, flavor, spec, config_class, **config):
    import transformers

    config = dict(vocab_size=VOCABULARY, hidden_size=spec["dim"], num_hidden_layers=spec["n_layers"],
                  num_attention_heads=spec["n_heads"], num_key_value_heads=spec["n_kv_heads"], **config)
    model_class = getattr(transformers, config_class + "ForCausalLM")
    model = model_class(model_class.config_class(**config, attn_implementation="eager"))
    return Oracle("transformers", family, flavor, spec, model.float().eval(), config=config)


def qwen3_transformers():
    """With a separate head; torchtitan's case has a tied one."""
    return _transformers("qwen3", "8B", {**GROUPED, "ffn_hidden": 96}, "Qwen3", intermediate_size=96, head_dim=16,
                         rms_norm_eps=1e-6, rope_theta=1e6, tie_word_embeddings=False)


def qwen3_moe_transformers():
    return _transformers("qwen3", "30B-A3B", {**GROUPED, **EXPERTS}, "Qwen3Moe", moe_intermediate_size=48, head_dim=16, num_experts=8,
                         num_experts_per_tok=2, norm_topk_prob=True, rms_norm_eps=1e-6, rope_theta=1e6, tie_word_embeddings=False)


def deepseek_v3_transformers():
    oracle = _transformers(
        "deepseek_v3", "671B", GENERATION_3, "DeepseekV3", intermediate_size=96, moe_intermediate_size=48, kv_lora_rank=24,
        q_lora_rank=20, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=12, n_routed_experts=8, n_shared_experts=1,
        num_experts_per_tok=2, n_group=4, topk_group=2, first_k_dense_replace=1, norm_topk_prob=True, routed_scaling_factor=2.5,
        rms_norm_eps=1e-5, rope_theta=10000.0, tie_word_embeddings=False,
        rope_scaling={"rope_type": "yarn", "factor": 40.0, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 0.7, "mscale_all_dim": 0.7,
                      "original_max_position_embeddings": 16})
    for name, module in oracle.module.named_modules():
        if name.endswith(("q_a_layernorm", "kv_a_layernorm")):
            module.variance_epsilon = 1e-5  # transformers uses 1e-6 whatever the configuration says.
    return oracle


def gpt_oss_transformers():
    spec = {**GROUPED, **EXPERTS, "sliding_window": 16, "yarn.original_seq_len": 256, "swiglu_limit": 1.0}
    oracle = _transformers("gpt_oss", "debugmodel", spec, "GptOss", intermediate_size=48, head_dim=16, num_local_experts=8,
                           num_experts_per_tok=2, sliding_window=16, rms_norm_eps=1e-5, rope_theta=150000.0,
                           tie_word_embeddings=False,
                           rope_scaling={"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
                                         "truncate": False, "original_max_position_embeddings": 256})
    for layer in oracle.module.model.layers:
        layer.mlp.experts.limit = 1.0  # transformers has 7, which the activations of a small model do not reach.
    return oracle


LLAMA4 = dict(intermediate_size=48, intermediate_size_mlp=96, head_dim=16, num_local_experts=8, num_experts_per_tok=1,
              interleave_moe_layer_step=2, rms_norm_eps=1e-5, rope_theta=500000.0, attention_chunk_size=16,
              tie_word_embeddings=False,
              rope_scaling={"rope_type": "llama3", "factor": 16.0, "low_freq_factor": 1.0, "high_freq_factor": 1.0,
                            "original_max_position_embeddings": 32})
LLAMA4_SPEC = {**GROUPED, "n_layers": 5, "ffn_hidden": 96, "moe.hidden": 48, "attention_chunk": 16,
               "rope_scaling.original_seq_len": 32}


def llama4_irope_transformers():
    """torchtitan's flavor: layers 0 and 4 without positions."""
    return _transformers("llama4", "debugmodel_irope", LLAMA4_SPEC, "Llama4", **LLAMA4, no_rope_layers=[0, 1, 1, 1, 0],
                         use_qk_norm=False, attn_temperature_tuning=False)


def llama4_released_transformers():
    """The form of the released weights: layer 3 without positions, normed rotated heads, scaled queries."""
    return _transformers("llama4", "debugmodel_released", {**LLAMA4_SPEC, "query_temperature_floor": 16}, "Llama4", **LLAMA4,
                         no_rope_layers=[1, 1, 1, 0, 1], use_qk_norm=True, attn_temperature_tuning=True, floor_scale=16,
                         attn_scale=0.1)


# --- Rows of several documents

def _of_documents(oracle):
    return dataclasses.replace(oracle, document_end=DOCUMENT_END)


def qwen3_documents():
    return _of_documents(qwen3_transformers())


def deepseek_v3_documents():
    return _of_documents(deepseek_v3_transformers())


def llama4_documents():
    """Chunks and documents."""
    return _of_documents(llama4_released_transformers())


def gpt_oss_documents():
    """Windows, sinks and documents."""
    return _of_documents(gpt_oss_transformers())


CASES = {build.__name__: build for build in
         (llama3_torchtitan, llama4_torchtitan, llama4_irope_transformers, llama4_released_transformers, deepseek_v2_torchtitan,
          deepseek_v3_torchtitan, deepseek_v3_transformers, qwen3_torchtitan, qwen3_transformers, qwen3_moe_torchtitan,
          qwen3_moe_transformers, gpt_oss_transformers, qwen3_documents, deepseek_v3_documents, llama4_documents,
          gpt_oss_documents)}
DEBUG_CASES = {build.__name__: build for build in (llama4_debug, deepseek_v3_debug, qwen3_debug)}

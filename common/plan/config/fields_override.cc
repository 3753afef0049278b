// Keys of [model.override]: the numbers of a model, under the names of models::ModelSpec.
#include "common/plan/config/fields.h"

namespace titan::config {
namespace {

constexpr double kMostOfModel = 1 << 30;

Field count(std::string_view name, std::optional<std::int64_t>& member, std::string_view meaning) {
  return Field(name, member, meaning).between(1, kMostOfModel);
}

Field from_zero(std::string_view name, std::optional<std::int64_t>& member, std::string_view meaning) {
  return Field(name, member, meaning).between(0, kMostOfModel);
}

}  // namespace

std::vector<Field> fields_of(ModelOverrideSection& c) {
  return {
      count("dim", c.dim, "Width of the residual stream"),
      count("n_layers", c.n_layers, "Layers"),
      count("n_heads", c.n_heads, "Query heads"),
      count("n_kv_heads", c.n_kv_heads, "Key-value heads; by default n_heads where the model has as many"),
      count("head_dim", c.head_dim, "Width of a query or key head; by default dim / n_heads where the model has it so"),
      count("v_head_dim", c.v_head_dim, "Width of a value head; by default head_dim, except in latent attention"),
      count("vocab_size", c.vocab_size, "Rows of the embedding and of the head"),
      from_zero("ffn_hidden", c.ffn_hidden, "Width of a dense feed-forward; 0: all layers have experts"),
      count("max_seq_len", c.max_seq_len, "Longest row that the model is made for").in("tokens"),
      Field("norm_eps", c.norm_eps, "Added to the mean square in norms").above_zero(),
      Field("depth_init", c.depth_init,
            "Initial deviation of matrices that write to the residual stream falls with the layer's index, not with "
            "n_layers"),
      from_zero("eos_id", c.eos_id, "Token that ends a document for block-causal masks").in("tokens"),
      Field("tied_embeddings", c.tied_embeddings, "The head is the embedding"),
      Field("attention", c.attention, "Grouped-query attention, or DeepSeek's latent attention")
          .one_of({"grouped", "latent"}),
      Field("qk_norm", c.qk_norm, "RMSNorm on query and key heads before RoPE"),
      Field("qk_norm_whole", c.qk_norm_whole, "With qk_norm: over all heads of a token together"),
      Field("attention_bias", c.attention_bias, "Biases on q, k and v projections"),
      Field("attention_out_bias", c.attention_out_bias, "With attention_bias: also on the output projection"),
      Field("attention_sinks", c.attention_sinks, "A learned logit per head that takes weight but has no value"),
      Field("attention_scale", c.attention_scale, "Factor of grouped attention's scores; 0: head_dim^-0.5").at_least(0),
      Field("attention_softcap", c.attention_softcap, "Scores become cap * tanh(score / cap); 0: off").at_least(0),
      from_zero("sliding_window", c.sliding_window, "Tokens that a layer with a window attends to; 0: no windows")
          .in("tokens"),
      from_zero("window_step", c.window_step, "Every n-th layer has no window; 0: all have one"),
      from_zero("window_first_layer", c.window_first_layer, "Layers before it have no window"),
      Field("window_rope_theta", c.window_rope_theta,
            "Theta of layers with a window, without scaling; 0: like the others")
          .at_least(0),
      from_zero("nope_layer_step", c.nope_layer_step, "Every n-th layer has no RoPE; 0: all have it"),
      from_zero("attention_chunk", c.attention_chunk,
                "Layers with RoPE attend inside blocks of this many tokens, when others have none; 0: no blocks")
          .in("tokens"),
      Field("nope_ends_step", c.nope_ends_step,
            "Layers without RoPE are the last of each nope_layer_step, not the first"),
      Field("query_temperature_floor", c.query_temperature_floor,
            "Queries without RoPE grow with the logarithm of position / floor; 0: they do not")
          .at_least(0),
      Field("query_temperature_scale", c.query_temperature_scale, "The factor of that growth").at_least(0),
      Field("rotated_qk_norm", c.rotated_qk_norm, "Rotated query and key heads are normalized, without weights"),
      from_zero("q_lora_rank", c.q_lora_rank, "Latent attention: width of the queries' latent; 0: none"),
      from_zero("kv_lora_rank", c.kv_lora_rank, "Latent attention: width of the latent of keys and values"),
      from_zero("qk_nope_head_dim", c.qk_nope_head_dim, "Latent attention: channels of a head without RoPE"),
      from_zero("qk_rope_head_dim", c.qk_rope_head_dim, "Latent attention: channels of a head with RoPE"),
      Field("rope", c.rope, "Which channels of a head turn together: neighbours or halves")
          .one_of({"interleaved", "rotate_half"}),
      Field("rope_theta", c.rope_theta, "RoPE's base").above_zero(),
      from_zero("rotary_dim", c.rotary_dim, "Channels of a head that RoPE turns, the first ones; 0: all"),
      Field("rope_type", c.rope_type,
            "Scaling of RoPE: none (default), model.override.rope_scaling (llama3) or model.override.yarn (yarn)")
          .one_of({"default", "llama3", "yarn"}),
      Field("norm_placement", c.norm_placement, "Norms before attention and feed-forward, after them, or both")
          .one_of({"pre", "post", "both"}),
      Field("norm_offset", c.norm_offset, "Norms multiply by their weight plus this number"),
      Field("activation", c.activation, "Function of the gate in feed-forwards").one_of({"silu", "gelu_tanh"}),
      Field("mlp_bias", c.mlp_bias, "Biases on the projections of dense feed-forwards"),
      Field("embedding_scale", c.embedding_scale, "Factor of the embeddings").above_zero(),
      Field("residual_scale", c.residual_scale, "Factor of what attention and feed-forward add").above_zero(),
      Field("logit_divisor", c.logit_divisor, "Logits are divided by it").above_zero(),
      Field("logit_softcap", c.logit_softcap, "Logits become cap * tanh(logit / cap); 0: off").at_least(0),
      Field("swiglu_limit", c.swiglu_limit, "Clamp of GPT-OSS's experts; 0: plain SwiGLU").at_least(0),
  };
}

std::vector<Field> fields_of(RopeScalingOverride& c) {
  return {
      Field("factor", c.factor, "Divisor of low frequencies").above_zero(),
      Field("low_freq_factor", c.low_freq_factor, "Wavelengths above original_seq_len / this are divided").above_zero(),
      Field("high_freq_factor", c.high_freq_factor, "Wavelengths below original_seq_len / this are kept").above_zero(),
      from_zero("original_seq_len", c.original_seq_len,
                "Context before the extension; 0: all frequencies are divided (linear scaling)")
          .in("tokens"),
  };
}

std::vector<Field> fields_of(YarnOverride& c) {
  return {
      Field("factor", c.factor, "Divisor of low frequencies").above_zero(),
      Field("beta_fast", c.beta_fast, "Pairs that turn more often than this in original_seq_len are kept").above_zero(),
      Field("beta_slow", c.beta_slow, "Pairs that turn less often than this are divided").above_zero(),
      count("original_seq_len", c.original_seq_len, "Context before the extension").in("tokens"),
      Field("mscale", c.mscale, "Latent attention: growth of the softmax scale").at_least(0),
      Field("only_beyond_original", c.only_beyond_original, "Applied only to rows longer than original_seq_len"),
      Field("scales_cos_sin", c.scales_cos_sin, "Scales the rotation instead of the softmax scale"),
      Field("cos_sin_factor", c.cos_sin_factor, "With scales_cos_sin: factor of the rotation; 0: 0.1 ln(factor) + 1")
          .at_least(0),
      Field("rounds_bounds", c.rounds_bounds, "With scales_cos_sin: bounds of the blend are whole pairs"),
  };
}

std::vector<Field> fields_of(MoeOverride& c) {
  return {
      count("num_experts", c.num_experts, "Experts of a layer"),
      from_zero("num_shared_experts", c.num_shared_experts, "Experts that every token passes"),
      count("top_k", c.top_k, "Experts that a token chooses"),
      count("hidden", c.hidden, "Width of one expert"),
      Field("score_func", c.score_func, "The router's scores").one_of({"sigmoid", "softmax"}),
      Field("route_norm", c.route_norm, "Chosen scores are divided by their sum"),
      Field("route_scale", c.route_scale, "Factor of chosen scores").above_zero(),
      Field("gate_bias", c.gate_bias, "A bias on the router"),
      Field("score_before_experts", c.score_before_experts, "Scores multiply what experts read, not their results"),
      from_zero("num_expert_groups", c.num_expert_groups, "Groups for node-limited routing; 0: none"),
      from_zero("num_limited_groups", c.num_limited_groups, "Groups of which a token chooses experts"),
      from_zero("first_layer", c.first_layer, "First layer with experts"),
      count("layer_step", c.layer_step, "Every n-th layer has experts"),
  };
}

}  // namespace titan::config

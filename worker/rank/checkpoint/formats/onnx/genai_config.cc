#include "worker/rank/checkpoint/formats/onnx/genai_config.h"

#include "worker/rank/checkpoint/formats/onnx/onnx_attention.h"
#include "worker/rank/checkpoint/formats/onnx/onnx_masks.h"

namespace titan::checkpoint::onnx {
namespace {

// The runtime chooses by it how it feeds a model, not what the model computes; this one is for plain decoders.
constexpr char kPlainDecoder[] = "llama";

nlohmann::json decoder(const models::ModelSpec& spec, const GenaiModel& model) {
  return {
      {"filename", model.file},
      {"head_size", cached_head_size(spec)},
      {"hidden_size", spec.dim},
      {"num_attention_heads", spec.n_heads},
      {"num_hidden_layers", spec.n_layers},
      {"num_key_value_heads", cached_heads(spec)},
      {"session_options", {{"provider_options", nlohmann::json::array()}}},
      {"inputs",
       {{kInputIds, kInputIds},
        {kAttentionMask, kAttentionMask},
        {kPositionIds, kPositionIds},
        {"past_key_names", "past_key_values.%d.key"},
        {"past_value_names", "past_key_values.%d.value"}}},
      {"outputs",
       {{"logits", "logits"}, {"present_key_names", "present.%d.key"}, {"present_value_names", "present.%d.value"}}}};
}

}  // namespace

nlohmann::json genai_config(const models::ModelSpec& spec, const GenaiModel& model) {
  nlohmann::json about = {{"type", kPlainDecoder},
                          {"context_length", model.context},
                          {"vocab_size", spec.vocab_size},
                          {"decoder", decoder(spec, model)}};
  if (!model.bos.is_null()) about["bos_token_id"] = model.bos;
  if (!model.stop_tokens.empty()) {
    about["eos_token_id"] = model.stop_tokens;
    about["pad_token_id"] = model.stop_tokens[0];
  }
  // Caches grow by concatenation, so the past and the present are not one buffer.
  return {{"model", about},
          {"search", {{"do_sample", false}, {"max_length", model.context}, {"past_present_share_buffer", false}}}};
}

}  // namespace titan::checkpoint::onnx

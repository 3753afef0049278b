#include "worker/rank/model/decoder/decoder.h"
#include "worker/rank/model/families.h"

// GPT-OSS (arXiv 2508.10925): attention sinks, sliding windows on even layers, biases, clamped experts.
namespace titan::model::gpt_oss {

// All parameters of a layer, including biases and sinks, are drawn with the deviation of its depth.
absl::StatusOr<Model> build(const models::ModelSpec& spec, const BuildOptions& options) {
  return build_decoder(spec, options, inits_with_layers(spec, [spec](int64_t layer) {
                         const nn::Init deep = depth_init(spec, layer);
                         LayerInits inits{.attention_in = deep,
                                          .attention_out = deep,
                                          .attention_bias = deep,
                                          .sinks = deep,
                                          .w1 = deep,
                                          .w2_w3 = deep};
                         inits.moe.w1_init = inits.moe.w2_init = inits.moe.w3_init = inits.moe.gate_init =
                             inits.moe.bias_init = deep;
                         inits.moe.shared_w1_init = inits.moe.shared_depth_init = deep;
                         return inits;
                       }));
}

}  // namespace titan::model::gpt_oss

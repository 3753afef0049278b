#include <utility>

#include "common/plan/models/families.h"
#include "common/plan/models/qwen3_vl_sizes.h"

namespace titan::models {
namespace {

constexpr int64_t kEos = 151645, kVocabulary = 151936, kContext = 262144;

ModelSpec qwen3_text(const char* flavor, int64_t dim, int64_t n_layers, int64_t n_heads, int64_t hidden, bool tied) {
  ModelSpec text;
  text.name = "qwen3";
  text.flavor = flavor;
  text.dim = dim;
  text.n_layers = n_layers;
  text.n_heads = n_heads;
  text.n_kv_heads = 8;
  text.head_dim = text.v_head_dim = 128;
  text.vocab_size = kVocabulary;
  text.ffn_hidden = hidden;
  text.max_seq_len = kContext;
  text.norm_eps = 1e-6;
  text.eos_id = kEos;
  text.tied_embeddings = tied;
  text.qk_norm = true;
  text.rope = RopeStyle::kRotateHalf;
  text.rope_theta = 5e6;
  return text;
}

Qwen3VlVisionSpec small_tower(int64_t out_dim) {
  return {.dim = 1024, .ffn_hidden = 4096, .n_layers = 24, .out_dim = out_dim, .deepstack_layers = {5, 11, 17}};
}

Qwen3VlSize debug_size() {
  Qwen3VlSize size{.text = qwen3_text("debugmodel", 256, 6, 16, 768, true), .vl = {}};
  size.text.vocab_size = 2048;
  size.text.head_dim = size.text.v_head_dim = 16;
  size.text.max_seq_len = 4096;
  size.text.eos_id = 2;
  size.vl.vision = {.dim = 128,
                    .ffn_hidden = 256,
                    .n_layers = 4,
                    .n_heads = 2,
                    .position_side = 16,
                    .out_dim = 256,
                    .deepstack_layers = {1, 2}};
  size.vl.mrope_section = {4, 2, 2};
  // A small tokenizer begins with the special tokens, those of conversations first (deploy/image_assets).
  size.vl.vision_start_token = 3, size.vl.vision_end_token = 4, size.vl.image_token = 5, size.vl.video_token = 6;
  return size;
}

}  // namespace

std::vector<Qwen3VlSize> qwen3_vl_sizes() {
  return {debug_size(),
          {.text = qwen3_text("2B", 2048, 28, 16, 6144, true), .vl = {.vision = small_tower(2048)}},
          {.text = qwen3_text("4B", 2560, 36, 32, 9728, true), .vl = {.vision = small_tower(2560)}},
          {.text = qwen3_text("8B", 4096, 36, 32, 12288, false), .vl = {.vision = {.out_dim = 4096}}}};
}

// Several samples share a row, and each attends to itself alone.
std::vector<ModelSpec> qwen3_vl_flavors() {
  std::vector<ModelSpec> flavors;
  for (Qwen3VlSize& size : qwen3_vl_sizes()) {
    ModelSpec& spec = flavors.emplace_back(std::move(size.text));
    spec.name = "qwen3_vl";
    spec.mask = Mask::kBlockCausal;
    spec.qwen3_vl = std::move(size.vl);
  }
  return flavors;
}

}  // namespace titan::models

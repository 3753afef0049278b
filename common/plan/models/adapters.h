#pragma once

// Low-rank adapters (LoRA, arXiv 2106.09685) as numbers: which layers of a model have one, and the resulting tensors.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/plan/models/model_spec.h"
#include "common/plan/models/sizes.h"

namespace titan::models {

// Storage of weights that are not trained.
enum class BaseForm {
  kCompute,   // In the type that layers compute in.
  kFloat32,   // In float32, regardless of the type that layers compute in.
  kBfloat16,  // In bfloat16.
  kNf4,       // Linear layers in 4 bits (QLoRA, arXiv 2305.14314), everything else as kCompute.
};

struct AdapterSpec {
  std::int64_t rank = 8;
  double alpha = 16;                 // A layer adds (alpha / rank) x A^T B^T to its output.
  std::vector<std::string> targets;  // Patterns of layers (pattern_names).
  BaseForm base = BaseForm::kCompute;

  double scale() const { return alpha / static_cast<double>(rank); }
};

// Returns "layers.0.attention.wq" for "layers.0.attention.wq.weight". An experts' matrix ("layers.1.moe.experts.w1") is
// a layer by itself.
std::string layer_of(const std::string& fqn);

// Whether a pattern matches consecutive components of a name: "wq", "attention", "layers.0.attention.wq",
// "layers.*.attention". A * matches any one component.
bool pattern_names(const std::string& pattern, const std::string& layer);
bool any_pattern_names(const std::vector<std::string>& patterns, const std::string& layer);

// Whether a parameter is a linear layer's matrix that may be kept in 4 bits: those inside the layers except routers and
// routed experts.
bool may_be_packed(const ParameterSpec& tensor);
// Whether it may have an adapter: these matrices, and routed experts' w1, w2 and w3, with a separate adapter per
// expert.
bool takes_adapter(const ParameterSpec& tensor);
// Whether a name is that of a routed experts' matrix that may have an adapter.
bool adapts_experts(const std::string& fqn);

// Return the names of a layer's two matrices: A [rank, in] and B [out, rank]; for experts [experts, rank, in] and
// [experts, out, rank].
std::string adapter_a(const std::string& layer);
std::string adapter_b(const std::string& layer);

// Lists the tensors of a model's adapters, A before B, in layer order.
std::vector<ParameterSpec> adapter_tensors(const ModelSpec& spec, const AdapterSpec& adapters);

// Lists the trained tensors of a model: those of its adapters, or without adapters all parameters.
std::vector<ParameterSpec> trained_tensors(const ModelSpec& spec, const std::optional<AdapterSpec>& adapters);

// 4-bit storage: kNf4Block elements share a scale. A row of `columns` elements, a multiple of kNf4Block, has half a
// byte per element and a float32 per block.
constexpr std::int64_t kNf4Block = 64;
constexpr std::int64_t nf4_row_bytes(std::int64_t columns) { return columns / 2 + columns / kNf4Block * 4; }

// Returns the FLOPs per token of training only the adapters, counted like flops_per_token(), but a matrix that is not
// trained has no weight-gradient product.
std::int64_t adapter_flops_per_token(const ModelSpec& spec, const AdapterSpec& adapters, std::int64_t seq_len);

}  // namespace titan::models

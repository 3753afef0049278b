#pragma once

// Low-rank adapters (LoRA, arXiv 2106.09685) as numbers: which layers of a model have one, and which tensors that
// makes.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/plan/models/model_spec.h"
#include "common/plan/models/sizes.h"

namespace titan::models {

// How the weights that are not trained are kept.
enum class BaseForm {
  kCompute,   // In the type that layers compute in.
  kFloat32,   // In float32, whatever layers compute in.
  kBfloat16,  // In bfloat16.
  kNf4,       // Linear layers in 4 bits (QLoRA, arXiv 2305.14314), everything else as kCompute.
};

struct AdapterSpec {
  std::int64_t rank = 8;
  double alpha = 16;                 // A layer adds (alpha / rank) x A^T B^T.
  std::vector<std::string> targets;  // Patterns of layers (pattern_names).
  BaseForm base = BaseForm::kCompute;

  double scale() const { return alpha / static_cast<double>(rank); }
};

// "layers.0.attention.wq" of "layers.0.attention.wq.weight"; experts' matrices ("layers.1.moe.experts.w1") are layers
// by themselves.
std::string layer_of(const std::string& fqn);

// Whether a pattern is, component by component, somewhere in a name: "wq", "attention", "layers.0.attention.wq",
// "layers.*.attention". A * stands for any one component.
bool pattern_names(const std::string& pattern, const std::string& layer);
bool any_pattern_names(const std::vector<std::string>& patterns, const std::string& layer);

// Whether a parameter is the matrix of a linear layer that may be kept in 4 bits: those inside the layers, without
// routers and routed experts.
bool may_be_packed(const Tensor& tensor);
// Whether it may have an adapter: these, and routed experts' w1, w2 and w3, of which each expert has one of its own.
bool takes_adapter(const Tensor& tensor);
// The same of a name that belongs to routed experts.
bool adapts_experts(const std::string& fqn);

// The names of a layer's two matrices: A [rank, in] and B [out, rank]; experts' [experts, rank, in] and
// [experts, out, rank].
std::string adapter_a(const std::string& layer);
std::string adapter_b(const std::string& layer);

// The tensors that the adapters of a model have, A before B, in the order of their layers.
std::vector<Tensor> adapter_tensors(const ModelSpec& spec, const AdapterSpec& adapters);

// What is trained of a model: its adapters, or without any its own parameters.
std::vector<Tensor> trained_tensors(const ModelSpec& spec, const std::optional<AdapterSpec>& adapters);

// 4-bit numbers: elements that share a scale, and the bytes that a row of `columns` takes, which must be a multiple of
// that: half a byte each, and a float32 for each block.
constexpr std::int64_t kNf4Block = 64;
constexpr std::int64_t nf4_row_bytes(std::int64_t columns) { return columns / 2 + columns / kNf4Block * 4; }

// FLOPs per token of training the adapters alone, counted as flops_per_token() does: a matrix that is not trained has
// no product for its gradient.
std::int64_t adapter_flops_per_token(const ModelSpec& spec, const AdapterSpec& adapters, std::int64_t seq_len);

}  // namespace titan::models

#pragma once

// Flux, a transformer that predicts the velocity of images' latents from a text (rectified flow, arXiv 2403.03206, in
// the form of Black Forest Labs' FLUX.1), as numbers: what shapes it, its parameters, FLOPs and activations.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/plan/mesh/mesh.h"
#include "common/plan/models/activations.h"
#include "common/plan/models/flux_spec.h"
#include "common/plan/models/model_spec.h"
#include "common/plan/models/sizes.h"

namespace titan::models {

// Returns torchtitan's flavors and a tiny one.
std::vector<FluxSpec> flux_sizes();
// Returns the model of these numbers. Those that it shares with a decoder (dim, heads, and layers, which are its double
// and single blocks) have the same values there.
ModelSpec flux_model(const FluxSpec& spec);

// Checks that the numbers fit together. Errors: InvalidArgument, names the flavor and the numbers.
absl::Status check(const FluxSpec& spec);

// Returns every parameter of the model, in declaration order, with torchtitan's names: "img_in.weight",
// "double_blocks.0.img_attn.qkv.weight", "single_blocks.0.linear1.weight", "final_layer.linear.weight". Those of the
// guidance have the released model's name, "guidance_in.in_layer.weight".
std::vector<ParameterSpec> parameters(const FluxSpec& spec);
int64_t parameter_count(const FluxSpec& spec);

// Returns the names of the engine's blocks, in order: "embed", "double_blocks.0", ..., "single_blocks.0", ...,
// "final_layer".
std::vector<std::string> block_names(const FluxSpec& spec);
// Returns the block of a parameter of Flux.
std::string flux_block_of(const std::string& fqn);
// Numbers of parameters of each block. `active_params` counts all of them.
std::vector<BlockSize> block_sizes(const FluxSpec& spec);

// Returns the training FLOPs of one sample with `txt` tokens of text and `img` of the image, forward and backward, as
// torchtitan counts them: 6 per parameter and token that reads it, where the modulations are read once for each sample,
// and 6 * dim * tokens^2 for the attention of each block. That is the count of causal attention, half of what is
// computed.
int64_t flops_per_sample(const FluxSpec& spec, int64_t txt, int64_t img);

// Returns the FLOPs of each block's forward pass for one sample, in the order of block_names(). Attention counts in
// full.
std::vector<double> block_flops(const FluxSpec& spec, int64_t txt, int64_t img);

// Returns the dim of a parameter that tensor ranks split: 0 for a matrix of which each has some outputs and for its
// bias, 1 for one of which each has some inputs. Nothing if every rank has the whole parameter.
std::optional<int64_t> flux_tensor_dim(const std::string& fqn);

// Returns the sizes that tensor ranks must divide (mesh::check_divisible). It has no length: check_context() needs
// both.
mesh::Sizes split_sizes(const FluxSpec& spec);
// Checks that `ranks` context ranks divide the tokens of the text and of the image. Errors: InvalidArgument.
absl::Status check_context(int64_t txt, int64_t img, int64_t ranks);

// One microbatch on one rank.
struct FluxShape {
  int64_t rows = 1;
  int64_t txt = 0, img = 0;  // Tokens of a row that this rank has.
  int64_t keys = 0;          // Tokens of the whole row. 0: txt + img.
  int64_t tensor_ranks = 1;
  int64_t element_bytes = 2;  // Bytes of the type in which layers compute.
  bool fused_norms = true;    // ActivationShape::fused_norms, of the norms of queries and keys.
};

// Returns an estimate for each block of the engine, as block_activations() of a decoder does. `input` is the
// activations between blocks, which tensor ranks hold whole.
std::vector<BlockActivations> block_activations(const FluxSpec& spec, const FluxShape& shape);

}  // namespace titan::models

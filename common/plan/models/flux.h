#pragma once

// Flux, a transformer that predicts the velocity of images' latents from a text (rectified flow, arXiv 2403.03206, in
// the form of Black Forest Labs' FLUX.1), as numbers: what shapes it, its parameters, FLOPs and activations.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/plan/mesh/mesh.h"
#include "common/plan/models/activations.h"
#include "common/plan/models/sizes.h"

namespace titan::models {

// One flavor of Flux. Double blocks have separate weights for the tokens of the text and of the image and attend over
// both; single blocks treat them alike.
struct FluxSpec {
  std::string name = "flux";
  std::string flavor;  // "flux-dev"

  int64_t dim = 0;
  int64_t n_heads = 0;
  int64_t n_double_blocks = 0;
  int64_t n_single_blocks = 0;
  int64_t mlp_ratio = 4;                        // Width of a feed-forward, in dim.
  int64_t in_channels = 64;                     // Of one token of the image: latent channels times 2 x 2 places.
  int64_t txt_width = 4096;                     // Of the text's tokens (T5).
  int64_t vec_width = 768;                      // Of the vector that describes the whole text (CLIP).
  int64_t time_channels = 256;                  // Of the sinusoidal embedding of times and guidance. Even.
  std::array<int64_t, 3> axes_dim{16, 56, 56};  // Channels of a head that each of a token's three positions rotates.
  double rope_theta = 10000;
  bool guidance_embed = false;  // The model also reads the strength of the guidance (FLUX.1-dev).

  int64_t head_dim() const { return dim / n_heads; }
  int64_t mlp_hidden() const { return mlp_ratio * dim; }
};

// torchtitan's flavors (worker/rank/model/flux/flavors.cc).
std::vector<FluxSpec> flux_flavors();

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

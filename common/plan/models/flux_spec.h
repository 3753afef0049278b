#pragma once

#include <array>
#include <cstdint>
#include <string>

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
  int64_t mlp_ratio = 4;                        // A feed-forward is mlp_ratio * dim wide.
  int64_t in_channels = 64;                     // Width of an image's token: latent channels times 2 x 2 places.
  int64_t txt_width = 4096;                     // Width of a text's token (T5).
  int64_t vec_width = 768;                      // Width of the vector that describes the whole text (CLIP).
  int64_t time_channels = 256;                  // Width of the sinusoidal embedding of a time or a guidance. Even.
  std::array<int64_t, 3> axes_dim{16, 56, 56};  // Channels of a head that each of a token's three positions rotates.
  double rope_theta = 10000;
  bool guidance_embed = false;  // The model also reads the strength of the guidance (FLUX.1-dev).

  int64_t head_dim() const { return dim / n_heads; }
  int64_t mlp_hidden() const { return mlp_ratio * dim; }
};

}  // namespace titan::models

#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <map>
#include <string>

#include "common/plan/models/flux.h"
#include "worker/rank/comm/group.h"
#include "worker/rank/nn/block.h"

namespace titan::model::flux {

// Tensors of one microbatch that its blocks read in addition to their activations. Under context parallelism a rank has
// Tt of a row's tokens of the text and Ti of its image's (context_share()).
struct FluxInputs {
  at::Tensor txt;        // [B, Tt, txt_width], any floating type: the text's tokens.
  at::Tensor y;          // [B, vec_width], any floating type: the vector of the whole text.
  at::Tensor timesteps;  // fp32 [B], 0 (image) to 1 (noise).
  at::Tensor guidance;   // fp32 [B]: strength of the guidance. Only for a model with guidance_embed.
  at::Tensor txt_ids;    // fp32 [B or 1, Tt, 3]: positions on the three axes.
  at::Tensor img_ids;    // fp32 [B or 1, Ti, 3].
  at::Tensor rotation;   // Result of rotation_table(). Undefined: each block computes it from the ids.

  int64_t txt_tokens() const { return txt_ids.size(1); }
  int64_t img_tokens() const { return img_ids.size(1); }
};

// Names of the tensors of a microbatch, of the image's noised latents [B, Ti, in_channels], which are the input of the
// first block, of the velocity [B, Ti, in_channels] with which the loss compares the prediction, and of the rows'
// weights [B, 1, 1], which are missing if all are 1.
inline constexpr char kLatents[] = "x_t", kTarget[] = "target", kWeights[] = "weights", kTxt[] = "txt", kPooled[] = "y",
                      kTimesteps[] = "timesteps", kGuidance[] = "guidance", kTxtIds[] = "txt_ids",
                      kImgIds[] = "img_ids", kRotation[] = "rotation";

// Takes the inputs out of a microbatch's named tensors, [B, ...] each as in FluxInputs. Throws c10::Error, which names
// a missing one: every block needs the ids, and only the first block the text, the vector and the times.
FluxInputs flux_inputs(const std::map<std::string, at::Tensor>& tensors);

// The same for the context that blocks get.
FluxInputs flux_inputs(const nn::MicrobatchContext& context);

// Returns the rotation of every token, text first: exp(i * angle), where the angles of a head's pairs of channels are
// the position on an axis times theta^(-2j / channels of the axis). The angles are fp64. Returns complex [B or 1, Tt +
// Ti, head_dim / 2], of fp64 numbers if `compute` is fp64, else of fp32. (arXiv 2104.09864, on three axes.)
at::Tensor rotation_table(const models::FluxSpec& spec, const at::Tensor& txt_ids, const at::Tensor& img_ids,
                          at::ScalarType compute);

// Returns the sinusoidal embedding of times `t` [B]: cosines, then sines, of 1000 t / 10000^(2i / channels), fp32 [B,
// channels]. 1000 t and the angles are fp32, because narrower types lose most of their digits. (arXiv 1706.03762.)
at::Tensor timestep_embedding(const at::Tensor& t, int64_t channels);

// Returns this rank's consecutive tokens of `whole` [B, T, ...]: [B, T / size, ...]. Throws c10::Error if the ranks do
// not divide T.
at::Tensor context_share(const at::Tensor& whole, const comm::Group& group);
// Returns this rank's share of a microbatch. Latents and targets are shared in the same way.
FluxInputs context_share(const FluxInputs& whole, const comm::Group& group);

}  // namespace titan::model::flux

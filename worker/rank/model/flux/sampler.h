#pragma once

// Pictures from noise: Euler's method along the velocities that a trained Flux predicts, with classifier-free guidance
// (arXiv 2207.12598).

#include <ATen/ATen.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "common/plan/models/flux.h"
#include "worker/rank/comm/group.h"
#include "worker/rank/model/objective.h"

namespace titan::model::flux {

// Returns steps + 1 times from 1 (noise) to 0 (picture). Without `shift` they are evenly spaced. With it they stay near
// the noise for longer, the more tokens the picture has: t becomes e^m / (e^m + 1/t - 1), where m grows linearly from
// 0.5 at 256 tokens to 1.15 at 4,096 (arXiv 2403.03206, in the form of Black Forest Labs' FLUX.1-dev).
//
// torchtitan 0.2.2 counts the places of the latents here, four times the tokens that the released sampler counts.
std::vector<double> sampling_times(int steps, int64_t tokens, bool shift);

// Encoded captions, one row for each picture.
struct Captions {
  at::Tensor txt;  // [B, Tt, txt_width]
  at::Tensor y;    // [B, vec_width]
};

struct SamplerOptions {
  std::vector<double> times;  // sampling_times()
  // Encodings of the empty caption, of one row. Set: velocities are v_empty + scale * (v - v_empty), at the cost of a
  // second row for each picture.
  std::optional<Captions> empty;
  double scale = 5;
  // The context ranks, which share the tokens of every row; null or one rank: rows are whole.
  const comm::Group* context = nullptr;
};

// Returns the latents [B, C, h, w] to which `noise` [B, C, h, w] leads, in its type (fp32 or fp64). Records no graph.
// Collective if weights are sharded: every rank makes the same calls, and all get the same latents.
at::Tensor sample_latents(const WholeModel& model, const models::FluxSpec& spec, const at::Tensor& noise,
                          const Captions& captions, const SamplerOptions& options);

}  // namespace titan::model::flux

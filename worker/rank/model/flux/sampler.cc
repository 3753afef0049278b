#include "worker/rank/model/flux/sampler.h"

#include <c10/util/Exception.h>

#include <cmath>

#include "worker/rank/comm/functional.h"
#include "worker/rank/model/flux/inputs.h"
#include "worker/rank/model/flux/packing.h"

namespace titan::model::flux {
namespace {

bool is_shared(const comm::Group* context) { return context != nullptr && context->size() > 1; }

at::Tensor share(const at::Tensor& whole, const comm::Group* context) {
  return is_shared(context) ? context_share(whole, *context) : whole;
}

// Returns what all steps read, for rows [captions; empty] or the captions alone.
FluxInputs constant_inputs(const models::FluxSpec& spec, const at::Tensor& noise, const Captions& captions,
                           const SamplerOptions& options) {
  FluxInputs inputs{.txt = captions.txt,
                    .y = captions.y,
                    .timesteps = {},
                    .guidance = {},
                    .txt_ids = at::zeros({1, captions.txt.size(1), 3}, noise.options().dtype(at::kFloat)),
                    .img_ids = image_positions(noise.size(2), noise.size(3), noise.device()),
                    .rotation = {}};
  if (options.empty) {
    const int64_t rows = captions.txt.size(0);
    inputs.txt = at::cat({captions.txt, options.empty->txt.expand({rows, -1, -1})});
    inputs.y = at::cat({captions.y, options.empty->y.expand({rows, -1})});
  }
  if (is_shared(options.context)) inputs = context_share(inputs, *options.context);
  inputs.rotation = rotation_table(spec, inputs.txt_ids, inputs.img_ids, noise.scalar_type());
  return inputs;
}

nn::MicrobatchContext context_of(const FluxInputs& inputs, const at::Tensor& tokens, double time, double guidance) {
  nn::MicrobatchContext context;
  context.counting = false;
  const at::Tensor times = at::full({tokens.size(0)}, time, tokens.options().dtype(at::kFloat));
  context.tensors = {{kTxt, inputs.txt},        {kPooled, inputs.y},
                     {kTimesteps, times},       {kGuidance, at::full_like(times, guidance)},
                     {kTxtIds, inputs.txt_ids}, {kImgIds, inputs.img_ids},
                     {kLatents, tokens},        {kRotation, inputs.rotation}};
  return context;
}

}  // namespace

std::vector<double> sampling_times(int steps, int64_t tokens, bool shift) {
  constexpr double kFewTokens = 256, kManyTokens = 4096, kLeast = 0.5, kMost = 1.15;
  const double m = kLeast + (kMost - kLeast) / (kManyTokens - kFewTokens) * (static_cast<double>(tokens) - kFewTokens);
  std::vector<double> times;
  for (int step = 0; step <= steps; ++step) {
    const double time = 1 - static_cast<double>(step) / steps;
    times.push_back(!shift || time == 0 ? time : std::exp(m) / (std::exp(m) + 1 / time - 1));
  }
  return times;
}

at::Tensor sample_latents(const WholeModel& model, const models::FluxSpec& spec, const at::Tensor& noise,
                          const Captions& captions, const SamplerOptions& options) {
  const at::NoGradGuard no_grad;
  TORCH_CHECK(options.times.size() > 1, "flux: a sampler needs at least one step");
  const FluxInputs inputs = constant_inputs(spec, noise, captions, options);
  const double guidance = spec.guidance_embed ? options.scale : 0;  // Otherwise no block reads it.
  at::Tensor tokens = share(pack(noise), options.context);
  for (size_t step = 0; step + 1 < options.times.size(); ++step) {
    const at::Tensor input = options.empty ? at::cat({tokens, tokens}) : tokens;
    const nn::MicrobatchContext context = context_of(inputs, input, options.times[step], guidance);
    at::Tensor velocity =
        model.visit(input, [&](nn::Block& block, const at::Tensor& x) { return block.forward(x, context); })
            .to(tokens.scalar_type());
    if (options.empty) {
      const std::vector<at::Tensor> halves = velocity.chunk(2);
      velocity = halves[1] + options.scale * (halves[0] - halves[1]);
    }
    tokens = tokens + (options.times[step + 1] - options.times[step]) * velocity;
  }
  if (is_shared(options.context)) tokens = comm::gather_alike(tokens, 1, *options.context);
  return unpack(tokens, noise.size(2), noise.size(3));
}

}  // namespace titan::model::flux

#include "common/plan/memory/flux_rows.h"

#include <algorithm>

#include "common/plan/config/image_models.h"
#include "common/plan/config/model_kind.h"
#include "common/plan/config/validate.h"
#include "common/plan/encoders/cost.h"
#include "common/plan/encoders/released.h"
#include "common/plan/memory/flux_blocks.h"

namespace titan::memory {
namespace {

constexpr int64_t kPositions = 3, kFloat = 4;

// Bytes of the tensors of some rows.
struct RowBytes {
  RowBytes(const config::JobConfig& config, const models::FluxSpec& spec, int64_t count)
      : size(config.training.img_size),
        rows(count),
        e(encoder_bytes(config)),
        wide(e == 8 ? 8 : 4),
        txt(config.encoder.max_t5_encoding_len),
        img(config::image_tokens(config)),
        latents(rows * img * spec.in_channels) {}

  // Encodings, times, noised latents and targets.
  int64_t held(const models::FluxSpec& spec) const {
    return rows * (txt * spec.txt_width + spec.vec_width) * e + rows * kFloat + 2 * latents * wide;
  }

  const int64_t size, rows, e, wide, txt, img;
  const int64_t latents;  // Elements.
};

// Returns the most bytes while pictures, then captions, then the noised latents are made.
int64_t making(const config::JobConfig& config, const models::FluxSpec& spec, const encoders::EncoderOptions& encoders,
               const RowBytes& one, int64_t gathered) {
  const int64_t noise = one.latents * kFloat, pixels = one.rows * 3 * one.size * one.size;
  const int64_t converted = one.e == kFloat ? 0 : (pixels + one.latents) * one.e;
  const int64_t pictures = 2 * noise + pixels * kFloat + converted +
                           one.rows * encoder_activation_bytes(encoders.images, one.size, one.size, one.e);
  const int64_t unpacked = config.encoder.t5_weights == "int8" ? encoders.t5.dim * encoders.t5.ffn_hidden * one.e : 0;
  const int64_t texts =
      noise + one.latents * one.e + gathered + unpacked + text_activation_bytes(encoders.t5, one.rows, one.txt, one.e);
  const int64_t encoded = one.rows * one.txt * spec.txt_width * one.e;
  const int64_t vectors = noise + one.latents * one.e + encoded +
                          text_activation_bytes(encoders.clip, one.rows, encoders.clip.max_tokens, one.e);
  const int64_t mixed = noise + one.latents * (one.e + 5 * one.wide) + encoded;
  return std::max({pictures, texts, vectors, mixed}) - one.held(spec);
}

}  // namespace

absl::StatusOr<encoders::EncoderOptions> job_encoders(const config::JobConfig& config, const models::FluxSpec& spec) {
  if (!config::uses_encoders(config)) return encoders::EncoderOptions();
  return encoders::released_encoder_options(config.encoder, spec);
}

RowMemory row_memory(const config::JobConfig& config, const models::FluxSpec& spec,
                     const encoders::EncoderOptions& encoders, int64_t t5_ranks) {
  const int64_t microbatch = microbatch_rows(config);
  const RowBytes all(config, spec, config.training.local_batch_size * config::accumulation_steps(config));
  const RowBytes one(config, spec, microbatch);
  const int64_t context = config.parallelism.context_parallel_degree;
  const int64_t angles = (all.txt + all.img) / context * spec.head_dim() / 2 * 2 * all.wide;
  RowMemory memory;
  memory.held = all.held(spec) + all.rows / microbatch * (angles + (all.txt + all.img) * kPositions * kFloat);
  if (!config::uses_encoders(config)) return memory;  // Stored encodings.
  const encoders::WeightBytes t5 = weight_bytes(encoders.t5, all.e, config.encoder.t5_weights == "int8");
  const int64_t others =
      (parameter_count(encoders.clip).elements + encoder_parameter_count(encoders.images).elements) * all.e;
  memory.encoders = (t5.all + t5_ranks - 1) / t5_ranks + others;
  memory.making = std::max<int64_t>(0, making(config, spec, encoders, one, t5_ranks > 1 ? 2 * t5.largest_layer : 0));
  return memory;
}

}  // namespace titan::memory

#include "worker/rank/model/flux/conditioner.h"

#include <utility>
#include <vector>

#include "common/base/status/status.h"
#include "common/plan/encoders/config.h"
#include "worker/rank/model/encoders/autoencoder_files.h"
#include "worker/rank/model/encoders/clip_text.h"
#include "worker/rank/model/encoders/frozen_weights.h"
#include "worker/rank/model/encoders/parameters.h"

namespace titan::model::flux {
namespace {

constexpr char kT5Key[] = "encoder.t5_encoder", kClipKey[] = "encoder.clip_encoder",
               kAutoencoderKey[] = "encoder.autoencoder_path";

absl::StatusOr<encoders::T5Options> t5_of(const ConditionerOptions& options) {
  TITAN_ASSIGN_OR_RETURN(const nlohmann::json config, encoders::read_config(storage::posix_files(), options.t5));
  return encoders::t5_options(config);
}

absl::StatusOr<encoders::ClipTextOptions> clip_of(const ConditionerOptions& options) {
  TITAN_ASSIGN_OR_RETURN(const nlohmann::json config, encoders::read_config(storage::posix_files(), options.clip));
  return encoders::clip_text_options(config);
}

absl::StatusOr<encoders::AutoencoderOptions> autoencoder_of(const ConditionerOptions& options) {
  if (options.random_seed) {
    const absl::StatusOr<nlohmann::json> config = encoders::read_config(storage::posix_files(), options.autoencoder);
    if (absl::IsNotFound(config.status())) return encoders::AutoencoderOptions();
    TITAN_RETURN_IF_ERROR(config.status());
    return encoders::autoencoder_options(*config);
  }
  TITAN_ASSIGN_OR_RETURN(const auto weights, encoders::open_weights(storage::posix_files(), options.autoencoder));
  return encoders::autoencoder_options_at(storage::posix_files(), options.autoencoder, *weights);
}

// Gives parameters their values, from the files at `path` or by drawing them.
absl::Status fill(const ConditionerOptions& options, const std::string& path, const encoders::WeightNames& names,
                  const std::vector<nn::Parameter*>& parameters) {
  const encoders::Placement placement{.dtype = options.dtype, .device = options.device};
  if (options.shapes_only) return encoders::allocate(parameters, placement);
  if (options.random_seed) return encoders::draw(*options.random_seed, parameters, placement);
  TITAN_ASSIGN_OR_RETURN(auto files, encoders::open_weights(storage::posix_files(), path));
  return encoders::load(encoders::FrozenWeights(std::move(files), names), parameters, placement);
}

bool shares_t5(const ConditionerOptions& options) {
  return options.t5_group != nullptr && options.t5_group->size() > 1;
}

// Gives a rank its rows of T5's weights.
absl::Status fill(const ConditionerOptions& options, const encoders::WeightNames& names,
                  encoders::ShardedWeights& weights) {
  if (options.shapes_only) return absl::OkStatus();
  if (options.random_seed) return weights.draw(*options.random_seed);
  TITAN_ASSIGN_OR_RETURN(auto files, encoders::open_weights(storage::posix_files(), options.t5));
  return weights.load(encoders::FrozenWeights(std::move(files), names));
}

// Loads or draws one half of the autoencoder.
template <typename Coder>
absl::StatusOr<std::unique_ptr<Coder>> load_half(const ConditionerOptions& options,
                                                 const encoders::AutoencoderOptions& sizes, encoders::Half half) {
  auto coder = std::make_unique<Coder>(sizes);
  std::vector<nn::Parameter*> parameters;
  for (nn::Parameter& parameter : coder->parameters()) parameters.push_back(&parameter);
  const absl::Status filled = fill(options, options.autoencoder, encoders::autoencoder_names(sizes, half), parameters);
  if (!filled.ok()) return annotate(filled, kAutoencoderKey);
  return coder;
}

template <typename T>
absl::StatusOr<T> at_key(absl::StatusOr<T> result, const char* key) {
  if (result.ok()) return result;
  return annotate(result.status(), key);
}

}  // namespace

absl::StatusOr<EncoderOptions> read_encoder_options(const ConditionerOptions& options) {
  EncoderOptions read;
  TITAN_ASSIGN_OR_RETURN(read.t5, at_key(t5_of(options), kT5Key));
  TITAN_ASSIGN_OR_RETURN(read.clip, at_key(clip_of(options), kClipKey));
  TITAN_ASSIGN_OR_RETURN(read.images, at_key(autoencoder_of(options), kAutoencoderKey));
  return read;
}

absl::StatusOr<std::unique_ptr<Conditioner>> Conditioner::load(const ConditionerOptions& options,
                                                               const EncoderOptions& sizes) {
  encoders::TextEncoder t5 = encoders::build_t5(sizes.t5, options.t5_form);
  encoders::TextEncoder clip = encoders::build_clip_text(sizes.clip);
  std::unique_ptr<encoders::ShardedWeights> t5_weights;
  if (shares_t5(options)) {
    const encoders::Placement placement{.dtype = options.dtype, .device = options.device};
    t5_weights = std::make_unique<encoders::ShardedWeights>(t5, *options.t5_group, placement);
  }
  const absl::Status filled = t5_weights != nullptr ? fill(options, t5.names(), *t5_weights)
                                                    : fill(options, options.t5, t5.names(), t5.parameters());
  if (!filled.ok()) return annotate(filled, kT5Key);
  if (absl::Status bad = fill(options, options.clip, clip.names(), clip.parameters()); !bad.ok())
    return annotate(bad, kClipKey);
  TITAN_ASSIGN_OR_RETURN(auto images,
                         load_half<encoders::ImageEncoder>(options, sizes.images, encoders::Half::kEncoder));
  std::unique_ptr<encoders::ImageDecoder> decoder;
  if (options.with_decoder) {
    TITAN_ASSIGN_OR_RETURN(decoder, load_half<encoders::ImageDecoder>(options, sizes.images, encoders::Half::kDecoder));
  }
  return std::unique_ptr<Conditioner>(new Conditioner(std::move(t5), std::move(t5_weights), std::move(clip),
                                                      std::move(images), std::move(decoder), options.dtype));
}

at::Tensor Conditioner::txt(const at::Tensor& ids) const {
  return t5_.encode(ids, t5_weights_ == nullptr ? encoders::BlockHooks() : t5_weights_->hooks());
}

at::Tensor Conditioner::latents(const at::Tensor& images, const at::Tensor& noise) const {
  return images_->encode(images.to(dtype_), noise.to(dtype_));
}

at::Tensor Conditioner::pictures(const at::Tensor& latents) const { return decoder_->decode(latents.to(dtype_)); }

}  // namespace titan::model::flux

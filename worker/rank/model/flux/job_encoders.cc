#include "worker/rank/model/flux/job_encoders.h"

#include <filesystem>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/plan/config/image_models.h"
#include "common/plan/encoders/released.h"

namespace titan::model::flux {
namespace {

at::ScalarType encoder_type(const config::JobConfig& config) {
  const std::string type = config::encoder_dtype(config);
  return type == "float64" ? at::kDouble : type == "float32" ? at::kFloat : at::kBFloat16;
}

// Returns the folder of an encoder's tokenizer: the encoder's own, or "tokenizer_2" for the encoder "text_encoder_2" of
// a pipeline of diffusers.
std::string tokenizer_folder(const std::string& encoder) {
  const std::string kEncoder = "text_encoder", kTokenizer = "tokenizer";
  const std::filesystem::path path = std::filesystem::path(encoder).lexically_normal();
  const std::string name = (path.has_filename() ? path : path.parent_path()).filename().string();
  if (!name.starts_with(kEncoder)) return encoder;
  const std::filesystem::path parent = (path.has_filename() ? path : path.parent_path()).parent_path();
  const std::filesystem::path sibling = parent / (kTokenizer + name.substr(kEncoder.size()));
  return std::filesystem::is_directory(sibling) ? sibling.string() : encoder;
}

// Checks that an encoder has a row for each id of the tokenizer that it shares with the other in a test. Encoders' own
// tokenizers may have more ids than rows, which captions do not use.
absl::Status check_vocabulary(const char* key, const data::PromptTokenizer& tokenizer, int64_t vocabulary) {
  const int64_t ids = int64_t{tokenizer.tokenizer().max_id()} + 1;
  if (ids <= vocabulary) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(key, ": its vocabulary is ", vocabulary,
                   ", but with training.test_mode the tokenizer of model.hf_assets_path has ", ids, " ids"));
}

absl::StatusOr<std::shared_ptr<CaptionTokenizers>> load_tokenizers(const config::JobConfig& config,
                                                                   const EncoderOptions& sizes) {
  const int64_t length = config.encoder.max_t5_encoding_len;
  if (config.training.test_mode) {
    constexpr int64_t kClipLength = 77;
    const std::string& folder = config.model.hf_assets_path;
    TITAN_ASSIGN_OR_RETURN(data::PromptTokenizer t5, data::PromptTokenizer::load_for_test(folder, length));
    TITAN_ASSIGN_OR_RETURN(data::PromptTokenizer clip, data::PromptTokenizer::load_for_test(folder, kClipLength));
    TITAN_RETURN_IF_ERROR(check_vocabulary("encoder.t5_encoder", t5, sizes.t5.vocab_size));
    TITAN_RETURN_IF_ERROR(check_vocabulary("encoder.clip_encoder", clip, sizes.clip.vocab_size));
    return std::make_shared<CaptionTokenizers>(std::move(t5), std::move(clip));
  }
  TITAN_ASSIGN_OR_RETURN(data::PromptTokenizer t5,
                         data::PromptTokenizer::load(tokenizer_folder(config.encoder.t5_encoder), length));
  TITAN_ASSIGN_OR_RETURN(data::PromptTokenizer clip,
                         data::PromptTokenizer::load(tokenizer_folder(config.encoder.clip_encoder)));
  return std::make_shared<CaptionTokenizers>(std::move(t5), std::move(clip));
}

// Checks that the encoders make what the transformer reads.
absl::Status check_sizes(const models::FluxSpec& spec, const EncoderOptions& sizes) {
  const auto differ = [&](const char* key, const char* what, int64_t has, int64_t needs) {
    return absl::InvalidArgumentError(
        absl::StrCat(key, ": its ", what, " is ", has, ", but flux ", spec.flavor, " reads ", needs));
  };
  if (sizes.t5.dim != spec.txt_width) return differ("encoder.t5_encoder", "width", sizes.t5.dim, spec.txt_width);
  if (sizes.clip.dim != spec.vec_width) return differ("encoder.clip_encoder", "width", sizes.clip.dim, spec.vec_width);
  if (4 * sizes.images.latent_channels != spec.in_channels)
    return differ("encoder.autoencoder_path", "number of channels for 2 x 2 places", 4 * sizes.images.latent_channels,
                  spec.in_channels);
  return absl::OkStatus();
}

}  // namespace

ConditionerOptions conditioner_options(const config::JobConfig& config, at::Device device) {
  ConditionerOptions options{.t5 = config.encoder.t5_encoder,
                             .clip = config.encoder.clip_encoder,
                             .autoencoder = config.encoder.autoencoder_path,
                             .dtype = encoder_type(config),
                             .device = device};
  if (config.encoder.t5_weights == "int8") options.t5_form = encoders::WeightForm::kInt8;
  if (config.training.test_mode) options.random_seed = static_cast<uint64_t>(config.debug.seed.value_or(0));
  return options;
}

absl::StatusOr<JobEncoders> load_encoders(const models::FluxSpec& spec, const config::JobConfig& config,
                                          const ConditionerOptions& options) {
  JobEncoders loaded;
  TITAN_ASSIGN_OR_RETURN(loaded.sizes, options.shapes_only ? encoders::find_encoder_options(config.encoder, spec)
                                                           : read_encoder_options(options));
  TITAN_RETURN_IF_ERROR(check_sizes(spec, loaded.sizes));
  if (!options.shapes_only) {
    TITAN_ASSIGN_OR_RETURN(loaded.tokenizers, load_tokenizers(config, loaded.sizes));
  }
  TITAN_ASSIGN_OR_RETURN(loaded.conditioner, Conditioner::load(options, loaded.sizes));
  return loaded;
}

}  // namespace titan::model::flux

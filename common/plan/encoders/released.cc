#include "common/plan/encoders/released.h"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/io/storage/file.h"
#include "common/plan/encoders/config.h"

namespace titan::encoders {
namespace {

template <typename Options>
struct Released {
  std::string_view repository;
  Options options;
};

T5Options t5(int64_t dim, int64_t layers, int64_t heads, int64_t hidden) {
  return {
      .vocab_size = 32128, .dim = dim, .num_layers = layers, .num_heads = heads, .head_dim = 64, .ffn_hidden = hidden};
}

ClipTextOptions clip(int64_t dim, int64_t heads) {
  return {.dim = dim, .num_layers = 12, .num_heads = heads, .ffn_hidden = 4 * dim};
}

const std::vector<Released<T5Options>>& t5_sizes() {
  static const auto& all = *new std::vector<Released<T5Options>>{
      {"google/t5-v1_1-small", t5(512, 8, 6, 1024)},
      {"google/t5-v1_1-base", t5(768, 12, 12, 2048)},
      {"google/t5-v1_1-large", t5(1024, 24, 16, 2816)},
      {"google/t5-v1_1-xl", t5(2048, 24, 32, 5120)},
      {"google/t5-v1_1-xxl", t5(4096, 24, 64, 10240)},
      {"titan/t5-tiny",
       {.vocab_size = 133, .dim = 64, .num_layers = 2, .num_heads = 4, .head_dim = 16, .ffn_hidden = 128}}};
  return all;
}

const std::vector<Released<ClipTextOptions>>& clip_sizes() {
  static const auto& all = *new std::vector<Released<ClipTextOptions>>{
      {"openai/clip-vit-base-patch16", clip(512, 8)},
      {"openai/clip-vit-base-patch32", clip(512, 8)},
      {"openai/clip-vit-large-patch14", clip(768, 12)},
      {"titan/clip-tiny", {.vocab_size = 617, .dim = 64, .num_layers = 2, .num_heads = 4, .ffn_hidden = 128}}};
  return all;
}

// Returns the sizes of the installation's autoencoder for its folder or name, else Flux's.
AutoencoderOptions released_autoencoder(const std::string& path) {
  if (!absl::EndsWith(path, "autoencoder-tiny")) return {};
  return {.channels = {16, 16, 32, 32}, .blocks_per_level = 1, .norm_groups = 4};
}

template <typename Options, typename Fits>
std::optional<Options> first(const std::vector<Released<Options>>& all, const Fits& fits) {
  for (const Released<Options>& one : all) {
    if (fits(one)) return one.options;
  }
  return std::nullopt;
}

template <typename Options>
absl::StatusOr<Options> released(const char* key, const std::string& path, const std::vector<Released<Options>>& all,
                                 int64_t width) {
  if (auto named = first(all, [&](const auto& one) { return one.repository == path; })) return *named;
  if (auto fitting = first(all, [&](const auto& one) { return one.options.dim == width; })) return *fitting;
  return absl::NotFoundError(absl::StrCat(key, ": ", path, " has no config.json on this machine, and no released ",
                                          "encoder has the width ", width, " that the model reads"));
}

// Replaces the options by those in the folder, if it has a config.json.
template <typename Options>
absl::Status read_into(absl::StatusOr<Options>& options, const char* key, const std::string& path,
                       absl::StatusOr<Options> (*parse)(const nlohmann::json&)) {
  const absl::StatusOr<nlohmann::json> config = read_config(storage::posix_files(), path);
  if (absl::IsNotFound(config.status())) return options.status();
  if (!config.ok()) return annotate(config.status(), key);
  options = parse(*config);
  return options.ok() ? absl::OkStatus() : annotate(options.status(), key);
}

constexpr char kT5Key[] = "encoder.t5_encoder", kClipKey[] = "encoder.clip_encoder";

absl::StatusOr<T5Options> released_t5(const config::EncoderSection& encoder, const models::FluxSpec& spec) {
  return released(kT5Key, encoder.t5_encoder, t5_sizes(), spec.txt_width);
}

absl::StatusOr<ClipTextOptions> released_clip(const config::EncoderSection& encoder, const models::FluxSpec& spec) {
  return released(kClipKey, encoder.clip_encoder, clip_sizes(), spec.vec_width);
}

}  // namespace

absl::StatusOr<EncoderOptions> released_encoder_options(const config::EncoderSection& encoder,
                                                        const models::FluxSpec& spec) {
  EncoderOptions found;
  TITAN_ASSIGN_OR_RETURN(found.t5, released_t5(encoder, spec));
  TITAN_ASSIGN_OR_RETURN(found.clip, released_clip(encoder, spec));
  found.images = released_autoencoder(encoder.autoencoder_path);
  return found;
}

absl::StatusOr<EncoderOptions> find_encoder_options(const config::EncoderSection& encoder,
                                                    const models::FluxSpec& spec) {
  absl::StatusOr<T5Options> t5 = released_t5(encoder, spec);
  TITAN_RETURN_IF_ERROR(read_into(t5, kT5Key, encoder.t5_encoder, t5_options));
  absl::StatusOr<ClipTextOptions> clip = released_clip(encoder, spec);
  TITAN_RETURN_IF_ERROR(read_into(clip, kClipKey, encoder.clip_encoder, clip_text_options));
  EncoderOptions found{.t5 = *t5, .clip = *clip, .images = {}};
  // A file without config.json is read as Flux's.
  absl::StatusOr<AutoencoderOptions> images = released_autoencoder(encoder.autoencoder_path);
  const std::string& path = encoder.autoencoder_path;
  const bool is_folder = read_config(storage::posix_files(), path).ok();
  if (is_folder) TITAN_RETURN_IF_ERROR(read_into(images, "encoder.autoencoder_path", path, autoencoder_options));
  found.images = *images;
  return found;
}

}  // namespace titan::encoders

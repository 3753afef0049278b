#include "worker/rank/model/encoders/autoencoder_files.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/status/status.h"
#include "common/plan/encoders/config.h"
#include "worker/rank/checkpoint/shards/model_mismatch.h"

namespace titan::encoders {
namespace {

using checkpoint::HfFolder;

using Words = std::vector<std::string>;

// Names of the layers of attention: Black Forest Labs', diffusers', and diffusers' before 0.15.
struct AttentionLayer {
  const char* ours;
  const char* diffusers;
  const char* old_diffusers;
};
constexpr AttentionLayer kAttentionLayers[] = {{"norm", "group_norm", "group_norm"},
                                               {"q", "to_q", "query"},
                                               {"k", "to_k", "key"},
                                               {"v", "to_v", "value"},
                                               {"proj_out", "to_out.0", "proj_attn"}};

// Returns diffusers' name of the part "mid.BLOCK.LAYER" from `words`, whose first one is a half's name.
std::string middle_name(const Words& words, bool old) {
  const std::string &part = words[2], &layer = words[3];
  if (part != "attn_1") return absl::StrCat("mid_block.resnets.", part == "block_1" ? 0 : 1, ".", layer);
  const auto* found = std::find_if(std::begin(kAttentionLayers), std::end(kAttentionLayers),
                                   [&](const AttentionLayer& one) { return layer == one.ours; });
  return absl::StrCat("mid_block.attentions.0.", old ? found->old_diffusers : found->diffusers);
}

// Returns diffusers' name of "down.LEVEL.PART..." or "up.LEVEL.PART...". There the levels of the decoder are counted in
// the order of computation.
std::string level_name(const Words& words, size_t levels) {
  size_t level = 0;
  TORCH_CHECK(absl::SimpleAtoi(words[2], &level) && level < levels, "no level ", words[2], " in the autoencoder");
  const bool up = words[1] == "up";
  const std::string prefix = absl::StrCat(words[1], "_blocks.", up ? levels - 1 - level : level, ".");
  if (words[3] != "block") return absl::StrCat(prefix, words[3], "rs.0.conv");
  return absl::StrCat(prefix, "resnets.", words[4], ".", words[5] == "nin_shortcut" ? "conv_shortcut" : words[5]);
}

std::string diffusers_name(const std::string& fqn, size_t levels, bool old) {
  const Words words = absl::StrSplit(fqn, '.');
  std::string layer = words[1];
  if (words[1] == "mid") {
    layer = middle_name(words, old);
  } else if (words[1] == "down" || words[1] == "up") {
    layer = level_name(words, levels);
  } else if (words[1] == "norm_out") {
    layer = "conv_norm_out";
  }
  return absl::StrJoin({words[0], layer, words.back()}, ".");
}

std::vector<std::string> candidates_of(const std::string& fqn, size_t levels) {
  std::vector<std::string> names = {fqn, diffusers_name(fqn, levels, /*old=*/false)};
  std::string old = diffusers_name(fqn, levels, /*old=*/true);
  if (old != names.back()) names.push_back(std::move(old));
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

// Returns the tensor's shape, if the weights have the parameter under one of its names.
std::optional<std::vector<int64_t>> shape_of(const HfFolder& weights, const std::string& fqn, size_t levels) {
  for (const std::string& name : candidates_of(fqn, levels)) {
    const absl::StatusOr<checkpoint::Coded> coded = weights.coded(name);
    if (coded.ok()) return coded->shape;
  }
  return std::nullopt;
}

absl::Status no_autoencoder(const HfFolder& weights, const std::string& why) {
  return absl::FailedPreconditionError(
      absl::StrCat(weights.folder(), checkpoint::kDoesNotFit, ": not an autoencoder's weights: ", why));
}

// Returns how many levels a half has. In both namings they are counted from 0.
size_t count_levels(const HfFolder& weights, const std::string& half, const std::string& direction) {
  const auto has = [&](size_t level) {
    const std::string prefix = absl::StrCat(half, ".", direction);
    return weights.has(absl::StrCat(prefix, ".", level, ".block.0.conv1.weight")) ||
           weights.has(absl::StrCat(prefix, "_blocks.", level, ".resnets.0.conv1.weight"));
  };
  size_t levels = 0;
  while (has(levels)) ++levels;
  return levels;
}

absl::StatusOr<AutoencoderOptions> infer(const HfFolder& weights) {
  const bool encoder = std::any_of(weights.keys().begin(), weights.keys().end(),
                                   [](const auto& key) { return absl::StartsWith(key, "encoder."); });
  const std::string half = encoder ? "encoder" : "decoder", direction = encoder ? "down" : "up";
  const size_t levels = count_levels(weights, half, direction);
  if (levels == 0) return no_autoencoder(weights, absl::StrCat("no ", half, ".", direction, ".0.block.0.conv1.weight"));
  const auto block = [&](size_t level, int64_t index) {
    return absl::StrCat(half, ".", direction, ".", level, ".block.", index, ".conv1.weight");
  };
  AutoencoderOptions options;
  options.channels.clear();
  for (size_t level = 0; level < levels; ++level) {
    const auto shape = shape_of(weights, block(level, 0), levels);
    if (!shape || shape->size() != 4) return no_autoencoder(weights, block(level, 0) + " is not a convolution's");
    options.channels.push_back(shape->front());
  }
  int64_t blocks = 1;
  while (shape_of(weights, block(0, blocks), levels)) ++blocks;
  options.blocks_per_level = encoder ? blocks : blocks - 1;
  const std::string in = half + ".conv_in.weight", out = half + ".conv_out.weight";
  const auto first = shape_of(weights, in, levels), last = shape_of(weights, out, levels);
  if (!first || !last || first->size() != 4 || last->size() != 4) {
    return no_autoencoder(weights, absl::StrCat(first ? out : in, " is missing, or not a convolution's"));
  }
  options.image_channels = encoder ? (*first)[1] : (*last)[0];
  options.latent_channels = encoder ? (*last)[0] / 2 : (*first)[1];
  for (const int64_t channels : options.channels) {
    if (channels > 0 && channels % options.norm_groups == 0) continue;
    return no_autoencoder(weights, absl::StrCat(channels, " channels are not a multiple of ", options.norm_groups,
                                                ", the number of norm groups without a config.json"));
  }
  return options;
}

}  // namespace

WeightNames autoencoder_names(const AutoencoderOptions& options, Half half) {
  const size_t levels = options.channels.size();
  return {.model = half == Half::kEncoder ? "the autoencoder's encoder" : "the autoencoder's decoder",
          .candidates = [levels](const std::string& fqn) { return candidates_of(fqn, levels); },
          .unused = {half == Half::kEncoder ? "decoder." : "encoder."}};
}

absl::StatusOr<AutoencoderOptions> autoencoder_options_at(storage::Files& files, const std::string& path,
                                                          const HfFolder& weights) {
  if (!files.is_folder(path) || !files.exists(storage::join_path(path, "config.json"))) return infer(weights);
  TITAN_ASSIGN_OR_RETURN(const nlohmann::json config, read_config(files, path));
  absl::StatusOr<AutoencoderOptions> options = autoencoder_options(config);
  if (!options.ok()) return annotate(options.status(), path);
  return options;
}

}  // namespace titan::encoders

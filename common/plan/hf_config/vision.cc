#include "common/plan/hf_config/vision.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status/status.h"
#include "common/plan/hf_config/keys.h"

namespace titan::hf_config {
namespace {

using models::VisionSpec;
using nlohmann::json;

constexpr char kTower[] = "siglip2_vision_model";

// Reads a number above 0, if the file has it.
void take_size(Keys& keys, const char* key, int64_t& into) {
  if (keys.has(key)) keys.need(key, into);
}

void take_positions(Keys& keys, VisionSpec& spec) {
  int64_t rows = spec.position_side * spec.position_side;
  take_size(keys, "num_patches", rows);
  spec.position_side = static_cast<int64_t>(std::lround(std::sqrt(static_cast<double>(rows))));
  if (spec.position_side * spec.position_side != rows) keys.refuse("num_patches", "only a square number");
}

absl::StatusOr<HfVision> read_tower(const json& config, const std::string& prefix, std::string model_type) {
  Keys keys(config, prefix);
  keys.take("model_type", model_type);
  if (model_type != kTower) keys.refuse("model_type", absl::StrCat("only ", kTower));
  HfVision vision;
  VisionSpec& spec = vision.spec;
  take_size(keys, "hidden_size", spec.dim);
  take_size(keys, "intermediate_size", spec.ffn_hidden);
  take_size(keys, "num_hidden_layers", spec.n_layers);
  take_size(keys, "num_attention_heads", spec.n_heads);
  take_size(keys, "num_channels", spec.channels);
  take_size(keys, "patch_size", spec.patch_size);
  take_positions(keys, spec);
  if (keys.has("layer_norm_eps")) keys.need("layer_norm_eps", spec.norm_eps);
  keys.expect("hidden_act", std::string("gelu_pytorch_tanh"));
  if (keys.status().ok() && spec.dim % spec.n_heads != 0)
    keys.refuse("num_attention_heads", absl::StrCat("only a divisor of hidden_size ", spec.dim));
  TITAN_RETURN_IF_ERROR(keys.status());
  if (const json dropout = keys.at("attention_dropout"); dropout.is_number() && dropout != 0) {
    vision.notes.push_back(
        absl::StrCat(prefix, "attention_dropout ", dropout.dump(), " is not applied: Titan has no dropout"));
  }
  return vision;
}

}  // namespace

absl::StatusOr<HfVision> read_vision(const json& config) {
  if (!config.is_object()) return absl::InvalidArgumentError("config.json: not a JSON object");
  const auto inner = config.find("vision_config");
  if (inner == config.end() || inner->is_null()) return read_tower(config, "", "");
  if (!inner->is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat("config.json: vision_config is ", inner->dump().substr(0, 80), "; a table is supported"));
  }
  // Siglip2Config fixes the class of its tower.
  const bool implied = config.value("model_type", json()) == "siglip2";
  return read_tower(*inner, "vision_config.", implied ? kTower : "");
}

std::string tower_differences(const VisionSpec& file, const VisionSpec& need) {
  std::vector<std::string> found;
  const auto compare = [&](const char* key, auto there, auto here) {
    if (there != here) found.push_back(absl::StrCat(key, " ", there, ", need ", here));
  };
  compare("hidden_size", file.dim, need.dim);
  compare("intermediate_size", file.ffn_hidden, need.ffn_hidden);
  compare("num_hidden_layers", file.n_layers, need.n_layers);
  compare("num_attention_heads", file.n_heads, need.n_heads);
  compare("num_channels", file.channels, need.channels);
  compare("patch_size", file.patch_size, need.patch_size);
  compare("num_patches", file.position_side * file.position_side, need.position_side * need.position_side);
  compare("layer_norm_eps", file.norm_eps, need.norm_eps);
  return absl::StrJoin(found, "; ");
}

}  // namespace titan::hf_config

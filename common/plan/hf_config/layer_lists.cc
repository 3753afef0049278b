#include "common/plan/hf_config/layer_lists.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace titan::hf_config {
namespace {

using models::ModelSpec;
using nlohmann::json;

constexpr size_t kShownList = 80;
constexpr char kTypes[] = "layer_types";

bool has_windows(const ModelSpec& spec, const std::vector<bool>& layers) {
  for (int64_t layer = 0; layer < spec.n_layers; ++layer) {
    if ((spec.layer_window(layer) > 0) != layers[static_cast<size_t>(layer)]) return false;
  }
  return true;
}

// Sets the step and the first layer that give these windows. The family's own numbers are tried first.
bool express(const std::vector<bool>& layers, ModelSpec& spec) {
  if (has_windows(spec, layers)) return true;
  spec.window_first_layer = std::find(layers.begin(), layers.end(), true) - layers.begin();
  for (spec.window_step = 0; spec.window_step <= spec.n_layers; ++spec.window_step) {
    if (has_windows(spec, layers)) return true;
  }
  return false;
}

std::vector<bool> listed_windows(Keys& keys, int64_t n_layers) {
  const json listed = keys.at(kTypes);
  std::vector<bool> layers;
  for (const json& type : listed.is_array() ? listed : json::array()) layers.push_back(type == "sliding_attention");
  const bool known = listed.is_array() && std::all_of(listed.begin(), listed.end(), [](const json& type) {
                       return type == "sliding_attention" || type == "full_attention";
                     });
  if (known && static_cast<int64_t>(layers.size()) == n_layers) return layers;
  keys.refuse(kTypes, absl::StrCat("a list of ", n_layers, " times full_attention or sliding_attention"));
  return std::vector<bool>(static_cast<size_t>(n_layers));
}

}  // namespace

void expect_list(Keys& keys, const char* key, const json& only) {
  const json there = keys.at(key);
  if (!there.is_null() && there != only) keys.refuse(key, absl::StrCat("only ", only.dump().substr(0, kShownList)));
}

void take_windows(Keys& keys, int64_t window, const std::vector<bool>& usual, const char* decider, ModelSpec& spec) {
  const std::vector<bool> layers = keys.has(kTypes) ? listed_windows(keys, spec.n_layers) : usual;
  const char* const key = keys.has(kTypes) ? kTypes : decider;
  spec.sliding_window = window;
  if (std::none_of(layers.begin(), layers.end(), [](bool one) { return one; })) {
    spec.sliding_window = 0;
    spec.window_step = ModelSpec().window_step;
    spec.window_first_layer = 0;
  } else if (window <= 0) {
    keys.refuse(key, "full_attention without a sliding_window");
  } else if (!express(layers, spec)) {
    keys.refuse(key, "windows in all layers from one on, or in all but every n-th,");
  }
}

void take_unrotated_layers(Keys& keys, ModelSpec& spec) {
  const json listed = keys.at("no_rope_layers");
  spec.nope_ends_step = true;
  if (!listed.is_null() && !listed.is_array()) keys.refuse("no_rope_layers", "a list");
  if (!listed.is_array() || listed.empty()) {
    keys.need("no_rope_layer_interval", spec.nope_layer_step);
    // A list would have no layer without positions either.
    if (spec.nope_layer_step <= spec.n_layers) return;
    spec.nope_layer_step = 0;
    spec.nope_ends_step = false;
    return;
  }
  const auto first = std::find(listed.begin(), listed.end(), 0);
  spec.nope_layer_step = 0;
  if (first == listed.end()) {
    spec.nope_ends_step = false;
  } else {
    spec.nope_ends_step = first != listed.begin();
    const auto next = std::find(first + 1, listed.end(), 0);
    spec.nope_layer_step = spec.nope_ends_step ? first - listed.begin() + 1 : next - first;
  }
  json regular = json::array();
  for (int64_t layer = 0; layer < spec.n_layers; ++layer) regular.push_back(spec.layer_has_positions(layer) ? 1 : 0);
  if (listed != regular) keys.refuse("no_rope_layers", "every n-th layer without positions");
}

}  // namespace titan::hf_config

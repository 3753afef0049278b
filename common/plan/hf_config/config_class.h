#pragma once

// States what Titan does with each key of transformers' configuration classes. A key that is in none of a class's lists
// is refused by name, so no setting of a config.json is silently left out.

#include <map>
#include <string>
#include <vector>

#include "common/plan/hf_config/keys.h"
#include "common/plan/models/model_spec.h"
#include "nlohmann/json.hpp"

namespace titan::hf_config {

// Keys that do not change what training computes, and the reason.
struct IgnoredKeys {
  std::string why;
  std::vector<std::string> names;
};

// A key's alternative name in transformers 5 (its attribute_map), which files may use, and the name that readers use:
// {"num_local_experts", "num_experts"}. Empty: the class has no alternative name.
struct AttributeAlias {
  std::string second, first;
};

// A configuration class of transformers 4.57 and 5.24.
struct ConfigClass {
  const char* family;  // Name and flavor of the model that supplies what config.json does not have.
  const char* like;
  // Takes the keys of `computed` into a spec. `keys` has the class's defaults for what the file leaves out.
  void (*read)(Keys& keys, models::ModelSpec& spec) = nullptr;
  // Keys that `read`, take_common() or take_rope() compute or refuse by name, and the class's defaults, which are the
  // same in both generations; null: None. A key whose default differs is not in the list of defaults: readers need it.
  nlohmann::json computed = nlohmann::json::object();
  nlohmann::json only = nlohmann::json::object();  // Keys of which Titan computes one value. Others are refused.
  std::vector<IgnoredKeys> ignored = {};
  AttributeAlias alias = {};
};
using ConfigClasses = std::map<std::string, ConfigClass>;  // By model_type.

// Returns the classes that Titan reads.
const ConfigClasses& config_classes();

// Return what every class ignores, and the keys without a default that take_common() and take_rope() compute for every
// class.
const std::vector<IgnoredKeys>& ignored_everywhere();
const std::vector<std::string>& computed_everywhere();

// Keys of dropouts, which training does not apply: a value other than 0 gives a note.
const std::vector<std::string>& dropout_keys();

// Sets the status of `file` for a key with a value that Titan does not compute: one of `only` with another value, or a
// key in no list. A null counts as missing.
void check_keys(Keys& file, const std::string& model_type, const ConfigClass& config);

// Returns the class's defaults overridden by the file's keys, under the names that readers use.
nlohmann::json with_defaults(Keys& file, const ConfigClass& config);

// Reads what every decoder has: widths, counts, vocabulary, the norms' epsilon. Every class's `read` follows it.
void take_common(Keys& keys, models::ModelSpec& spec);

// The classes of each read_*.cc.
ConfigClasses deepseek_classes();
ConfigClasses gemma_classes();
ConfigClasses gpt_oss_classes();
ConfigClasses llama_classes();
ConfigClasses llama4_classes();
ConfigClasses mistral_classes();
ConfigClasses post_norm_classes();
ConfigClasses qwen_classes();

}  // namespace titan::hf_config

#pragma once

// Reads the keys of a config.json object, with the defaults and second names that transformers' class of the model type
// has for them.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace titan::hf_config {

// Reads keys of one JSON object. The first key that cannot be read is the status; later ones are not looked at.
class Keys {
 public:
  // `prefix` stands before the keys in messages: "rope_scaling.".
  explicit Keys(nlohmann::json object, std::string prefix = "")
      : object_(std::move(object)), prefix_(std::move(prefix)) {}

  // A null says no more than a missing key.
  bool has(const std::string& key) const { return object_.contains(key) && !object_.at(key).is_null(); }
  nlohmann::json at(const std::string& key) const { return has(key) ? object_.at(key) : nlohmann::json(); }
  const nlohmann::json& object() const { return object_; }

  // These leave `into` alone where the object does not have the key.
  void take(const std::string& key, int64_t& into);
  void take(const std::string& key, double& into);
  void take(const std::string& key, bool& into);  // A number counts as whether it is not 0.
  void take(const std::string& key, std::string& into);

  // The key must be there and above 0.
  void need(const std::string& key, int64_t& into);
  void need(const std::string& key, double& into);

  // For what no family here computes otherwise. A missing key is right.
  template <typename T>
  void expect(const std::string& key, const T& only) {
    T there = only;
    take(key, there);
    if (there != only) refuse(key, absl::StrCat("only ", nlohmann::json(only).dump()));
  }

  // "config.json: KEY is VALUE; EXPECTED can be read here".
  void refuse(const std::string& key, const std::string& expected);

  const absl::Status& status() const { return status_; }
  void fail(const absl::Status& status) { status_.Update(status); }

 private:
  nlohmann::json object_;
  std::string prefix_;
  absl::Status status_;
};

// What transformers' configuration class of a model type takes for the keys that a config.json leaves out; null for a
// model type that Titan does not read. The same in transformers 4.57 and 5.24: a key whose default differs between them
// (DeepSeek V2's vocab_size) is not here, so that a file without it is refused.
nlohmann::json class_defaults(const std::string& model_type);

// The second name of a key in transformers 5 (its attribute_map), under which files may have it: {"num_local_experts",
// "num_experts"} is the second name and the one that read.cc uses. Empty names: the model type has none.
struct Alias {
  std::string second, first;
};
Alias alias_of(const std::string& model_type);

}  // namespace titan::hf_config

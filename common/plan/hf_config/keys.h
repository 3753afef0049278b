#pragma once

// Reads the keys of a config.json object, with the defaults and alternative names of transformers' configuration class.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace titan::hf_config {

// Reads keys of one JSON object. The first key that cannot be read sets the status; later errors are ignored.
class Keys {
 public:
  // `prefix` precedes the keys in messages: "rope_scaling."; `file` is the file that they name.
  explicit Keys(nlohmann::json object, std::string prefix = "", std::string file = "config.json")
      : object_(std::move(object)), prefix_(std::move(prefix)), file_(std::move(file)) {}

  // A null is treated as a missing key.
  bool has(const std::string& key) const { return object_.contains(key) && !object_.at(key).is_null(); }
  nlohmann::json at(const std::string& key) const { return has(key) ? object_.at(key) : nlohmann::json(); }
  const nlohmann::json& object() const { return object_; }

  // Read a key of the given type. Leave `into` unchanged when the object does not have the key.
  void take(const std::string& key, int64_t& into);
  void take(const std::string& key, double& into);
  void take(const std::string& key, bool& into);  // A number is true unless it is 0.
  void take(const std::string& key, std::string& into);

  // Read a key that must be present and above 0.
  void need(const std::string& key, int64_t& into);
  void need(const std::string& key, double& into);

  // Checks a setting for which all families support only one value. A missing key is accepted.
  template <typename T>
  void expect(const std::string& key, const T& only) {
    T there = only;
    take(key, there);
    if (there != only) refuse(key, absl::StrCat("only ", nlohmann::json(only).dump()));
  }

  // Sets the error "config.json: KEY is VALUE; EXPECTED is supported".
  void refuse(const std::string& key, const std::string& expected);

  const absl::Status& status() const { return status_; }
  void fail(const absl::Status& status) { status_.Update(status); }

 private:
  nlohmann::json object_;
  std::string prefix_, file_;
  absl::Status status_;
};

// Returns the defaults of transformers' configuration class for keys that a config.json leaves out; null for a model
// type that Titan does not read. They are the same in transformers 4.57 and 5.24. A key whose default differs between
// them (DeepSeek V2's vocab_size) is not included, so a file without it is rejected.
nlohmann::json class_defaults(const std::string& model_type);

// A key's alternative name in transformers 5 (its attribute_map), which files may use, and the name that read.cc uses:
// {"num_local_experts", "num_experts"}. Empty: the model type has no alternative name.
struct AttributeAlias {
  std::string second, first;
};
AttributeAlias alias_of(const std::string& model_type);

}  // namespace titan::hf_config

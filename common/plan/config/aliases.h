#pragma once

// Other spellings, from older torchtitan versions and from articles about it.

#include <optional>
#include <string>
#include <string_view>

#include "common/plan/config/assign.h"
#include "common/plan/config/raw.h"

namespace titan::config {

// How the value of an older key becomes the value of its successor.
enum class ValueConversion {
  kSame,
  kNot,              // Inverts: true becomes false.
  kFolder,           // A tokenizer file becomes its folder.
  kFused,            // true: "fused", false: "foreach".
  kFloat8Converter,  // true: the converter quantize.linear.float8.
  kSharding,         // Reads PyTorch's ShardingStrategy (other_trainers.h).
};

struct KeyAlias {
  std::string_view spelling;
  std::string_view key;
  ValueConversion conversion = ValueConversion::kSame;
};

// Returns the successor of an older key, or null.
const KeyAlias* find_alias(std::string_view spelling);

// Rewrites the value. Returns a complaint when it has no counterpart.
std::optional<FieldError> convert_value(ValueConversion conversion, RawValue& value);

// Rewrites older names inside a current key's value: the converter "float8" becomes "quantize.linear.float8".
void replace_value_aliases(std::string_view key, RawValue& value);

// A second meaning of a value, for another key: "fused_opt_states_bf16" of a later torchtitan is "fused" with
// optimizer.state_dtype = "bfloat16".
struct Implied {
  std::string_view key, value;
};
std::optional<Implied> implied_by(std::string_view key, const RawValue& value);

// Returns advice for a key that is known from elsewhere but has no counterpart here; empty for an unknown key.
std::string_view explain_unknown(std::string_view key);

// Returns why an old key without a field may be ignored with this value; empty when it may not.
std::string_view explain_without_effect(std::string_view key, const RawValue& value);

}  // namespace titan::config

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
  kNot,              // true becomes false, and false true.
  kFolder,           // A tokenizer file becomes its folder.
  kFused,            // true: "fused", false: "foreach".
  kFloat8Converter,  // true: the converter quantize.linear.float8; false: none.
  kSharding,         // A ShardingStrategy of PyTorch becomes its reshard_after_forward (other_trainers.h).
};

struct KeyAlias {
  std::string_view spelling;
  std::string_view key;
  ValueConversion conversion = ValueConversion::kSame;
};

// Returns the successor of an older key, or null.
const KeyAlias* find_alias(std::string_view spelling);

// Converts an older key's value to its successor's, in place. Returns what is wrong if the value has no counterpart.
std::optional<FieldError> convert_value(ValueConversion conversion, RawValue& value);

// Rewrites older names inside a current key's value: the converter "float8" becomes "quantize.linear.float8".
void replace_value_aliases(std::string_view key, RawValue& value);

// A second meaning of a value, for another key: "fused_opt_states_bf16" of a later torchtitan is "fused" with
// optimizer.state_dtype = "bfloat16".
struct Implied {
  std::string_view key, value;
};
// Returns the second meaning of `value`, if it has one.
std::optional<Implied> implied_by(std::string_view key, const RawValue& value);

// Returns advice for a key that other versions or trainers know but that has no counterpart here; empty for an unknown
// key.
std::string_view explain_unknown(std::string_view key);

// Returns why an old key without a field may be ignored with this value; empty when it may not.
std::string_view explain_without_effect(std::string_view key, const RawValue& value);

}  // namespace titan::config

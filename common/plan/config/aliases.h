#pragma once

// Other spellings that files of older torchtitan versions and of articles about it use.

#include <optional>
#include <string>
#include <string_view>

#include "common/plan/config/assign.h"
#include "common/plan/config/raw.h"

namespace titan::config {

// How the value of an older key becomes the value of its successor.
enum class Turn {
  kSame,
  kNot,              // The key was turned around: true becomes false.
  kFolder,           // A tokenizer file becomes its folder.
  kFused,            // true: "fused", false: "foreach".
  kFloat8Converter,  // true: the converter quantize.linear.float8.
  kSharding,         // PyTorch's ShardingStrategy (other_trainers.h).
};

struct Alias {
  std::string_view spelling;
  std::string_view key;
  Turn turn = Turn::kSame;
};

// The successor of an older key, or null.
const Alias* find_alias(std::string_view spelling);

// Rewrites the value. Says what is wrong when it has no counterpart.
std::optional<Complaint> turn_value(Turn turn, Raw& value);

// Rewrites older names inside a canonical key's value: the converter "float8" becomes "quantize.linear.float8".
void replace_value_aliases(std::string_view key, Raw& value);

// What a value says beside its own key's meaning: torchtitan's later "fused_opt_states_bf16" is "fused" with
// optimizer.state_dtype = "bfloat16".
struct Implied {
  std::string_view key, value;
};
std::optional<Implied> implied_by(std::string_view key, const Raw& value);

// What to say about a key that is known from elsewhere but has no counterpart here; empty when it is not known.
std::string_view explain_unknown(std::string_view key);

// Why an old key without a field of its own may be dropped with this value; empty when it may not.
std::string_view explain_without_effect(std::string_view key, const Raw& value);

}  // namespace titan::config

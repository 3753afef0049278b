#pragma once

#include <optional>

#include "absl/strings/string_view.h"
#include "controller/core/rank_event.h"

namespace titan::reconcile {

// Decodes a line of a rank's spool. Ranks of another version may omit members or change their types: that affects one
// value, and never the whole line. Nothing: the line is not an object, or is of a kind that the controller does not
// use.
std::optional<core::RankEvent> decode_rank_event(absl::string_view line);

}  // namespace titan::reconcile

#pragma once

#include <optional>

#include "absl/strings/string_view.h"
#include "controller/core/rank_event.h"

namespace titan::reconcile {

// A line of a rank's spool. Ranks of another version may leave members out or change their types: that costs one figure
// and never the line. Nothing: the line is not an object, or of a kind that only others read.
std::optional<core::RankEvent> decode_rank_event(absl::string_view line);

}  // namespace titan::reconcile

#pragma once

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "worker/rank/data/rows/mixed_rows.h"

namespace titan::data {

// A place in a stream as checkpoints keep it: of one source without a name its position alone (stream_state.h); of
// several each one's with its name, its rows, and where the mixing is.
nlohmann::json to_json(const MixCursor& cursor, const MixedRows& rows);

// Sources are found by their names: one that is new begins at its start, one that is gone is forgotten. Errors: those
// of position_from_json(); InvalidArgument for a place of one unnamed source where there are named ones, or the other
// way round.
absl::StatusOr<MixCursor> mix_from_json(const nlohmann::json& json, const MixedRows& rows);

}  // namespace titan::data

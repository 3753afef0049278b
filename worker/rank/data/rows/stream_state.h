#pragma once

// Turns positions in a stream of rows, of one source or of several, into the JSON of checkpoints and back.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "worker/rank/data/documents/row_source.h"
#include "worker/rank/data/rows/mixed_rows.h"

namespace titan::data {

// A number of a state, in which nothing counts beyond 2^60: what reads it may add to it. Errors: InvalidArgument for
// anything but a number of 0 or more (names the key).
absl::StatusOr<int64_t> state_number(const nlohmann::json& object, const char* key);

// A stream position as checkpoints keep it: with the name of its file, where it lies below the folder of all, and, of a
// hub's, the commit, so that a changed dataset is noticed.
nlohmann::json to_json(const StreamPosition& position, const std::vector<std::string>& files);

// Errors: InvalidArgument for a missing or negative number (names it), or when the file at that place has another name
// now, lies elsewhere among the others, or is of another commit.
absl::StatusOr<StreamPosition> position_from_json(const nlohmann::json& json, const std::vector<std::string>& files);

// A place in a stream as checkpoints keep it: of one source without a name its position alone; of several each one's
// position with its name and its rows, and where the mixing is.
nlohmann::json to_json(const MixCursor& cursor, const MixedRows& rows);

// Sources are found by their names: one that is new begins at its start, one that is gone is forgotten. Errors: those
// of position_from_json(); InvalidArgument for a place of one unnamed source where there are named ones, or the other
// way round.
absl::StatusOr<MixCursor> mix_from_json(const nlohmann::json& json, const MixedRows& rows);

}  // namespace titan::data

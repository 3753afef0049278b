#pragma once

// Converts positions in a stream of rows, of one source or several, to the JSON of checkpoints and back.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "worker/rank/data/documents/row_source.h"
#include "worker/rank/data/rows/mixed_rows.h"

namespace titan::data {

// Reads a number of a state. Numbers are at most 2^60, so that readers may add to them. Errors: InvalidArgument for
// anything but a number of 0 or more (names the key).
absl::StatusOr<int64_t> state_number(const nlohmann::json& object, const char* key);

// A stream position as checkpoints keep it. It includes the file's name, its path below the dataset's folder and, for a
// hub, the commit, so that a changed dataset is noticed.
nlohmann::json to_json(const StreamPosition& position, const std::vector<std::string>& files);

// Errors: InvalidArgument for a missing or negative number (names it), or if the file at that index now has another
// name, another place among the files, or another commit.
absl::StatusOr<StreamPosition> position_from_json(const nlohmann::json& json, const std::vector<std::string>& files);

// A place in a stream as checkpoints keep it: the position of a single source without a name; otherwise each source's
// position with its name and rows, and the state of the mixing.
nlohmann::json to_json(const MixCursor& cursor, const MixedRows& rows);

// Finds sources by name: a new source begins at its start, and a removed one is dropped. Errors: those of
// position_from_json(); InvalidArgument if a single unnamed source was saved and the job has named ones, or the
// reverse.
absl::StatusOr<MixCursor> mix_from_json(const nlohmann::json& json, const MixedRows& rows);

}  // namespace titan::data

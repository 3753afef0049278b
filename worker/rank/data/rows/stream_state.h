#pragma once

// Converts positions in a stream of rows, of one source or several, to the JSON of checkpoints and back.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "worker/rank/data/documents/row_source.h"
#include "worker/rank/data/rows/mixed_rows.h"

namespace titan::data {

// Reads a number of a state: an integer from 0 to 2^60, so that readers may add to it. Errors: InvalidArgument for
// anything else (names the key).
absl::StatusOr<int64_t> state_number(const nlohmann::json& object, const char* key);

// Returns a stream position in the form that checkpoints store. It includes the file's name, its path below the
// dataset's folder and, for a hub, the commit, so that a changed dataset is detected.
nlohmann::json to_json(const StreamPosition& position, const std::vector<std::string>& files);

// Errors: InvalidArgument for a missing or negative number (names it), or if the file at that index now has another
// name, another place among the files, or another commit.
absl::StatusOr<StreamPosition> position_from_json(const nlohmann::json& json, const std::vector<std::string>& files);

// Returns a place in a stream in that form: the position of a single source without a name; otherwise each source's
// position with its name and rows, and the state of the mixing.
nlohmann::json to_json(const MixCursor& cursor, const MixedRows& rows);

// Finds sources by name: a new source begins at its start, and a removed one is dropped. Errors: those of
// position_from_json(); InvalidArgument if a single unnamed source was saved and the job has named ones, or the
// reverse.
absl::StatusOr<MixCursor> mix_from_json(const nlohmann::json& json, const MixedRows& rows);

}  // namespace titan::data

#pragma once

// A status as it travels between ranks: in each rank's report, and in rank 0's verdict on all of them.

#include <new>
#include <string>

#include "absl/status/status.h"
#include "nlohmann/json.hpp"

namespace titan::checkpoint {

// The code survives, so that "fenced" and "disk full" mean the same on every rank.
nlohmann::json to_json(const absl::Status& status);
absl::Status status_from_json(const nlohmann::json& from);

// The codes of Exchange: there is nobody left to agree with.
bool lost_a_rank(const absl::Status& status);

// A file's own "unavailable" must not read as a lost rank.
absl::Status not_a_lost_rank(const absl::Status& status);

// LibTorch throws (out of memory, a tensor that does not fit a view); a rank that fails must still report, or all
// others wait.
template <typename Call>
auto caught(Call&& call) -> decltype(call()) {
  try {
    return call();
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("out of memory");
  } catch (const std::exception& error) {
    const std::string what = error.what();
    return absl::InternalError(what.substr(0, what.find('\n')));
  }
}

}  // namespace titan::checkpoint

#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/host/descriptor.h"
#include "common/rank_protocol/rank_exit.h"

namespace titan::shim {

// Returns the last error event in the rank's spool as "REASON: message", or an empty string. `folder`: where the rank
// writes.
std::string last_error(const std::string& folder, int rank);

// Appends to exits.jsonl. open() reserves disk blocks for all ranks, so that exits are not lost when the disk fills up
// later.
class ExitLog {
 public:
  static absl::StatusOr<ExitLog> open(const std::string& run_folder, int num_ranks);
  absl::Status append(const rank_protocol::RankExit& exit);
  absl::Status sync();

 private:
  explicit ExitLog(host::Descriptor fd) : fd_(std::move(fd)) {}
  bool is_torn() const;
  host::Descriptor fd_;
};

// Reads all records. Leaves out a torn last line and lines that are not records; `damage` reports the latter. A missing
// file has no records.
absl::StatusOr<std::vector<rank_protocol::RankExit>> read_exits(const std::string& run_folder,
                                                                std::string* damage = nullptr);

}  // namespace titan::shim

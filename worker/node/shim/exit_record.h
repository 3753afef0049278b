#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/host/descriptor.h"
#include "nlohmann/json.hpp"

namespace titan::shim {

// How a rank ended: one line of exits.jsonl.
struct ExitRecord {
  int rank = 0;
  pid_t pid = 0;
  int64_t start_ticks = 0;
  int exit_code = -1;  // -1 when a signal ended it.
  int signal = 0;
  bool out_of_memory = false;
  int64_t memory_limit_bytes = 0;  // Of the ranks of its attempt here together, when that ran out; 0: none of theirs.
  std::string last_words;          // Message of the last error event, or else the last log line.
  std::string stop_reason;         // Why the shim ended it; empty when it ended by itself.
  int64_t time_unix_nanos = 0;
};

nlohmann::json to_json(const ExitRecord& record);
absl::StatusOr<ExitRecord> exit_from_json(const nlohmann::json& from);

// The last error event in the rank's spool, or an empty string. `folder`: where the rank writes.
std::string last_error(const std::string& folder, int rank);

// Appends to exits.jsonl. Blocks for all ranks are reserved when it is opened, so that a disk that fills up later does
// not lose how the ranks ended.
class ExitLog {
 public:
  static absl::StatusOr<ExitLog> open(const std::string& run_folder, int num_ranks);
  absl::Status append(const ExitRecord& record);
  absl::Status sync();

 private:
  explicit ExitLog(host::Descriptor fd) : fd_(std::move(fd)) {}
  bool is_torn() const;
  host::Descriptor fd_;
};

// All records; a torn last line is left out, and so are lines that are not records, which `damage` tells. No file: no
// records.
absl::StatusOr<std::vector<ExitRecord>> read_exits(const std::string& run_folder, std::string* damage = nullptr);

}  // namespace titan::shim

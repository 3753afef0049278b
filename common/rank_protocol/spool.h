#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace titan::rank_protocol {

// A rank's append-only event file: one JSON object a line, numbered from 1 without gaps. One writer, one write(2) a line,
// so a reader sees whole lines plus at most one torn last line.
class SpoolWriter {
 public:
  // Opens or creates. A torn last line of a dead writer is cut off and numbering goes on.
  static absl::StatusOr<SpoolWriter> open(const std::string& path);
  SpoolWriter(SpoolWriter&& other) noexcept;
  SpoolWriter& operator=(SpoolWriter&& other) noexcept;
  ~SpoolWriter();

  // Adds "seq", "time" and "kind" to `members` (a JSON object) and appends. A full disk loses the event, never the rank:
  // the error is returned and the number is not used.
  absl::Status append(const char* kind, nlohmann::json members = nlohmann::json::object());

 private:
  SpoolWriter(int fd, int64_t next) : fd_(fd), next_(next) {}
  int fd_;
  int64_t next_;
};

struct SpoolLine {
  int64_t sequence = 0;
  std::string json;
};

// Reads whole lines after a byte offset; the offset after the last whole line goes back to the caller, who saves it.
struct SpoolBatch {
  std::vector<SpoolLine> lines;
  int64_t next_offset = 0;
};
absl::StatusOr<SpoolBatch> read_spool(const std::string& path, int64_t offset, int64_t max_bytes);

// File names in an attempt's run folder on one node.
std::string spool_path(const std::string& run_folder, int rank);   // rank-R.events.jsonl
std::string beacon_path(const std::string& run_folder, int rank);  // rank-R.beacon
std::string log_path(const std::string& run_folder, int rank);     // rank-R.log

}  // namespace titan::rank_protocol

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace titan::rank_protocol {

// A rank's append-only event file: one JSON object per line, numbered from 1 without gaps. One process writes it, with
// one write(2) per line, so a reader sees whole lines plus at most one torn last line. Appending is thread-safe.
class SpoolWriter {
 public:
  // Opens or creates the file. Removes a torn last line of a dead writer and continues the numbering.
  // Errors: the system's; DataLoss when the last whole line is not a numbered event (the file was damaged, not torn).
  static absl::StatusOr<SpoolWriter> open(const std::string& path);
  SpoolWriter(SpoolWriter&& other) noexcept;
  SpoolWriter& operator=(SpoolWriter&& other) noexcept;
  ~SpoolWriter();

  // Adds "seq", "time" and "kind" to `members` (a JSON object) and appends the line. On a full disk the event is lost
  // and its number is not used; the rank continues. Bytes that are not UTF-8 are replaced; NaN and infinity become
  // null. Errors: InvalidArgument when `members` is not an object or contains one of the three; those of write(2).
  absl::Status append(const char* kind, nlohmann::json members = nlohmann::json::object());

 private:
  struct State;
  explicit SpoolWriter(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

struct SpoolLine {
  int64_t sequence = 0;
  std::string json;        // Without the newline.
  int64_t end_offset = 0;  // Offset of the byte after the newline.
};

inline constexpr int64_t kMaxLineLength = 1 << 20;  // Bytes.

// Bytes that are not events: junk, a torn line with an event appended to it, a hole left by a crash.
struct DamagedRange {
  int64_t offset = 0;
  int64_t bytes = 0;
};

struct SpoolBatch {
  std::vector<SpoolLine> lines;
  std::vector<DamagedRange> damage;  // Skipped ranges in file order; adjacent ones are merged.
  bool was_cut = false;              // The file ends before the offset, so it was read from its start.
  int64_t next_offset = 0;
};

// Reads whole lines after a byte offset and returns the offset after the last whole line, for the caller to save. Reads
// about max_bytes at a time. A longer line is returned whole up to kMaxLineLength, and beyond that as
// {"seq":N,"kind":"event_too_long","bytes":LENGTH}, so that one event can fill neither memory nor a message. Damage is
// skipped up to the next event and reported in `damage`. The caller checks that numbers are consecutive. Errors: those
// of open_rank_file() and of reading.
absl::StatusOr<SpoolBatch> read_spool(const std::string& path, int64_t offset, int64_t max_bytes);

// File names in an attempt's run folder on one node.
std::string spool_path(const std::string& run_folder, int rank);        // rank-R.events.jsonl
std::string beacon_path(const std::string& run_folder, int rank);       // rank-R.beacon
std::string stacks_path(const std::string& run_folder, int rank);       // rank-R.stacks
std::string flight_tail_path(const std::string& run_folder, int rank);  // rank-R.flight
std::string log_path(const std::string& run_folder, int rank);          // rank-R.log
// rank-R.trace-REQUEST.json, with the request's number in 16 hexadecimal digits.
std::string trace_path(const std::string& run_folder, int rank, uint64_t request);

// Size limit of one rank's stacks, for titan-stacks and all readers.
inline constexpr size_t kStacksBytes = 256 << 10;

}  // namespace titan::rank_protocol

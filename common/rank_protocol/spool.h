#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace titan::rank_protocol {

// A rank's append-only event file: one JSON object a line, numbered from 1 without gaps. One writer process, one
// write(2) a line, so a reader sees whole lines plus at most one torn last line. Appending is safe from several
// threads.
class SpoolWriter {
 public:
  // Opens or creates. A torn last line of a dead writer is cut off and numbering goes on.
  // Errors: DataLoss when the last whole line is not a numbered event (the file was damaged, not torn).
  static absl::StatusOr<SpoolWriter> open(const std::string& path);
  SpoolWriter(SpoolWriter&& other) noexcept;
  SpoolWriter& operator=(SpoolWriter&& other) noexcept;
  ~SpoolWriter();

  // Adds "seq", "time" and "kind" to `members` (a JSON object) and appends. A full disk loses the event, never the
  // rank: the error is returned and the number is not used. Bytes that are not UTF-8 are replaced; NaN and infinity
  // become null. Errors: InvalidArgument when members is no object or names one of the three itself; those of write(2).
  absl::Status append(const char* kind, nlohmann::json members = nlohmann::json::object());

 private:
  struct State;
  explicit SpoolWriter(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

struct SpoolLine {
  int64_t sequence = 0;
  std::string json;        // Without the line end.
  int64_t end_offset = 0;  // Of the byte after the line end.
};

inline constexpr int64_t kLongestLine = 1 << 20;

// Bytes that are not events: junk, a line that was torn and written on, the hole that a crash left.
struct SpoolDamage {
  int64_t offset = 0;
  int64_t bytes = 0;
};

struct SpoolBatch {
  std::vector<SpoolLine> lines;
  std::vector<SpoolDamage> damage;  // Skipped, in the order of the file; neighbours are one.
  bool was_cut = false;             // The file ends before the offset, so it was read from its start.
  int64_t next_offset = 0;
};

// Reads whole lines after a byte offset; the offset after the last whole line goes back to the caller, who saves it.
// About max_bytes at a time; a longer line comes whole, up to kLongestLine. Of one beyond that only the number and
// the length come, as {"seq":N,"kind":"event_too_long","bytes":LENGTH}, so that one event can fill no memory and no
// message. Damage is skipped up to the next event and reported beside the events. Whether numbers follow each other is
// the caller's to check. Errors: NotFound (no such file), those of reading.
absl::StatusOr<SpoolBatch> read_spool(const std::string& path, int64_t offset, int64_t max_bytes);

// File names in an attempt's run folder on one node.
std::string spool_path(const std::string& run_folder, int rank);        // rank-R.events.jsonl
std::string beacon_path(const std::string& run_folder, int rank);       // rank-R.beacon
std::string stacks_path(const std::string& run_folder, int rank);       // rank-R.stacks
std::string flight_tail_path(const std::string& run_folder, int rank);  // rank-R.flight
std::string log_path(const std::string& run_folder, int rank);          // rank-R.log
// rank-R.trace-REQUEST.json, with the request's number in 16 hexadecimal digits.
std::string trace_path(const std::string& run_folder, int rank, uint64_t request);

// Of one rank's stacks, as titan-stacks writes them and everybody reads them.
inline constexpr size_t kStacksBytes = 256 << 10;

}  // namespace titan::rank_protocol

#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/host/descriptor.h"

namespace titan::shim {

// A rank's log as one endless stream of bytes of which the newest are kept. rank-R.log grows to a quarter of the cap
// and is then renamed to rank-R.log.START, where START is the offset of its first byte in the whole stream (20 digits);
// the oldest of these go when the cap is reached. So offsets stay valid for readers, whatever was removed.
class LogWriter {
 public:
  static absl::StatusOr<LogWriter> open(const std::string& path, int64_t max_bytes);

  // Never fails and never waits for room: on a full disk the oldest part goes first, then new bytes are lost and
  // counted, and a line in the log says how many once there is room again.
  void append(const char* data, size_t size);

  int64_t dropped_bytes() const { return dropped_; }  // Removed to stay below the cap or to make room.
  int64_t lost_bytes() const { return lost_; }        // Never written: no room.

 private:
  LogWriter(std::string path, int64_t max_bytes, host::Descriptor fd);
  bool write_some(const char* data, size_t size);
  void rotate();
  bool drop_oldest();

  std::string path_;
  int64_t max_bytes_;
  int64_t segment_bytes_;
  host::Descriptor fd_;
  int64_t start_ = 0;  // Offset of the first byte of rank-R.log.
  int64_t size_ = 0;   // Bytes in rank-R.log.
  int64_t rotate_at_ = 0;
  int64_t dropped_ = 0;
  int64_t lost_ = 0;
  int64_t unsaid_ = 0;  // Lost bytes that no line in the log tells yet.
};

struct LogChunk {
  int64_t offset = 0;  // Of the first byte of data.
  std::string data;
  int64_t dropped_bytes = 0;  // All before this offset is gone.
  bool end = false;           // Nothing after data for now.
};

// Bytes from `offset` on (the oldest kept ones when it is gone), or the last `tail_lines` lines when offset is -1.
// Errors: NotFound when the rank has no log.
absl::StatusOr<LogChunk> read_log(const std::string& path, int64_t offset, int64_t tail_lines, int64_t max_bytes);

}  // namespace titan::shim

#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/host/descriptor.h"

namespace titan::shim {

// A rank's log: a byte stream of which the newest part is kept. When rank-R.log reaches a quarter of the cap, it is
// renamed to rank-R.log.START, where START is the offset of its first byte in the stream (20 digits). The oldest
// segments are deleted at the cap. Offsets stay valid for readers, whatever was deleted.
class LogWriter {
 public:
  static absl::StatusOr<LogWriter> open(const std::string& path, int64_t max_bytes);

  // Never fails and never waits for disk space. On a full disk it deletes the oldest segment; if that is not enough,
  // new bytes are lost and counted, and a line in the log reports their number once there is space again.
  void append(const char* data, size_t size);

  int64_t dropped_bytes() const { return dropped_; }  // Deleted to respect the cap or to free disk space.
  int64_t lost_bytes() const { return lost_; }        // Never written, because the disk was full.

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
  int64_t unreported_ = 0;  // Lost bytes that no line in the log has reported yet.
};

struct LogChunk {
  int64_t offset = 0;  // Stream offset of the first byte of `data`.
  std::string data;
  int64_t dropped_bytes = 0;  // All bytes before this offset were deleted.
  bool end = false;           // The log ends after `data` for now.
};

// Reads from `offset` (or from the oldest kept byte, if `offset` was deleted); with offset -1 the last `tail_lines`
// lines. Errors: NotFound when the rank has no log.
absl::StatusOr<LogChunk> read_log(const std::string& path, int64_t offset, int64_t tail_lines, int64_t max_bytes);

}  // namespace titan::shim

#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

namespace titan::node {

// One event of a rank's spool (common/rank_protocol/spool.h).
struct SpoolLine {
  int64_t sequence = 0;
  std::string json;
  int64_t end_offset = 0;
};

// Place of one rank's spool in the stream to the controller. What is acknowledged is never read again; what is not is
// sent again after a reconnect or a restart. So each event reaches the controller at least once and in order, and its
// number tells copies.
class SpoolTail {
 public:
  struct Place {
    int64_t offset = 0;
    int64_t sequence = 0;  // Of the last event before the offset.
    friend bool operator==(const Place&, const Place&) = default;
  };
  static constexpr int64_t kWindowBytes = 4 << 20;
  static constexpr int64_t kBatchBytes = 256 << 10;

  SpoolTail() = default;
  explicit SpoolTail(Place acknowledged) : acknowledged_(acknowledged), sent_(acknowledged) {}

  // False while as many bytes as the window allows are not acknowledged.
  bool may_read() const { return sent_.offset - acknowledged_.offset < kWindowBytes; }
  int64_t offset() const { return sent_.offset; }

  // Events that are missing before the one that begins after `offset`.
  struct Gap {
    int64_t offset = 0;
    int64_t first = 0, last = 0;
  };
  // Takes what was read from `start`, which is offset() unless the file was cut; `lines` holds what is to be sent then.
  // An event that was taken before is left out. A number that jumps ahead is believed when the next one is higher
  // still, or when no other can come (`is_last`); until a next one is there it is not taken. Gives what is missing.
  std::vector<Gap> take(std::vector<SpoolLine>& lines, int64_t start, int64_t next_offset, bool is_last);

  // Everything up to this sequence is durable at the controller; true when the place has moved.
  bool acknowledge(int64_t sequence);

  // A new session: what was sent and not acknowledged is sent again.
  void rewind();

  const Place& acknowledged() const { return acknowledged_; }

 private:
  void skip_to(int64_t offset);

  Place acknowledged_;
  Place sent_;
  std::deque<Place> in_flight_;  // After each event sent and not acknowledged.
};

}  // namespace titan::node

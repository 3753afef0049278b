#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

namespace titan::node {

// One event of a rank's spool (common/rank_protocol/spool.h).
struct SpoolEvent {
  int64_t sequence = 0;
  std::string json;
  int64_t end_offset = 0;
};

// Position of one rank's spool in the stream to the controller. Acknowledged events are never read again. All others
// are sent again after a reconnect or a restart. So each event reaches the controller at least once and in order, and
// its sequence number identifies duplicates.
class SpoolTail {
 public:
  struct Place {
    int64_t offset = 0;
    int64_t sequence = 0;  // Sequence number of the last event before the offset.
    friend bool operator==(const Place&, const Place&) = default;
  };
  static constexpr int64_t kWindowBytes = 4 << 20;
  static constexpr int64_t kBatchBytes = 256 << 10;

  SpoolTail() = default;
  explicit SpoolTail(Place acknowledged) : acknowledged_(acknowledged), sent_(acknowledged) {}

  // Returns false while a full window of bytes is not acknowledged.
  bool may_read() const { return sent_.offset - acknowledged_.offset < kWindowBytes; }
  int64_t offset() const { return sent_.offset; }

  // Sequence numbers that are missing before the event that begins after `offset`.
  struct Gap {
    int64_t offset = 0;
    int64_t first = 0, last = 0;
  };
  // Takes what was read from `start`, which is offset() unless the file was cut. Leaves in `lines` the events to send,
  // without duplicates. A sequence number that jumps ahead is accepted when the next one is higher still, or when no
  // further event can come (`is_last`). Otherwise the event waits until there is a next one. Returns the gaps.
  std::vector<Gap> take(std::vector<SpoolEvent>& lines, int64_t start, int64_t next_offset, bool is_last);

  // Everything up to this sequence number is durable at the controller. Returns true when the position has moved.
  bool acknowledge(int64_t sequence);

  // Starts a new session: everything that is not acknowledged is sent again.
  void rewind();

  const Place& acknowledged() const { return acknowledged_; }

 private:
  void skip_to(int64_t offset);

  Place acknowledged_;
  Place sent_;
  std::deque<Place> in_flight_;  // Position after each event that was sent and not acknowledged.
};

}  // namespace titan::node

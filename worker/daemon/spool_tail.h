#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/rank_protocol/spool.h"

namespace titan::daemon {

// Place of one rank's spool in the stream to the controller. What is acknowledged is never read again; what is not is
// sent again after a reconnect or a restart. So each event reaches the controller at least once and in order, and its
// number tells copies.
class SpoolTail {
 public:
  struct Place {
    int64_t offset = 0;
    int64_t sequence = 0;  // Of the last event before the offset.
  };

  SpoolTail(std::string path, Place acknowledged)
      : path_(std::move(path)), acknowledged_(acknowledged), sent_(acknowledged) {}

  // Events not sent yet, as far as the window of unacknowledged bytes allows. Empty when there are none, or no file
  // yet. Errors: DataLoss when the file is damaged; the tail then stays where it is.
  absl::StatusOr<std::vector<rank_protocol::SpoolLine>> next();

  // Everything up to this sequence is durable at the controller; true when the place has moved.
  bool acknowledge(int64_t sequence);

  // A new session: what was sent and not acknowledged is sent again.
  void rewind();

  const Place& acknowledged() const { return acknowledged_; }

 private:
  std::string path_;
  Place acknowledged_;
  Place sent_;
  std::deque<Place> in_flight_;  // After each event sent and not acknowledged.
};

}  // namespace titan::daemon

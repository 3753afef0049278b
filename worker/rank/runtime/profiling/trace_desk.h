#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/rank_protocol/beacon.h"

namespace titan::runtime {

// Where somebody may ask a running rank for a trace: its end of the beacon's TraceWords. While nobody does, a step
// costs two loads from memory that this rank has already.
class TraceDesk {
 public:
  struct Order {
    int64_t first_step = 0, last_step = 0;
    std::string path;  // For the file.
  };

  // The files go to the run folder, where the node's daemon fetches them.
  TraceDesk(rank_protocol::TraceWords& words, std::string run_folder, int rank);

  // The order whose warm-up is `step`, which has not begun. One that comes too late for its steps gets the next ones.
  std::optional<Order> take(int64_t step);
  // Of the order that was taken last.
  void tell(rank_protocol::TraceState state);
  void written(int64_t last_step);

 private:
  rank_protocol::TraceWords& words_;
  const std::string run_folder_;
  const int rank_;
  uint64_t taken_ = 0;
};

}  // namespace titan::runtime

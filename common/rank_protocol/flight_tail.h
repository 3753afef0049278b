#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/rank_protocol/flight.h"

namespace titan::rank_protocol {

struct FlightTailPage;

// Writes a rank's last calls to a file of its run folder, so that they are readable even when the rank hangs or was
// killed. It drops groups beyond kGroups and keeps the newest kCalls calls. Not thread-safe: the recorder calls it
// under its lock. A call costs some dozens of plain stores.
class FlightTail {
 public:
  static constexpr int kGroups = 160;
  static constexpr int kCalls = 512;

  // Errors: those of create_page_file().
  static absl::StatusOr<std::unique_ptr<FlightTail>> create(const std::string& path, int rank);
  ~FlightTail();
  FlightTail(const FlightTail&) = delete;
  FlightTail& operator=(const FlightTail&) = delete;

  // `number` counts from 0, in order. Groups are numbered as the recorder numbers them, from 0.
  void add_group(int number, const FlightGroup& group);
  void add_call(int64_t number, const FlightCall& call);
  void set_state(int64_t number, CallState state);

 private:
  explicit FlightTail(FlightTailPage* page) : page_(page) {}
  FlightTailPage* page_;
};

// Reads a flight tail without trusting it, since a user's program writes it. Calls that are being written at that
// moment are left out. Errors: those of open_rank_file() and of reading; DataLoss when it is not a flight tail or its
// group count is invalid; FailedPrecondition for a newer version.
absl::StatusOr<RankFlight> read_flight_tail(const std::string& path);

// Make FlightGroup::members and ::key. parse_rank_list() is the inverse of format_rank_list(); it stops at the first
// part that is not a range, since a flight tail cuts long lists.
std::string format_rank_list(const std::vector<int>& ranks);
std::vector<int> parse_rank_list(const std::string& members);
uint64_t group_key(const std::string& name, const std::vector<int>& ranks);

}  // namespace titan::rank_protocol

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/rank_protocol/flight.h"

namespace titan::rank_protocol {

struct FlightTailPage;

// A rank's last calls in a file of its run folder, which it shares with nobody but readers: also a rank that stands
// still, was stopped or is killed has told where it was. What more groups or calls there are than fit is left out, the
// oldest calls first. Written under the recorder's lock: some dozens of plain stores a call.
class FlightTail {
 public:
  static constexpr int kGroups = 160;
  static constexpr int kCalls = 512;

  // Errors: those of making the file, a full disk among them.
  static absl::StatusOr<std::unique_ptr<FlightTail>> create(const std::string& path, int rank);
  ~FlightTail();
  FlightTail(const FlightTail&) = delete;
  FlightTail& operator=(const FlightTail&) = delete;

  // `number`: from 0, in order. `group`: as the recorder counts them, from 0.
  void add_group(int number, const FlightGroup& group);
  void add_call(int64_t number, const FlightCall& call);
  void set_state(int64_t number, CallState state);

 private:
  explicit FlightTail(FlightTailPage* page) : page_(page) {}
  FlightTailPage* page_;
};

// What a rank has left there, which is not trusted: a user's program writes it. Calls that are being written at that
// moment are left out. Errors: NotFound; DataLoss for what is no flight tail, or names groups that are none;
// FailedPrecondition for one of a newer version.
absl::StatusOr<RankFlight> read_flight_tail(const std::string& path);

// For FlightGroup::members and ::key. listed() is the way back, as far as the text goes: one that was cut ends sooner.
std::string shortened(const std::vector<int>& ranks);
std::vector<int> listed(const std::string& members);
uint64_t group_key(const std::string& name, const std::vector<int>& ranks);

}  // namespace titan::rank_protocol

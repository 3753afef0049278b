#pragma once

// The last collectives and messages of one rank, for finding the cause of a hang. They come from the rank's flight tail
// (flight_tail.h), which even a rank that hangs or was killed leaves.

#include <cstdint>
#include <string>
#include <vector>

namespace titan::rank_protocol {

// Precedes the path of the file with a rank's last collectives, at the end of the rank's message. The next attempt's
// ranks write to the same names, so titanctl leaves it out of the messages of older attempts.
inline constexpr char kRecording[] = "; until the next attempt this rank's last collectives are in ";

// A process group as one of its members knows it. The messages from one rank to another form their own group.
struct FlightGroup {
  std::string name;     // Mesh axis, and for point-to-point messages both ranks: "tp", "pp 0->1".
  std::string members;  // Global ranks as ranges, some with a stride: "0-3,8", "0-6/2".
  uint64_t key = 0;     // The same for all members, and different for every other group.
  int64_t issued = 0;   // Calls so far.

  bool operator==(const FlightGroup&) const = default;
};

// State of a call on a rank.
enum class CallState : uint8_t {
  kQueued = 0,     // Waiting on the device, or not waited for yet. Also used for ranks that report no more detail.
  kCompleted = 1,  // The rank has waited for it to its end.
  kPosted = 2,     // Issued, and nobody waits for it yet.
  kInside = 3,     // The host is issuing it or waiting for it.
};

struct FlightCall {
  int group = 0;         // Index into RankFlight::groups.
  int64_t sequence = 0;  // Number on its group, from 1; the same on all members.
  std::string operation;
  std::string type;      // Element type.
  int64_t elements = 0;  // Elements of the input; for a receive, of the output.
  // Position in the program: the number of synchronizations of all ranks so far, and the number of calls since.
  int64_t mark = 0, since_mark = 0;
  int64_t created_ns = 0;  // Nanoseconds since the epoch, by the rank's clock.
  CallState state = CallState::kQueued;

  bool operator==(const FlightCall&) const = default;
};

struct RankFlight {
  int rank = 0;
  std::vector<FlightGroup> groups;
  std::vector<FlightCall> calls;  // In the order of issue. Older ones have been overwritten.

  bool operator==(const RankFlight&) const = default;
};

}  // namespace titan::rank_protocol

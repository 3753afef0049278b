#pragma once

// The last collectives and messages of one rank, as whoever looks for the cause of a hang gets them: from the rank's
// flight tail (flight_tail.h), whether the rank still answers or not.

#include <cstdint>
#include <string>
#include <vector>

namespace titan::rank_protocol {

// A group as one of its members knows it. The messages from one rank to another are a group of their own.
struct FlightGroup {
  std::string name;     // The mesh's axis, for messages with both ranks: "tp", "pp 0->1".
  std::string members;  // Global ranks, shortened for people: "0-3,8".
  uint64_t key = 0;     // The same for all members, and for no other group.
  int64_t issued = 0;   // Calls so far.

  bool operator==(const FlightGroup&) const = default;
};

// How far a rank is with a call.
enum class CallState : uint8_t {
  kQueued = 0,     // The device waits for it, and the host sooner or later; also of ranks that say no more.
  kCompleted = 1,  // The rank has waited for it, to the end.
  kPosted = 2,     // Issued, and nobody waits for it yet.
  kInside = 3,     // The host issues it or waits for it.
};

struct FlightCall {
  int group = 0;         // Place in RankFlight::groups.
  int64_t sequence = 0;  // On its group, from 1; on all its members the same.
  std::string operation;
  std::string type;      // Of its elements.
  int64_t elements = 0;  // Of the input; of a receiver the output.
  // Where in the program: how many times all ranks had synchronized, and the number since.
  int64_t mark = 0, since_mark = 0;
  int64_t created_ns = 0;  // Since the epoch, by the rank's clock.
  CallState state = CallState::kQueued;

  bool operator==(const FlightCall&) const = default;
};

struct RankFlight {
  int rank = 0;
  std::vector<FlightGroup> groups;
  std::vector<FlightCall> calls;  // In the order in which they were made; those before are written over.

  bool operator==(const RankFlight&) const = default;
};

}  // namespace titan::rank_protocol

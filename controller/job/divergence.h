#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/rank_protocol/flight.h"

namespace titan::job {

// The first point at which ranks that wait for each other diverged.
struct Divergence {
  enum class Kind {
    kMissing,     // The rank never came to a collective in which others wait, and waits for none itself.
    kMismatch,    // It came with another operation, type or size.
    kSkipped,     // It skipped a collective and continued with others.
    kUnfinished,  // All ranks came to it, and it did not end on these ranks.
    kUnknown,     // Others wait for the rank, and nothing is known about it.
  };
  Kind kind = Kind::kMissing;
  // Ranks that diverged, ascending. All ranks that differ, if it is not clear which of them are wrong.
  std::vector<int> ranks;
  rank_protocol::FlightCall call;    // The collective, as the correct ranks have it.
  rank_protocol::FlightGroup group;  // Its group.
  std::string instead;               // Call that the diverging ranks made instead. Empty: none.

  // "rank 2 never came to all_gather 17 of tp (ranks 0-3; 1024 bfloat16)".
  std::string message() const;
};

// Looks at all ranks with a flight. The others count as ranks without an answer. Nothing: no rank waits for another
// one. Of several divergences it returns the earliest, by the time at which ranks began to wait. Takes time in
// proportion to the number of all calls.
//
// A rank waits in a call that its program is inside of, and in a call that is queued for the device while a member has
// not issued it. Posted calls, such as a pipeline's receives, do not make their rank wait. A call in which a rank waits
// needs every member that has not issued it or has only posted it. The hang comes from awaited ranks that do not wait
// themselves. If all awaited ranks wait, there are two cases. Either ranks are inside a call to which all have come,
// for instance because one of them is stopped there. Or the ranks wait in a circle, and one of them has skipped a
// collective: the rank that departs from its calls between two earlier meetings of all ranks, while most others do not.
std::optional<Divergence> first_divergence(const std::vector<rank_protocol::RankFlight>& ranks);

// Returns, by rank, the call in which it waits for others. This is its first call that some member has not issued, or
// else the newest call that it is inside of. A rank that waits for nobody has no entry.
std::map<int, const rank_protocol::FlightCall*> awaited_calls(const std::vector<rank_protocol::RankFlight>& ranks);

}  // namespace titan::job

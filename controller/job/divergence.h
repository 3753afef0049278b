#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/rank_protocol/flight.h"

namespace titan::job {

// Where ranks that wait for each other first took different ways.
struct Divergence {
  enum class Kind {
    kMissing,     // The rank never came to a collective in which others wait, and waits for nobody itself.
    kMismatch,    // It came with another operation, type or size.
    kSkipped,     // It went past one, to others.
    kUnfinished,  // All came to it, and it did not end on these ranks.
    kUnknown,     // Others wait for it, and nothing is known of it.
  };
  Kind kind = Kind::kMissing;
  std::vector<int> ranks;  // Whose way was another one, ascending; when it cannot be told whose, all that differ.
  rank_protocol::FlightCall call;    // The collective, as those have it who were right.
  rank_protocol::FlightGroup group;  // Its group.
  std::string instead;               // What those ranks did in its place; empty: nothing.

  // "rank 2 never came to all_gather 17 of tp (ranks 0-3; 1024 bfloat16)".
  std::string message() const;
};

// Looks at all ranks of which there is a flight; the others count as ranks that say nothing. Nothing: no rank waits for
// another one. The first of several, by when whoever waits began to. Costs about the number of all calls.
//
// A rank waits in a call that its program is inside, and in one that is queued for the device while a member has not
// issued it; posted ones, as a pipeline's receives, hold up nobody. Such a call waits for every member that has not
// issued it. Of the ranks that are waited for, those that wait for nobody are where the hang comes from. When all of
// them wait, there is a call inside of which ranks are although all have come, as when one of them is stopped there; or
// they wait in a circle, and one has left a collective out: it is the one whose calls since all ranks last met are no
// prefix of what it did, or its like did, between two such meetings before, while most others' are.
std::optional<Divergence> first_divergence(const std::vector<rank_protocol::RankFlight>& ranks);

// By rank, the call in which it waits for others: the first that some member has not issued, or else the newest that it
// is inside of. Who is not there waits for nobody.
std::map<int, const rank_protocol::FlightCall*> awaited_calls(const std::vector<rank_protocol::RankFlight>& ranks);

}  // namespace titan::job

// flight_tails FILE...: prints which rank diverged first, from the flight tails of all ranks. Used by tests with real
// files.

#include <cstdio>

#include "common/rank_protocol/flight_tail.h"
#include "controller/job/divergence.h"

int main(int argc, char** argv) {
  std::vector<titan::rank_protocol::RankFlight> flights;
  for (int i = 1; i < argc; ++i) {
    absl::StatusOr<titan::rank_protocol::RankFlight> flight = titan::rank_protocol::read_flight_tail(argv[i]);
    if (!flight.ok()) {
      std::fprintf(stderr, "flight_tails: %s\n", flight.status().ToString().c_str());
      return 1;
    }
    flights.push_back(*std::move(flight));
  }
  const auto divergence = titan::job::first_divergence(flights);
  std::puts(divergence ? divergence->message().c_str() : "nobody");
  return 0;
}

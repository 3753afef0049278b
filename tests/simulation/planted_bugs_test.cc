// Checks that the simulation finds bugs. Each mutation of mutations/*.toml is activated in turn, and seeds are tried
// until a rule is broken that holds without it: first the seed in planted_seeds.txt, then up to 2,000 from 1.
// TITAN_LONG=1 starts with those from 1, TITAN_PLANTED_BUG=NAME tries only one mutation, TITAN_PLANTED_SEEDS=FILE
// writes planted_seeds.txt again and TITAN_PLANTED_TABLE=FILE writes the table of docs/generated/planted-bugs.md.

#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iostream>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_format.h"
#include "gtest/gtest.h"
#include "tests/simulation/mutations/mutations.h"
#include "tests/simulation/scenario.h"

namespace titan::simulation {
namespace {

constexpr uint64_t kMaxSeeds = 2000;

double cpu_seconds() { return static_cast<double>(clock()) / CLOCKS_PER_SEC; }

// Returns the first rule that a seed breaks with this mutation, or "" if there is none or it is broken without the
// mutation as well.
std::string seen_with(std::string_view mutation, uint64_t seed) {
  const auto first_broken = [seed](std::string_view active) {
    active_mutation = active;
    const std::vector<std::string> violations = Scenario(seed, size_of(seed)).run().violations;
    active_mutation = {};
    return violations.empty() ? "" : violations.front();
  };
  const std::string with = first_broken(mutation);
  return with.empty() || !first_broken({}).empty() ? "" : with;
}

// Returns a seed that has shown each mutation, by name. It may be out of date.
std::map<std::string, uint64_t> known_seeds() {
  std::map<std::string, uint64_t> seeds;
  std::ifstream file(TITAN_PLANTED_SEEDS_FILE);
  std::string name;
  for (uint64_t seed = 0; file >> name >> seed;) seeds[name] = seed;
  return seeds;
}

TEST(PlantedBugsTest, EachBugIsFound) {
  const char* only = getenv("TITAN_PLANTED_BUG");
  const char* table = getenv("TITAN_PLANTED_TABLE");
  const char* found = getenv("TITAN_PLANTED_SEEDS");
  std::ofstream rows, seeds;
  if (table != nullptr) rows.open(table);
  if (found != nullptr) seeds.open(found);
  std::map<std::string, uint64_t> known;
  if (getenv("TITAN_LONG") == nullptr) known = known_seeds();
  ASSERT_FALSE(mutations().empty());
  for (const Mutation& mutation : mutations()) {
    if (only != nullptr && only != mutation.name) continue;
    const double begin = cpu_seconds();
    uint64_t seed = known[std::string(mutation.name)];
    std::string seen = seed == 0 ? "" : seen_with(mutation.name, seed);
    if (seen.empty()) seed = 0;
    while (seen.empty() && seed < kMaxSeeds) seen = seen_with(mutation.name, ++seed);
    EXPECT_FALSE(seen.empty()) << "no rule was broken in " << kMaxSeeds << " seeds though " << mutation.what;
    const std::string rule = seen.empty() ? "none" : seen.substr(seen.find(": ") + 2);  // Without the time.
    const double seconds = cpu_seconds() - begin;
    std::cout << absl::StrFormat("%-26s %5d %6.2f s  %s\n", mutation.name, seed, seconds, rule) << std::flush;
    rows << absl::StrFormat("| %s | %d | %.2f | %s |\n", mutation.what, seed, seconds, rule) << std::flush;
    if (!seen.empty()) seeds << mutation.name << " " << seed << "\n" << std::flush;
  }
}

}  // namespace
}  // namespace titan::simulation

// Does the simulation see what it should? Each bug of common/base/testing/planted.h is planted in turn, and seeds are
// tried until a rule is broken that holds without the bug: first the one that planted_seeds.txt knows, then up to 2,000
// from
// 1. TITAN_LONG=1 tries those from 1 at once, TITAN_PLANTED_BUG=NAME only one bug, TITAN_PLANTED_SEEDS=FILE writes
// planted_seeds.txt anew and TITAN_PLANTED_TABLE=FILE the table of docs/reliability-simulation.md.

#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "common/base/testing/planted.h"
#include "gtest/gtest.h"
#include "tests/simulation/scenario.h"

namespace titan::simulation {
namespace {

using testing::Bug;

constexpr uint64_t kMostSeeds = 2000;

struct Planted {
  Bug bug;
  const char* name;
  const char* what;
};

#define TITAN_BUG(name) Bug::name, #name + 1
constexpr Planted kBugs[] = {
    {TITAN_BUG(kRefusingNodeIsNotBlamed), "a node that refuses is reserved again and never blamed"},
    {TITAN_BUG(kNoPrepareDeadline), "nothing bounds how long an attempt is prepared"},
    {TITAN_BUG(kNoStopDeadline), "nothing bounds how long an attempt stops"},
    {TITAN_BUG(kOneStepIsALoss), "a part must advance within 3 s, whatever its step or phase takes"},
    {TITAN_BUG(kNoGraceWhileNobodySpeaks), "a job is started elsewhere as soon as none of its nodes can be reached"},
    {TITAN_BUG(kReturningNodeIsEmpty), "a returning node gets work while its old ranks have its devices"},
    {TITAN_BUG(kHangCountsPreparation), "the hang clock counts the preparation"},
    {TITAN_BUG(kNoHangCheck), "nobody looks for attempts that hang"},
    {TITAN_BUG(kNumberUsedAgain), "an attempt's number is used again after a restart"},
    {TITAN_BUG(kUsedDevicesArePlaced), "placing ignores devices that are in use"},
    {TITAN_BUG(kFreedDevicesStayTaken), "devices of an attempt that was given up are never free again"},
    {TITAN_BUG(kCommandsAreSaidOnce), "commands are not said again to a node's next session"},
    {TITAN_BUG(kLostNodeStays), "a lost node is not lost"},
    {TITAN_BUG(kBackoffNeverEnds), "a backoff never ends"},
    {TITAN_BUG(kNewerAttemptIsStopped), "an attempt newer than the store's records is stopped, not adopted"},
    {TITAN_BUG(kUnknownAttemptIsStopped), "an attempt of an unknown job is stopped at once"},
    {TITAN_BUG(kAnsweredBeforeDurable), "a cancel is answered before it is durable"},
    {TITAN_BUG(kCancelForgottenAtLoad), "an accepted cancel is forgotten at a restart"},
    {TITAN_BUG(kReservationLostAtLoad), "a reservation is lost at a restart"},
    {TITAN_BUG(kRevisionGoesBack), "a job's revision goes back over a restart"},
    {TITAN_BUG(kDrainIsSaidOnce), "a drain is not asked again of a node's next session"},
    {TITAN_BUG(kOldSessionsEndCounts), "the end of a replaced session counts as the node's"},
    {TITAN_BUG(kOldReportCounts), "what is said of an earlier attempt counts for the present one"},
    {TITAN_BUG(kExitsOfOthersCount), "a node's word counts for ranks of another node"},
    {TITAN_BUG(kAckedBeforeDurable), "events are acknowledged before they are durable"},
    {TITAN_BUG(kWelcomeWaitsForWrite), "a welcome waits for a full disk"},
    {TITAN_BUG(kOwnPauseIsTheirSilence), "the controller's own pause is taken for the nodes' silence"},
    {TITAN_BUG(kLimitCountsEachAttempt), "a time limit begins anew with each attempt"},
    {TITAN_BUG(kLimitForgottenAtLoad), "a time limit is forgotten at a restart"},
    {TITAN_BUG(kLateRegisterCounts), "a registration that comes after the next one's counts"},
    {TITAN_BUG(kShownBeforeDurable), "a change is shown before it is durable"},
    {TITAN_BUG(kFenceIsIgnored), "a worker obeys a lower attempt"},
    {TITAN_BUG(kFenceIsNotWritten), "a worker's fence does not outlive it"},
    {TITAN_BUG(kUnreadableIsGone), "a worker takes what it cannot read for gone"},
    {TITAN_BUG(kEventsAreSentOnce), "events of a lost session are not sent again"},
    {TITAN_BUG(kStartLaunchesAgain), "a second Start launches a second time"},
    {TITAN_BUG(kStopIgnoredWhilePreparing), "a Stop is ignored while an attempt is prepared"},
    {TITAN_BUG(kOldLeaderIsObeyed), "a command of an earlier leader is obeyed"},
    {TITAN_BUG(kOldAttemptPublishes), "an attempt publishes after its successor has taken the dump folder"},
};
#undef TITAN_BUG

double cpu_seconds() { return static_cast<double>(clock()) / CLOCKS_PER_SEC; }

// The first rule that a seed breaks with this bug; none, or broken without it as well: empty.
std::string seen_with(Bug bug, uint64_t seed) {
  const auto first_broken = [seed](Bug planted) {
    testing::planted_bug = planted;
    const std::vector<std::string> violations = Scenario(seed, size_of(seed)).run().violations;
    testing::planted_bug = Bug::kNone;
    return violations.empty() ? "" : violations.front();
  };
  const std::string with = first_broken(bug);
  return with.empty() || !first_broken(Bug::kNone).empty() ? "" : with;
}

// By the bug's name: a seed that has shown it. It may be out of date.
std::map<std::string, uint64_t> known_seeds() {
  std::map<std::string, uint64_t> seeds;
  std::ifstream file(TITAN_PLANTED_SEEDS_FILE);
  std::string name;
  for (uint64_t seed = 0; file >> name >> seed;) seeds[name] = seed;
  return seeds;
}

TEST(PlantedBugsTest, EachIsSeen) {
  const char* only = getenv("TITAN_PLANTED_BUG");
  const char* table = getenv("TITAN_PLANTED_TABLE");
  const char* found = getenv("TITAN_PLANTED_SEEDS");
  std::ofstream rows, seeds;
  if (table != nullptr) rows.open(table);
  if (found != nullptr) seeds.open(found);
  std::map<std::string, uint64_t> known;
  if (getenv("TITAN_LONG") == nullptr) known = known_seeds();
  for (const Planted& planted : kBugs) {
    if (only != nullptr && absl::string_view(only) != planted.name) continue;
    const double begin = cpu_seconds();
    uint64_t seed = known[planted.name];
    std::string seen = seed == 0 ? "" : seen_with(planted.bug, seed);
    if (seen.empty()) seed = 0;
    while (seen.empty() && seed < kMostSeeds) seen = seen_with(planted.bug, ++seed);
    EXPECT_FALSE(seen.empty()) << "no rule is broken in " << kMostSeeds << " seeds though " << planted.what;
    const std::string rule = seen.empty() ? "none" : seen.substr(seen.find(": ") + 2);  // Without the time.
    const double seconds = cpu_seconds() - begin;
    std::cout << absl::StrFormat("%-26s %5d %6.2f s  %s\n", planted.name, seed, seconds, rule) << std::flush;
    rows << absl::StrFormat("| %s | %d | %.2f | %s |\n", planted.what, seed, seconds, rule) << std::flush;
    if (!seen.empty()) seeds << planted.name << " " << seed << "\n" << std::flush;
  }
}

}  // namespace
}  // namespace titan::simulation

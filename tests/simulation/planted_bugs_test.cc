// Does the simulation see what it should? Each bug of common/testing/planted.h is planted in turn, and seeds are tried
// until a rule is broken. TITAN_LONG=1 tries up to 2,000 seeds a bug and those that are rare, TITAN_PLANTED_BUG=NAME
// only one bug, and TITAN_PLANTED_TABLE=FILE writes what was found as the table of docs/reliability-simulation.md.

#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/testing/planted.h"
#include "gtest/gtest.h"
#include "tests/simulation/scenario.h"

namespace titan::simulation {
namespace {

using testing::Bug;

struct Planted {
  Bug bug;
  const char* name;
  const char* what;
  bool is_rare = false;  // Takes more than a few hundred seeds.
};

#define TITAN_BUG(name) Bug::name, #name + 1
constexpr Planted kBugs[] = {
    {TITAN_BUG(kRefusingNodeIsNotBlamed), "a node that refuses is reserved again and never blamed"},
    {TITAN_BUG(kNoPrepareDeadline), "nothing bounds how long an attempt is prepared", /*is_rare=*/true},
    {TITAN_BUG(kNoStopDeadline), "nothing bounds how long an attempt stops", /*is_rare=*/true},
    {TITAN_BUG(kOneStepIsALoss), "a part must advance within 3 s, whatever its step or phase takes"},
    {TITAN_BUG(kNoGraceWhileNobodySpeaks), "a job is started elsewhere as soon as none of its nodes can be reached"},
    {TITAN_BUG(kReturningNodeIsEmpty), "a returning node gets work while its old ranks have its devices",
     /*is_rare=*/true},
    {TITAN_BUG(kHangCountsPreparation), "the hang clock counts the preparation", /*is_rare=*/true},
    {TITAN_BUG(kNoHangCheck), "nobody looks for attempts that hang"},
    {TITAN_BUG(kNumberUsedAgain), "an attempt's number is used again after a restart"},
    {TITAN_BUG(kUsedDevicesArePlaced), "placing ignores devices that are in use"},
    {TITAN_BUG(kCommandsAreSaidOnce), "commands are not said again to a node's next session"},
    {TITAN_BUG(kLostNodeStays), "a lost node is not lost"},
    {TITAN_BUG(kBackoffNeverEnds), "a backoff never ends"},
    {TITAN_BUG(kNewerAttemptIsStopped), "an attempt newer than the store's records is stopped, not adopted"},
    {TITAN_BUG(kUnknownAttemptIsStopped), "an attempt of an unknown job is stopped at once", /*is_rare=*/true},
    {TITAN_BUG(kAnsweredBeforeDurable), "a cancel is answered before it is durable"},
    {TITAN_BUG(kCancelForgottenAtLoad), "an accepted cancel is forgotten at a restart", /*is_rare=*/true},
    {TITAN_BUG(kReservationLostAtLoad), "a reservation is lost at a restart"},
    {TITAN_BUG(kRevisionGoesBack), "a job's revision goes back over a restart"},
    {TITAN_BUG(kDrainIsSaidOnce), "a drain is not asked again of a node's next session", /*is_rare=*/true},
    {TITAN_BUG(kOldSessionsEndCounts), "the end of a replaced session counts as the node's", /*is_rare=*/true},
    {TITAN_BUG(kOldReportCounts), "what is said of an earlier attempt counts for the present one", /*is_rare=*/true},
    {TITAN_BUG(kExitsOfOthersCount), "a node's word counts for ranks of another node"},
    {TITAN_BUG(kAckedBeforeDurable), "events are acknowledged before they are durable"},
    {TITAN_BUG(kWelcomeWaitsForWrite), "a welcome waits for a full disk", /*is_rare=*/true},
    {TITAN_BUG(kOwnPauseIsTheirSilence), "the controller's own pause is taken for the nodes' silence",
     /*is_rare=*/true},
    {TITAN_BUG(kShownBeforeDurable), "a change is shown before it is durable"},
    {TITAN_BUG(kFenceIsIgnored), "a worker obeys a lower attempt", /*is_rare=*/true},
    {TITAN_BUG(kFenceIsNotWritten), "a worker's fence does not outlive it", /*is_rare=*/true},
    {TITAN_BUG(kUnreadableIsGone), "a worker takes what it cannot read for gone"},
    {TITAN_BUG(kEventsAreSentOnce), "events of a lost session are not sent again"},
    {TITAN_BUG(kStartLaunchesAgain), "a second Start launches a second time"},
    {TITAN_BUG(kStopIgnoredWhilePreparing), "a Stop is ignored while an attempt is prepared"},
    {TITAN_BUG(kOldLeaderIsObeyed), "a command of an earlier leader is obeyed"},
    {TITAN_BUG(kDevicesFreeTooEarly), "devices are given out while their ranks are being stopped", /*is_rare=*/true},
    {TITAN_BUG(kOldRanksAreIgnored), "an attempt begins beside ranks of the one before", /*is_rare=*/true},
};
#undef TITAN_BUG

double cpu_seconds() { return static_cast<double>(clock()) / CLOCKS_PER_SEC; }

TEST(PlantedBugsTest, EachIsSeen) {
  const bool is_long = getenv("TITAN_LONG") != nullptr;
  const uint64_t seeds = is_long ? 2000 : 200;
  const char* only = getenv("TITAN_PLANTED_BUG");
  const char* table = getenv("TITAN_PLANTED_TABLE");
  std::ofstream rows;
  if (table != nullptr) rows.open(table);
  for (const Planted& planted : kBugs) {
    if (only != nullptr ? absl::string_view(only) != planted.name : planted.is_rare && !is_long) continue;
    testing::planted_bug = planted.bug;
    const double begin = cpu_seconds();
    std::vector<std::string> violations;
    uint64_t seed = 0;
    while (violations.empty() && seed < seeds) {
      ++seed;
      if (is_open(seed)) continue;
      violations = Scenario(seed, size_of(seed)).run().violations;
    }
    testing::planted_bug = Bug::kNone;
    const std::string seen = violations.empty() ? "NOT SEEN" : violations.front();
    std::cout << absl::StrFormat("%-26s %5d seeds %6.2f s  %s\n", planted.name, seed, cpu_seconds() - begin, seen)
              << std::flush;
    const std::string rule = seen.substr(seen.find(": ") + 2);  // Without the time.
    rows << absl::StrFormat("| %s | %d | %.2f | %s |\n", planted.what, seed, cpu_seconds() - begin, rule);
    EXPECT_FALSE(violations.empty()) << "no rule is broken in " << seeds << " seeds though " << planted.what;
  }
}

}  // namespace
}  // namespace titan::simulation

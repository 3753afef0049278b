#include "controller/job/blame.h"

#include <algorithm>
#include <iterator>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace titan::job {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kRemembered = 24 * 3600 * kSecond;
constexpr int64_t kSameLoss = 60 * kSecond;  // One crash affects all jobs of a node.
constexpr size_t kJobs = 2;
constexpr int kLosses = 3;

}  // namespace

bool blames_node(const AttemptEnd& end) {
  if (end.node.empty() || lacks_devices(end) || end.reason == "STALE_ATTEMPT") return false;
  return end.cause == Cause::kLaunchFailed || end.cause == Cause::kShimLost;
}

std::vector<std::string> nodes_to_avoid(const AttemptEnd& end) {
  if (!end.at_odds.empty()) return end.at_odds;
  // Another node may have the folder, or the user.
  const bool is_of_node =
      end.reason == "DUMP_FOLDER_UNUSABLE" || end.reason == "NO_SUCH_USER" || end.reason == "FOLDER_NOT_ALLOWED";
  const bool avoids = blames_node(end) || lacks_devices(end) || is_lost_folder(end) || is_of_node;
  if (end.node.empty() || !avoids) return {};
  return {end.node};
}

bool is_black_hole(const AttemptEnd& end, int restarts) {
  if (end.node.empty() || restarts == 0) return false;
  return end.cause == Cause::kRankFailed || end.cause == Cause::kRankKilled || end.cause == Cause::kOutOfMemory ||
         end.cause == Cause::kStorageError;
}

void avoid(std::vector<std::string>& avoided, const std::vector<std::string>& nodes) {
  std::vector<std::string> twice;
  std::copy_if(nodes.begin(), nodes.end(), std::back_inserter(twice), [&](const std::string& node) {
    return std::find(avoided.begin(), avoided.end(), node) != avoided.end();
  });
  if (!twice.empty()) avoided.clear();
  const std::vector<std::string>& added = twice.empty() ? nodes : twice;
  avoided.insert(avoided.end(), added.begin(), added.end());
}

void add_blame(std::vector<Blame>& blames, Blame blame) {
  const int64_t oldest = blame.time_ns - kRemembered;
  blames.erase(std::remove_if(blames.begin(), blames.end(), [&](const Blame& b) { return b.time_ns < oldest; }),
               blames.end());
  blames.push_back(std::move(blame));
}

std::string reason_to_cordon(const std::vector<Blame>& blames) {
  std::set<std::string> jobs, reasons;
  int losses = 0;
  int64_t last_loss = -kSameLoss - 1;
  for (const Blame& blame : blames) {
    if (blame.reason == "RANK_UNKILLABLE") return "has ranks that cannot be ended (RANK_UNKILLABLE)";
    if (blame.reason == name(Cause::kNodeLost)) {
      if (blame.time_ns - last_loss > kSameLoss) ++losses;
      last_loss = blame.time_ns;
    } else {
      jobs.insert(blame.job_uid);
      reasons.insert(blame.reason);
    }
  }
  if (jobs.size() >= kJobs) {
    return absl::StrCat("failed ", jobs.size(), " jobs within a day: ", absl::StrJoin(reasons, ", "));
  }
  return losses >= kLosses ? absl::StrCat("was lost ", losses, " times within a day") : "";
}

}  // namespace titan::job

// From the store's records to a working core, after a start of the controller.

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/types/span.h"
#include "common/base/testing/planted.h"
#include "controller/core/core.h"
#include "controller/core/keys.h"

namespace titan::core {
namespace {

constexpr absl::Duration kPerRegistration = absl::Milliseconds(2);

// A node of whose record only the name is known: a job may run there. It takes no new ones until somebody has looked,
// since it may have been cordoned.
job::NodeRecord damaged_node(const std::string& name) {
  job::NodeRecord record;
  record.name = name;
  record.cordoned = true;
  record.cordon_reason = "the controller's record of it was damaged";
  return record;
}

// Whether an attempt of the job may run of which there is no record: its state says that there is one, or the record of
// its newest is damaged. Numbers without records are none: a node or a dump folder has seen them.
bool lacks_newest(const job::JobRecord& job, const std::vector<job::AttemptRecord>& attempts,
                  const std::set<std::string>& damaged) {
  if (job::is_final(job.state)) return false;
  if (damaged.count(attempt_key(job.uid, job.attempts)) > 0) return true;
  const bool waits = job.state == job::JobState::kQueued || job.state == job::JobState::kRecovering;
  const bool leaves = job.state == job::JobState::kStopping && !attempts.empty() &&
                      attempts.back().number == job.attempts && !attempts.back().left_on.empty();
  return !waits && !leaves && std::none_of(attempts.begin(), attempts.end(), [](const job::AttemptRecord& attempt) {
    return attempt.end_time_ns == 0;
  });
}

// Records with this prefix: a range, since they come by key.
absl::Span<const store::Record> below(const std::string& prefix, const std::vector<store::Record>& records) {
  const auto before = [](const store::Record& record, const std::string& key) { return record.key < key; };
  const auto begin = std::lower_bound(records.begin(), records.end(), prefix, before);
  const auto end = std::lower_bound(begin, records.end(), store::prefix_end(prefix), before);
  return absl::MakeConstSpan(records).subspan(static_cast<size_t>(begin - records.begin()),
                                              static_cast<size_t>(end - begin));
}

std::optional<std::string> after(absl::string_view prefix, const std::string& key) {
  if (!absl::StartsWith(key, prefix)) return std::nullopt;
  return key.substr(prefix.size());
}

std::string rest(const store::Record& record, absl::string_view prefix) { return record.key.substr(prefix.size()); }

}  // namespace

const std::vector<std::string>& Core::loaded_prefixes() {
  static const auto* const prefixes =
      new std::vector<std::string>{"attempt/", "cancel/", "cursor/",   "deleted/", "error/", "exit/",
                                   "job/",     "node/",   "progress/", "refusal/", "update/"};
  return *prefixes;
}

void Core::set_aside(const store::Record& record, std::string why) {
  effects_.set_aside.emplace_back(record, std::move(why));
}

template <typename Record>
std::optional<Record> Core::read(const store::Record& record) {
  absl::StatusOr<Record> decoded = job::decode<Record>(record.value);
  if (decoded.ok()) return *std::move(decoded);
  set_aside(record, std::string(decoded.status().message()));
  return std::nullopt;
}

Effects Core::load(const std::vector<store::Record>& records, const std::vector<std::string>& lost, const Now& now) {
  now_ = now;
  last_tick_ = awake_since_ = now.monotonic;
  const absl::Span<const store::Record> nodes = below("node/", records);
  // All of them come back at once, and registering takes its time.
  const absl::Duration grace = kPerRegistration * static_cast<int64_t>(nodes.size());
  for (const store::Record& record : nodes) {
    std::optional<job::NodeRecord> node = read<job::NodeRecord>(record);
    nodes_.restore(node ? *std::move(node) : damaged_node(rest(record, "node/")), now_.monotonic + grace);
  }
  for (const auto& [name, node] : nodes_.all()) tell_of(node);
  // Nothing is known of a fresh cluster, so there is nothing to wait for. Set before anything below can schedule.
  schedule_after_ = nodes.empty() ? now_.monotonic : now_.monotonic + options_.lease + grace;
  load_jobs(records, lost);
  for (const store::Record& record : below("deleted/", records)) {
    bury(rest(record, "deleted/"), read<job::Tombstone>(record).value_or(job::Tombstone()));
  }
  // Of what is lost, the key alone may say what matters.
  for (const std::string& key : lost) {
    if (const auto name = after("node/", key); name && nodes_.find(*name) == nullptr) {
      nodes_.restore(damaged_node(*name), now_.monotonic + grace);
      tell_of(*nodes_.find(*name));
    }
    if (const auto uid = after("deleted/", key)) bury(*uid, {});
    if (const auto uid = after("cancel/", key)) start_cancel({/*request=*/0, *uid, /*now=*/false, "", ""});
  }
  if (testing::planted(testing::Bug::kCancelForgottenAtLoad)) return end_step();
  // Cancels that were accepted, and whose effect was not written before this controller's predecessor died.
  for (const store::Record& record : below("cancel/", records)) {
    std::vector<std::string> parts =
        absl::StrSplit(record.value, absl::MaxSplits(' ', 2));  // How, who, by which request.
    parts.resize(3);
    start_cancel({/*request=*/0, rest(record, "cancel/"), parts[0] == "now", parts[1], parts[2]});
  }
  for (const store::Record& record : below("update/", records)) load_update(record);
  make_room_for_logs(0);  // The limit may be lower now.
  return end_step();
}

void Core::load_jobs(const std::vector<store::Record>& records, const std::vector<std::string>& lost) {
  std::set<std::string> damaged(lost.begin(), lost.end());
  std::map<std::string, std::vector<job::AttemptRecord>> attempts;
  for (const store::Record& record : below("attempt/", records)) {
    std::optional<job::AttemptRecord> attempt = read<job::AttemptRecord>(record);
    const std::vector<std::string> parts = absl::StrSplit(record.key, '/');
    if (!attempt) damaged.insert(record.key);
    if (attempt) attempts[parts[1]].push_back(*std::move(attempt));  // In key order: oldest first.
  }
  // A job was last shown when any of its records changed.
  std::map<std::string, int64_t> revisions;
  for (const char* prefix : {"attempt/", "error/", "exit/", "progress/", "refusal/"}) {
    for (const store::Record& record : below(prefix, records)) {
      const std::string uid = rest(record, prefix);
      int64_t& revision = revisions[uid.substr(0, uid.find('/'))];
      revision = std::max(revision, record.revision);
    }
  }
  std::map<std::string, job::Progress> progress;
  for (const store::Record& record : below("progress/", records)) {
    if (std::optional<job::Progress> one = read<job::Progress>(record)) progress[rest(record, "progress/")] = *one;
  }
  for (const store::Record& record : below("cursor/", records)) {
    const std::vector<std::string> parts = absl::StrSplit(record.key, '/');
    int attempt = 0, rank = 0;
    int64_t sequence = 0;
    if (parts.size() != 4 || !absl::SimpleAtoi(parts[2], &attempt) || !absl::SimpleAtoi(parts[3], &rank) ||
        !absl::SimpleAtoi(record.value, &sequence)) {
      set_aside(record, "is not a cursor");
      continue;
    }
    cursors_[{parts[1], attempt, rank}] = sequence;
  }
  std::map<AttemptKey, Reports> reports = load_reports(records);
  for (const store::Record& record : below("job/", records)) {
    LiveJob job;
    std::optional<job::JobRecord> decoded = read<job::JobRecord>(record);
    if (!decoded) continue;
    job.record = *std::move(decoded);
    if (!testing::planted(testing::Bug::kLimitForgottenAtLoad)) note_time_limit(job);
    const std::string uid = job.record.uid;
    // Its ranks may run, and a second attempt beside them is the worst that could happen: the job is set aside as a
    // whole, and its ranks are listed as those of an unknown job and left alone.
    std::vector<job::AttemptRecord>& of_job = attempts[uid];
    if (lacks_newest(job.record, of_job, damaged)) {
      set_aside(record, absl::StrCat("attempt ", job.record.attempts, " of it cannot be read"));
      continue;
    }
    if (const auto known = progress.find(uid); known != progress.end()) job.progress = known->second;
    job::note_progress(job.record.history, job.progress.step, job.progress.committed_step);
    for (job::AttemptRecord& attempt : of_job) {
      if (attempt.end_time_ns == 0 && !job::is_final(job.record.state)) {
        const AttemptKey key{uid, attempt.number};
        restore_attempt(job, std::move(attempt), std::move(reports[key]));
      } else {
        job.past.push_back(std::make_shared<const job::AttemptRecord>(std::move(attempt)));
      }
    }
    if (testing::planted(testing::Bug::kReservationLostAtLoad)) job.record.reserved.clear();
    if (testing::planted(testing::Bug::kNumberUsedAgain) && !job.attempt)
      job.record.attempts = std::max(0, job.record.attempts - 1);
    restore_left_behind(job);
    names_[job.record.name] = uid;
    if (!job.record.request_id.empty()) requests_[job.record.request_id] = uid;
    next_order_ = std::max(next_order_, job.record.order + 1);
    const auto shown = revisions.find(uid);
    const bool older = testing::planted(testing::Bug::kRevisionGoesBack) || shown == revisions.end();
    auto view = std::make_shared<JobView>(*view_of(job));
    view->revision = older ? record.revision : std::max(record.revision, shown->second);
    effects_.now.views.push_back(view);
    count_kept_logs(*view);
    if (job::is_final(job.record.state)) {
      over_[uid] = std::move(view);
      continue;
    }
    if (!job.attempt) job.idle_since = now_.monotonic;
    if (!job.attempt && job.record.state == job::JobState::kStopping) leaving_.insert(uid);
    const absl::Duration backoff = absl::Nanoseconds(job.record.restart_time_ns - now_ns());
    const absl::Duration longest = absl::Seconds(job.record.spec.restart.backoff_max_seconds);  // A clock was set back.
    job.restart_at = now_.monotonic + std::clamp(backoff, absl::ZeroDuration(), longest);
    claim_folder(job.record);
    LiveJob& kept = jobs_.emplace(uid, std::move(job)).first->second;
    if (!kept.waits_for_nodes()) continue;
    restore_held(kept);
    hold_back(kept);
  }
}

std::map<AttemptKey, Core::Reports> Core::load_reports(const std::vector<store::Record>& records) {
  std::map<AttemptKey, Reports> reports;
  const auto attempt_of = [&reports](const store::Record& record) -> Reports* {
    const std::vector<std::string> parts = absl::StrSplit(record.key, '/');
    int attempt = 0;
    if (parts.size() != 4 || !absl::SimpleAtoi(parts[2], &attempt)) return nullptr;
    return &reports[{parts[1], attempt}];
  };
  for (const store::Record& record : below("exit/", records)) {
    std::optional<job::RankExit> exit = read<job::RankExit>(record);
    Reports* const of = attempt_of(record);
    if (exit && of != nullptr) of->exits[exit->rank] = *std::move(exit);  // Else its node says it again.
  }
  for (const store::Record& record : below("error/", records)) {
    std::optional<job::ErrorReport> error = read<job::ErrorReport>(record);
    Reports* const of = attempt_of(record);
    if (error && of != nullptr) of->errors.push_back(*std::move(error));
  }
  for (const store::Record& record : below("refusal/", records)) {
    std::optional<job::Refusal> refusal = read<job::Refusal>(record);
    Reports* const of = attempt_of(record);
    if (refusal && of != nullptr) of->refusals.push_back(*std::move(refusal));
  }
  return reports;
}

// The devices that it waits to come back to: those of its newest attempt.
void Core::restore_held(LiveJob& job) {
  const int attempt = job.past.empty() ? 0 : job.past.back()->number;
  for (const auto& [node, devices] : job.record.reserved) {
    job.held[node] =
        claim(job.record.uid, node, recorded_devices({job.record.uid, attempt}, node), devices, expected_end(job));
  }
}

// Its nodes will say what became of it; until then it counts as running where it was.
void Core::restore_attempt(LiveJob& job, job::AttemptRecord record, Reports reports) {
  LiveAttempt attempt;
  attempt.exits = std::move(reports.exits);
  attempt.errors = std::move(reports.errors);
  attempt.refusals = std::move(reports.refusals);
  for (const auto& [rank, exit] : attempt.exits) attempt.exit_reports = std::max(attempt.exit_reports, exit.report);
  for (const job::Placement& placement : record.placements) {
    NodePart& part = attempt.parts[placement.node];
    part.placement = placement;
    part.prepared = job.record.state != job::JobState::kReserving;
  }
  attempt.start_sent = job.record.state != job::JobState::kReserving;
  attempt.failing = job.record.state == job::JobState::kRecovering;
  attempt.loaded = record.first_step_time_ns != 0;
  attempt.record = std::move(record);
  for (const job::ErrorReport& error : attempt.errors) {
    if (error.same_job) note_newer_attempt(attempt, error.holder_attempt);
  }
  for (const job::Refusal& refusal : attempt.refusals) note_newer_attempt(attempt, refusal.highest_attempt);
  // Progress is an earlier attempt's until this one has finished a step.
  if (attempt.loaded) {
    attempt.record.last_step = std::max(attempt.record.last_step, job.progress.step);
    attempt.longest_step = absl::Seconds(job.progress.longest_step_seconds);
  }
  // The first step that is seen has begun before, and looks short: alone it tells nothing.
  const bool knows_steps = attempt.longest_step > absl::ZeroDuration();
  for (auto& [node, part] : attempt.parts) part.steps_measured = knows_steps ? kStepsToKnow - 1 : 0;
  if (attempt.failing) attempt.stop_time_ns = now_ns();
  attempt.record.exits = job::most_telling(attempt.exits);
  attempt.record.num_exits = static_cast<int>(attempt.exits.size());
  if (!attempt.start_sent) attempt.prepare_by = schedule_after_ + options_.prepare_timeout;
  set_attempt(job, std::move(attempt));
  restore_question(job);
  if (job.attempt->failing || job.stops()) restore_stop_deadline(job);
}

}  // namespace titan::core

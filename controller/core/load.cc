// Builds a working core from the store's records after a start of the controller.

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/types/span.h"
#include "controller/core/core.h"
#include "controller/core/keys.h"
#include "controller/core/step.h"

namespace titan::core {
namespace {

// Reports on an attempt that has not ended.
struct Reports {
  std::map<int, job::RankExit> exits;
  std::vector<job::ErrorReport> errors;
  std::vector<job::Refusal> refusals;
};

constexpr absl::Duration kPerRegistration = absl::Milliseconds(2);

// Returns a record for a node of which only the name is known. A job may run there. The node takes no new jobs until an
// operator has looked, since it may have been cordoned.
job::NodeRecord damaged_node(const std::string& name) {
  job::NodeRecord record;
  record.name = name;
  record.cordoned = true;
  record.cordon_reason = "the controller's record of it was damaged";
  return record;
}

// True if an attempt of the job may run without a record of it: the job's state implies an attempt, or the record of
// its newest one is damaged. A number without a record is not such an attempt: it was only seen by a node or in a dump
// folder.
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

// Records are sorted by key, so those with a prefix are a range.
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

// Returns nothing if it has set the record aside.
template <typename Record>
std::optional<Record> read(Step& step, const store::Record& record) {
  absl::StatusOr<Record> decoded = job::decode<Record>(record.value);
  if (decoded.ok()) return *std::move(decoded);
  set_aside(step, record, std::string(decoded.status().message()));
  return std::nullopt;
}

std::map<AttemptKey, Reports> load_reports(Step& step, const std::vector<store::Record>& records) {
  std::map<AttemptKey, Reports> reports;
  const auto attempt_of = [&reports](const store::Record& record) -> Reports* {
    const std::vector<std::string> parts = absl::StrSplit(record.key, '/');
    int attempt = 0;
    if (parts.size() != 4 || !absl::SimpleAtoi(parts[2], &attempt)) return nullptr;
    return &reports[{parts[1], attempt}];
  };
  for (const store::Record& record : below("exit/", records)) {
    std::optional<job::RankExit> exit = read<job::RankExit>(step, record);
    Reports* const of = attempt_of(record);
    if (exit && of != nullptr) of->exits[exit->rank] = *std::move(exit);  // Otherwise its node reports it again.
  }
  for (const store::Record& record : below("error/", records)) {
    std::optional<job::ErrorReport> error = read<job::ErrorReport>(step, record);
    Reports* const of = attempt_of(record);
    if (error && of != nullptr) of->errors.push_back(*std::move(error));
  }
  for (const store::Record& record : below("refusal/", records)) {
    std::optional<job::Refusal> refusal = read<job::Refusal>(step, record);
    Reports* const of = attempt_of(record);
    if (refusal && of != nullptr) of->refusals.push_back(*std::move(refusal));
  }
  return reports;
}

// Its nodes will report what became of it. Until then it is taken to run where it was.
void restore_attempt(Step& step, LiveJob& job, job::AttemptRecord record, Reports reports) {
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
  // The progress belongs to an earlier attempt until this one has finished a step.
  if (attempt.loaded) {
    attempt.record.last_step = std::max(attempt.record.last_step, job.progress.step);
    attempt.longest_step = absl::Seconds(job.progress.longest_step_seconds);
  }
  // The first step that is seen began earlier and looks short: one step is enough only with an earlier measure.
  const bool knows_steps = attempt.longest_step > absl::ZeroDuration();
  for (auto& [node, part] : attempt.parts) part.steps_measured = knows_steps ? kStepsToKnow - 1 : 0;
  if (attempt.failing) attempt.stop_time_ns = step.now.wall_ns();
  attempt.record.exits = job::most_relevant(attempt.exits);
  attempt.record.num_exits = static_cast<int>(attempt.exits.size());
  if (!attempt.start_sent) attempt.prepare_by = step.state.cycles.earliest() + step.options.prepare_timeout;
  set_attempt(step, job, std::move(attempt));
  restore_diagnosis(step.state.cycles, job);
  if (job.attempt->failing || job.stops()) restore_stop_deadline(step.now, job);
}

// The job comes back to the devices of its newest attempt.
void restore_held(State& state, LiveJob& job) {
  const int attempt = job.past.empty() ? 0 : job.past.back()->number;
  for (const auto& [node, devices] : job.record.reserved) {
    job.held[node] =
        state.queue.claim(job.record.uid, node, recorded_devices(state.jobs, {job.record.uid, attempt}, node), devices,
                          expected_end(job));
  }
}

// Records that belong to jobs, by job.
struct Parts {
  std::set<std::string> damaged;                                    // Keys of records that cannot be read.
  std::map<std::string, std::vector<job::AttemptRecord>> attempts;  // By uid, oldest first.
  std::map<AttemptKey, Reports> reports;
  std::map<std::string, job::Progress> progress;  // By uid.
  std::map<std::string, int64_t> revisions;       // By uid: revision of the newest record above.
};

void load_attempts(Step& step, const std::vector<store::Record>& records, Parts& parts) {
  for (const store::Record& record : below("attempt/", records)) {
    std::optional<job::AttemptRecord> attempt = read<job::AttemptRecord>(step, record);
    const std::vector<std::string> key = absl::StrSplit(record.key, '/');
    if (!attempt) parts.damaged.insert(record.key);
    if (attempt) parts.attempts[key[1]].push_back(*std::move(attempt));  // They come in key order.
  }
}

void load_progress(Step& step, const std::vector<store::Record>& records, Parts& parts) {
  for (const store::Record& record : below("progress/", records)) {
    std::optional<job::Progress> progress = read<job::Progress>(step, record);
    if (progress) parts.progress[rest(record, "progress/")] = *std::move(progress);
  }
}

void load_cursors(Step& step, const std::vector<store::Record>& records) {
  for (const store::Record& record : below("cursor/", records)) {
    const std::vector<std::string> key = absl::StrSplit(record.key, '/');
    int attempt = 0, rank = 0;
    int64_t sequence = 0;
    const bool is_cursor = key.size() == 4 && absl::SimpleAtoi(key[2], &attempt) && absl::SimpleAtoi(key[3], &rank) &&
                           absl::SimpleAtoi(record.value, &sequence);
    if (is_cursor) {
      step.state.spools.cursor({key[1], attempt, rank}) = sequence;
    } else {
      set_aside(step, record, "is not a cursor");
    }
  }
}

// A job was last shown when any of its records changed.
std::map<std::string, int64_t> revisions_of(const std::vector<store::Record>& records) {
  std::map<std::string, int64_t> revisions;
  for (const char* prefix : {"attempt/", "error/", "exit/", "progress/", "refusal/"}) {
    for (const store::Record& record : below(prefix, records)) {
      const std::string uid = rest(record, prefix);
      int64_t& revision = revisions[uid.substr(0, uid.find('/'))];
      revision = std::max(revision, record.revision);
    }
  }
  return revisions;
}

void restore_attempts(Step& step, LiveJob& job, Parts& parts) {
  const std::string& uid = job.record.uid;
  for (job::AttemptRecord& attempt : parts.attempts[uid]) {
    if (attempt.end_time_ns == 0 && !job::is_final(job.record.state)) {
      const AttemptKey key{uid, attempt.number};
      restore_attempt(step, job, std::move(attempt), std::move(parts.reports[key]));
    } else {
      job.past.push_back(std::make_shared<const job::AttemptRecord>(std::move(attempt)));
    }
  }
}

JobViewPtr loaded_view(const LiveJob& job, int64_t record_revision, const Parts& parts) {
  const auto shown = parts.revisions.find(job.record.uid);
  const bool is_older = shown == parts.revisions.end();
  auto view = std::make_shared<JobView>(*view_of(job));
  view->revision = is_older ? record_revision : std::max(record_revision, shown->second);
  return view;
}

// The job continues where the earlier controller process left it.
void resume(Step& step, LiveJob job) {
  if (!job.attempt) job.idle_since = step.now.monotonic;
  if (!job.attempt && job.record.state == job::JobState::kStopping) step.state.left.add_job(job.record.uid);
  const absl::Duration backoff = absl::Nanoseconds(job.record.restart_time_ns - step.now.wall_ns());
  // A clock may have been set back.
  const absl::Duration longest = absl::Seconds(job.record.spec.restart.backoff_max_seconds);
  job.restart_at = step.now.monotonic + std::clamp(backoff, absl::ZeroDuration(), longest);
  step.state.folders.claim(job.record);
  LiveJob& live = step.state.jobs.add(std::move(job));
  if (!live.waits_for_nodes()) return;
  restore_held(step.state, live);
  hold_back(step.state.queue, live);
}

void load_job(Step& step, const store::Record& record, Parts& parts) {
  std::optional<job::JobRecord> decoded = read<job::JobRecord>(step, record);
  if (!decoded) return;
  LiveJob job;
  job.record = *std::move(decoded);
  note_time_limit(step.now, job);
  const std::string uid = job.record.uid;
  // Its ranks may run, and a second attempt next to them is the worst that could happen. The job is set aside as a
  // whole, and its ranks are listed as those of an unknown job and left alone.
  if (lacks_newest(job.record, parts.attempts[uid], parts.damaged)) {
    return set_aside(step, record, absl::StrCat("its attempt ", job.record.attempts, " cannot be read"));
  }
  if (const auto known = parts.progress.find(uid); known != parts.progress.end()) job.progress = known->second;
  job::note_progress(job.record.history, job.progress.step, job.progress.committed_step);
  restore_attempts(step, job, parts);
  restore_left_behind(step, job);
  step.state.jobs.restore(job.record);
  step.state.requests.add(job.record.request_id, uid);
  const JobViewPtr view = loaded_view(job, record.revision, parts);
  step.effects.now.views.push_back(view);
  count_kept_logs(step.state.kept_logs, *view);
  if (job::is_final(job.record.state)) return step.state.jobs.end(uid, view);
  resume(step, std::move(job));
}

void load_jobs(Step& step, const std::vector<store::Record>& records, const std::vector<std::string>& lost) {
  Parts parts;
  parts.damaged.insert(lost.begin(), lost.end());
  load_attempts(step, records, parts);
  parts.revisions = revisions_of(records);
  load_progress(step, records, parts);
  load_cursors(step, records);
  parts.reports = load_reports(step, records);
  for (const store::Record& record : below("job/", records)) load_job(step, record, parts);
}

}  // namespace

const std::vector<std::string>& Core::loaded_prefixes() {
  static const auto* const prefixes =
      new std::vector<std::string>{"attempt/", "cancel/", "cursor/",   "deleted/", "error/", "exit/",
                                   "job/",     "node/",   "progress/", "refusal/", "update/"};
  return *prefixes;
}

void set_aside(Step& step, const store::Record& record, std::string why) {
  step.effects.set_aside.emplace_back(record, std::move(why));
}

void load_all(Step& step, const std::vector<store::Record>& records, const std::vector<std::string>& lost) {
  step.state.pauses.start(step.now.monotonic);
  const absl::Span<const store::Record> nodes = below("node/", records);
  // All nodes come back at once, and each registration takes time.
  const absl::Duration grace = kPerRegistration * static_cast<int64_t>(nodes.size());
  for (const store::Record& record : nodes) {
    std::optional<job::NodeRecord> node = read<job::NodeRecord>(step, record);
    step.state.nodes.restore(node ? *std::move(node) : damaged_node(rest(record, "node/")), step.now.monotonic + grace);
  }
  for (const auto& [name, node] : step.state.nodes.all()) update_scheduler_node(step, node);
  // A fresh cluster has no known nodes to wait for. This is set before anything below can schedule.
  step.state.cycles.wait_until(nodes.empty() ? step.now.monotonic : step.now.monotonic + step.options.lease + grace);
  load_jobs(step, records, lost);
  for (const store::Record& record : below("deleted/", records)) {
    remember_deleted(step.state, step.now, rest(record, "deleted/"),
                     read<job::Tombstone>(step, record).value_or(job::Tombstone()));
  }
  // Only the key of a lost record is known, which is enough here.
  for (const std::string& key : lost) {
    if (const auto name = after("node/", key); name && step.state.nodes.find(*name) == nullptr) {
      step.state.nodes.restore(damaged_node(*name), step.now.monotonic + grace);
      update_scheduler_node(step, *step.state.nodes.find(*name));
    }
    if (const auto uid = after("deleted/", key)) remember_deleted(step.state, step.now, *uid, {});
    if (const auto uid = after("cancel/", key)) start_cancel(step, {/*request=*/0, *uid, /*now=*/false, "", ""});
  }
  // Cancels that were accepted, but whose effect was not written before the earlier controller process died.
  for (const store::Record& record : below("cancel/", records)) {
    std::vector<std::string> parts =
        absl::StrSplit(record.value, absl::MaxSplits(' ', 2));  // Mode, actor and request_id.
    parts.resize(3);
    start_cancel(step, {/*request=*/0, rest(record, "cancel/"), parts[0] == "now", parts[1], parts[2]});
  }
  for (const store::Record& record : below("update/", records)) load_update(step, record);
  evict_logs(step, 0);  // The limit may be lower now.
}

}  // namespace titan::core

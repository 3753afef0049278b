// Changes to an accepted job: priority and title while it lives, labels always.

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status/status.h"
#include "common/service/rpc/error.h"
#include "controller/core/keys.h"
#include "controller/core/labels.h"
#include "controller/core/step.h"

namespace titan::core {
namespace {

using absl::StatusCode;

std::map<std::string, std::string> labels_after(const job::JobRecord& record, const UpdateJob& asked) {
  std::map<std::string, std::string> labels = asked.all_labels ? *asked.all_labels : record.labels;
  for (const auto& [key, value] : asked.labels) {
    if (value) {
      labels[key] = *value;
    } else {
      labels.erase(key);
    }
  }
  return labels;
}

void list_label_changes(const std::map<std::string, std::string>& before,
                        const std::map<std::string, std::string>& after, std::vector<std::string>& changes) {
  for (const auto& [key, value] : after) {
    const auto was = before.find(key);
    if (was == before.end() || was->second != value) changes.push_back(absl::StrCat("label ", key, "=", value));
  }
  for (const auto& [key, value] : before) {
    if (!after.contains(key)) changes.push_back(absl::StrCat("no label ", key));
  }
}

absl::Status check_update(const UpdateJob& input, const job::JobRecord& record) {
  if (!input.etag.empty() && input.etag != job::etag(record)) {
    return rpc::error(StatusCode::kAborted, "ETAG_MISMATCH",
                      absl::StrCat("job ", record.name, " was changed meanwhile: read it again and retry"),
                      {{"etag", job::etag(record)}});
  }
  if (job::is_final(record.state) && (input.priority || input.title)) {
    return rpc::error(
        StatusCode::kFailedPrecondition, "JOB_OVER",
        absl::StrCat("job ", record.name, " is ", job::name(record.state), ": only its labels can be changed"),
        {{"state", std::string(job::name(record.state))}});
  }
  return check_label_count(labels_after(record, input));
}

// Applies the update and says what it changed: "priority 0 to 5, label team=vision". Empty: nothing.
std::string change(job::JobRecord& record, const UpdateJob& asked) {
  std::vector<std::string> changes;
  job::SchedulingSpec& spec = record.spec;
  if (asked.priority && *asked.priority != spec.priority) {
    changes.push_back(absl::StrCat("priority ", spec.priority, " to ", *asked.priority));
    spec.priority = *asked.priority;
  }
  if (asked.title && *asked.title != spec.title) {
    changes.push_back(absl::StrCat("title '", *asked.title, "'"));
    spec.title = *asked.title;
  }
  std::map<std::string, std::string> labels = labels_after(record, asked);
  list_label_changes(record.labels, labels, changes);
  record.labels = std::move(labels);
  return absl::StrJoin(changes, ", ");
}

void start_update(Step& step, const UpdateJob& asked) {
  Change written;
  written.mutations.push_back(store::erase(update_key(asked.uid)));
  LiveJob* live = step.state.jobs.find(asked.uid);
  const JobViewPtr over = step.state.jobs.find_over(asked.uid);
  if (live == nullptr && (over == nullptr || step.state.deletions.is_under_way(asked.uid))) {
    step.commit(std::move(written));
    return step.refuse(asked.request, no_such_job(asked.uid));
  }
  LiveJob ended = live == nullptr ? ended_job(*over) : LiveJob();
  LiveJob& job = live != nullptr ? *live : ended;
  // Another update, or the job's end, may have come in between.
  if (const absl::Status bad = check_update(asked, job.record); !bad.ok()) {
    step.commit(std::move(written));
    return step.refuse(asked.request, bad);
  }
  if (std::string what = change(job.record, asked); !what.empty()) {
    add_event(step, written, job, {.reason = "JobUpdated", .message = std::move(what), .actor = asked.actor});
    put_job(written, job);
    if (live == nullptr) step.state.jobs.end(asked.uid, view_of(ended));
    if (step.state.queue.waits(asked.uid)) enter_queue(step, job);  // The job now waits by its new priority.
  }
  step.commit(std::move(written));
  answer_when_shown(step, asked.request, asked.uid);
  request_schedule(step, /*urgent=*/true);
}

}  // namespace

absl::StatusOr<JobViewPtr> would_update(const State& state, const UpdateJob& input) {
  const LiveJob* live = state.jobs.find(input.uid);
  const JobViewPtr over = state.jobs.find_over(input.uid);
  if (live == nullptr && (over == nullptr || state.deletions.is_under_way(input.uid))) return no_such_job(input.uid);
  const JobViewPtr now = live != nullptr ? view_of(*live) : over;
  TITAN_RETURN_IF_ERROR(check_update(input, *now->record));
  job::JobRecord record = *now->record;
  change(record, input);
  JobView view = *now;
  view.record = std::make_shared<const job::JobRecord>(std::move(record));
  return std::make_shared<const JobView>(std::move(view));
}

// In two transactions, like a cancel: a full disk may refuse the request, but not what follows from an accepted one.
void take(Step& step, const UpdateJob& input) {
  const absl::StatusOr<JobViewPtr> view = would_update(step.state, input);
  if (!view.ok()) return step.refuse(input.request, view.status());
  Change change;
  change.when_full = store::WhenFull::kRefuse;
  change.mutations.push_back(store::put(update_key(input.uid), job::encode<job::Update>(input)));
  step.expect(change, UpdateAccepted{input});
  step.commit(std::move(change));
}

void on_outcome(Step& step, const UpdateAccepted& accepted, const absl::Status& status) {
  if (!status.ok()) return step.refuse(accepted.asked.request, status);
  start_update(step, accepted.asked);
}

void load_update(Step& step, const store::Record& record) {
  absl::StatusOr<job::Update> asked = job::decode<job::Update>(record.value);
  if (!asked.ok()) return set_aside(step, record, std::string(asked.status().message()));
  start_update(step, {*std::move(asked), /*request=*/0, record.key.substr(update_key("").size())});
}

}  // namespace titan::core

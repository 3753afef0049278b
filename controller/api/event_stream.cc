#include "controller/api/event_stream.h"

#include <algorithm>
#include <queue>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/service/rpc/error.h"

namespace titan::api {
namespace {

constexpr int kEventBatch = 200;
constexpr int kScanPage = 1000;
constexpr size_t kMaxQueuedPositions = 50'000;
constexpr char kAllEvents[] = "event/";

}  // namespace

absl::StatusOr<std::deque<LogPosition>> oldest_positions(const store::Store& store, const std::string& prefix,
                                                         const LogPosition& last, int64_t until, size_t limit) {
  std::priority_queue<LogPosition> oldest;  // The newest is on top.
  std::string after;
  while (true) {
    TITAN_ASSIGN_OR_RETURN(const std::vector<store::Record> page, store.scan(prefix, after, kScanPage));
    for (const store::Record& record : page) {
      LogPosition place{record.revision, record.key};
      if (place <= last || record.revision > until) continue;
      if (oldest.size() == limit && oldest.top() < place) continue;
      if (oldest.size() == limit) oldest.pop();
      oldest.push(std::move(place));
    }
    if (page.size() < kScanPage) break;
    after = page.back().key;
  }
  std::deque<LogPosition> places;
  for (; !oldest.empty(); oldest.pop()) places.push_front(oldest.top());
  return places;
}

bool EventStream::open() {
  if (!request_.job().empty() && !request_.node().empty()) {
    end(rpc::bad_request("ONE_SUBJECT", {{"node", "give job or node, not both"}}));
    return false;
  }
  if (!request_.job().empty()) {
    const std::string name = full_job_name(request_.job());
    const reconcile::JobViewPtr view = reconciler_.published().find_by_name(name);
    if (view == nullptr) {
      end(reconcile::no_such_job(name));
      return false;
    }
    job_uid_ = view->record->uid;
    prefix_ = core::job_events_prefix(job_uid_);
  } else if (!request_.node().empty()) {
    const absl::StatusOr<reconcile::NodeView> node = reconciler_.node(node_id(request_.node()));
    if (!node.ok()) {
      end(node.status());
      return false;
    }
    prefix_ = core::node_events_prefix(node->node.record.name);
  }
  if (const int64_t newest = store_.revision(); request_.revision() > newest) {
    end(rpc::error(
        absl::StatusCode::kOutOfRange, "REVISION_UNKNOWN",
        absl::StrCat("revision ", request_.revision(), " is newer than the newest revision of this store, ", newest,
                     ": the store was restored from an older backup, or the revision is from another cluster"),
        {{"revision", absl::StrCat(newest)}}));
    return false;
  }
  last_sent_ = {request_.revision(), "\x7f"};  // Skips every event of that revision.
  revision_ = std::max(request_.revision(), store_.revision());
  return true;
}

// Returns whether no more events will come. Callers check this before they read, so that they miss none of a job that
// ends.
bool EventStream::over() const {
  if (!request_.follow()) return true;
  if (job_uid_.empty()) return false;
  const reconcile::JobViewPtr view = reconciler_.published().find(job_uid_);
  return view == nullptr || job::is_final(view->record->state);
}

void EventStream::refill() {
  if (!opened_) {
    if (!open()) return;
    opened_ = true;
  }
  return prefix_.empty() ? read_everything() : read_subject();
}

// Adds a record's event if the caller may see it, and returns whether it did. A record that cannot be decoded is set
// aside, which the store reports and counts.
bool EventStream::show(const store::Record& record) {
  const absl::StatusOr<job::EventRecord> event = job::decode<job::EventRecord>(record.value);
  if (!event.ok()) {
    store_.set_aside(record, std::string(event.status().message()));
    return false;
  }
  if (!event->job.empty() && !caller_.sees(auth::project_of(event->job))) return false;
  add(to_proto(*event, record.revision));
  return true;
}

void EventStream::read_subject() {
  const bool last = over();
  bool added = false;
  while (!added) {
    const absl::StatusOr<std::vector<store::Record>> records = store_.scan(prefix_, after_, kEventBatch);
    if (!records.ok()) return end(records.status());
    for (const store::Record& record : *records) {
      after_ = record.key;
      if (record.revision <= request_.revision()) continue;
      added = show(record) || added;
    }
    if (records->empty()) {
      if (last) end(absl::OkStatus());
      return;
    }
  }
}

// Adds events that existed when the stream began. Returns false once all of them were sent.
absl::StatusOr<bool> EventStream::read_snapshot() {
  for (int added = 0; added < kEventBatch;) {
    if (places_.empty()) {
      if (!more_positions_) return added > 0;
      TITAN_ASSIGN_OR_RETURN(places_, oldest_positions(store_, kAllEvents, last_sent_, revision_, kMaxQueuedPositions));
      more_positions_ = places_.size() == kMaxQueuedPositions;
      continue;
    }
    last_sent_ = std::move(places_.front());
    places_.pop_front();
    const absl::StatusOr<std::optional<store::Record>> record = store_.get(last_sent_.second);
    if (absl::IsDataLoss(record.status())) continue;
    if (!record.ok()) return record.status();
    if (!*record) continue;  // It was deleted meanwhile.
    if (show(**record)) ++added;
  }
  return true;
}

void EventStream::read_everything() {
  if (in_snapshot_) {
    const absl::StatusOr<bool> more = read_snapshot();
    if (!more.ok()) return end(more.status());
    if (*more) return;
    in_snapshot_ = false;
    if (!request_.follow()) return end(absl::OkStatus());
  }
  bool added = false;
  while (!added) {
    const absl::StatusOr<std::vector<store::RecordChange>> changes = store_.changes(revision_, kEventBatch);
    if (!changes.ok()) return end(changes.status());
    if (changes->empty()) return;
    for (const store::RecordChange& change : *changes) {
      revision_ = change.revision;
      if (!change.value || !absl::StartsWith(change.key, kAllEvents)) continue;
      added = show({change.key, *change.value, change.revision}) || added;
    }
  }
}

}  // namespace titan::api

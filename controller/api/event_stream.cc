#include "controller/api/event_stream.h"

#include <algorithm>

#include "absl/strings/match.h"

namespace titan::api {
namespace {

constexpr int kEventBatch = 200;
constexpr char kAllEvents[] = "event/";

}  // namespace

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
  revision_ = request_.revision();
  return true;
}

// Nothing more will come: the job was over before its events were read to their end.
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

void EventStream::read_subject() {
  const bool last = over();
  bool added = false;
  while (!added) {
    const absl::StatusOr<std::vector<store::Record>> records = store_.scan(prefix_, after_, kEventBatch);
    if (!records.ok()) return end(records.status());
    for (const store::Record& record : *records) {
      after_ = record.key;
      if (record.revision <= request_.revision()) continue;
      const absl::StatusOr<job::EventRecord> event = job::decode<job::EventRecord>(record.value);
      if (!event.ok()) return end(event.status());
      add(to_proto(*event, record.revision));
      added = true;
    }
    if (records->empty()) {
      if (last) end(absl::OkStatus());
      return;
    }
  }
}

void EventStream::read_everything() {
  std::vector<v1::Event> events;
  if (!snapshot_sent_) {
    snapshot_sent_ = true;
    const int64_t revision = store_.revision();
    const absl::StatusOr<std::vector<store::Record>> records = store::scan_all(store_, kAllEvents);
    if (!records.ok()) return end(records.status());
    for (const store::Record& record : *records) {
      if (record.revision <= request_.revision() || record.revision > revision) continue;
      const absl::StatusOr<job::EventRecord> event = job::decode<job::EventRecord>(record.value);
      if (event.ok()) events.push_back(to_proto(*event, record.revision));
    }
    std::stable_sort(events.begin(), events.end(),
                     [](const v1::Event& a, const v1::Event& b) { return a.revision() < b.revision(); });
    revision_ = std::max(revision_, revision);
  } else {
    const absl::StatusOr<std::vector<store::Change>> changes = store_.changes(revision_, kEventBatch);
    if (!changes.ok()) return end(changes.status());
    for (const store::Change& change : *changes) {
      revision_ = change.revision;
      if (!change.value || !absl::StartsWith(change.key, kAllEvents)) continue;
      const absl::StatusOr<job::EventRecord> event = job::decode<job::EventRecord>(*change.value);
      if (event.ok()) events.push_back(to_proto(*event, change.revision));
    }
    if (events.empty() && !changes->empty()) return read_everything();
  }
  for (v1::Event& event : events) add(std::move(event));
  if (!request_.follow()) end(absl::OkStatus());
}

}  // namespace titan::api

#include "controller/store/etcd/etcd_store.h"

#include <chrono>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status/status.h"
#include "common/service/failpoint/failpoint.h"
#include "controller/store/etcd/layout.h"
#include "controller/store/table.h"

namespace titan::store {
namespace {

failpoint::Failpoint write_point("etcd.write"), written_point("etcd.written"), applied_point("etcd.applied");

using etcdserverpb::RangeResponse;
using etcdserverpb::TxnRequest;
using etcdserverpb::TxnResponse;

v1::LogEntry entry_of(int64_t first_revision, const std::vector<std::vector<RecordChange>>& transactions) {
  v1::LogEntry entry;
  entry.set_first_revision(first_revision);
  entry.set_time_s(absl::ToUnixSeconds(absl::Now()));
  for (const std::vector<RecordChange>& changes : transactions) {
    v1::LoggedTransaction& transaction = *entry.add_transactions();
    for (const RecordChange& change : changes) {
      v1::LoggedChange& logged = *transaction.add_changes();
      logged.set_key(change.key);
      if (change.value) logged.set_value(*change.value);
    }
  }
  return entry;
}

}  // namespace

EtcdStore::EtcdStore(std::unique_ptr<Elector> elector, EtcdStoreOptions options)
    : options_(std::move(options)),
      elector_(std::move(elector)),
      layout_(elector_->prefix()),
      table_(options_.keep_changes),
      writer_(options_.writer, {[this](const Writer::Group& group, auto& results) { return write(group, results); },
                                {},
                                [this](const absl::Status& status) {
                                  if (options_.on_lost) options_.on_lost(status);
                                }}) {}

absl::StatusOr<std::unique_ptr<EtcdStore>> EtcdStore::open(std::unique_ptr<Elector> elector, EtcdStoreOptions options) {
  std::unique_ptr<EtcdStore> store(new EtcdStore(std::move(elector), std::move(options)));
  TITAN_RETURN_IF_ERROR(store->load());
  store->writer_.start();
  store->snapshots_ = std::thread([raw = store.get()] { raw->snapshot_loop(); });
  store->elector_->watch([raw = store.get()](const absl::Status& why) { raw->writer_.fail(why); });
  return store;
}

EtcdStore::~EtcdStore() {
  closing_ = true;
  writer_.close();
  {
    sync::Lock lock(wake_mutex_);
    ending_ = true;
  }
  wake_.notify_all();
  if (snapshots_.joinable()) snapshots_.join();
  elector_->resign();
}

// --- Requests that hold only while this process leads. ---

TxnRequest EtcdStore::fenced() const {
  TxnRequest request;
  expect_created(*request.add_compare(), elector_->key(), elector_->epoch());
  return request;
}

// Sends the request until etcd has reported its outcome. It may reach etcd several times, and late: every request here
// compares what it changes, or writes a key that only it writes, the same way each time. Errors: Unavailable: this
// process no longer leads, or closes and has waited long enough, and the outcome is not known. ResourceExhausted: it
// was not carried out. Others: etcd refused it.
absl::StatusOr<TxnResponse> EtcdStore::settle(const TxnRequest& request) {
  bool unknown = false;
  absl::Duration waited;
  while (true) {
    TITAN_RETURN_IF_ERROR(elector_->leading());
    if (closing_ && waited > options_.close_timeout)
      return absl::UnavailableError("etcd: no answer while the store closes");
    const auto start = std::chrono::steady_clock::now();
    absl::StatusOr<TxnResponse> answer = elector_->client().txn(request);
    if (answer.ok()) return answer;
    const bool full = absl::IsResourceExhausted(answer.status());
    if (!full && !absl::IsUnavailable(answer.status())) return absl::InternalError(answer.status().message());
    if (full && !unknown) return answer;
    unknown = true;
    absl::SleepFor(kRetry);
    if (closing_) waited += absl::FromChrono(std::chrono::steady_clock::now() - start);
  }
}

const etcdserverpb::KeyValue* EtcdStore::found_instead(const TxnResponse& answer) {
  const RangeResponse& found = answer.responses(0).response_range();
  return found.kvs_size() == 0 ? nullptr : &found.kvs(0);
}

absl::Status EtcdStore::lost() {
  elector_->declare_lost(absl::UnavailableError("etcd: another controller may lead"));
  return elector_->leading();
}

absl::Status EtcdStore::commit_as_leader(const TxnRequest& request) {
  TITAN_ASSIGN_OR_RETURN(const TxnResponse answer, settle(request));
  return answer.succeeded() ? absl::OkStatus() : lost();
}

// --- Writing. ---

absl::Status EtcdStore::write(const Writer::Group& group, std::vector<absl::StatusOr<int64_t>>& results) {
  const absl::Time start = absl::Now();
  // Only this thread changes the table.
  Draft draft(table_);
  const int64_t first = table_.revision() + 1;
  for (const Writer::Queued& queued : group) results.push_back(draft.add(queued.transaction));
  // Only a leader may report mismatches.
  if (draft.taken().empty()) return commit_as_leader(fenced());
  v1::LogEntry entry = entry_of(first, draft.taken());
  TITAN_ASSIGN_OR_RETURN(const std::string value, store_entry(entry));
  write_point.pass();
  TITAN_RETURN_IF_ERROR(append(layout_.log(first), value, first + entry.transactions_size() - 1));
  written_point.pass();
  apply(entry);
  applied_point.pass();
  log_bytes_ += static_cast<int64_t>(entry.ByteSizeLong());
  ++log_entries_;
  if (snapshot_is_due()) wake_.notify_all();
  if (options_.on_commit) options_.on_commit(static_cast<int>(group.size()), absl::Now() - start);
  return absl::OkStatus();
}

// Returns the value for the entry's key in the log: the entry, or the number of its parts, which are in etcd by then.
absl::StatusOr<std::string> EtcdStore::store_entry(const v1::LogEntry& entry) {
  const std::string key = layout_.log(entry.first_revision());
  v1::StoredEntry stored;
  if (static_cast<int64_t>(entry.ByteSizeLong()) <= options_.value_bytes) {
    *stored.mutable_entry() = entry;
    return seal_message(key, stored);
  }
  const std::string bytes = entry.SerializeAsString();
  const int64_t draft = ++drafts_;
  int number = 0;
  for (size_t at = 0; at < bytes.size(); at += static_cast<size_t>(options_.value_bytes), ++number) {
    const std::string part = layout_.part(entry.first_revision(), draft, number);
    TxnRequest put = fenced();
    add_put(*put.mutable_success(), part, seal(part, bytes.substr(at, static_cast<size_t>(options_.value_bytes))));
    TITAN_RETURN_IF_ERROR(commit_as_leader(put));
  }
  stored.mutable_parts()->set_draft(draft);
  stored.mutable_parts()->set_count(number);
  return seal_message(key, stored);
}

absl::Status EtcdStore::append(const std::string& key, const std::string& value, int64_t last) {
  v1::LogHead head;
  head.set_cluster(id_);
  head.set_revision(last);
  head.set_epoch(epoch());
  TxnRequest request = fenced();
  add_put(*request.mutable_success(), key, value);
  return move_head(std::move(request), head);
}

// Adds the move of the head to the request, so that it takes effect at most once.
absl::Status EtcdStore::move_head(TxnRequest request, const v1::LogHead& head) {
  expect_changed(*request.add_compare(), layout_.head(), head_changed_);
  add_put(*request.mutable_success(), layout_.head(), seal_message(layout_.head(), head));
  add_read(*request.mutable_failure(), layout_.head());
  TITAN_ASSIGN_OR_RETURN(const TxnResponse answer, settle(request));
  if (answer.succeeded()) {
    head_changed_ = answer.header().revision();
    return absl::OkStatus();
  }
  // It was refused because it had arrived before, or because another controller leads.
  const etcdserverpb::KeyValue* found = found_instead(answer);
  if (found == nullptr) return lost();
  TITAN_ASSIGN_OR_RETURN(const v1::LogHead present, unseal_message<v1::LogHead>(layout_.head(), found->value()));
  if (present.revision() != head.revision() || present.epoch() != head.epoch()) return lost();
  head_changed_ = found->mod_revision();
  return absl::OkStatus();
}

void EtcdStore::apply(v1::LogEntry& entry) {
  sync::Lock lock(mutex_);
  int64_t revision = entry.first_revision();
  for (v1::LoggedTransaction& transaction : *entry.mutable_transactions()) {
    std::vector<RecordChange> changes;
    for (v1::LoggedChange& logged : *transaction.mutable_changes()) {
      RecordChange& change = changes.emplace_back(RecordChange{revision, logged.key(), std::nullopt});
      if (logged.has_value()) change.value = std::move(*logged.mutable_value());
    }
    table_.apply(revision++, std::move(changes));
  }
  marks_.add(absl::FromUnixSeconds(entry.time_s()), table_.revision());
}

// --- Reading. ---

int64_t EtcdStore::revision() const {
  sync::Lock lock(mutex_);
  return table_.revision();
}

absl::StatusOr<std::optional<Record>> EtcdStore::get(const std::string& key) const {
  sync::Lock lock(mutex_);
  return table_.get(key);
}

absl::StatusOr<std::vector<Record>> EtcdStore::scan(const std::string& prefix, const std::string& after,
                                                    int limit) const {
  sync::Lock lock(mutex_);
  return table_.scan(prefix, after, limit);
}

absl::StatusOr<std::vector<RecordChange>> EtcdStore::changes(int64_t after_revision, int limit) const {
  sync::Lock lock(mutex_);
  return table_.changes(after_revision, limit);
}

void EtcdStore::set_aside(const Record& record, const std::string& reason) {
  const absl::Time now = absl::Now();
  const Quarantined aside{record.key, record.revision, reason, true, 0, absl::ToUnixSeconds(now)};
  commit(setting_aside(record, reason, now), [this, aside](const absl::StatusOr<int64_t>& revision) {
    if (revision.ok() && options_.on_damage) options_.on_damage(aside);
  });
}

std::vector<Quarantined> EtcdStore::quarantined() const {
  sync::Lock lock(mutex_);
  return table_.quarantined();
}

int64_t EtcdStore::revision_before(absl::Time time) const {
  sync::Lock lock(mutex_);
  return marks_.before(time);
}

}  // namespace titan::store

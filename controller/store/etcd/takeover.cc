// Reads what earlier leaders wrote, for a new leader.

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/host/random_hex.h"
#include "common/base/status/status.h"
#include "common/service/failpoint/failpoint.h"
#include "controller/store/etcd/etcd_store.h"
#include "controller/store/etcd/layout.h"

namespace titan::store {
namespace {

failpoint::Failpoint read_point("etcd.ends"), loaded_point("etcd.loaded"), begun_point("etcd.begun");

using etcdserverpb::RangeResponse;
using etcdserverpb::TxnRequest;
using etcdserverpb::TxnResponse;

}  // namespace

absl::Status EtcdStore::load() {
  absl::Status loaded = load_all();
  // A key may be missing because another controller leads and has dropped it. Checks that before it blames etcd.
  if (absl::IsDataLoss(loaded)) TITAN_RETURN_IF_ERROR(commit_as_leader(fenced()));
  return loaded;
}

absl::Status EtcdStore::load_all() {
  TITAN_ASSIGN_OR_RETURN(const Ends ends, read_ends());
  read_point.pass();
  if (!ends.head) return begin();
  id_ = ends.head->cluster();
  if (ends.snapshot.parts() > 0) TITAN_RETURN_IF_ERROR(load_snapshot(ends.snapshot));
  TITAN_RETURN_IF_ERROR(load_log());
  if (table_.revision() != ends.head->revision()) {
    return absl::DataLossError(
        absl::StrCat("etcd: ", layout_.log(table_.revision() + 1), " is missing; restore the store from a backup"));
  }
  loaded_point.pass();
  // The data is current only if this process still leads and nothing was written since.
  TxnRequest confirm = fenced();
  expect_changed(*confirm.add_compare(), layout_.head(), head_changed_);
  return commit_as_leader(confirm);
}

absl::StatusOr<EtcdStore::Ends> EtcdStore::read_ends() {
  TxnRequest request = fenced();
  add_read(*request.mutable_success(), layout_.head());
  add_read(*request.mutable_success(), layout_.snapshot());
  TITAN_ASSIGN_OR_RETURN(const TxnResponse answer, settle(request));
  if (!answer.succeeded()) return lost();
  const RangeResponse& head = answer.responses(0).response_range();
  const RangeResponse& snapshot = answer.responses(1).response_range();
  Ends ends;
  if (head.kvs_size() > 0) {
    TITAN_ASSIGN_OR_RETURN(ends.head, unseal_message<v1::LogHead>(layout_.head(), head.kvs(0).value()));
    head_changed_ = head.kvs(0).mod_revision();
  }
  if (snapshot.kvs_size() > 0) {
    TITAN_ASSIGN_OR_RETURN(ends.snapshot,
                           unseal_message<v1::SnapshotPointer>(layout_.snapshot(), snapshot.kvs(0).value()));
    sync::Lock lock(snapshot_mutex_);
    snapshot_changed_ = snapshot.kvs(0).mod_revision();
  }
  return ends;
}

// Begins an empty store, in the first controller of a cluster.
absl::Status EtcdStore::begin() {
  etcdserverpb::RangeRequest anything = read_of(layout_.log());
  anything.set_range_end(prefix_end(layout_.snap()));
  anything.set_limit(1);
  TITAN_ASSIGN_OR_RETURN(const RangeResponse found, read(anything));
  if (found.kvs_size() > 0) {
    return absl::DataLossError(absl::StrCat("etcd: ", layout_.head(), " is missing but ", found.kvs(0).key(),
                                            " is there; restore the store from a backup"));
  }
  id_ = host::random_hex(8);
  begun_point.pass();
  v1::LogHead head;
  head.set_cluster(id_);
  head.set_epoch(epoch());
  return move_head(fenced(), head);
}

absl::StatusOr<RangeResponse> EtcdStore::read(const etcdserverpb::RangeRequest& request) {
  while (true) {
    TITAN_RETURN_IF_ERROR(elector_->leading());
    absl::StatusOr<RangeResponse> answer = elector_->client().range(request);
    if (answer.ok() || !absl::IsUnavailable(answer.status())) return answer;
    absl::SleepFor(kRetry);
  }
}

// Reads the value of a key that must exist.
absl::StatusOr<std::string> EtcdStore::read_value(const std::string& key) {
  TITAN_ASSIGN_OR_RETURN(const RangeResponse found, read(read_of(key)));
  if (found.kvs_size() == 0) {
    return absl::DataLossError(absl::StrCat("etcd: ", key, " is missing; restore the store from a backup"));
  }
  return unseal(key, found.kvs(0).value());
}

absl::Status EtcdStore::load_log() {
  constexpr int kPage = 16;
  etcdserverpb::RangeRequest page = read_of(layout_.log(table_.revision() + 1));
  page.set_range_end(prefix_end(layout_.log()));
  page.set_limit(kPage);
  while (true) {
    TITAN_ASSIGN_OR_RETURN(const RangeResponse found, read(page));
    for (const etcdserverpb::KeyValue& stored : found.kvs()) TITAN_RETURN_IF_ERROR(load_entry(stored));
    if (!found.more()) return absl::OkStatus();
    page.set_key(layout_.log(table_.revision() + 1));
  }
}

absl::Status EtcdStore::load_entry(const etcdserverpb::KeyValue& stored) {
  const std::string expected = layout_.log(table_.revision() + 1);
  if (stored.key() != expected) {
    return absl::DataLossError(absl::StrCat("etcd: ", expected, " is missing; restore the store from a backup"));
  }
  TITAN_ASSIGN_OR_RETURN(v1::StoredEntry content, unseal_message<v1::StoredEntry>(stored.key(), stored.value()));
  v1::LogEntry entry;
  if (content.has_entry()) {
    entry = std::move(*content.mutable_entry());
  } else {
    std::string bytes;
    const v1::EntryParts& parts = content.parts();
    for (int i = 0; i < parts.count(); ++i) {
      TITAN_ASSIGN_OR_RETURN(const std::string part, read_value(layout_.part(table_.revision() + 1, parts.draft(), i)));
      bytes += part;
    }
    if (!entry.ParseFromString(bytes)) return not_readable(stored.key());
  }
  if (entry.first_revision() != table_.revision() + 1) return not_readable(stored.key());
  log_bytes_ += static_cast<int64_t>(entry.ByteSizeLong());
  ++log_entries_;
  apply(entry);
  return absl::OkStatus();
}

}  // namespace titan::store

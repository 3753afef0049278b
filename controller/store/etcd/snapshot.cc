// Snapshots: the store's records as parts in etcd, from which the log continues. The records are read in pages while
// others are written. So a record may be newer than the snapshot's revision, and replaying the log after that revision
// gives every record its newest value.

#include <google/protobuf/io/coded_stream.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status/status.h"
#include "common/service/failpoint/failpoint.h"
#include "controller/store/etcd/etcd_store.h"
#include "controller/store/etcd/layout.h"

namespace titan::store {
namespace {

failpoint::Failpoint snapshot_point("etcd.snapshot"), parts_point("etcd.snapshot.parts"),
    switched_point("etcd.snapshot.switched");

using etcdserverpb::TxnRequest;
using etcdserverpb::TxnResponse;
using google::protobuf::io::CodedInputStream;
using google::protobuf::io::CodedOutputStream;

// Appends a record, after its length.
void add_record(std::string& bytes, const Record& record) {
  v1::StoredRecord stored;
  stored.set_key(record.key);
  stored.set_value(record.value);
  stored.set_revision(record.revision);
  const auto size = static_cast<uint32_t>(stored.ByteSizeLong());
  uint8_t length[10];
  const uint8_t* end = CodedOutputStream::WriteVarint32ToArray(size, length);
  bytes.append(reinterpret_cast<const char*>(length), static_cast<size_t>(end - length));
  stored.AppendToString(&bytes);
}

// Takes the first whole record from `bytes`, beginning at `at`. Nothing: more bytes are needed.
std::optional<v1::StoredRecord> take_record(const std::string& bytes, size_t& at) {
  CodedInputStream input(reinterpret_cast<const uint8_t*>(bytes.data()) + at, static_cast<int>(bytes.size() - at));
  uint32_t size = 0;
  if (!input.ReadVarint32(&size)) return std::nullopt;
  const auto length = static_cast<size_t>(input.CurrentPosition());
  if (bytes.size() - at - length < size) return std::nullopt;
  v1::StoredRecord record;
  if (!record.ParseFromArray(bytes.data() + at + length, static_cast<int>(size))) return std::nullopt;
  at += length + size;
  return record;
}

}  // namespace

bool EtcdStore::snapshot_is_due() const {
  return log_entries_ >= options_.snapshot_entries || log_bytes_ >= options_.snapshot_bytes + last_bytes_;
}

void EtcdStore::snapshot_loop() {
  while (true) {
    {
      sync::Lock lock(wake_mutex_);
      // The writer does not hold this mutex when it wakes this thread, so look again now and then.
      while (!ending_ && !snapshot_is_due()) wake_.wait_for(wake_mutex_, std::chrono::milliseconds(500));
      if (ending_) return;
    }
    const absl::Status taken = snapshot();
    if (taken.ok()) continue;
    // The log is not shortened until the next try. If etcd is full or lost, the writer reports it.
    sync::Lock lock(wake_mutex_);
    wake_.wait_for(wake_mutex_, std::chrono::seconds(5), [this] { return ending_; });
  }
}

absl::Status EtcdStore::snapshot() {
  sync::Lock lock(snapshot_mutex_);
  const int64_t bytes = log_bytes_, entries = log_entries_;
  snapshot_point.pass();
  TITAN_ASSIGN_OR_RETURN(const v1::SnapshotPointer pointer, write_snapshot());
  parts_point.pass();
  TITAN_RETURN_IF_ERROR(switch_snapshot(pointer));
  switched_point.pass();
  last_bytes_ = pointer.bytes();
  log_bytes_ -= bytes;
  log_entries_ -= entries;
  return absl::OkStatus();
}

absl::StatusOr<v1::SnapshotPointer> EtcdStore::write_snapshot() {
  constexpr int kPage = 256;
  v1::SnapshotPointer pointer;
  {
    sync::Lock lock(mutex_);
    pointer.set_revision(table_.revision());
    for (const TimeMarks::Mark& mark : marks_.all()) {
      v1::TimeMark& kept = *pointer.add_marks();
      kept.set_time_s(mark.time_s);
      kept.set_revision(mark.revision);
    }
  }
  pointer.set_folder(absl::StrFormat("%020d-%d-%d", pointer.revision(), epoch(), ++snapshots_made_));
  const auto limit = static_cast<size_t>(options_.value_bytes);
  std::string bytes, after;
  const auto put_part = [&](size_t size) {
    const std::string key = layout_.snap_part(pointer.folder(), pointer.parts());
    TxnRequest put = fenced();
    add_put(*put.mutable_success(), key, seal(key, bytes.substr(0, size)));
    pointer.set_parts(pointer.parts() + 1);
    pointer.set_bytes(pointer.bytes() + static_cast<int64_t>(size));
    bytes.erase(0, size);
    return commit_as_leader(put);
  };
  while (true) {
    TITAN_ASSIGN_OR_RETURN(const std::vector<Record> page, scan("", after, kPage));
    for (const Record& record : page) {
      add_record(bytes, record);
      pointer.set_records(pointer.records() + 1);
      while (bytes.size() >= limit) TITAN_RETURN_IF_ERROR(put_part(limit));
    }
    if (static_cast<int>(page.size()) < kPage) break;
    after = page.back().key;
  }
  TITAN_RETURN_IF_ERROR(put_part(bytes.size()));  // At least one part: a pointer without parts means no snapshot.
  return pointer;
}

// Makes the log begin after the snapshot. The same transaction drops what came before.
absl::Status EtcdStore::switch_snapshot(const v1::SnapshotPointer& pointer) {
  TxnRequest request = fenced();
  expect_changed(*request.add_compare(), layout_.snapshot(), snapshot_changed_);
  Operations& operations = *request.mutable_success();
  add_put(operations, layout_.snapshot(), seal_message(layout_.snapshot(), pointer));
  add_erase(operations, layout_.log(0), layout_.log(pointer.revision() + 1));
  add_erase(operations, layout_.parts(0), layout_.parts(pointer.revision() + 1));
  add_erase(operations, layout_.snap(), layout_.snap(pointer.folder()));
  add_erase(operations, prefix_end(layout_.snap(pointer.folder())), prefix_end(layout_.snap()));
  add_read(*request.mutable_failure(), layout_.snapshot());
  TITAN_ASSIGN_OR_RETURN(const TxnResponse answer, settle(request));
  if (answer.succeeded()) {
    snapshot_changed_ = answer.header().revision();
  } else {  // See move_head().
    const etcdserverpb::KeyValue* found = found_instead(answer);
    if (found == nullptr) return lost();
    TITAN_ASSIGN_OR_RETURN(const v1::SnapshotPointer present,
                           unseal_message<v1::SnapshotPointer>(layout_.snapshot(), found->value()));
    if (present.folder() != pointer.folder()) return lost();
    snapshot_changed_ = found->mod_revision();
  }
  // A failure does no harm: the next snapshot compacts, too.
  if (options_.compact_etcd) (void)elector_->client().compact(answer.header().revision());
  return absl::OkStatus();
}

absl::Status EtcdStore::load_snapshot(const v1::SnapshotPointer& pointer) {
  std::string bytes;
  int64_t records = 0;
  for (int i = 0; i < pointer.parts(); ++i) {
    TITAN_ASSIGN_OR_RETURN(const std::string part, read_value(layout_.snap_part(pointer.folder(), i)));
    bytes += part;
    size_t at = 0;
    sync::Lock lock(mutex_);
    while (std::optional<v1::StoredRecord> record = take_record(bytes, at)) {
      table_.load({std::move(*record->mutable_key()), std::move(*record->mutable_value()), record->revision()});
      ++records;
    }
    bytes.erase(0, at);
  }
  if (!bytes.empty() || records != pointer.records()) return not_readable(layout_.snap(pointer.folder()));
  sync::Lock lock(mutex_);
  table_.start_at(pointer.revision());
  for (const v1::TimeMark& mark : pointer.marks()) marks_.add(absl::FromUnixSeconds(mark.time_s()), mark.revision());
  last_bytes_ = pointer.bytes();
  return absl::OkStatus();
}

}  // namespace titan::store

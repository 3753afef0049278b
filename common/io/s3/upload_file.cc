#include "common/io/s3/upload_file.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"

namespace titan::s3 {
namespace {

constexpr size_t kMaxParts = 10000;

WriteCondition new_object() { return {.kind = WriteCondition::kAbsent}; }

}  // namespace

UploadFile::~UploadFile() {
  for (auto& one : sending_) one.wait();
  // If this fails, the next attempt deletes the parts.
  if (!done_ && !upload_.id.empty()) client_->abort(upload_).IgnoreError();
}

absl::Status UploadFile::append(std::string_view bytes) {
  while (!bytes.empty() && failed_.ok()) {
    if (!upload_.id.empty() && filling_.empty()) filling_.reserve(static_cast<size_t>(sizes_.part_bytes));
    const size_t space = static_cast<size_t>(sizes_.part_bytes) - filling_.size();
    filling_.append(bytes.substr(0, space));
    bytes.remove_prefix(std::min(space, bytes.size()));
    if (static_cast<int64_t>(filling_.size()) == sizes_.part_bytes) failed_ = send_part();
  }
  return failed_;
}

absl::Status UploadFile::send_part() {
  if (upload_.id.empty()) {
    TITAN_ASSIGN_OR_RETURN(upload_, client_->create_upload(key_));
  }
  const size_t number = parts_.size() + sending_.size() + 1;
  if (number > kMaxParts)
    return absl::OutOfRangeError(absl::StrCat("write ", client_->place(key_), ": an object holds at most ", kMaxParts,
                                              " parts of ", sizes_.part_bytes >> 20,
                                              " MiB; train on more ranks, so that each writes less"));
  if (static_cast<int>(sending_.size()) >= sizes_.parts_at_once) TITAN_RETURN_IF_ERROR(take_oldest());
  sending_.push_back(std::async(std::launch::async, [this, number, bytes = std::exchange(filling_, std::string())] {
    return client_->upload_part(upload_, static_cast<int>(number), bytes);
  }));
  return absl::OkStatus();
}

absl::Status UploadFile::take_oldest() {
  absl::StatusOr<CompletedPart> part = sending_.front().get();
  sending_.pop_front();
  if (!part.ok()) return part.status();
  parts_.push_back(*std::move(part));
  return absl::OkStatus();
}

absl::Status UploadFile::finish() {
  if (upload_.id.empty()) return client_->put(key_, filling_, new_object()).status();
  if (!filling_.empty()) TITAN_RETURN_IF_ERROR(send_part());
  while (!sending_.empty()) TITAN_RETURN_IF_ERROR(take_oldest());
  return client_->complete(upload_, parts_, new_object());
}

absl::Status UploadFile::sync() {
  if (!failed_.ok() || done_) return failed_;
  failed_ = finish();
  done_ = failed_.ok();
  return failed_;
}

absl::Status UploadFile::close() { return failed_; }

}  // namespace titan::s3

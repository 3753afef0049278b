#include "controller/store/etcd/layout.h"

#include <zlib.h>

#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace titan::store {
namespace {

std::string padded(int64_t number) { return absl::StrFormat("%020d", number); }

}  // namespace

std::string Layout::log(int64_t revision) const {
  return absl::StrCat(prefix_, "log/", revision < 0 ? "" : padded(revision));
}

std::string Layout::parts(int64_t revision) const {
  return absl::StrCat(prefix_, "part/", revision < 0 ? "" : padded(revision) + "/");
}

std::string Layout::part(int64_t revision, int64_t draft, int number) const {
  return absl::StrCat(parts(revision), draft, "/", absl::StrFormat("%06d", number));
}

std::string Layout::snap(const std::string& folder) const {
  return absl::StrCat(prefix_, "snap/", folder, folder.empty() ? "" : "/");
}

std::string Layout::snap_part(const std::string& folder, int number) const {
  return absl::StrCat(snap(folder), absl::StrFormat("%06d", number));
}

etcdserverpb::RangeRequest read_of(const std::string& key) {
  etcdserverpb::RangeRequest request;
  request.set_key(key);
  return request;
}

void add_read(Operations& operations, const std::string& key) {
  operations.Add()->mutable_request_range()->set_key(key);
}

void add_put(Operations& operations, const std::string& key, const std::string& value, int64_t lease) {
  etcdserverpb::PutRequest& put = *operations.Add()->mutable_request_put();
  put.set_key(key);
  put.set_value(value);
  put.set_lease(lease);
}

void add_erase(Operations& operations, const std::string& begin, const std::string& end) {
  etcdserverpb::DeleteRangeRequest& erase = *operations.Add()->mutable_request_delete_range();
  erase.set_key(begin);
  erase.set_range_end(end);
}

void expect_created(etcdserverpb::Compare& compare, const std::string& key, int64_t revision) {
  compare.set_target(etcdserverpb::Compare::CREATE);
  compare.set_key(key);
  compare.set_create_revision(revision);
}

void expect_changed(etcdserverpb::Compare& compare, const std::string& key, int64_t revision) {
  compare.set_target(etcdserverpb::Compare::MOD);
  compare.set_key(key);
  compare.set_mod_revision(revision);
}

namespace {

constexpr size_t kMark = 4;

std::string mark_of(const std::string& key, const char* body, size_t size) {
  uLong crc = crc32(0, reinterpret_cast<const Bytef*>(key.data()), static_cast<uInt>(key.size()));
  crc = crc32(crc, reinterpret_cast<const Bytef*>(body), static_cast<uInt>(size));
  std::string mark(kMark, '\0');
  for (size_t i = 0; i < kMark; ++i) mark[i] = static_cast<char>(crc >> (8 * i));
  return mark;
}

}  // namespace

absl::Status not_readable(const std::string& key) {
  return absl::DataLossError(absl::StrCat("etcd: ", key, " cannot be read; restore the store from a backup"));
}

std::string seal(const std::string& key, const std::string& body) {
  return mark_of(key, body.data(), body.size()) + body;
}

absl::StatusOr<std::string> unseal(const std::string& key, const std::string& value) {
  if (value.size() < kMark || value.compare(0, kMark, mark_of(key, value.data() + kMark, value.size() - kMark)) != 0) {
    return absl::DataLossError(
        absl::StrCat("etcd: ", key, " does not match its checksum; restore the store from a backup"));
  }
  return value.substr(kMark);
}

}  // namespace titan::store

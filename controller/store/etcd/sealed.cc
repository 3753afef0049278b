#include "controller/store/etcd/sealed.h"

#include <zlib.h>

#include <cstring>

#include "absl/strings/str_cat.h"

namespace titan::store {
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

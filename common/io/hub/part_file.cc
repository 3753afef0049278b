#include "common/io/hub/part_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status/status.h"
#include "common/base/text/message_text.h"
#include "common/io/hub/names.h"
#include "common/io/hub/verification.h"
#include "nlohmann/json.hpp"

namespace titan::hub {
namespace {

using nlohmann::json;

constexpr absl::Duration kSaveEach = absl::Milliseconds(200);
constexpr size_t kMaxLastPartLength = 240;  // So that a name with ".part.json.new" appended is valid.

struct Record {
  std::string etag;
  http::Ranges there;
};

std::string part_name(const RemoteFile& remote) { return remote.name + ".part"; }
std::string record_name(const RemoteFile& remote) { return remote.name + ".part.json"; }

bool is_range(const json& range, int64_t size) {
  if (!range.is_array() || range.size() != 2 || !range[0].is_number_unsigned() || !range[1].is_number_unsigned())
    return false;
  const auto begin = range[0].get<uint64_t>(), end = range[1].get<uint64_t>();
  return begin < end && end <= static_cast<uint64_t>(size);
}

// Returns the record in `text`; an empty one if it is for other content or exceeds `bytes_there` bytes.
Record read_record(const std::string& text, const RemoteFile& remote, int64_t bytes_there) {
  const json found = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!found.is_object() || found.value("digest", json()) != remote.digest() ||
      found.value("size", json()) != remote.size || !found.value("etag", json()).is_string() ||
      !found.value("there", json()).is_array())
    return {};
  Record record{found["etag"].get<std::string>(), {}};
  for (const json& range : found["there"]) {
    if (!is_range(range, bytes_there)) return {};
    record.there.add({range[0].get<int64_t>(), range[1].get<int64_t>()});
  }
  return record;
}

Record record_of(const Folder& folder, const RemoteFile& remote) {
  const auto part = folder.find(part_name(remote));
  const auto text = folder.read(record_name(remote));
  if (!part.ok() || !part->has_value() || !text.ok()) return {};
  return read_record(*text, remote, std::min<int64_t>((*part)->st_size, remote.size));
}

absl::Status write_at(int file, int64_t offset, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = pwrite(file, bytes.data(), bytes.size(), offset);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno_status(errno, "write its .part");
    offset += written;
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

}  // namespace

bool is_reserved_name(const std::string& name) {
  const std::string last = name.substr(name.rfind('/') + 1);
  return absl::StartsWith(name, ".titan-assets") || absl::EndsWith(name, ".part") ||
         absl::EndsWith(name, ".part.json") || absl::EndsWith(name, ".part.json.new") ||
         last.size() > kMaxLastPartLength;
}

http::Ranges recorded_parts(const Folder& folder, const RemoteFile& remote) { return record_of(folder, remote).there; }

absl::Status remove_parts(const Folder& folder, const RemoteFile& remote) {
  for (const std::string& name : {part_name(remote), record_name(remote), record_name(remote) + ".new"})
    TITAN_RETURN_IF_ERROR(folder.remove(name));
  return absl::OkStatus();
}

PartFile::PartFile(const Folder& folder, const RemoteFile& remote, host::Descriptor file)
    : folder_(folder), remote_(remote), file_(std::move(file)) {}

absl::StatusOr<std::unique_ptr<PartFile>> PartFile::open(const Folder& folder, const RemoteFile& remote) {
  Record record = record_of(folder, remote);
  TITAN_ASSIGN_OR_RETURN(host::Descriptor file, folder.open(part_name(remote), O_RDWR | O_CREAT));
  auto part = std::unique_ptr<PartFile>(new PartFile(folder, remote, std::move(file)));
  const bool is_new = record.there.total() == 0;
  {
    sync::Lock lock(part->mutex_);
    part->there_ = std::move(record.there);
    part->etag_ = std::move(record.etag);
  }
  if (is_new) TITAN_RETURN_IF_ERROR(part->reset().status());
  return part;
}

absl::Status PartFile::accept(const FileFacts& facts) {
  if (facts.size >= 0 && facts.size != remote_.size)
    return absl::AbortedError(
        absl::StrCat("the server's file has ", facts.size, " bytes, the hub's list says ", remote_.size));
  // A large file's digest can be compared before all has arrived. For small files mirrors send arbitrary ETags.
  if (is_hex(facts.etag, 64) && !remote_.sha256.empty() && facts.etag != remote_.sha256)
    return absl::AbortedError("the server's file is not the one in the hub's list (ETag)");
  sync::Lock lock(mutex_);
  if (etag_.empty()) etag_ = facts.etag;
  if (etag_ == facts.etag) return absl::OkStatus();
  return absl::AbortedError("the server's file has changed during the download (ETag)");
}

absl::Status PartFile::write(int64_t offset, std::string_view bytes) {
  if (absl::Status written = write_at(file_.get(), offset, bytes); !written.ok())
    return annotate(written, absl::StrCat(folder_.path(), "/", text::printable_name(remote_.name)));
  {
    sync::Lock lock(mutex_);
    there_.add({offset, offset + static_cast<int64_t>(bytes.size())});
  }
  return save_if_due();
}

absl::Status PartFile::save_if_due() {
  sync::Lock lock(mutex_);
  return absl::Now() - saved_ < kSaveEach ? absl::OkStatus() : save_locked();
}

absl::Status PartFile::save() {
  sync::Lock lock(mutex_);
  return save_locked();
}

absl::Status PartFile::save_locked() {
  json ranges = json::array();
  for (const http::ByteRange& range : there_.all()) ranges.push_back({range.begin, range.end});
  const json record = {{"digest", remote_.digest()}, {"size", remote_.size}, {"etag", etag_}, {"there", ranges}};
  saved_ = absl::Now();
  return folder_.write(record_name(remote_), record.dump(-1, ' ', false, json::error_handler_t::replace) + "\n");
}

absl::StatusOr<int64_t> PartFile::reset() {
  sync::Lock lock(mutex_);
  const int64_t was_there = there_.total();
  there_ = {};
  etag_.clear();
  if (ftruncate(file_.get(), 0) != 0)
    return errno_status(errno, absl::StrCat("empty ", folder_.path(), "/", text::printable_name(part_name(remote_))));
  TITAN_RETURN_IF_ERROR(save_locked());
  return was_there;
}

absl::Status PartFile::finish(const std::function<absl::Status()>& idle) {
  TITAN_RETURN_IF_ERROR(check_content(file_, remote_, idle));
  if (fsync(file_.get()) != 0)
    return errno_status(errno, absl::StrCat("sync ", folder_.path(), "/", text::printable_name(part_name(remote_))));
  TITAN_RETURN_IF_ERROR(folder_.rename(part_name(remote_), remote_.name));
  return remove_parts(folder_, remote_);
}

}  // namespace titan::hub

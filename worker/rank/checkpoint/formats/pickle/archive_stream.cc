#include "worker/rank/checkpoint/formats/pickle/archive_stream.h"

#include <zlib.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "worker/rank/checkpoint/formats/pickle/zip_format.h"

namespace titan::pickle {
namespace {

// Names are UTF-8, sizes and checksum follow the bytes; the time is the format's first day.
constexpr uint32_t kFlags = 1 << 11 | 1 << 3, kFirstDay = 33;
constexpr uint32_t kVersion = 20, kVersion64 = 45;
constexpr uint16_t kExtra64 = 1, kPadding = 0x4246;
constexpr int64_t kAlignment = 64, kExtraHeader = 4;

class Bytes {
 public:
  Bytes& add(uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) out.push_back(static_cast<char>(value >> (8 * i)));
    return *this;
  }
  std::string out;
};

bool large(int64_t value) { return static_cast<uint64_t>(value) >= kIn64; }
uint64_t low(int64_t value) { return large(value) ? kIn64 : static_cast<uint64_t>(value); }

uint32_t checksum(uint32_t sum, std::string_view bytes) {
  while (!bytes.empty()) {  // zlib counts in 32 bits.
    const std::string_view part = bytes.substr(0, size_t{1} << 30);
    sum =
        static_cast<uint32_t>(crc32(sum, reinterpret_cast<const Bytef*>(part.data()), static_cast<uInt>(part.size())));
    bytes.remove_prefix(part.size());
  }
  return sum;
}

// Writes the fields that local and central headers share, from "version needed" to the length of the name.
void describe(Bytes& to, bool in64, uint32_t sum, uint64_t bytes, size_t name_bytes) {
  to.add(in64 ? kVersion64 : kVersion, 2).add(kFlags, 2).add(0, 2).add(0, 2).add(kFirstDay, 2);
  to.add(sum, 4).add(bytes, 4).add(bytes, 4).add(name_bytes, 2);
}

// Returns the header of an entry at `at`.
std::string local_header(const std::string& name, int64_t at, bool in64) {
  Bytes extra;
  if (in64) extra.add(kExtra64, 2).add(16, 2).add(0, 8).add(0, 8);
  const int64_t end = at + kLocalBytes + static_cast<int64_t>(name.size() + extra.out.size()) + kExtraHeader;
  const int64_t padding = (kAlignment - end % kAlignment) % kAlignment;
  extra.add(kPadding, 2).add(static_cast<uint64_t>(padding), 2).out.append(static_cast<size_t>(padding), '\0');
  Bytes header;
  describe(header.add(kLocalHeader, 4), in64, 0, in64 ? kIn64 : 0, name.size());
  header.add(extra.out.size(), 2);
  return header.out + name + extra.out;
}

}  // namespace

absl::Status ArchiveStream::write(std::string_view bytes) {
  written_ += static_cast<int64_t>(bytes.size());
  return append_(bytes);
}

absl::Status ArchiveStream::begin(const std::string& name, int64_t bytes) {
  TITAN_RETURN_IF_ERROR(end_entry());
  name_ = "archive/" + name;
  at_ = written_;
  bytes_ = left_ = bytes;
  sum_ = 0;
  return write(local_header(name_, at_, large(bytes)));
}

absl::Status ArchiveStream::append(std::string_view bytes) {
  left_ -= static_cast<int64_t>(bytes.size());
  sum_ = checksum(sum_, bytes);
  return write(bytes);
}

absl::Status ArchiveStream::add(const std::string& name, std::string_view bytes) {
  TITAN_RETURN_IF_ERROR(begin(name, static_cast<int64_t>(bytes.size())));
  return append(bytes);
}

absl::Status ArchiveStream::end_entry() {
  if (name_.empty()) return absl::OkStatus();
  if (left_ != 0)
    return absl::InternalError(
        absl::StrCat(name_, ": ", bytes_ - left_, " bytes were added, ", bytes_, " were announced"));
  Bytes descriptor, extra, header;
  const int width = large(bytes_) ? 8 : 4;
  const auto bytes = static_cast<uint64_t>(bytes_);
  descriptor.add(kDescriptor, 4).add(sum_, 4).add(bytes, width).add(bytes, width);
  if (large(bytes_)) extra.add(bytes, 8).add(bytes, 8);
  if (large(at_)) extra.add(static_cast<uint64_t>(at_), 8);
  const bool in64 = !extra.out.empty();
  header.add(kCentralHeader, 4).add(in64 ? kVersion64 : kVersion, 2);
  describe(header, in64, sum_, low(bytes_), name_.size());
  header.add(in64 ? extra.out.size() + kExtraHeader : 0, 2).add(0, 2).add(0, 2).add(0, 2).add(0, 4).add(low(at_), 4);
  header.out += name_;
  if (in64) header.add(kExtra64, 2).add(extra.out.size(), 2);
  directory_ += header.out + extra.out;
  ++entries_;
  name_.clear();
  return write(descriptor.out);
}

absl::Status ArchiveStream::finish() {
  TITAN_RETURN_IF_ERROR(end_entry());
  const int64_t begin = written_;
  const auto count = static_cast<uint64_t>(entries_), bytes = static_cast<uint64_t>(directory_.size());
  TITAN_RETURN_IF_ERROR(write(directory_));
  Bytes end;
  if (large(begin) || count >= 0xffff) {
    const auto end64 = static_cast<uint64_t>(written_);
    end.add(kEndRecord64, 4).add(kEnd64Bytes - 12, 8).add(kVersion64, 2).add(kVersion64, 2).add(0, 4).add(0, 4);
    end.add(count, 8).add(count, 8).add(bytes, 8).add(static_cast<uint64_t>(begin), 8);
    end.add(kLocator64, 4).add(0, 4).add(end64, 8).add(1, 4);
  }
  const uint64_t few = std::min<uint64_t>(count, 0xffff);
  end.add(kEndRecord, 4).add(0, 4).add(few, 2).add(few, 2).add(bytes, 4).add(low(begin), 4).add(0, 2);
  return write(end.out);
}

}  // namespace titan::pickle

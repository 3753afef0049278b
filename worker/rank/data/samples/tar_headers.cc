#include "worker/rank/data/samples/tar_headers.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/base/text/message_text.h"

namespace titan::data {
namespace {

constexpr int64_t kBlock = 512;
constexpr int64_t kMaxExtension = 1 << 20;  // Bytes of a name or of PAX records.

// A field of a header: its place and length in bytes.
struct Field {
  size_t at, length;
};
constexpr Field kName{0, 100}, kSize{124, 12}, kSum{148, 8}, kMagic{257, 8}, kPrefix{345, 155};
constexpr size_t kType = 156;

using Block = std::array<char, kBlock>;

std::string_view bytes_of(const Block& block, const Field& field) { return {block.data() + field.at, field.length}; }

std::string_view text_of(const Block& block, const Field& field) {
  const std::string_view bytes = bytes_of(block, field);
  return bytes.substr(0, bytes.find('\0'));
}

std::string_view stripped(std::string_view text) {
  constexpr std::string_view kBlank = " \t\n\v\f\r";
  const size_t begin = text.find_first_not_of(kBlank);
  return begin == std::string_view::npos ? "" : text.substr(begin, text.find_last_not_of(kBlank) + 1 - begin);
}

// Reads an octal number, or a big-endian binary one as GNU tar writes large sizes. Returns nothing for anything else
// and for negative numbers.
std::optional<int64_t> number_of(const Block& block, const Field& field) {
  const std::string_view bytes = bytes_of(block, field);
  int64_t number = 0;
  if (static_cast<unsigned char>(bytes[0]) == 0x80) {
    for (const char byte : bytes.substr(1)) {
      if (number >> 54 != 0) return std::nullopt;
      number = number << 8 | static_cast<unsigned char>(byte);
    }
    return number;
  }
  for (const char digit : stripped(text_of(block, field))) {
    if (digit < '0' || digit > '7') return std::nullopt;
    number = number << 3 | (digit - '0');  // At most 12 digits.
  }
  return number;
}

// The sum of a header's bytes, in which the sum itself counts as spaces. Some old writers add signed bytes.
bool has_right_sum(const Block& block) {
  int64_t plain = 0, with_signs = 0;
  for (size_t i = 0; i < block.size(); ++i) {
    const char byte = i >= kSum.at && i < kSum.at + kSum.length ? ' ' : block[i];
    plain += static_cast<unsigned char>(byte);
    with_signs += static_cast<signed char>(byte);
  }
  const std::optional<int64_t> sum = number_of(block, kSum);
  return sum == plain || sum == with_signs;
}

// Returns whether a type of member has content after its header. Links, devices, folders and pipes have none, whatever
// their size says.
bool has_content(char type) { return type < '1' || type > '6'; }

int64_t padded(int64_t size) { return (size + kBlock - 1) / kBlock * kBlock; }

}  // namespace

struct TarHeaders::Header {
  int64_t at = 0;
  char type = '0';
  std::string name;
  int64_t size = 0;
};

TarHeaders::TarHeaders(std::string path, int64_t begin, int64_t end, ReadAt read)
    : path_(std::move(path)), begin_(begin), end_(end), read_(std::move(read)), at_(begin) {}

absl::Status TarHeaders::damaged(int64_t at, const std::string& what) const {
  return absl::InvalidArgumentError(absl::StrCat(path_, ": byte ", at, ": ", what, "; download the file again"));
}

absl::Status TarHeaders::truncated(int64_t at, const std::string& what) const {
  return absl::DataLossError(damaged(at, absl::StrCat("the archive is truncated: ", what)).message());
}

absl::StatusOr<TarHeaders::Header> TarHeaders::read_header(bool& is_zero) {
  if (end_ - at_ < kBlock) {
    return truncated(
        at_, absl::StrCat("a header has ", kBlock, " bytes and ", std::max<int64_t>(0, end_ - at_), " are left"));
  }
  Block block;
  TITAN_RETURN_IF_ERROR(read_(at_, kBlock, block.data()));
  is_zero = std::all_of(block.begin(), block.end(), [](char byte) { return byte == '\0'; });
  if (is_zero) return Header{.at = at_};
  if (!has_right_sum(block)) {
    return damaged(at_, at_ == 0 ? "not a tar archive (the checksum of its first header is wrong)"
                                 : "the checksum of a header is wrong");
  }
  Header header{.at = at_, .type = block[kType], .name = std::string(text_of(block, kName))};
  const std::optional<int64_t> size = number_of(block, kSize);
  if (!size.has_value()) return damaged(at_, "the size in a header is not a number");
  header.size = *size;
  const bool is_posix = bytes_of(block, kMagic).starts_with(std::string_view("ustar\0", 6));
  const std::string_view prefix = is_posix ? text_of(block, kPrefix) : "";
  if (!prefix.empty()) header.name = std::string(prefix) + "/" + header.name;
  // Before POSIX, a folder was a file with such a name.
  if (header.type == '\0' && header.name.ends_with('/')) header.type = '5';
  return header;
}

// Reads the content of a header that extends the next one.
absl::StatusOr<std::string> TarHeaders::read_extension(const Header& header) {
  if (header.size > kMaxExtension) {
    return damaged(header.at,
                   absl::StrCat("a header with ", header.size, " bytes of names, more than ", kMaxExtension));
  }
  if (padded(header.size) > end_ - header.at - kBlock) {
    return truncated(header.at, absl::StrCat("it ends at byte ", end_, ", within a header"));
  }
  std::string text(static_cast<size_t>(header.size), '\0');
  TITAN_RETURN_IF_ERROR(read_(header.at + kBlock, header.size, text.data()));
  return text;
}

// Takes PAX records, "LENGTH KEY=VALUE\n" each.
absl::Status TarHeaders::take_records(const std::string& records, bool global, Extension& extension) {
  const auto malformed = [&] { return damaged(at_, "the records of a PAX header are malformed"); };
  for (std::string_view left = records; !left.empty() && left.front() != '\0';) {
    const size_t blank = left.find(' ');
    size_t length = 0;
    if (blank == std::string_view::npos || !absl::SimpleAtoi(std::string(left.substr(0, blank)), &length))
      return malformed();
    if (length > left.size() || length < blank + 2 || left[length - 1] != '\n') return malformed();
    const std::string_view record = left.substr(blank + 1, length - blank - 2);
    left.remove_prefix(length);
    const size_t equals = record.find('=');
    if (equals == std::string_view::npos) return malformed();
    const std::string_view key = record.substr(0, equals), value = record.substr(equals + 1);
    if (key.starts_with("GNU.sparse.")) return damaged(at_, "sparse members cannot be read: write the archive again");
    if (key != "path" && key != "size") continue;
    if (global) return damaged(at_, absl::StrCat("a global PAX header sets the ", std::string(key), " of all members"));
    if (key == "path") extension.name = value;
    if (key == "size" && (!absl::SimpleAtoi(std::string(value), &extension.size) || extension.size < 0))
      return malformed();
  }
  return absl::OkStatus();
}

// Takes a header that says something about the next member, or is meant for other programs. at_ is its position.
absl::Status TarHeaders::extend(const Header& header, Extension& extension) {
  TITAN_ASSIGN_OR_RETURN(std::string text, read_extension(header));
  if (header.type == 'x' || header.type == 'X' || header.type == 'g') {
    TITAN_RETURN_IF_ERROR(take_records(text, header.type == 'g', extension));
  } else if (header.type == 'L') {
    text.resize(std::min(text.find('\0'), text.size()));
    extension.name = std::move(text);
  }
  at_ = header.at + kBlock + padded(header.size);
  return absl::OkStatus();
}

absl::Status TarHeaders::place(const Header& header, const Extension& extension, TarMember& member) {
  member.name = extension.name.empty() ? header.name : extension.name;
  if (header.type == 'S') return damaged(header.at, "sparse members cannot be read: write the archive again");
  member.is_file = header.type == '0' || header.type == '\0' || header.type == '7';
  member.offset = header.at + kBlock;
  member.size = extension.size >= 0 ? extension.size : header.size;
  if (!has_content(header.type)) member.size = 0;
  if (member.size > end_ - member.offset || padded(member.size) > end_ - member.offset) {
    return truncated(header.at, absl::StrCat(text::printable_name(member.name), " has ", member.size,
                                             " bytes, padded to ", kBlock, ", and the archive ends at byte ", end_));
  }
  member.end = at_ = member.offset + padded(member.size);
  return absl::OkStatus();
}

absl::StatusOr<bool> TarHeaders::next(TarMember& member) {
  if (has_end_mark_) return false;
  member = {.begin = at_};
  Extension extension;
  while (true) {
    const bool extended = at_ != member.begin;
    if (at_ == end_ && !extended && at_ > begin_) return false;
    bool is_zero = false;
    TITAN_ASSIGN_OR_RETURN(const Header header, read_header(is_zero));
    if (is_zero) {
      if (extended) return damaged(at_, "the archive ends after a header that extends the next one");
      has_end_mark_ = true;
      return false;
    }
    switch (header.type) {
      case 'x':
      case 'X':
      case 'g':
      case 'L':
      case 'K':
        TITAN_RETURN_IF_ERROR(extend(header, extension));
        break;
      default:
        TITAN_RETURN_IF_ERROR(place(header, extension, member));
        return true;
    }
  }
}

}  // namespace titan::data

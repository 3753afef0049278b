// Samples in tar archives, as WebDataset defines them: consecutive members whose names are equal up to the first dot of
// the last name of their path are one sample, and the rest of their names is the kind of member. Of a sample with a
// caption, the image is its first member .jpg, .jpeg, .png or .webp, and the caption is its .txt, its .caption, or a
// field of its .json. Names are compared without case. Folders, links, and members whose last name has no dot or begins
// with "." or "__" are passed over, as Hugging Face's datasets does.
//
// The index has the extent of each sample: from the first header of its first member to the end of its last one. A
// sample is read with one request, and its headers are parsed again, so that the index is 16 bytes for each.
#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/json/value.h"
#include "common/base/status/status.h"
#include "common/base/text/utf8.h"
#include "common/io/data_files/foreign_files.h"
#include "common/io/data_files/json_row.h"
#include "worker/rank/data/samples/interleaved.h"
#include "worker/rank/data/samples/sample_file.h"
#include "worker/rank/data/samples/tar_headers.h"

namespace titan::data {
namespace {

constexpr int64_t kMaxSampleBytes = int64_t{1} << 30;
constexpr int64_t kWindow = 4096;  // Headers that lie close together are read at once.

// The two parts of a member's name; an empty key: it belongs to no sample.
struct MemberName {
  std::string_view key, kind;
};
MemberName split_name(std::string_view name) {
  const size_t last = name.rfind('/') + 1;  // 0 without a slash.
  const std::string_view file = name.substr(last);
  const size_t dot = file.find('.');
  if (dot == 0 || dot == std::string_view::npos || file.starts_with("__")) return {};
  return {name.substr(0, last + dot), file.substr(dot + 1)};
}

// Reads small pieces of a file through a window.
class Window {
 public:
  explicit Window(storage::ReadableFile& file) : file_(file) {}

  absl::Status read(int64_t offset, int64_t bytes, char* out) {
    if (bytes > kWindow) return file_.read(offset, bytes, out);
    if (offset < begin_ || offset + bytes > begin_ + static_cast<int64_t>(buffer_.size())) {
      begin_ = offset;
      buffer_.resize(static_cast<size_t>(std::min(kWindow, file_.size() - offset)));
      TITAN_RETURN_IF_ERROR(file_.read(offset, static_cast<int64_t>(buffer_.size()), buffer_.data()));
    }
    std::memcpy(out, buffer_.data() + (offset - begin_), static_cast<size_t>(bytes));
    return absl::OkStatus();
  }

 private:
  storage::ReadableFile& file_;
  int64_t begin_ = 0;
  std::string buffer_;
};

// Says what a file is that is not an archive.
absl::Status explained(const absl::Status& status, const std::string& path, storage::ReadableFile& file) {
  std::string first(static_cast<size_t>(std::min<int64_t>(64, file.size())), '\0');
  if (!file.read(0, static_cast<int64_t>(first.size()), first.data()).ok()) return status;
  const std::string foreign = data_files::foreign_bytes(first);
  if (foreign.empty()) return status;
  return absl::InvalidArgumentError(absl::StrCat(path, ": not a tar archive but ", foreign));
}

absl::StatusOr<SampleIndex> scan_archive(const std::string& path, storage::ReadableFile& file) {
  if (file.size() == 0) return absl::InvalidArgumentError(absl::StrCat(path, ": is empty; download the file again"));
  Window window(file);
  TarHeaders headers(path, 0, file.size(),
                     [&](int64_t offset, int64_t bytes, char* out) { return window.read(offset, bytes, out); });
  SampleIndex index;
  TarMember member;
  std::string key;
  while (true) {
    const absl::StatusOr<bool> found = headers.next(member);
    if (!found.ok()) return index.samples.empty() ? explained(found.status(), path, file) : found.status();
    if (!*found) break;
    const std::string_view its_key = member.is_file ? split_name(member.name).key : "";
    if (its_key.empty()) continue;
    if (index.samples.empty() || its_key != key) {
      index.samples.push_back({.offset = member.begin});
      key = its_key;
    }
    index.samples.back().size = member.end - index.samples.back().offset;
  }
  if (!headers.has_end_mark()) {
    index.warning = absl::StrCat(path, ": ends at byte ", file.size(),
                                 " without the block of zeros that ends a tar archive: it may be truncated");
  }
  return index;
}

class TarSamples final : public SampleFile {
 public:
  TarSamples(std::string path, SampleKind kind, std::shared_ptr<storage::ReadableFile> file,
             std::shared_ptr<const SampleIndex> index)
      : path_(std::move(path)), kind_(std::move(kind)), file_(std::move(file)), index_(std::move(index)) {}

  int64_t samples() const override { return static_cast<int64_t>(index_->samples.size()); }
  std::string warning() const override { return index_->warning; }

  absl::StatusOr<Sample> read(int64_t number) override {
    const SampleExtent extent = index_->samples[static_cast<size_t>(number)];
    Sample sample{.name = absl::StrCat(path_, ": sample ", number), .stored_bytes = extent.size};
    if (extent.size > kMaxSampleBytes) {
      sample.stored_bytes = 0;
      sample.problem = absl::StrCat("it has ", extent.size, " bytes, more than ", kMaxSampleBytes);
      return sample;
    }
    std::string bytes(static_cast<size_t>(extent.size), '\0');
    TITAN_RETURN_IF_ERROR(file_->read(extent.offset, extent.size, bytes.data()));
    TITAN_ASSIGN_OR_RETURN(const std::vector<Member> members, members_of(extent, bytes, sample));
    fill(members, sample);
    if (!sample.problem.empty()) sample.parts.clear();
    return sample;
  }

 private:
  struct Member {
    std::string kind;  // In lower case.
    std::string_view bytes;
  };

  // Returns the members of a sample, and sets its key and name.
  absl::StatusOr<std::vector<Member>> members_of(const SampleExtent& extent, const std::string& bytes,
                                                 Sample& sample) const {
    const int64_t begin = extent.offset;
    TarHeaders headers(path_, begin, begin + extent.size, [&](int64_t offset, int64_t count, char* out) {
      std::memcpy(out, bytes.data() + (offset - begin), static_cast<size_t>(count));
      return absl::OkStatus();
    });
    std::vector<Member> members;
    TarMember member;
    while (true) {
      TITAN_ASSIGN_OR_RETURN(const bool found, headers.next(member));
      if (!found) break;
      const MemberName name = member.is_file ? split_name(member.name) : MemberName{};
      if (name.key.empty()) continue;
      if (members.empty()) sample.key = name.key;
      if (name.key != sample.key) return changed(begin);
      members.push_back({absl::AsciiStrToLower(std::string(name.kind)),
                         std::string_view(bytes).substr(static_cast<size_t>(member.offset - begin),
                                                        static_cast<size_t>(member.size))});
    }
    if (members.empty()) return changed(begin);
    sample.name = absl::StrCat(path_, ": ", text::printable(sample.key));
    return members;
  }

  absl::Status changed(int64_t at) const {
    return absl::InvalidArgumentError(absl::StrCat(path_, ": byte ", at,
                                                   " does not begin the sample that its index names: the file has "
                                                   "changed since the job began"));
  }

  static const Member* find(const std::vector<Member>& members, std::string_view kind) {
    const auto found =
        std::find_if(members.begin(), members.end(), [&](const Member& member) { return member.kind == kind; });
    return found == members.end() ? nullptr : &*found;
  }

  void fill(const std::vector<Member>& members, Sample& sample) const {
    for (const Member& member : members) {
      if (find(members, member.kind) != &member) {
        sample.problem = absl::StrCat("two members .", text::printable(member.kind));
        return;
      }
    }
    if (const Member* json = find(members, "json")) {
      std::optional<nlohmann::ordered_json> fields;
      if (text::is_utf8(json->bytes)) fields = json::parse(data_files::without_mark(json->bytes));
      if (!fields.has_value()) {
        sample.problem = "its .json is not JSON";
        return;
      }
      sample.fields = *std::move(fields);
    }
    kind_.layout == SampleLayout::kCaption ? fill_caption(members, sample) : fill_lists(members, sample);
  }

  void fill_caption(const std::vector<Member>& members, Sample& sample) const {
    const auto image =
        std::find_if(members.begin(), members.end(), [](const Member& member) { return names_image(member.kind); });
    if (image == members.end()) {
      sample.problem = "no image (a member .jpg, .jpeg, .png or .webp)";
      return;
    }
    sample.parts.push_back({SamplePart::Kind::kImage, std::string(image->bytes)});
    const Member* caption = find(members, "txt");
    if (caption == nullptr) caption = find(members, "caption");
    add_caption(caption != nullptr ? std::string(caption->bytes) : caption_of(sample.fields, kind_), sample);
  }

  // A value of "images" is the name of a member of the sample, whole ("7.0.jpg") or without the key ("0.jpg").
  static void fill_lists(const std::vector<Member>& members, Sample& sample) {
    if (!sample.fields.is_object()) {
      sample.problem = "no member .json with lists \"images\" and \"texts\"";
      return;
    }
    const std::string file = sample.key.substr(sample.key.rfind('/') + 1);
    add_interleaved(
        sample.fields,
        [&](const nlohmann::ordered_json& value, std::string& problem) -> std::optional<std::string> {
          const std::string given = value.is_string() ? absl::AsciiStrToLower(value.get<std::string>()) : "";
          const Member* member = find(members, given);
          const std::string begin = absl::AsciiStrToLower(file) + ".";
          if (member == nullptr && absl::StartsWith(given, begin)) member = find(members, given.substr(begin.size()));
          if (member != nullptr) return std::string(member->bytes);
          problem = absl::StrCat("the image ", text::printable(given), ", which is not a member of the sample");
          return std::nullopt;
        },
        sample);
  }

  const std::string path_;
  const SampleKind kind_;
  const std::shared_ptr<storage::ReadableFile> file_;
  const std::shared_ptr<const SampleIndex> index_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<SampleFile>> open_tar(const std::string& path, const SampleKind& kind,
                                                     IndexStore& store) {
  if (data_files::is_compressed(path) || absl::EndsWith(path, ".tgz")) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": compressed archives cannot be read in any order: decompress it (images are compressed anyway)"));
  }
  TITAN_ASSIGN_OR_RETURN(const std::string facts, facts_of(path, kind));
  TITAN_ASSIGN_OR_RETURN(std::shared_ptr<storage::ReadableFile> file, open_bytes(path, kind));
  TITAN_ASSIGN_OR_RETURN(std::shared_ptr<const SampleIndex> index,
                         store.get(facts, [&] { return scan_archive(path, *file); }));
  return std::make_unique<TarSamples>(path, kind, std::move(file), std::move(index));
}

}  // namespace titan::data

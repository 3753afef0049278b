// Samples in tar archives, as WebDataset defines them: consecutive members whose names are equal up to the first dot of
// the last name of their path are one sample, and the rest of their names is the kind of member. Of a sample with a
// caption, the image is its first member .jpg, .jpeg, .png or .webp, and the caption is its .txt, its .caption, or a
// field of its .json; SampleKind names others. Names are compared without case. Folders, links, and members whose last
// name has no dot or begins with "." or "__" are passed over, as Hugging Face's datasets does.
//
// A sample within which the archive ends cannot be used, nor can one that is no longer where the index has it.
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
#include "absl/strings/strip.h"
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
    const bool truncated = absl::IsDataLoss(found.status());
    if (truncated && !index.samples.empty()) {
      const std::string_view its_key = split_name(member.name).key;  // Empty if the archive ends within a header.
      if (!its_key.empty() && its_key != key) index.samples.push_back({.offset = member.begin});
      if (!its_key.empty()) index.samples.back().size = file.size() - index.samples.back().offset;
      index.warning = absl::StrCat(found.status().message(), "; the sample that it cuts cannot be used");
      return index;
    }
    if (!found.ok()) {
      const absl::Status status = truncated ? absl::InvalidArgumentError(found.status().message()) : found.status();
      return index.samples.empty() ? explained(status, path, file) : status;
    }
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
    const absl::Status status = fill(extent, sample);
    const bool missing = absl::IsDataLoss(status) || absl::IsInvalidArgument(status);
    if (!status.ok() && !missing) return status;
    if (missing) sample.problem = std::string(absl::StripPrefix(status.message(), path_ + ": "));
    if (!sample.problem.empty()) sample.parts.clear();
    return sample;
  }

  absl::StatusOr<std::string> image_start(int64_t number, int64_t bytes) override {
    const SampleExtent extent = index_->samples[static_cast<size_t>(number)];
    Window window(*file_);
    TarHeaders headers(path_, extent.offset, extent.offset + extent.size,
                       [&](int64_t offset, int64_t count, char* out) { return window.read(offset, count, out); });
    TarMember member;
    while (true) {
      const absl::StatusOr<bool> found = headers.next(member);
      if (absl::IsDataLoss(found.status())) return "";  // The archive ends within the sample.
      if (!found.ok() || !*found) return found.ok() ? absl::StatusOr<std::string>("") : found.status();
      if (!member.is_file || !is_image(absl::AsciiStrToLower(std::string(split_name(member.name).kind)))) continue;
      std::string start(static_cast<size_t>(std::min(bytes, member.size)), '\0');
      TITAN_RETURN_IF_ERROR(window.read(member.offset, static_cast<int64_t>(start.size()), start.data()));
      return start;
    }
  }

 private:
  // Whether members of this kind, in lower case, are images of samples with a caption.
  bool is_image(const std::string& kind) const {
    return kind_.image_key.empty() ? names_image(kind) : kind == ending_of(kind_.image_key);
  }

  struct Member {
    std::string kind;  // In lower case.
    std::string_view bytes;
  };

  // Reads a sample. Errors: those of the file; DataLoss or InvalidArgument if it is not there.
  absl::Status fill(const SampleExtent& extent, Sample& sample) const {
    std::string bytes(static_cast<size_t>(extent.size), '\0');
    TITAN_RETURN_IF_ERROR(file_->read(extent.offset, extent.size, bytes.data()));
    TITAN_ASSIGN_OR_RETURN(const std::vector<Member> members, members_of(extent, bytes, sample));
    fill(members, sample);
    return absl::OkStatus();
  }

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
        std::find_if(members.begin(), members.end(), [this](const Member& member) { return is_image(member.kind); });
    if (image == members.end()) {
      sample.problem =
          kind_.image_key.empty()
              ? "no image (a member .jpg, .jpeg, .png or .webp)"
              : absl::StrCat("no image (a member .", text::printable(ending_of(kind_.image_key)), ", by image_key)");
      return;
    }
    sample.parts.push_back({SamplePart::Kind::kImage, std::string(image->bytes)});
    const bool named = !kind_.caption_key.empty();
    const Member* caption = find(members, named ? ending_of(kind_.caption_key) : "txt");
    if (caption == nullptr && !named) caption = find(members, "caption");
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

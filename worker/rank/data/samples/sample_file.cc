#include "worker/rank/data/samples/sample_file.h"

#include <algorithm>
#include <filesystem>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/base/text/utf8.h"
#include "worker/rank/data/documents/document_file.h"
#include "worker/rank/data/documents/text_blocks.h"

namespace titan::data {
namespace {

// A remote stream that is this close before the wanted byte is read up to there: the headers and small members of an
// archive lie between images.
constexpr int64_t kReadThrough = 1 << 20;

constexpr std::string_view kImageEndings[] = {"jpg", "jpeg", "png", "webp"};
constexpr const char* kCaptionKeys[] = {"caption", "text", "txt"};

bool is_object(const std::string& path) { return absl::StartsWith(path, "s3://"); }

std::optional<std::string> text_of(const nlohmann::ordered_json& value) {
  if (value.is_array()) return value.empty() ? std::nullopt : text_of(value.front());
  return value.is_string() ? std::optional<std::string>(value.get<std::string>()) : std::nullopt;
}

absl::Status not_from(const std::string& path, const char* what) {
  return absl::UnimplementedError(
      absl::StrCat(path, ": ", what,
                   " can only be read from this machine: download the files, and set dataset_path to "
                   "their folder"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<SampleFile>> SampleFile::open(const std::string& path, const SampleKind& kind,
                                                             IndexStore& store) {
  switch (kind.format) {
    case SampleFormat::kAuto:
      break;
    case SampleFormat::kWebDataset:
      return open_tar(path, kind, store);
    case SampleFormat::kFolder:
      if (kind.remote != nullptr) return not_from(path, "a folder of images");
      return has_index(path, kind) ? open_metadata(path, kind, store) : open_folder(path, kind);
    case SampleFormat::kParquet:
      if (kind.remote != nullptr || is_object(path)) return not_from(path, "Parquet with images");
      return open_parquet_samples(path, kind);
    case SampleFormat::kEncodings:
      return open_encodings(path, kind);
  }
  return absl::InvalidArgumentError(absl::StrCat(path, ": the format of its samples is not known"));
}

bool has_index(const std::string& path, const SampleKind& kind) {
  return kind.format == SampleFormat::kWebDataset ||
         (kind.format == SampleFormat::kFolder && absl::EndsWith(path, ".jsonl"));
}

absl::StatusOr<std::shared_ptr<storage::ReadableFile>> open_bytes(const std::string& path, const SampleKind& kind) {
  if (kind.remote != nullptr) {
    const std::optional<int64_t> size = kind.remote->size(path);
    if (size.has_value()) return remote_bytes(kind.remote, path, *size, kReadThrough);
    return absl::UnimplementedError(absl::StrCat(path, ": its size is not known"));
  }
  storage::Files& files = kind.files != nullptr ? *kind.files : storage::posix_files();
  TITAN_ASSIGN_OR_RETURN(std::shared_ptr<storage::ReadableFile> file, files.open(path));
  return file;
}

absl::StatusOr<std::string> facts_of(const std::string& path, const SampleKind& kind) {
  if (kind.remote != nullptr) return remote_facts({path}, "");
  if (!is_object(path)) return file_facts({path});
  TITAN_ASSIGN_OR_RETURN(const std::shared_ptr<storage::ReadableFile> file, open_bytes(path, kind));
  return remote_facts({path}, absl::StrCat(file->size()));
}

bool names_image(std::string_view name) {
  const std::string ending = absl::AsciiStrToLower(std::string(name.substr(name.rfind('.') + 1)));
  return std::find(std::begin(kImageEndings), std::end(kImageEndings), ending) != std::end(kImageEndings);
}

std::string ending_of(std::string_view key) {
  return absl::AsciiStrToLower(std::string(key.substr(key.starts_with('.') ? 1 : 0)));
}

bool names_image_of(const SampleKind& kind, std::string_view name) {
  if (kind.image_key.empty()) return names_image(name);
  return absl::EndsWith(absl::AsciiStrToLower(std::string(name)), absl::StrCat(".", ending_of(kind.image_key)));
}

absl::StatusOr<std::string> SampleFile::image_start(int64_t sample, int64_t bytes) {
  TITAN_ASSIGN_OR_RETURN(const Sample whole, read(sample));
  const std::string* const image = whole.image();
  return image == nullptr ? "" : image->substr(0, static_cast<size_t>(bytes));
}

std::optional<std::string> caption_of(const nlohmann::ordered_json& fields, const SampleKind& kind) {
  if (!fields.is_object()) return std::nullopt;
  std::vector<std::string> keys(std::begin(kCaptionKeys), std::end(kCaptionKeys));
  if (!kind.caption_key.empty()) keys = {kind.caption_key};
  for (const std::string& key : keys) {
    if (const auto found = fields.find(key); found != fields.end()) return text_of(*found);
  }
  return std::nullopt;
}

void add_caption(std::optional<std::string> caption, Sample& sample) {
  if (!caption.has_value()) {
    sample.problem = "no caption";
  } else if (!text::is_utf8(*caption)) {
    sample.problem = "its caption is not UTF-8";
  } else {
    sample.parts.push_back({SamplePart::Kind::kText, *std::move(caption)});
  }
}

}  // namespace titan::data

// A folder with images and their captions: NAME.jpg with NAME.txt, or with the endings of SampleKind. Subfolders are
// not read. Samples are in name order, and an image's key is its file's name.
#include "worker/rank/data/samples/folder_samples.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status/status.h"
#include "common/base/text/utf8.h"

namespace titan::data {
namespace {

constexpr int64_t kMaxFileBytes = int64_t{1} << 30;

bool leads_out(const std::string& name) {
  if (name.empty() || name.front() == '/') return true;
  for (const auto part : absl::StrSplit(name, '/')) {
    if (part == "..") return true;
  }
  return false;
}

class FolderSamples final : public SampleFile {
 public:
  FolderSamples(FolderFiles files, SampleKind kind, std::vector<std::string> images)
      : files_(std::move(files)), kind_(std::move(kind)), images_(std::move(images)) {}

  int64_t samples() const override { return static_cast<int64_t>(images_.size()); }

  absl::StatusOr<Sample> read(int64_t number) override {
    const std::string& image = images_[static_cast<size_t>(number)];
    Sample sample{.key = image, .name = absl::StrCat(files_.folder(), ": ", text::printable(image))};
    TITAN_ASSIGN_OR_RETURN(std::optional<std::string> bytes, files_.read(image, sample, sample.problem));
    if (!bytes.has_value()) return sample;
    std::string missing;
    const std::string ending = kind_.caption_key.empty() ? "txt" : kind_.caption_key;
    const std::string caption_file = absl::StrCat(stem_of(image), ending.front() == '.' ? "" : ".", ending);
    TITAN_ASSIGN_OR_RETURN(std::optional<std::string> caption, files_.read(caption_file, sample, missing));
    sample.parts.push_back({SamplePart::Kind::kImage, *std::move(bytes)});
    add_caption(std::move(caption), sample);
    if (!missing.empty()) sample.problem = absl::StrCat("no caption: ", missing);
    if (!sample.problem.empty()) sample.parts.clear();
    return sample;
  }

  absl::StatusOr<std::string> image_start(int64_t number, int64_t bytes) override {
    return files_.start(images_[static_cast<size_t>(number)], bytes);
  }

 private:
  // Returns the name without the ending, which may have dots.
  std::string stem_of(const std::string& image) const {
    if (kind_.image_key.empty()) return image.substr(0, image.rfind('.'));
    return image.substr(0, image.size() - ending_of(kind_.image_key).size() - 1);
  }

  const FolderFiles files_;
  const SampleKind kind_;
  const std::vector<std::string> images_;
};

}  // namespace

absl::StatusOr<std::optional<std::string>> FolderFiles::read(const std::string& name, Sample& sample,
                                                             std::string& problem) const {
  if (leads_out(name)) {
    problem = absl::StrCat("the file name \"", text::printable(name), "\", which is not in the folder");
    return std::nullopt;
  }
  const absl::StatusOr<std::unique_ptr<storage::ReadableFile>> file = files_.open(storage::join_path(folder_, name));
  if (absl::IsNotFound(file.status())) {
    problem = absl::StrCat("there is no ", text::printable(name));
    return std::nullopt;
  }
  if (!file.ok()) return file.status();
  if ((*file)->size() > kMaxFileBytes) {
    problem = absl::StrCat(text::printable(name), " has ", (*file)->size(), " bytes, more than ", kMaxFileBytes);
    return std::nullopt;
  }
  std::string bytes(static_cast<size_t>((*file)->size()), '\0');
  const absl::Status whole = (*file)->read(0, static_cast<int64_t>(bytes.size()), bytes.data());
  if (absl::IsDataLoss(whole)) {
    problem = absl::StrCat(text::printable(name), " became shorter while it was read");
    return std::nullopt;
  }
  TITAN_RETURN_IF_ERROR(whole);
  sample.stored_bytes += static_cast<int64_t>(bytes.size());
  return bytes;
}

absl::StatusOr<std::string> FolderFiles::start(const std::string& name, int64_t bytes) const {
  const absl::StatusOr<std::unique_ptr<storage::ReadableFile>> file = files_.open(storage::join_path(folder_, name));
  if (absl::IsNotFound(file.status())) return "";
  if (!file.ok()) return file.status();
  std::string first(static_cast<size_t>(std::min(bytes, (*file)->size())), '\0');
  TITAN_RETURN_IF_ERROR((*file)->read(0, static_cast<int64_t>(first.size()), first.data()));
  return first;
}

absl::StatusOr<std::unique_ptr<SampleFile>> open_folder(const std::string& path, const SampleKind& kind) {
  if (kind.layout == SampleLayout::kInterleaved) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": samples with several images need a ", kMetadataFile,
                                                   " with lists \"images\" and \"texts\""));
  }
  FolderFiles files(path, kind);
  TITAN_ASSIGN_OR_RETURN(std::vector<std::string> names, files.files().list(path));
  std::erase_if(names, [&](const std::string& name) { return name.starts_with('.') || !names_image_of(kind, name); });
  return std::make_unique<FolderSamples>(std::move(files), kind, std::move(names));
}

}  // namespace titan::data

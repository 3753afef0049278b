#include "worker/rank/data/samples/sample_files.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/status/status.h"
#include "common/base/text/home.h"
#include "common/base/text/nearest.h"
#include "common/io/data_files/foreign_files.h"
#include "worker/rank/data/samples/encodings_manifest.h"

namespace titan::data {
namespace {

namespace fs = std::filesystem;

constexpr std::pair<SampleFormat, const char*> kNames[] = {{SampleFormat::kAuto, "auto"},
                                                           {SampleFormat::kWebDataset, "webdataset"},
                                                           {SampleFormat::kFolder, "imagefolder"},
                                                           {SampleFormat::kParquet, "parquet"}};

std::string file_name(const std::string& file) { return fs::path(file).filename().string(); }

bool is_compressed_tar(const std::string& file) {
  return absl::EndsWith(file, ".tgz") || absl::EndsWith(file, ".tar.gz") || absl::EndsWith(file, ".tar.zst");
}

// Returns the format that a file's name implies; kAuto: none.
SampleFormat format_of(const std::string& file) {
  if (absl::EndsWith(file, ".tar") || is_compressed_tar(file)) return SampleFormat::kWebDataset;
  if (absl::EndsWith(file, ".parquet")) return SampleFormat::kParquet;
  return file_name(file) == kMetadataFile ? SampleFormat::kFolder : SampleFormat::kAuto;
}

const char* expected(SampleFormat format) {
  switch (format) {
    case SampleFormat::kWebDataset:
      return "*.tar archive";
    case SampleFormat::kParquet:
      return "*.parquet file";
    case SampleFormat::kFolder:
      return "image (*.jpg, *.jpeg, *.png, *.webp) and no metadata.jsonl";
    case SampleFormat::kEncodings:
      return kEncodingsManifest;
    case SampleFormat::kAuto:
      break;
  }
  return "*.tar archive, *.parquet file, metadata.jsonl or image";
}

// Returns the files of a format in a list; for a folder of images without a description, the folder.
std::vector<std::string> files_of(const std::string& path, const data_files::ListedFiles& listed, SampleFormat format) {
  std::vector<std::string> files;
  for (const std::string& file : listed.files) {
    if (format_of(file) == format) files.push_back(file);
  }
  const bool images = std::any_of(listed.files.begin(), listed.files.end(), names_image);
  if (files.empty() && format == SampleFormat::kFolder && images && !listed.chosen) files.push_back(path);
  std::sort(files.begin(), files.end());
  return files;
}

absl::StatusOr<data_files::ListedFiles> list(const std::string& path, storage::Files* files) {
  if (files == nullptr || !absl::StartsWith(path, "s3://")) return data_files::list_files(path);
  if (format_of(path) != SampleFormat::kAuto) return data_files::ListedFiles{{path}, true};
  TITAN_ASSIGN_OR_RETURN(const std::vector<std::string> names, files->list(path));
  data_files::ListedFiles listed;
  const std::string folder = absl::EndsWith(path, "/") ? path : path + "/";
  for (const std::string& one : names) {
    if (!one.starts_with('.')) listed.files.push_back(folder + one);
  }
  return listed;
}

bool has_word(const std::string& file, absl::string_view word) {
  for (const auto part : absl::StrSplit(file_name(file), absl::ByAnyChar("-_."))) {
    if (part == word) return true;
  }
  return false;
}

}  // namespace

const std::vector<NamedSamples>& named_samples() {
  static const std::vector<NamedSamples> all = {
      {"cc12m-wds", "pixparse/cc12m-wds", "train", SampleFormat::kWebDataset, SampleLayout::kCaption},
      {"cc12m-test", "", "", SampleFormat::kWebDataset, SampleLayout::kCaption},
      {"coco-validation", "howard-hou/COCO-Text", "validation", SampleFormat::kParquet, SampleLayout::kCaption},
      {"shapes", "", "", SampleFormat::kWebDataset, SampleLayout::kCaption},
      {"shapes_validation", "", "", SampleFormat::kWebDataset, SampleLayout::kCaption},
      {"cc12m", "pixparse/cc12m-wds", "train", SampleFormat::kWebDataset, SampleLayout::kCaption},
      {"obelics", "HuggingFaceM4/OBELICS", "train", SampleFormat::kParquet, SampleLayout::kInterleaved}};
  return all;
}

const NamedSamples* find_named_samples(std::string_view name) {
  const std::vector<NamedSamples>& all = named_samples();
  const auto found = std::find_if(all.begin(), all.end(), [&](const NamedSamples& one) { return one.name == name; });
  return found == all.end() ? nullptr : &*found;
}

absl::StatusOr<const NamedSamples*> named_samples_or_error(const std::string& name) {
  static const NamedSamples unnamed = {kUnnamedSamples, "", "", SampleFormat::kAuto, SampleLayout::kCaption};
  if (name == kUnnamedSamples) return &unnamed;
  if (const NamedSamples* found = find_named_samples(name)) return found;
  std::vector<std::string> known;
  for (const NamedSamples& one : named_samples()) known.push_back(one.name);
  return absl::InvalidArgumentError(absl::StrCat("dataset: unknown value \"", name, "\"", did_you_mean(name, known),
                                                 " (known: ", absl::StrJoin(known, ", "), ")"));
}

const char* name(SampleFormat format) {
  for (const auto& [value, text] : kNames) {
    if (value == format) return text;
  }
  return "";
}

std::optional<SampleFormat> sample_format_from_name(std::string_view name) {
  for (const auto& [value, text] : kNames) {
    if (name == text) return value;
  }
  return std::nullopt;
}

absl::StatusOr<SampleFiles> choose_sample_files(const std::string& path, const data_files::ListedFiles& listed,
                                                SampleFormat format) {
  SampleFiles found{.kind = {.format = format}};
  if (format != SampleFormat::kAuto && listed.chosen) {
    found.files = listed.files;
    std::sort(found.files.begin(), found.files.end());
  }
  for (const auto& [candidate, text] :
       {kNames[1], kNames[3], kNames[2]}) {  // A folder of archives may also have a picture of the dataset.
    if (!found.files.empty() || (format != SampleFormat::kAuto && format != candidate)) continue;
    found.kind.format = candidate;
    found.files = files_of(path, listed, candidate);
  }
  if (found.files.empty()) {
    const bool encoded = std::any_of(listed.files.begin(), listed.files.end(),
                                     [](const std::string& file) { return file_name(file) == kEncodingsManifest; });
    if (encoded) {
      return absl::InvalidArgumentError(
          absl::StrCat("dataset_path ", path, ": holds stored encodings: set dataloader.format to encodings"));
    }
    return absl::NotFoundError(absl::StrCat("dataset_path ", path, ": holds no ", expected(format)));
  }
  const auto compressed = std::find_if(found.files.begin(), found.files.end(), is_compressed_tar);
  if (compressed == found.files.end()) return found;
  return absl::InvalidArgumentError(absl::StrCat(
      *compressed, ": compressed archives cannot be read in any order: decompress it (images are compressed anyway)"));
}

absl::StatusOr<SampleFiles> find_sample_files(const std::string& path, SampleFormat format, storage::Files* files) {
  TITAN_ASSIGN_OR_RETURN(const data_files::ListedFiles listed, list(path, files));
  TITAN_ASSIGN_OR_RETURN(SampleFiles found, choose_sample_files(text::expand_home(path), listed, format));
  found.kind.files = files;
  return found;
}

void keep_split(const NamedSamples& dataset, const std::string& path, SampleFiles& found) {
  found.kind.layout = dataset.layout;
  std::vector<std::string> chosen;
  for (const std::string& file : found.files) {
    if (!std::string_view(dataset.split).empty() && has_word(file, dataset.split)) chosen.push_back(file);
  }
  if (chosen.empty()) {
    found.warning = data_files::other_splits_warning(path, found.files);
  } else {
    found.files = std::move(chosen);
  }
}

absl::StatusOr<SampleFiles> sample_dataset_files(const std::string& dataset, const std::string& path,
                                                 SampleFormat format, storage::Files* files) {
  TITAN_ASSIGN_OR_RETURN(const NamedSamples* named, named_samples_or_error(dataset));
  if (path.empty()) {
    const std::string repository = named->repository;
    return absl::InvalidArgumentError(absl::StrCat("dataset \"", dataset, "\" has no dataset_path: set it to ",
                                                   repository.empty()
                                                       ? "a folder with tar archives"
                                                       : absl::StrCat("the folder of a local mirror of ", repository)));
  }
  TITAN_ASSIGN_OR_RETURN(SampleFiles found, find_sample_files(path, format, files));
  keep_split(*named, path, found);
  return found;
}

absl::StatusOr<SampleFiles> find_encodings(const std::string& path, storage::Files& files) {
  const std::string folder = text::expand_home(path);
  TITAN_ASSIGN_OR_RETURN(EncodingsManifest manifest, read_encodings_manifest(files, folder));
  SampleFiles found{.kind = {.format = SampleFormat::kEncodings, .files = &files}};
  for (const EncodingsManifest::Shard& shard : manifest.shards) {
    if (shard.samples > 0) found.files.push_back(storage::join_path(folder, shard.name));
  }
  found.kind.encodings = std::make_shared<const EncodingsManifest>(std::move(manifest));
  return found;
}

}  // namespace titan::data

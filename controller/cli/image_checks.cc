#include "controller/cli/image_checks.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/text/home.h"
#include "common/io/data_files/datasets.h"
#include "common/io/hub/names.h"
#include "nlohmann/json.hpp"

namespace titan::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr char kEncodings[] = "titan-encodings.json", kMetadata[] = "metadata.jsonl";

// A format of files, by its name in dataloader.format.
struct Format {
  std::string_view name;
  std::vector<std::string_view> endings;  // In lower case, of names that hold samples.
  const char* files;                      // Describes them.
};

const std::vector<Format>& formats() {
  static const auto& all = *new std::vector<Format>{
      {"webdataset", {".tar", ".tgz", ".tar.gz", ".tar.zst"}, "*.tar archive"},
      {"parquet_images", {".parquet"}, "*.parquet file"},
      {"image_folder", {kMetadata, ".jpg", ".jpeg", ".png", ".webp"}, "image (*.jpg, *.jpeg, *.png, *.webp)"}};
  return all;
}

bool holds(const std::vector<std::string>& files, const Format& format) {
  return std::any_of(files.begin(), files.end(), [&](const std::string& file) {
    const std::string name = absl::AsciiStrToLower(fs::path(file).filename().string());
    return std::any_of(format.endings.begin(), format.endings.end(),
                       [&](std::string_view ending) { return name.ends_with(ending); });
  });
}

// Returns a problem unless the manifest's number is the configuration's.
std::optional<DataProblem> compare(const json& manifest, const char* number, const char* what, const std::string& key,
                                   int64_t wanted) {
  const json stored = manifest.value(number, json());
  if (!stored.is_number_integer() || stored == wanted) return std::nullopt;  // The ranks report damage.
  return DataProblem{absl::StrCat("holds ", what, " ", stored.get<int64_t>(), ", but ", key, " is ", wanted)};
}

std::optional<DataProblem> check_encodings(const config::JobConfig& config, const std::string& path) {
  std::ifstream in(fs::path(text::expand_home(path)) / kEncodings);
  if (!in)
    return DataProblem{
        absl::StrCat("holds no ", kEncodings, ", which titan-data encode-images writes when all is encoded")};
  const json manifest = json::parse(in, nullptr, /*allow_exceptions=*/false);
  if (!manifest.is_object()) return DataProblem{absl::StrCat("its ", kEncodings, " is not a JSON object")};
  if (auto problem =
          compare(manifest, "image_size", "images of width", "training.img_size", config.training.img_size)) {
    return problem;
  }
  return compare(manifest, "t5_tokens", "T5 encodings of length", "encoder.max_t5_encoding_len",
                 config.encoder.max_t5_encoding_len);
}

// Returns why no file of a list holds images in the format; all formats if it is "auto".
std::optional<DataProblem> check_names(const std::vector<std::string>& files, const std::string& format) {
  std::string expected;
  for (const Format& one : formats()) {
    if (format != "auto" && format != one.name) continue;
    if (holds(files, one)) return std::nullopt;
    absl::StrAppend(&expected, expected.empty() ? "" : " or ", one.files);
  }
  if (expected.empty()) return std::nullopt;
  const auto is_manifest = [](const std::string& file) { return fs::path(file).filename() == kEncodings; };
  if (std::any_of(files.begin(), files.end(), is_manifest))
    return DataProblem{"holds stored encodings: set dataloader.format to encodings"};
  return DataProblem{absl::StrCat("holds no ", expected)};
}

}  // namespace

std::optional<DataProblem> check_images(const config::JobConfig& config, const std::string& path,
                                        const config::DataLoaderSection& settings) {
  if (path.empty() || hub::is_hub_path(path)) return std::nullopt;
  if (auto missing = check_listed(path)) return missing;
  if (settings.format == "encodings") return check_encodings(config, path);
  const absl::StatusOr<data_files::ListedFiles> listed = data_files::list_files(path);
  // Files that are named one by one or by a glob hold what the format says.
  if (!listed.ok() || (listed->chosen && settings.format != "auto")) return std::nullopt;
  return check_names(listed->files, settings.format);
}

}  // namespace titan::cli

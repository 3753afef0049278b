#include "common/io/data_files/foreign_files.h"

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/text/quantities.h"
#include "common/io/data_files/datasets.h"

namespace titan::data_files {
namespace {

using Sign = std::pair<std::string_view, std::string_view>;

constexpr std::string_view kArrow =
    "Arrow's format, which datasets.save_to_disk writes (in Python: "
    "datasets.load_from_disk(FOLDER).to_parquet(\"data.parquet\"), or .to_json(\"data.jsonl\"))";
constexpr std::string_view kXz = "compressed by xz (`unxz` decompresses it; .gz and .zst are read directly)";
constexpr std::string_view kBzip2 = "compressed by bzip2 (`bunzip2` decompresses it; .gz and .zst are read directly)";
constexpr std::string_view kLz4 = "compressed by LZ4 (`unlz4` decompresses it; .gz and .zst are read directly)";
constexpr std::string_view kZip = "a ZIP archive (`unzip` extracts its files)";
constexpr std::string_view kTar = "a tar archive (`tar -xf` extracts its files)";
constexpr std::string_view kTable =
    "a table of text (in Python: datasets.load_dataset(\"csv\", data_files=FILE)[\"train\"].to_json(\"data.jsonl\"))";

constexpr Sign kForeignBytes[] = {
    {std::string_view("\xFF\xFE\0\0", 4), "UTF-32 (`iconv -f UTF-32 -t UTF-8` converts it to UTF-8)"},
    {"\xFF\xFE", "UTF-16 (`iconv -f UTF-16 -t UTF-8` converts it to UTF-8)"},
    {"\xFE\xFF", "UTF-16 (`iconv -f UTF-16 -t UTF-8` converts it to UTF-8)"},
    {std::string_view("{\0", 2), "UTF-16 (`iconv -f UTF-16LE -t UTF-8` converts it to UTF-8)"},
    {std::string_view("\0{", 2), "UTF-16 (`iconv -f UTF-16BE -t UTF-8` converts it to UTF-8)"},
    {"\x1F\x8B", "compressed by gzip (its name must end with .gz)"},
    {"\x28\xB5\x2F\xFD", "compressed by zstd (its name must end with .zst)"},
    {std::string_view("\xFD\x37zXZ\0", 6), kXz},
    {"BZh", kBzip2},
    {"\x04\x22\x4D\x18", kLz4},
    {"PK\x03\x04", kZip},
    {"PAR1", "Parquet (its name must end with .parquet, or set dataloader.format = \"parquet\")"},
    {"ARROW1", kArrow},
    {"\xFF\xFF\xFF\xFF", kArrow},
    {"version https://git-lfs", "a Git LFS pointer (`git lfs pull` downloads the file)"},
    {"<!DOCTYPE", "an HTML page (the download returned a page, such as a login)"},
    {"<!doctype", "an HTML page (the download returned a page, such as a login)"},
    {"<html", "an HTML page (the download returned a page, such as a login)"},
};

constexpr Sign kForeignEndings[] = {
    {".arrow", kArrow}, {".xz", kXz},        {".bz2", kBzip2},    {".lz4", kLz4},     {".zip", kZip},
    {".tar", kTar},     {".tgz", kTar},      {".tar.gz", kTar},   {".tar.zst", kTar}, {".csv", kTable},
    {".tsv", kTable},   {".csv.gz", kTable}, {".tsv.gz", kTable},
};

}  // namespace

std::string foreign_bytes(std::string_view first_bytes) {
  for (const auto& [bytes, meaning] : kForeignBytes) {
    if (first_bytes.starts_with(bytes)) return std::string(meaning);
  }
  return {};
}

std::string foreign_name(std::string_view file) {
  for (const auto& [ending, meaning] : kForeignEndings) {
    if (file.ends_with(ending)) return std::string(meaning);
  }
  return {};
}

namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxFolders = 4;
constexpr int kMaxEntries = 1000;  // Per subfolder: enough to see what is in it.

bool holds_data(const fs::path& folder) {
  std::error_code error;
  int looked_at = 0;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const std::string file = entry->path().string();
    if (format_of_file(file) && !describes_dataset(file)) return true;
    if (!foreign_name(file).empty()) return true;
    if (++looked_at == kMaxEntries) break;
  }
  return false;
}

std::vector<std::string> folders_with_data(const std::string& path) {
  std::vector<std::string> folders;
  std::error_code error;
  for (fs::directory_iterator entry(path, error), end; !error && entry != end; entry.increment(error)) {
    if (entry->is_directory(error) && holds_data(entry->path())) folders.push_back(entry->path().string());
  }
  std::sort(folders.begin(), folders.end());
  return folders;
}

constexpr absl::string_view kHeldOut[] = {"test", "validation", "valid", "dev", "eval"};
constexpr size_t kMaxHeldOut = 4;

std::string name_of(const std::string& file) { return fs::path(file).filename().string(); }

// Returns what precedes the first of "-_.": "train" for train-00000-of-00002.parquet.
std::string first_word(const std::string& name) { return name.substr(0, name.find_first_of("-_.")); }

bool is_held_out(const std::string& name) {
  for (const absl::string_view word : absl::StrSplit(name, absl::ByAnyChar("-_."))) {
    if (std::find(std::begin(kHeldOut), std::end(kHeldOut), word) != std::end(kHeldOut)) return true;
  }
  return false;
}

// Suggests a glob without the held-out files, as the end of a sentence: for files named as training data, or else for
// all others when their names begin alike.
std::string remedy(const std::string& folder, const std::vector<std::string>& kept,
                   const std::vector<std::string>& held_out) {
  const auto begins_with = [](std::string word) {
    return [word = std::move(word)](const std::string& name) { return absl::StartsWith(name, word); };
  };
  const bool named = std::any_of(kept.begin(), kept.end(), begins_with("train"));
  const std::string word = named ? "train" : first_word(kept.front());
  const bool fits = !word.empty() && (named || std::all_of(kept.begin(), kept.end(), begins_with(word))) &&
                    std::none_of(held_out.begin(), held_out.end(), begins_with(word));
  return fits ? absl::StrCat("the glob ", (fs::path(folder) / word).string(), "*") : "a glob of the other files";
}

}  // namespace

bool describes_dataset(const std::string& file) {
  const std::string name = fs::path(file).filename().string();
  if (name == "state.json" || name == "dataset_dict.json") return true;
  return absl::StartsWith(name, "dataset_info") && absl::EndsWith(name, ".json");
}

std::string other_files(const std::string& path, const std::vector<std::string>& files) {
  for (const std::string& file : files) {
    if (const std::string meaning = foreign_name(file); !meaning.empty()) {
      return absl::StrCat("; ", fs::path(file).filename().string(), " is ", meaning);
    }
  }
  std::vector<std::string> folders = folders_with_data(path);
  if (folders.empty()) return "";
  const bool more = folders.size() > kMaxFolders;
  folders.resize(std::min(folders.size(), kMaxFolders));
  return absl::StrCat("; subfolders have such files, so name one of them: ", absl::StrJoin(folders, ", "),
                      more ? ", ..." : "");
}

std::string other_splits_warning(const std::string& folder, const std::vector<std::string>& files) {
  std::vector<std::string> kept, held_out;
  for (const std::string& file : files) {
    std::string name = name_of(file);
    (is_held_out(name) ? held_out : kept).push_back(std::move(name));
  }
  if (kept.empty() || held_out.empty()) return "";
  const size_t shown = std::min(held_out.size(), kMaxHeldOut);
  return absl::StrCat("dataset_path ", folder, ": ", counted(files.size(), "file"),
                      " are read as one dataset, including files that by name belong to another split (",
                      absl::StrJoin(held_out.begin(), held_out.begin() + static_cast<std::ptrdiff_t>(shown), ", "),
                      held_out.size() > shown ? absl::StrCat(" and ", held_out.size() - shown, " more") : "",
                      "): set dataset_path to ", remedy(folder, kept, held_out), " to leave them out");
}

}  // namespace titan::data_files

#include "common/io/data_files/data_format.h"

#include <filesystem>
#include <utility>

namespace titan::data_files {
namespace {

constexpr std::pair<Format, const char*> kNames[] = {{Format::kAuto, "auto"},         {Format::kJsonLines, "jsonl"},
                                                     {Format::kText, "text"},         {Format::kParquet, "parquet"},
                                                     {Format::kMegatron, "megatron"}, {Format::kTitan, "titan"}};

constexpr std::pair<std::string_view, Format> kEndings[] = {
    {".json", Format::kJsonLines}, {".jsonl", Format::kJsonLines}, {".txt", Format::kText}};

}  // namespace

const char* name(Format format) {
  for (const auto& [value, text] : kNames) {
    if (value == format) return text;
  }
  return "";
}

std::optional<Format> format_from_name(std::string_view name) {
  for (const auto& [value, text] : kNames) {
    if (name == text) return value;
  }
  return std::nullopt;
}

std::optional<Format> format_of_file(std::string_view file) {
  if (file.ends_with(".parquet")) return Format::kParquet;
  if (file.ends_with(".idx")) return Format::kMegatron;
  if (std::filesystem::path(file).filename() == kTokenManifest) return Format::kTitan;
  for (const std::string_view compressed : {".gz", ".zst"}) {
    if (file.ends_with(compressed)) file.remove_suffix(compressed.size());
  }
  for (const auto& [ending, format] : kEndings) {
    if (file.ends_with(ending)) return format;
  }
  return std::nullopt;
}

}  // namespace titan::data_files

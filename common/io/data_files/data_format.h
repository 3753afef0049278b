#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace titan::data_files {

// What the files of a dataset are.
enum class Format { kAuto, kJsonLines, kText, kParquet, kMegatron, kTitan, kPlugin };

// "jsonl" and so on, as training.dataloader.format has them; kPlugin, what a library's dataset reads, has no name
// there.
const char* name(Format format);
std::optional<Format> format_from_name(std::string_view name);

// What the name of a file says; nothing for a name that says nothing. Text may be compressed (.gz, .zst behind).
std::optional<Format> format_of_file(std::string_view file);

// What makes a folder a token index, last of all.
inline constexpr const char* kTokenManifest = "titan-tokens.json";

// Documents that are tokens already: nothing is tokenised.
inline bool holds_tokens(Format format) { return format == Format::kMegatron || format == Format::kTitan; }

}  // namespace titan::data_files

#include "controller/cli/arguments.h"

#include <algorithm>
#include <string_view>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"

namespace titan::cli {
namespace {

// Returns whether a word is "--section.key" or "--section.key=value"; numbers such as "--0.5" are not keys.
bool is_key(std::string_view word) {
  if (word.substr(0, 2) != "--" || word.size() < 5 || !absl::ascii_isalpha(word[2])) return false;
  const std::string_view name =
      word.substr(2, word.find('=') == std::string_view::npos ? word.npos : word.find('=') - 2);
  return name.find('.') != std::string_view::npos && std::all_of(name.begin(), name.end(), [](unsigned char c) {
           return absl::ascii_isalnum(c) || c == '_' || c == '.' || c == '-';
         });
}

// A file name after a bare boolean key is the configuration file, not the boolean's value.
bool is_config_file(const std::string& word) {
  return absl::EndsWith(word, ".toml") || absl::EndsWith(word, ".yaml") || absl::EndsWith(word, ".yml") ||
         absl::EndsWith(word, ".json");
}

// Returns whether a word is "--flag" or "-q"; "-1" and "-" are values.
bool is_flag(const std::string& word) {
  return absl::StartsWith(word, "--") || (word.size() > 1 && word[0] == '-' && absl::ascii_isalpha(word[1]));
}

}  // namespace

CommandLine split_arguments(int argc, const char* const* argv) {
  CommandLine out;
  bool has_file = false;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const bool completing = !out.words.empty() && out.words.front() == "__complete";  // Its words are data.
    if (completing || !is_key(word)) {
      has_file = has_file || is_config_file(word) || word == "-";
      out.words.push_back(word);
      continue;
    }
    // torchtitan names its file with a flag.
    const size_t equals = word.find('=');
    const std::string key = word.substr(0, equals);
    if (!has_file && (key == "--job.config_file" || key == "--job.config-file")) {
      if (equals == std::string::npos && i + 1 >= argc) continue;
      out.words.push_back(equals == std::string::npos ? argv[++i] : word.substr(equals + 1));
      has_file = true;
      continue;
    }
    out.overrides.push_back(word);
    if (word.find('=') != std::string::npos || i + 1 >= argc) continue;
    const std::string next = argv[i + 1];
    const bool value = !is_flag(next) && (has_file || !is_config_file(next));
    if (value) out.overrides.push_back(argv[++i]);
  }
  return out;
}

}  // namespace titan::cli

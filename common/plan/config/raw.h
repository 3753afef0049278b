#pragma once

// Common representation of TOML, YAML, JSON and command lines, before keys and types are known.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/plan/config/load.h"

namespace titan::config {

struct Member;

struct Raw {
  enum class Kind {
    kNull,
    kBool,
    kInt,
    kFloat,
    kString,
    kWord,  // Untyped text (plain YAML scalars, command line); the key that takes it decides the type.
    kList,
    kTable,
    kOther,  // Dates and times, which no key takes.
  };
  Kind kind = Kind::kNull;
  bool boolean = false;
  std::int64_t integer = 0;
  double number = 0;
  std::string text;  // For kString and kWord; for kFloat and kOther as written.
  std::vector<Raw> items;
  std::vector<Member> members;  // For kTable, in file order.
  int line = 0;
};

struct Member {
  std::string name;
  Raw value;
};

Raw raw_bool(bool value);
Raw raw_int(std::int64_t value);
Raw raw_float(double value);
Raw raw_string(std::string value);
Raw raw_word(std::string value);

// Returns the value for messages, close to how the user wrote it and shortened if long.
std::string display(const Raw& raw);
// Replaces control characters by blanks, and in text that is not valid UTF-8 all bytes above ASCII by question marks.
// `keep_lines` keeps newlines.
std::string without_controls(std::string text, bool keep_lines);
// Applies that to all texts of problems, which may quote arbitrary input.
void make_printable(std::vector<Problem>& problems);
// Returns the text on one line for messages: without control characters and invalid UTF-8, shortened if long.
std::string printable(std::string text);
// Returns "a string", "a list", ...
std::string_view kind_name(Raw::Kind kind);

// One key that a source sets.
struct Setting {
  std::string key;  // Full name as written: "training.steps".
  Raw value;
  Origin origin;
};

// Returns every key below `table` in file order. Keeps empty tables, so that a misspelt empty section is reported, too.
std::vector<Setting> flatten(const Raw& table, const std::string& file);

// Readers. On success the result is a table. Errors are appended to `problems` with their line; the result is then
// unusable.
Raw read_toml(std::string_view text, const std::string& file, std::vector<Problem>& problems);
Raw read_yaml(std::string_view text, const std::string& file, std::vector<Problem>& problems);
Raw read_json(std::string_view text, const std::string& file, std::vector<Problem>& problems);

inline constexpr std::size_t kMaxFileBytes = 4 << 20;  // Larger files are not configurations.
inline constexpr int kMaxDepth = 32;

}  // namespace titan::config

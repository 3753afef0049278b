#pragma once

// Common representation of TOML, YAML, JSON and command lines, before keys and types are known.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/plan/config/load.h"

namespace titan::config {

struct Member;

struct RawValue {
  enum class Kind {
    kNull,
    kBool,
    kInt,
    kFloat,
    kString,
    kWord,  // Untyped text (plain YAML scalars, command line); the key decides the type.
    kList,
    kTable,
    kOther,  // Dates and times, which no key accepts.
  };
  Kind kind = Kind::kNull;
  bool boolean = false;
  std::int64_t integer = 0;
  double number = 0;
  std::string text;  // For kString and kWord; for kFloat and kOther as written.
  std::vector<RawValue> items;
  std::vector<Member> members;  // For kTable, in file order.
  int line = 0;
};

struct Member {
  std::string name;
  RawValue value;
};

RawValue raw_bool(bool value);
RawValue raw_int(std::int64_t value);
RawValue raw_float(double value);
RawValue raw_string(std::string value);
RawValue raw_word(std::string value);

// Returns the value for messages, close to how the user wrote it and shortened if long.
std::string display(const RawValue& raw);
// Replaces control characters by blanks, and by question marks the delete character and, in text that is not valid
// UTF-8, all bytes above ASCII. `keep_lines` keeps newlines.
std::string replace_control_characters(std::string text, bool keep_lines);
// Applies that to all texts of problems, which may quote arbitrary input.
void make_printable(std::vector<Problem>& problems);
// Returns the text on one line for messages: without control characters and invalid UTF-8, shortened if long.
std::string printable(std::string text);
// Returns "a string", "a list", ...
std::string_view kind_name(RawValue::Kind kind);

// One key that a source sets.
struct Setting {
  std::string key;  // Full name as written: "training.steps".
  RawValue value;
  Origin origin;
};

// Returns every key below `table` in file order. Keeps empty tables, so that a misspelt empty section is reported, too.
std::vector<Setting> flatten(const RawValue& table, const std::string& file);

// Readers. On success the result is a table. Errors are appended to `problems` with their line; the result is then
// unusable.
RawValue read_toml(std::string_view text, const std::string& file, std::vector<Problem>& problems);
RawValue read_yaml(std::string_view text, const std::string& file, std::vector<Problem>& problems);
RawValue read_json(std::string_view text, const std::string& file, std::vector<Problem>& problems);

inline constexpr std::size_t kMaxFileBytes = 4 << 20;  // Larger files are not configurations.
inline constexpr int kMaxDepth = 32;

}  // namespace titan::config

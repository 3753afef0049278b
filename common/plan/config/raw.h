#pragma once

// What TOML, YAML, JSON and the command line have in common before keys and types are known.

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
    kWord,  // Text without a type of its own (plain YAML scalars, command line): the key that takes it decides.
    kList,
    kTable,
    kOther,  // Dates and the like, which no key takes.
  };
  Kind kind = Kind::kNull;
  bool boolean = false;
  std::int64_t integer = 0;
  double number = 0;
  std::string text;  // kString, kWord, and as written for kFloat and kOther.
  std::vector<Raw> items;
  std::vector<Member> members;  // kTable, in the order of the file.
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

// The value for messages, close to how the user wrote it and cut when it is long.
std::string display(const Raw& raw);
// Of a text with bytes that are no UTF-8, all beyond ASCII become question marks; control characters become blanks.
std::string without_controls(std::string text, bool keep_lines);
// The same for all that is told of problems, which holds what somebody wrote, and parts of what a parser had read.
void make_printable(std::vector<Problem>& problems);
// The text on one line, without control characters and broken UTF-8, cut when it is long: fit for messages.
std::string printable(std::string text);
// "a string", "a list", ...
std::string_view kind_name(Raw::Kind kind);

// One key of one source, by its full name.
struct Setting {
  std::string key;  // "training.steps", as written.
  Raw value;
  Origin origin;
};

// Every key below `table` in file order. Empty tables are kept, so that a misspelt empty section is noticed too.
std::vector<Setting> flatten(const Raw& table, const std::string& file);

// Readers. On success the answer is a table. Errors are appended to `problems` with their line; the answer is then not
// used.
Raw read_toml(std::string_view text, const std::string& file, std::vector<Problem>& problems);
Raw read_yaml(std::string_view text, const std::string& file, std::vector<Problem>& problems);
Raw read_json(std::string_view text, const std::string& file, std::vector<Problem>& problems);

inline constexpr std::size_t kMaxFileBytes = 4 << 20;  // Larger files are no configurations.
inline constexpr int kMaxDepth = 32;

}  // namespace titan::config

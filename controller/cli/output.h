#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "google/protobuf/timestamp.pb.h"
#include "nlohmann/json.hpp"

namespace titan::cli {

enum class Format { kTable, kJson, kYaml };

// Of -o: a table with more columns, where the verb has them.
inline constexpr char kWide[] = "wide";

// Errors: InvalidArgument naming the allowed values.
absl::StatusOr<Format> parse_format(const std::string& text);

// Prints a document to stdout: indented JSON, or YAML. Never called with kTable.
void print(const nlohmann::ordered_json& document, Format format);
// What a verb did to each that it was asked for, as one document: of one the object, of several (`is_list`) a list of
// those that worked. Nothing with kTable, which notes them.
void print_each(const std::vector<nlohmann::ordered_json>& done, bool is_list, Format format);

// Prints text to stdout and flushes, so that a pipe sees each line at once. False once the reader is gone.
bool print(const std::string& text);

// Prints what a program wrote, without its colours unless stdout is a terminal that wants them.
bool print_foreign(const std::string& text);

// What others have written, for one line of a terminal: "?" in place of what does not print.
std::string shown(std::string_view text);
// Of several lines: those after the first begin with `indent` blanks, so that none passes for what we write.
std::string shown_lines(std::string_view text, int indent);

// How many columns of a terminal a text takes, a character each.
size_t columns(std::string_view text);
// The text, or as much of it as so many columns hold, with "…" at its end.
std::string cut(std::string_view text, size_t most);

// Columns as wide as their widest cell, two blanks between, no line longer than needed. Cells are shown().
class Table {
 public:
  explicit Table(std::vector<std::string> header) : rows_{std::move(header)} {}
  void add(std::vector<std::string> row);
  // `last`: the last column is cut to so many.
  std::string text(size_t last = std::string::npos) const;
  // The last column is cut so that no line is longer, but not to nothing.
  std::string text_within(size_t width) const;

 private:
  std::vector<size_t> widths() const;

  std::vector<std::vector<std::string>> rows_;
};

// Whether all that was printed has arrived: EPIPE once the reader is gone, ENOSPC and others from the disk, 0 when it
// has.
int output_error();

// "12s", "3m20s", "2h05m", "4d".
std::string duration_text(double seconds);
// From `time` until now, or until `end` when that is set; "-" when `time` is not.
std::string age(const google::protobuf::Timestamp& time, const google::protobuf::Timestamp& end = {});
// "2026-11-21 04:41:44+01:00", local time; "2026-11-21 03:41:44Z" after set_utc(true). "-" when it is not set.
std::string time_text(const google::protobuf::Timestamp& time);
void set_utc(bool utc);

}  // namespace titan::cli

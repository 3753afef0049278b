#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "google/protobuf/timestamp.pb.h"
#include "nlohmann/json.hpp"

namespace titan::cli {

enum class OutputFormat { kTable, kJson, kYaml };

// Value of -o: a table with more columns, where the verb has them.
inline constexpr char kWide[] = "wide";

// Parses the value of -o. Errors: InvalidArgument naming the allowed values.
absl::StatusOr<OutputFormat> parse_format(const std::string& text);

// Prints a document to stdout: indented JSON, or YAML. Must not be called with kTable.
void print(const nlohmann::ordered_json& document, OutputFormat format);
// Prints the results of a verb as one document: an object, or a list (`is_list`) of those that succeeded. Prints
// nothing with kTable, where notes report them.
void print_each(const std::vector<nlohmann::ordered_json>& done, bool is_list, OutputFormat format);

// Prints text to stdout and flushes, so that a pipe sees each line at once. Returns false once the reader is gone.
bool print(const std::string& text);

// Prints the output of another program, without its colours unless stdout is a terminal that wants them.
bool print_foreign(const std::string& text);

// Makes foreign text safe for one line of a terminal: "?" replaces what does not print.
std::string shown(std::string_view text);
// The same for several lines: those after the first begin with `indent` blanks, so that none looks like titanctl's own.
std::string shown_lines(std::string_view text, int indent);

// Returns the columns of a terminal that a text takes, one for each character.
size_t columns(std::string_view text);
// Returns the text, cut to `most` columns with an ellipsis at its end; 0: not cut.
std::string cut(std::string_view text, size_t most);

// Columns are as wide as their widest cell, with two blanks between; no line ends in blanks. Cells pass through
// shown().
class Table {
 public:
  explicit Table(std::vector<std::string> header) : rows_{std::move(header)} {}
  void add(std::vector<std::string> row);
  // Cuts the last column to `last` columns.
  std::string text(size_t last = std::string::npos) const;
  // Cuts the last column so that lines fit into `width`, but keeps some of it.
  std::string text_within(size_t width) const;

 private:
  std::vector<size_t> widths() const;

  std::vector<std::vector<std::string>> rows_;
};

// Returns 0 when all output was written, else the first errno: EPIPE once the reader is gone, ENOSPC and others from
// the disk.
int output_error();

// Formats a duration: "12s", "3m20s", "2h05m", "4d02h".
std::string duration_text(double seconds);
// Returns the time from `time` until now, or until `end` when that is set; "-" when `time` is unset.
std::string age(const google::protobuf::Timestamp& time, const google::protobuf::Timestamp& end = {});
// Returns "2026-11-21 04:41:44+01:00", local time; "2026-11-21 03:41:44Z" after set_utc(true). "-" when it is unset.
std::string time_text(const google::protobuf::Timestamp& time);
void set_utc(bool utc);

}  // namespace titan::cli

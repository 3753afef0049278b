#include "controller/cli/output.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/text/utf8.h"
#include "controller/cli/terminal.h"
#include "yaml-cpp/yaml.h"

namespace titan::cli {
namespace {

using nlohmann::ordered_json;

constexpr size_t kMinLastCellWidth = 20;  // Minimum width of a table's last cell, on any terminal.

int output_error_ = 0;
bool utc_ = false;

// Returns whether a literal block preserves the text: its first line sets the indentation, and it ends in one newline.
bool fits_block(const std::string& text) {
  if (text.size() < 2 || text.back() != '\n' || text[text.size() - 2] == '\n') return false;
  return std::string_view(" \t\n").find(text.front()) == std::string_view::npos &&
         text::printable(text, "\n\t") == text;
}

void emit(YAML::Emitter& out, const ordered_json& value) {
  switch (value.type()) {
    case ordered_json::value_t::object:
      if (value.empty()) out << YAML::Flow;
      out << YAML::BeginMap;
      for (const auto& [key, member] : value.items()) {
        out << YAML::Key << key << YAML::Value;
        emit(out, member);
      }
      out << YAML::EndMap;
      return;
    case ordered_json::value_t::array:
      if (value.empty()) out << YAML::Flow;
      out << YAML::BeginSeq;
      for (const ordered_json& element : value) emit(out, element);
      out << YAML::EndSeq;
      return;
    case ordered_json::value_t::string: {
      const std::string text = value.get<std::string>();
      // Quotes texts that YAML would read as something else; long ones stay readable as literal blocks.
      out << (fits_block(text) ? YAML::Literal : YAML::DoubleQuoted) << text;
      return;
    }
    case ordered_json::value_t::null:
      out << YAML::Null;
      return;
    default:
      out << value.dump();  // YAML spells numbers and booleans like JSON.
  }
}

}  // namespace

absl::StatusOr<OutputFormat> parse_format(const std::string& text) {
  if (text == "table" || text == kWide) return OutputFormat::kTable;
  if (text == "json") return OutputFormat::kJson;
  if (text == "yaml") return OutputFormat::kYaml;
  return absl::InvalidArgumentError("--output is '" + text + "': it must be table, wide, json or yaml");
}

void print(const ordered_json& document, OutputFormat format) {
  if (format == OutputFormat::kJson) {
    print(document.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n");
    return;
  }
  YAML::Emitter out;
  emit(out, document);
  print(std::string(out.c_str()) + "\n");
}

void print_each(const std::vector<ordered_json>& done, bool is_list, OutputFormat format) {
  if (format == OutputFormat::kTable) return;
  if (is_list) return print(ordered_json(done), format);
  if (!done.empty()) print(done.front(), format);
}

bool print(const std::string& text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0) return true;
  if (output_error_ == 0) output_error_ = errno;
  return false;
}

int output_error() { return output_error_; }

bool print_foreign(const std::string& text) {
  static const bool plain = !wants_colour(STDOUT_FILENO);
  if (!plain || text.find('\033') == std::string::npos) return print(text);
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\033' && i + 1 < text.size() && text[i + 1] == '[') {
      i = std::min(text.find_first_not_of("0123456789;", i + 2), text.size() - 1);  // Skips its last letter, too.
    } else {
      out += text[i];
    }
  }
  return print(out);
}

std::string shown(std::string_view text) { return text::printable(text); }

std::string shown_lines(std::string_view text, int indent) {
  const std::string lines = text::printable(text, "\n\t");
  return absl::StrReplaceAll(lines, {{"\n", "\n" + std::string(static_cast<size_t>(indent), ' ')}});
}

void Table::add(std::vector<std::string> row) {
  for (std::string& cell : row) cell = shown(cell);
  rows_.push_back(std::move(row));
}

size_t columns(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

std::string cut(std::string_view text, size_t most) {
  if (columns(text) <= most || most == 0) return std::string(text);
  size_t end = 0;
  for (size_t taken = 0; end < text.size(); ++end) {
    if ((static_cast<unsigned char>(text[end]) & 0xC0) != 0x80 && ++taken == most) break;
  }
  return std::string(text.substr(0, end)) + "…";
}

std::vector<size_t> Table::widths() const {
  std::vector<size_t> widths(rows_.front().size(), 0);
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], columns(row[i]));
  }
  return widths;
}

std::string Table::text_within(size_t width) const {
  size_t before = 0;
  const std::vector<size_t> all = widths();
  for (size_t i = 0; i + 1 < all.size(); ++i) before += all[i] + 2;
  return text(before + kMinLastCellWidth < width ? width - before : kMinLastCellWidth);
}

std::string Table::text(size_t last) const {
  const std::vector<size_t> all = widths();
  std::string out;
  for (const auto& row : rows_) {
    std::string line;
    for (size_t i = 0; i + 1 < row.size(); ++i) {
      line += row[i];
      line.append(all[i] - columns(row[i]) + 2, ' ');
    }
    line += cut(row.back(), last);
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

std::string duration_text(double seconds) {
  const auto whole = static_cast<int64_t>(std::max(0.0, seconds));
  if (whole < 60) return absl::StrFormat("%ds", whole);
  if (whole < 3600) return absl::StrFormat("%dm%02ds", whole / 60, whole % 60);
  if (whole < 86400) return absl::StrFormat("%dh%02dm", whole / 3600, whole % 3600 / 60);
  return absl::StrFormat("%dd%02dh", whole / 86400, whole % 86400 / 3600);
}

std::string age(const google::protobuf::Timestamp& time, const google::protobuf::Timestamp& end) {
  if (time.seconds() == 0) return "-";
  const absl::Time until = end.seconds() == 0 ? absl::Now() : absl::FromUnixSeconds(end.seconds());
  return duration_text(absl::ToDoubleSeconds(until - absl::FromUnixSeconds(time.seconds())));
}

std::string time_text(const google::protobuf::Timestamp& time) {
  if (time.seconds() == 0) return "-";
  const absl::Time at = absl::FromUnixSeconds(time.seconds());
  return utc_ ? absl::FormatTime("%Y-%m-%d %H:%M:%SZ", at, absl::UTCTimeZone())
              : absl::FormatTime("%Y-%m-%d %H:%M:%S%Ez", at, absl::LocalTimeZone());
}

void set_utc(bool utc) { utc_ = utc; }

}  // namespace titan::cli

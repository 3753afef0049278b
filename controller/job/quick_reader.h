#pragma once

// Reads a record's JSON directly into its members, for the tens of thousands of records at a start. It accepts the
// plain form of what encode() writes, with members in any order. All other texts, for instance with an escaped
// character or a member of another version, are left to the general reader.

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <vector>

#include "controller/job/state.h"

namespace titan::job {

class QuickReader {
 public:
  explicit QuickReader(std::string_view text) : at_(text.data()), end_(text.data() + text.size()) {}

  // Each returns false for any other text. `value` then has what was read so far.
  bool read(bool& value) {
    value = at_ != end_ && *at_ == 't';
    return take(value ? "true" : "false");
  }
  template <typename Number>
  requires std::is_arithmetic_v<Number>
  bool read(Number& value) {
    // from_chars accepts more than JSON: "inf", "01" and "1.e0".
    const auto [next, error] = std::from_chars(at_, end_, value);
    if (error != std::errc()) return false;
    const char* first = *at_ == '-' ? at_ + 1 : at_;
    const char* point = std::find(first, next, '.');
    if (!is_digit(first, next) || (point != next && !is_digit(point + 1, next))) return false;
    if (*first == '0' && is_digit(first + 1, next)) return false;
    at_ = next;
    return true;
  }
  bool read(std::string& value) {
    std::string_view text;
    if (!read_text(text)) return false;
    value = text;
    return true;
  }
  bool read(JobState& state) {
    std::string_view text;
    if (!read_text(text)) return false;
    const absl::StatusOr<JobState> parsed = state_from_name({text.data(), text.size()});
    if (parsed.ok()) state = *parsed;
    return parsed.ok();
  }
  template <typename Item>
  bool read(std::vector<Item>& items) {
    items.clear();
    if (!take("[")) return false;
    if (take("]")) return true;
    do {
      if (!read(items.emplace_back())) return false;
    } while (take(","));
    return take("]");
  }
  template <typename Item>
  bool read(std::map<std::string, Item>& items) {
    items.clear();
    return read_members([&](std::string_view key) { return read(items[std::string(key)]); });
  }
  // Reads a record. read_member(reader, key, record) reads the member of that name. It returns false if the record has
  // no such member or the value is malformed.
  template <typename Record>
  requires requires(QuickReader& reader, Record& record) { read_member(reader, "", record); }
  bool read(Record& record) {
    return read_members([&](std::string_view key) { return read_member(*this, key, record); });
  }

  bool at_end() const { return at_ == end_; }

 private:
  static bool is_digit(const char* at, const char* end) { return at != end && *at >= '0' && *at <= '9'; }
  bool take(std::string_view word) {
    if (std::string_view(at_, static_cast<size_t>(end_ - at_)).substr(0, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }
  bool read_text(std::string_view& text) {
    if (!take("\"")) return false;
    const char* begin = at_;
    for (; at_ != end_ && *at_ != '"'; ++at_) {
      if (*at_ == '\\' || *at_ < ' ' || *at_ > '~') return false;
    }
    text = {begin, static_cast<size_t>(at_ - begin)};
    return take("\"");
  }
  template <typename ReadMember>
  bool read_members(const ReadMember& read_one) {
    if (!take("{")) return false;
    if (take("}")) return true;
    do {
      std::string_view key;
      if (!read_text(key) || !take(":") || !read_one(key)) return false;
    } while (take(","));
    return take("}");
  }

  const char* at_;
  const char* const end_;
};

}  // namespace titan::job

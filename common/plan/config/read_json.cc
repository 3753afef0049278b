#include "absl/strings/str_cat.h"
#include "common/plan/config/raw.h"
#include "nlohmann/json.hpp"

namespace titan::config {
namespace {

// Counts lines while the parser reads, since nlohmann's values have no position.
class CountingIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  CountingIterator(const char* at, int* line) : at_(at), line_(line) {}
  reference operator*() const { return *at_; }
  CountingIterator& operator++() {
    if (*at_ == '\n') ++*line_;
    ++at_;
    return *this;
  }
  bool operator==(const CountingIterator& other) const { return at_ == other.at_; }
  bool operator!=(const CountingIterator& other) const { return at_ != other.at_; }

 private:
  const char* at_;
  int* line_;
};

class Handler : public nlohmann::json_sax<nlohmann::json> {
 public:
  Handler(const std::string& file, const int& line, std::vector<Problem>& problems)
      : file_(file), line_(line), problems_(problems) {}

  RawValue take() { return std::move(root_); }

  bool null() override { return add(RawValue()); }
  bool boolean(bool value) override { return add(raw_bool(value)); }
  bool number_integer(number_integer_t value) override { return add(raw_int(value)); }
  bool number_unsigned(number_unsigned_t value) override {
    if (value > static_cast<number_unsigned_t>(INT64_MAX)) return add(raw_float(static_cast<double>(value)));
    return add(raw_int(static_cast<std::int64_t>(value)));
  }
  bool number_float(number_float_t value, const string_t& text) override {
    RawValue raw = raw_float(value);
    raw.text = text;
    return add(std::move(raw));
  }
  bool string(string_t& value) override { return add(raw_string(value)); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(RawValue::Kind::kTable); }
  bool start_array(std::size_t) override { return open(RawValue::Kind::kList); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    for (const auto& [other, value] : open_.back().members) {
      if (other == name) complain(name, absl::StrCat("set twice (first in line ", value.line, ")"));
    }
    open_.back().members.push_back({name, RawValue()});
    open_.back().members.back().value.line = line_;
    return true;
  }

  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception& error) override {
    const std::string_view what = error.what();
    const std::size_t start = what.find("syntax error");
    complain("", absl::StrCat("not valid JSON: ", std::string(start == what.npos ? what : what.substr(start))));
    return false;
  }

 private:
  bool add(RawValue raw) {
    if (open_.empty()) {
      root_ = std::move(raw);
    } else if (open_.back().kind == RawValue::Kind::kList) {
      raw.line = line_;
      open_.back().items.push_back(std::move(raw));
    } else {
      raw.line = open_.back().members.back().value.line;
      open_.back().members.back().value = std::move(raw);
    }
    return true;
  }

  bool open(RawValue::Kind kind) {
    if (open_.size() >= static_cast<std::size_t>(kMaxDepth)) {
      complain("", "nested too deeply");
      return false;
    }
    RawValue raw;
    raw.kind = kind;
    raw.line = line_;
    open_.push_back(std::move(raw));
    return true;
  }

  bool close() {
    RawValue done = std::move(open_.back());
    open_.pop_back();
    return add(std::move(done));
  }

  void complain(const std::string& key, std::string message) {
    problems_.push_back({{file_, line_}, key, "", std::move(message), ""});
  }

  const std::string& file_;
  const int& line_;
  std::vector<Problem>& problems_;
  RawValue root_;
  std::vector<RawValue> open_;
};

}  // namespace

RawValue read_json(std::string_view text, const std::string& file, std::vector<Problem>& problems) {
  int line = 1;
  int end_line = 1;
  Handler handler(file, line, problems);
  const bool read = nlohmann::json::sax_parse(CountingIterator(text.data(), &line),
                                              CountingIterator(text.data() + text.size(), &end_line), &handler);
  RawValue root = handler.take();
  if (read && root.kind != RawValue::Kind::kTable) {
    problems.push_back({{file, 1}, "", "", "not a configuration: an object with sections is expected", ""});
  }
  return root;
}

}  // namespace titan::config

#include "controller/api/filter.h"

#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status/status.h"
#include "common/base/text/nearest.h"
#include "common/service/rpc/error.h"
#include "controller/api/job_fields.h"

namespace titan::api {
namespace {

using core::JobView;

constexpr size_t kMaxFilterLength = 8192;
constexpr int kMaxDepth = 50;

enum class Compare { kEqual, kUnequal, kLess, kLessOrEqual, kGreater, kGreaterOrEqual, kHas };

struct Operator {
  const char* text;
  Compare compare;
};
// Longer operators come first, since the first match wins.
constexpr Operator kOperators[] = {
    {"!=", Compare::kUnequal}, {"<=", Compare::kLessOrEqual}, {">=", Compare::kGreaterOrEqual},
    {"=", Compare::kEqual},    {"<", Compare::kLess},         {">", Compare::kGreater},
    {":", Compare::kHas}};

template <typename Value>
bool holds(Compare compare, const Value& left, const Value& right) {
  switch (compare) {
    case Compare::kEqual:
      return left == right;
    case Compare::kUnequal:
      return left != right;
    case Compare::kLess:
      return left < right;
    case Compare::kLessOrEqual:
      return left <= right;
    case Compare::kGreater:
      return left > right;
    case Compare::kGreaterOrEqual:
      return left >= right;
    case Compare::kHas:
      break;
  }
  return false;
}

bool is_set(const FieldValue& value) {
  const auto* text = std::get_if<absl::string_view>(&value);
  return text != nullptr ? !text->empty() : !std::holds_alternative<std::monostate>(value);
}

std::optional<absl::Time> parse_time(const std::string& text, absl::Time now) {
  absl::Time time;
  if (absl::ParseTime(absl::RFC3339_full, text, &time, nullptr)) return time;
  if (!absl::StartsWith(text, "-")) return std::nullopt;
  int64_t days = 0;
  if (absl::EndsWith(text, "d") && absl::SimpleAtoi(text.substr(1, text.size() - 2), &days)) {
    return now - absl::Hours(24) * days;
  }
  absl::Duration ago;
  if (!absl::ParseDuration(text.substr(1), &ago)) return std::nullopt;
  return now - ago;
}

// Returns a filter that holds when all parts hold (`all`), or when any part holds.
Filter combined(std::vector<Filter> parts, bool all) {
  if (parts.size() == 1) return std::move(parts[0]);
  return [parts = std::move(parts), all](const JobView& job) {
    for (const Filter& one : parts) {
      if (one(job) != all) return !all;
    }
    return all;
  };
}

struct Word {
  std::string text;
  bool quoted = false;
  size_t at = 0;
};

class Parser {
 public:
  Parser(const std::string& text, absl::Time now, const std::string& self) : text_(text), now_(now), self_(self) {}

  absl::StatusOr<Filter> parse() {
    if (text_.size() > kMaxFilterLength) return wrong(0, absl::StrCat("is longer than ", kMaxFilterLength, " bytes"));
    skip_spaces();
    if (at_ == text_.size()) return Filter([](const JobView&) { return true; });
    TITAN_ASSIGN_OR_RETURN(Filter filter, sequence());
    if (at_ < text_.size()) return wrong(at_, "')' has no matching '('");
    return filter;
  }

 private:
  absl::Status wrong(size_t at, const std::string& what) const {
    return rpc::bad_request("FILTER_INVALID", {{"filter", absl::StrCat("column ", at + 1, ": ", what)}});
  }

  void skip_spaces() {
    while (at_ < text_.size() && absl::ascii_isspace(text_[at_])) ++at_;
  }

  bool ends_word(size_t at) const {
    return at >= text_.size() || absl::ascii_isspace(text_[at]) || text_[at] == '(' || text_[at] == ')';
  }

  bool take_keyword(absl::string_view word) {
    if (!absl::StartsWith(absl::string_view(text_).substr(at_), word) || !ends_word(at_ + word.size())) return false;
    at_ += word.size();
    skip_spaces();
    return true;
  }

  // Parses factors that are adjacent or joined by AND.
  absl::StatusOr<Filter> sequence() {
    std::vector<Filter> all;
    do {
      TITAN_ASSIGN_OR_RETURN(Filter next, alternatives());
      all.push_back(std::move(next));
    } while (take_keyword("AND") || (at_ < text_.size() && text_[at_] != ')'));
    return combined(std::move(all), /*all=*/true);
  }

  absl::StatusOr<Filter> alternatives() {
    std::vector<Filter> any;
    do {
      TITAN_ASSIGN_OR_RETURN(Filter next, term());
      any.push_back(std::move(next));
    } while (take_keyword("OR"));
    return combined(std::move(any), /*all=*/false);
  }

  absl::StatusOr<Filter> term() {
    const bool minus = at_ < text_.size() && text_[at_] == '-';
    if (minus) ++at_;
    if (minus || take_keyword("NOT")) {
      TITAN_ASSIGN_OR_RETURN(Filter inner, simple());
      return Filter([inner = std::move(inner)](const JobView& job) { return !inner(job); });
    }
    return simple();
  }

  absl::StatusOr<Filter> simple() {
    if (at_ == text_.size()) return wrong(at_, "a comparison is missing");
    if (text_[at_] != '(') return comparison();
    const size_t opened = at_++;
    if (++depth_ > kMaxDepth) return wrong(opened, "nested too deeply");
    skip_spaces();
    TITAN_ASSIGN_OR_RETURN(Filter inner, sequence());
    if (at_ == text_.size()) return wrong(opened, "'(' is not closed");
    ++at_;
    skip_spaces();
    --depth_;
    return inner;
  }

  absl::StatusOr<std::string> quoted() {
    const size_t opened = at_;
    const char quote = text_[at_++];
    std::string out;
    while (at_ < text_.size() && text_[at_] != quote) {
      if (text_[at_] == '\\' && at_ + 1 < text_.size()) ++at_;
      out.push_back(text_[at_++]);
    }
    if (at_ == text_.size()) return wrong(opened, "the quote is not closed");
    ++at_;
    return out;
  }

  bool at_quote() const { return at_ < text_.size() && (text_[at_] == '"' || text_[at_] == '\''); }

  absl::StatusOr<std::string> path() {
    constexpr absl::string_view kEnd = "=!<>:\"'()";
    const size_t begin = at_;
    while (at_ < text_.size() && !absl::ascii_isspace(text_[at_]) && !absl::StrContains(kEnd, text_[at_])) ++at_;
    std::string out = text_.substr(begin, at_ - begin);
    if (out == "labels." && at_quote()) {
      TITAN_ASSIGN_OR_RETURN(const std::string key, quoted());
      out += key;
    }
    return out;
  }

  std::optional<Compare> take_operator() {
    for (const Operator& one : kOperators) {
      if (!absl::StartsWith(absl::string_view(text_).substr(at_), one.text)) continue;
      at_ += absl::string_view(one.text).size();
      return one.compare;
    }
    return std::nullopt;
  }

  absl::StatusOr<Word> value() {
    skip_spaces();
    Word word{.at = at_};
    if (at_quote()) {
      word.quoted = true;
      TITAN_ASSIGN_OR_RETURN(word.text, quoted());
    } else {
      while (!ends_word(at_)) word.text.push_back(text_[at_++]);
      if (word.text.empty()) return wrong(at_, "a value is missing");
    }
    skip_spaces();
    return word;
  }

  absl::StatusOr<Filter> comparison() {
    const size_t begin = at_;
    TITAN_ASSIGN_OR_RETURN(const std::string name, path());
    if (name.empty()) return wrong(begin, "a field is expected, as in: state = RUNNING");
    skip_spaces();
    const size_t operator_at = at_;
    const std::optional<Compare> compare = take_operator();
    if (!compare) return wrong(operator_at, absl::StrCat("after '", name, "' one of = != < <= > >= : is expected"));
    TITAN_ASSIGN_OR_RETURN(const Word word, value());
    if (name == "labels") return label_set(*compare, operator_at, word);
    const std::optional<JobField> field = find_field(name);
    if (!field) {
      return wrong(begin, absl::StrCat("unknown field '", name, "'", did_you_mean(name, field_names()), "; fields are ",
                                       absl::StrJoin(field_names(), ", ")));
    }
    if (*compare == Compare::kHas && word.text == "*" && !word.quoted) {
      return Filter([value = field->value](const JobView& job) { return is_set(value(job)); });
    }
    switch (field->kind) {
      case FieldKind::kText:
        return text_comparison(*field, *compare, name == "owner" && is_me(word) ? self_ : word.text);
      case FieldKind::kState:
        return state_comparison(*field, *compare, operator_at, word);
      case FieldKind::kNumber:
      case FieldKind::kTime:
        break;
    }
    return number_comparison(name, *field, *compare, operator_at, word);
  }

  absl::StatusOr<Filter> label_set(Compare compare, size_t operator_at, const Word& key) {
    if (compare != Compare::kHas) {
      return wrong(operator_at, "labels are compared one by one: labels.team = vision, or labels:team");
    }
    if (key.text == "*" && !key.quoted) return Filter([](const JobView& job) { return !job.record->labels.empty(); });
    return Filter([key = key.text](const JobView& job) { return job.record->labels.contains(key); });
  }

  // Owners look like "user:NAME", so none of them is called "me".
  bool is_me(const Word& word) const { return word.text == "me" && !word.quoted && !self_.empty(); }

  static Filter text_comparison(const JobField& field, Compare compare, const std::string& wanted) {
    return [get = field.value, compare, wanted](const JobView& job) {
      const FieldValue value = get(job);
      const auto* text = std::get_if<absl::string_view>(&value);
      if (text == nullptr) return compare == Compare::kUnequal;
      return compare == Compare::kHas ? absl::StrContains(*text, wanted)
                                      : holds<absl::string_view>(compare, *text, wanted);
    };
  }

  absl::StatusOr<Filter> state_comparison(const JobField& field, Compare compare, size_t operator_at,
                                          const Word& word) {
    const std::string state = absl::AsciiStrToUpper(word.text);
    if (!job::state_from_name(state).ok()) return wrong(word.at, absl::StrCat("'", word.text, "' is not a job state"));
    if (compare != Compare::kEqual && compare != Compare::kUnequal) {
      return wrong(operator_at, "a state can only be compared with = and !=");
    }
    return text_comparison(field, compare, state);
  }

  absl::StatusOr<Filter> number_comparison(const std::string& name, const JobField& field, Compare compare,
                                           size_t operator_at, const Word& word) {
    if (compare == Compare::kHas) {
      return wrong(operator_at, absl::StrCat("':' only tests whether ", name, " is set: write ", name, ":*"));
    }
    int64_t wanted = 0;
    if (field.kind == FieldKind::kTime) {
      const std::optional<absl::Time> time = parse_time(word.text, now_);
      if (!time) {
        return wrong(word.at, absl::StrCat("'", word.text, "' is not a time: 2026-01-31T10:00:00Z, or -2h, -7d"));
      }
      wanted = absl::ToUnixNanos(*time);
    } else if (!absl::SimpleAtoi(word.text, &wanted)) {
      return wrong(word.at, absl::StrCat("'", word.text, "' is not an integer"));
    }
    return Filter([get = field.value, compare, wanted](const JobView& job) {
      const FieldValue value = get(job);
      const auto* number = std::get_if<int64_t>(&value);
      return number == nullptr ? compare == Compare::kUnequal : holds(compare, *number, wanted);
    });
  }

  const std::string& text_;
  const absl::Time now_;
  const std::string& self_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace

absl::StatusOr<Filter> parse_filter(const std::string& text, absl::Time now, const std::string& self) {
  return Parser(text, now, self).parse();
}

}  // namespace titan::api

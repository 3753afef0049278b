// Parses expressions, in Jinja's order of precedence.
#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/io/jinja/filters.h"
#include "common/io/jinja/parser.h"

namespace titan::jinja {
namespace {

constexpr int kMaxDepth = 120;  // Nesting depth of expressions.

bool is_comparison(const Token& token) {
  constexpr std::string_view kComparisons[] = {"==", "!=", "<", "<=", ">", ">="};
  return token.kind == Token::Kind::kOperator && std::ranges::find(kComparisons, token.text) != std::end(kComparisons);
}

}  // namespace

absl::Status ExpressionParser::unexpected(std::string_view wanted) const {
  const Token& token = this->token();
  std::string found = absl::StrCat("\"", token.text, "\"");
  if (token.kind == Token::Kind::kBlockEnd || token.kind == Token::Kind::kOutputEnd) found = "the end of the tag";
  if (token.kind == Token::Kind::kEnd) found = "the end of the template";
  return wrong(token.place, absl::StrCat("expected ", std::string(wanted), ", found ", found));
}

absl::Status ExpressionParser::expect_operator(std::string_view text) {
  return skip_operator(text) ? absl::OkStatus() : unexpected(absl::StrCat("\"", std::string(text), "\""));
}

absl::StatusOr<std::string> ExpressionParser::name() {
  if (token().kind != Token::Kind::kName) return unexpected("a name");
  return take().text;
}

// Bounds the depth of a tree, so that walking it cannot overflow the stack.
absl::StatusOr<ExpressionPtr> ExpressionParser::made(Expression expression) {
  const auto deepen = [&](const ExpressionPtr& child) {
    if (child != nullptr) expression.depth = std::max(expression.depth, child->depth + 1);
  };
  for (const ExpressionPtr& child : expression.children) deepen(child);
  for (const auto& [name, child] : expression.keywords) deepen(child);
  if (expression.depth > kMaxDepth) {
    return wrong(expression.place, absl::StrCat("the expression is nested more than ", kMaxDepth, " levels deep"));
  }
  return std::make_unique<const Expression>(std::move(expression));
}

absl::StatusOr<ExpressionPtr> ExpressionParser::expression() {
  const SourceLocation place = token().place;
  if (++open_ > kMaxDepth) return wrong(place, "expressions are nested too deeply");
  TITAN_ASSIGN_OR_RETURN(ExpressionPtr value, any());
  while (skip_word("if")) {
    Expression conditional{.kind = ExpressionKind::kConditional, .place = place};
    TITAN_ASSIGN_OR_RETURN(ExpressionPtr condition, any());
    conditional.children.push_back(std::move(condition));
    conditional.children.push_back(std::move(value));
    conditional.children.emplace_back();
    if (skip_word("else")) {
      TITAN_ASSIGN_OR_RETURN(conditional.children.back(), expression());
    }
    TITAN_ASSIGN_OR_RETURN(value, made(std::move(conditional)));
  }
  --open_;
  return value;
}

absl::StatusOr<ExpressionPtr> ExpressionParser::tuple(bool with_conditional) {
  const SourceLocation place = token().place;
  Expression several{.kind = ExpressionKind::kTuple, .place = place};
  bool commas = false;
  while (true) {
    TITAN_ASSIGN_OR_RETURN(ExpressionPtr part, with_conditional ? expression() : any());
    several.children.push_back(std::move(part));
    if (!skip_operator(",")) break;
    commas = true;
    const bool ends = token().kind == Token::Kind::kBlockEnd || token().kind == Token::Kind::kOutputEnd ||
                      is_operator(")") || is_operator("]");
    if (ends) break;
  }
  if (!commas) return std::move(several.children[0]);
  return made(std::move(several));
}

ExpressionParser::Made ExpressionParser::two(ExpressionKind kind, std::string_view word,
                                             Made (ExpressionParser::*part)()) {
  const SourceLocation place = token().place;
  TITAN_ASSIGN_OR_RETURN(ExpressionPtr left, (this->*part)());
  while (skip_word(word)) {
    Expression both{.kind = kind, .place = place};
    both.children.push_back(std::move(left));
    TITAN_ASSIGN_OR_RETURN(ExpressionPtr right, (this->*part)());
    both.children.push_back(std::move(right));
    TITAN_ASSIGN_OR_RETURN(left, made(std::move(both)));
  }
  return left;
}

ExpressionParser::Made ExpressionParser::any() { return two(ExpressionKind::kOr, "or", &ExpressionParser::all); }
ExpressionParser::Made ExpressionParser::all() { return two(ExpressionKind::kAnd, "and", &ExpressionParser::negated); }

ExpressionParser::Made ExpressionParser::negated() {
  const SourceLocation place = token().place;
  if (!skip_word("not")) return comparison();
  if (++open_ > kMaxDepth) return wrong(place, "expressions are nested too deeply");
  Expression negation{.kind = ExpressionKind::kNot, .place = place};
  TITAN_ASSIGN_OR_RETURN(ExpressionPtr value, negated());
  --open_;
  negation.children.push_back(std::move(value));
  return made(std::move(negation));
}

ExpressionParser::Made ExpressionParser::comparison() {
  Expression chain{.kind = ExpressionKind::kCompare, .place = token().place};
  TITAN_ASSIGN_OR_RETURN(ExpressionPtr first, sum());
  chain.children.push_back(std::move(first));
  while (true) {
    if (is_comparison(token())) {
      chain.operators.push_back(take().text);
    } else if (skip_word("in")) {
      chain.operators.emplace_back("in");
    } else if (is_word("not") && next_token().kind == Token::Kind::kName && next_token().text == "in") {
      take();
      take();
      chain.operators.emplace_back("not in");
    } else {
      break;
    }
    TITAN_ASSIGN_OR_RETURN(ExpressionPtr next, sum());
    chain.children.push_back(std::move(next));
  }
  if (chain.operators.empty()) return std::move(chain.children[0]);
  return made(std::move(chain));
}

ExpressionParser::Made ExpressionParser::binary(std::initializer_list<std::string_view> operators,
                                                Made (ExpressionParser::*part)()) {
  TITAN_ASSIGN_OR_RETURN(ExpressionPtr left, (this->*part)());
  while (token().kind == Token::Kind::kOperator && std::ranges::find(operators, token().text) != operators.end()) {
    const Token operation = take();
    Expression both{.kind = ExpressionKind::kBinary, .place = operation.place, .name = operation.text};
    both.children.push_back(std::move(left));
    TITAN_ASSIGN_OR_RETURN(ExpressionPtr right, (this->*part)());
    both.children.push_back(std::move(right));
    TITAN_ASSIGN_OR_RETURN(left, made(std::move(both)));
  }
  return left;
}

ExpressionParser::Made ExpressionParser::sum() { return binary({"+", "-"}, &ExpressionParser::concatenation); }
ExpressionParser::Made ExpressionParser::product() { return binary({"*", "/", "//", "%"}, &ExpressionParser::power); }
ExpressionParser::Made ExpressionParser::power() { return binary({"**"}, &ExpressionParser::filtered); }

ExpressionParser::Made ExpressionParser::concatenation() {
  Expression all{.kind = ExpressionKind::kConcat, .place = token().place};
  do {
    TITAN_ASSIGN_OR_RETURN(ExpressionPtr part, product());
    all.children.push_back(std::move(part));
  } while (skip_operator("~"));
  if (all.children.size() == 1) return std::move(all.children[0]);
  return made(std::move(all));
}

ExpressionParser::Made ExpressionParser::unary(bool with_filters) {
  const SourceLocation place = token().place;
  ExpressionPtr value;
  const bool minus = is_operator("-");
  if (minus || is_operator("+")) {
    take();
    if (++open_ > kMaxDepth) return wrong(place, "expressions are nested too deeply");
    Expression signed_value{.kind = minus ? ExpressionKind::kNegative : ExpressionKind::kPositive, .place = place};
    TITAN_ASSIGN_OR_RETURN(ExpressionPtr inner, unary(false));
    --open_;
    signed_value.children.push_back(std::move(inner));
    TITAN_ASSIGN_OR_RETURN(value, made(std::move(signed_value)));
  } else {
    TITAN_ASSIGN_OR_RETURN(value, primary());
  }
  TITAN_ASSIGN_OR_RETURN(value, postfix(std::move(value)));
  return with_filters ? filters(std::move(value)) : std::move(value);
}

namespace {

absl::StatusOr<Value> number_of(const Token& token) {
  const char *begin = token.text.data(), *end = begin + token.text.size();
  int64_t whole = 0;
  double real = 0;
  const bool is_whole = token.kind == Token::Kind::kInteger;
  const auto read = is_whole ? std::from_chars(begin, end, whole) : std::from_chars(begin, end, real);
  if (read.ec != std::errc() || read.ptr != end) return wrong(token.place, "the number is too large");
  return is_whole ? Value(whole) : Value(real);
}

std::optional<Value> constant_of(std::string_view word) {
  if (word == "true" || word == "True") return true;
  if (word == "false" || word == "False") return false;
  if (word == "none" || word == "None") return None();
  return std::nullopt;
}

}  // namespace

ExpressionParser::Made ExpressionParser::primary() {
  const Token& token = this->token();
  Expression constant{.kind = ExpressionKind::kConstant, .place = token.place};
  if (token.kind == Token::Kind::kName) {
    if (const auto known = constant_of(token.text)) {
      constant.value = *known;
    } else {
      constant.kind = ExpressionKind::kName;
      constant.name = token.text;
    }
    take();
    return made(std::move(constant));
  }
  if (token.kind == Token::Kind::kString) {
    std::string text;
    while (this->token().kind == Token::Kind::kString) text += take().text;  // Adjacent strings are joined.
    constant.value = std::move(text);
    return made(std::move(constant));
  }
  if (token.kind == Token::Kind::kInteger || token.kind == Token::Kind::kFloat) {
    TITAN_ASSIGN_OR_RETURN(constant.value, number_of(take()));
    return made(std::move(constant));
  }
  if (skip_operator("(")) {
    if (skip_operator(")")) return made({.kind = ExpressionKind::kTuple, .place = constant.place});
    TITAN_ASSIGN_OR_RETURN(ExpressionPtr inner, tuple());
    TITAN_RETURN_IF_ERROR(expect_operator(")"));
    return inner;
  }
  if (is_operator("[") || is_operator("{")) return list_or_dict();
  return unexpected("a value");
}

ExpressionParser::Made ExpressionParser::list_or_dict() {
  const Token open = take();
  const bool dict = open.text == "{";
  const std::string_view close = dict ? "}" : "]";
  Expression all{.kind = dict ? ExpressionKind::kDict : ExpressionKind::kList, .place = open.place};
  while (!is_operator(close)) {
    TITAN_ASSIGN_OR_RETURN(ExpressionPtr item, expression());
    all.children.push_back(std::move(item));
    if (dict) {
      TITAN_RETURN_IF_ERROR(expect_operator(":"));
      TITAN_ASSIGN_OR_RETURN(ExpressionPtr value, expression());
      all.children.push_back(std::move(value));
    }
    if (!skip_operator(",")) break;
  }
  TITAN_RETURN_IF_ERROR(expect_operator(close));
  return made(std::move(all));
}

ExpressionParser::Made ExpressionParser::postfix(ExpressionPtr value) {
  while (true) {
    if (is_operator(".")) {
      const SourceLocation place = take().place;
      Expression part{.kind = ExpressionKind::kAttribute, .place = place};
      if (token().kind == Token::Kind::kInteger) {
        TITAN_ASSIGN_OR_RETURN(Value number, number_of(take()));
        Expression key{.kind = ExpressionKind::kConstant, .place = place, .value = std::move(number)};
        part.kind = ExpressionKind::kItem;
        part.children.push_back(std::move(value));
        part.children.push_back(std::make_unique<const Expression>(std::move(key)));
      } else {
        TITAN_ASSIGN_OR_RETURN(part.name, name());
        part.children.push_back(std::move(value));
      }
      TITAN_ASSIGN_OR_RETURN(value, made(std::move(part)));
    } else if (is_operator("[")) {
      TITAN_ASSIGN_OR_RETURN(value, subscript(std::move(value)));
    } else if (is_operator("(")) {
      TITAN_ASSIGN_OR_RETURN(value, call(std::move(value)));
    } else {
      return value;
    }
  }
}

ExpressionParser::Made ExpressionParser::subscript(ExpressionPtr value) {
  Expression item{.kind = ExpressionKind::kItem, .place = take().place};
  item.children.push_back(std::move(value));
  ExpressionPtr part;
  if (!is_operator(":")) {
    TITAN_ASSIGN_OR_RETURN(part, expression());
  }
  item.children.push_back(std::move(part));
  while (skip_operator(":")) {
    item.kind = ExpressionKind::kSlice;
    ExpressionPtr next;
    if (!is_operator(":") && !is_operator("]")) {
      TITAN_ASSIGN_OR_RETURN(next, expression());
    }
    item.children.push_back(std::move(next));
  }
  if (item.children.size() > 4) return wrong(item.place, "a slice has at most a begin, an end and a step");
  if (is_operator(",")) return wrong(token().place, "several keys in one pair of brackets are not supported");
  TITAN_RETURN_IF_ERROR(expect_operator("]"));
  if (item.kind == ExpressionKind::kSlice) item.children.resize(4);
  return made(std::move(item));
}

// A method must be known. A function is checked later, since the template itself may define it.
ExpressionParser::Made ExpressionParser::call(ExpressionPtr callee) {
  if (callee->kind == ExpressionKind::kName) called_.push_back({callee->name, callee->place});
  if (callee->kind == ExpressionKind::kAttribute && !is_method(callee->name)) {
    return wrong(callee->place, absl::StrCat("the method \"", callee->name, "\" is not supported"));
  }
  Expression call{.kind = ExpressionKind::kCall, .place = token().place};
  call.children.push_back(std::move(callee));
  TITAN_RETURN_IF_ERROR(arguments(call));
  return made(std::move(call));
}

absl::Status ExpressionParser::arguments(Expression& call) {
  TITAN_RETURN_IF_ERROR(expect_operator("("));
  while (!is_operator(")")) {
    if (is_operator("*") || is_operator("**")) {
      return wrong(token().place, "unpacking arguments with * is not supported");
    }
    const Token& following = next_token();
    const bool keyword =
        token().kind == Token::Kind::kName && following.kind == Token::Kind::kOperator && following.text == "=";
    if (!keyword && !call.keywords.empty()) {
      return wrong(token().place, "an argument without a name cannot follow one with a name");
    }
    std::string name;
    if (keyword) {
      name = take().text;
      take();
    }
    TITAN_ASSIGN_OR_RETURN(ExpressionPtr value, expression());
    if (keyword) {
      call.keywords.emplace_back(std::move(name), std::move(value));
    } else {
      call.children.push_back(std::move(value));
    }
    if (!skip_operator(",")) break;
  }
  return expect_operator(")");
}

ExpressionParser::Made ExpressionParser::filters(ExpressionPtr value) {
  while (true) {
    if (is_operator("|")) {
      TITAN_ASSIGN_OR_RETURN(value, filter(std::move(value)));
    } else if (is_word("is")) {
      TITAN_ASSIGN_OR_RETURN(value, test(std::move(value)));
    } else if (is_operator("(")) {
      TITAN_ASSIGN_OR_RETURN(value, call(std::move(value)));
    } else {
      return value;
    }
  }
}

ExpressionParser::Made ExpressionParser::filter(ExpressionPtr value) {
  Expression filter{.kind = ExpressionKind::kFilter, .place = take().place};
  const SourceLocation place = token().place;
  TITAN_ASSIGN_OR_RETURN(filter.name, name());
  if (!is_filter(filter.name)) return wrong(place, absl::StrCat("the filter \"", filter.name, "\" is not supported"));
  filter.children.push_back(std::move(value));
  if (is_operator("(")) TITAN_RETURN_IF_ERROR(arguments(filter));
  return made(std::move(filter));
}

ExpressionParser::Made ExpressionParser::test(ExpressionPtr value) {
  Expression test{.kind = ExpressionKind::kTest, .place = take().place};
  const bool negated = skip_word("not");
  const SourceLocation place = token().place;
  TITAN_ASSIGN_OR_RETURN(test.name, name());
  if (!is_test(test.name)) return wrong(place, absl::StrCat("the test \"", test.name, "\" is not supported"));
  test.children.push_back(std::move(value));
  const Token& next = token();
  const bool ends = next.kind == Token::Kind::kName &&
                    (next.text == "else" || next.text == "or" || next.text == "and" || next.text == "is");
  const bool value_follows = next.kind == Token::Kind::kName || next.kind == Token::Kind::kString ||
                             next.kind == Token::Kind::kInteger || next.kind == Token::Kind::kFloat ||
                             is_operator("[") || is_operator("{");
  if (is_operator("(")) {
    TITAN_RETURN_IF_ERROR(arguments(test));
  } else if (is_word("is")) {
    return wrong(next.place, "tests cannot be chained; write \"and\" between them");
  } else if (value_follows && !ends) {
    TITAN_ASSIGN_OR_RETURN(ExpressionPtr argument, primary());
    TITAN_ASSIGN_OR_RETURN(argument, postfix(std::move(argument)));
    test.children.push_back(std::move(argument));
  }
  TITAN_ASSIGN_OR_RETURN(ExpressionPtr tested, made(std::move(test)));
  if (!negated) return tested;
  Expression opposite{.kind = ExpressionKind::kNot, .place = place};
  opposite.children.push_back(std::move(tested));
  return made(std::move(opposite));
}

}  // namespace titan::jinja

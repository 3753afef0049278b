#pragma once

#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/io/jinja/tree.h"

namespace titan::jinja {

struct Parsed {
  Statements statements;
  bool generations = false;  // Whether there is a generation block.
};

// Parses a template's statements. Errors: InvalidArgument with line and column, for text that is not Jinja and for what
// is not supported. Rendering the result can then fail only for its values and the limits.
absl::StatusOr<Parsed> parse(std::string_view text);

// Reads expressions from tokens.
class ExpressionParser {
 public:
  explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  absl::StatusOr<ExpressionPtr> expression();                         // Includes "if" and "else".
  absl::StatusOr<ExpressionPtr> tuple(bool with_conditional = true);  // One, or a tuple of several between commas.

  const Token& token() const { return tokens_[at_]; }
  const Token& next_token() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  bool is(Token::Kind kind, std::string_view text) const { return token().kind == kind && token().text == text; }
  bool is_operator(std::string_view text) const { return is(Token::Kind::kOperator, text); }
  bool is_word(std::string_view text) const { return is(Token::Kind::kName, text); }
  Token take() { return at_ + 1 < tokens_.size() ? tokens_[at_++] : tokens_[at_]; }
  bool skip_operator(std::string_view text) { return is_operator(text) && (take(), true); }
  bool skip_word(std::string_view text) { return is_word(text) && (take(), true); }
  absl::Status expect_operator(std::string_view text);
  absl::StatusOr<std::string> name();
  absl::Status unexpected(std::string_view wanted) const;

  // Names that are called. The caller checks that they exist.
  struct Called {
    std::string name;
    SourceLocation place;
  };
  const std::vector<Called>& called() const { return called_; }

 private:
  using Made = absl::StatusOr<ExpressionPtr>;
  Made two(Expression::Kind kind, std::string_view word, Made (ExpressionParser::*part)());
  Made any();
  Made all();
  Made negated();
  Made comparison();
  Made sum();
  Made concatenation();
  Made product();
  Made power();
  Made unary(bool with_filters);
  Made filtered() { return unary(true); }
  Made primary();
  Made postfix(ExpressionPtr value);
  Made filters(ExpressionPtr value);
  Made filter(ExpressionPtr value);
  Made test(ExpressionPtr value);
  Made call(ExpressionPtr callee);
  Made subscript(ExpressionPtr value);
  Made list_or_dict();
  absl::Status arguments(Expression& call);
  Made binary(std::initializer_list<std::string_view> operators, Made (ExpressionParser::*part)());
  Made made(Expression expression);

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int open_ = 0;  // Nesting depth of the expressions being read.
  std::vector<Called> called_;
};

}  // namespace titan::jinja

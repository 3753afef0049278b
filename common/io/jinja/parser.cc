#include "common/io/jinja/parser.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/io/jinja/filters.h"

namespace titan::jinja {
namespace {

constexpr int kMaxBlocksDepth = 40;

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : in_(std::move(tokens)) {}

  absl::StatusOr<Parsed> run() {
    Parsed parsed;
    TITAN_ASSIGN_OR_RETURN(parsed.statements, body({}, ""));
    for (const auto& called : in_.called()) {
      if (is_function(called.name) || assigned_.contains(called.name)) continue;
      return wrong(called.place, absl::StrCat("the function \"", called.name, "\" is not supported"));
    }
    parsed.generations = generations_;
    return parsed;
  }

 private:
  using Made = absl::StatusOr<std::unique_ptr<const Statement>>;

  static Made made(Statement statement) { return std::make_unique<const Statement>(std::move(statement)); }

  // Reads statements up to a tag with one of these words, which is not consumed; without words, reads all.
  absl::StatusOr<Statements> body(std::initializer_list<std::string_view> ends, std::string_view of) {
    if (++depth_ > kMaxBlocksDepth) return wrong(in_.token().place, "blocks are nested too deeply");
    Statements all;
    while (in_.token().kind != Token::Kind::kEnd) {
      const Token& following = in_.next_token();
      const bool closes = in_.token().kind == Token::Kind::kBlockBegin && following.kind == Token::Kind::kName &&
                          std::ranges::find(ends, following.text) != ends.end();
      if (closes) {
        --depth_;
        return all;
      }
      TITAN_ASSIGN_OR_RETURN(all.emplace_back(), statement());
    }
    --depth_;
    if (ends.size() == 0) return all;
    return wrong(in_.token().place, absl::StrCat("the block \"", std::string(of), "\" does not end"));
  }

  Made statement() {
    const Token token = in_.take();
    if (token.kind == Token::Kind::kText)
      return made({.kind = StatementKind::kText, .place = token.place, .name = token.text});
    if (token.kind == Token::Kind::kOutputBegin) {
      Statement output{.kind = StatementKind::kOutput, .place = token.place};
      TITAN_ASSIGN_OR_RETURN(output.expressions.emplace_back(), in_.tuple());
      if (in_.token().kind != Token::Kind::kOutputEnd) return in_.unexpected("the end of the tag");
      in_.take();
      return made(std::move(output));
    }
    return block();
  }

  Made block() {
    const SourceLocation place = in_.token().place;
    TITAN_ASSIGN_OR_RETURN(const std::string word, in_.name());
    if (word == "if") return conditional(place);
    if (word == "for") return loop(place);
    if (word == "set") return assignment(place);
    if (word == "macro") return macro(place);
    if (word == "generation") return generation(place);
    if (word == "break" || word == "continue") return jump(word, place);
    return wrong(place, absl::StrCat("the tag \"", word, "\" is not supported, or not expected here"));
  }

  absl::Status end_of_tag() {
    if (in_.token().kind != Token::Kind::kBlockEnd) return in_.unexpected("the end of the tag");
    in_.take();
    return absl::OkStatus();
  }

  // Consumes "{% word" and returns the word.
  std::string open_tag() {
    in_.take();
    return in_.take().text;
  }

  Made conditional(const SourceLocation& place) {
    Statement statement{.kind = StatementKind::kIf, .place = place};
    std::string word = "if";
    while (word == "if" || word == "elif") {
      TITAN_ASSIGN_OR_RETURN(statement.expressions.emplace_back(), in_.tuple(/*with_conditional=*/false));
      TITAN_RETURN_IF_ERROR(end_of_tag());
      TITAN_ASSIGN_OR_RETURN(statement.bodies.emplace_back(), body({"elif", "else", "endif"}, "if"));
      word = open_tag();
    }
    if (word == "else") {
      TITAN_RETURN_IF_ERROR(end_of_tag());
      TITAN_ASSIGN_OR_RETURN(statement.bodies.emplace_back(), body({"endif"}, "if"));
      open_tag();
    }
    TITAN_RETURN_IF_ERROR(end_of_tag());
    return made(std::move(statement));
  }

  absl::Status targets(std::vector<std::string>& names) {
    const bool brackets = in_.skip_operator("(");
    do {
      TITAN_ASSIGN_OR_RETURN(names.emplace_back(), in_.name());
      assigned_.insert(names.back());
    } while (in_.skip_operator(","));
    return brackets ? in_.expect_operator(")") : absl::OkStatus();
  }

  Made loop(const SourceLocation& place) {
    Statement statement{.kind = StatementKind::kFor, .place = place};
    TITAN_RETURN_IF_ERROR(targets(statement.names));
    if (!in_.skip_word("in")) return in_.unexpected("\"in\"");
    TITAN_ASSIGN_OR_RETURN(statement.expressions.emplace_back(), in_.tuple(/*with_conditional=*/false));
    statement.expressions.emplace_back();
    if (in_.skip_word("if")) {
      TITAN_ASSIGN_OR_RETURN(statement.expressions.back(), in_.expression());
    }
    if (in_.is_word("recursive")) return wrong(in_.token().place, "recursive loops are not supported");
    TITAN_RETURN_IF_ERROR(end_of_tag());
    ++loops_;
    TITAN_ASSIGN_OR_RETURN(statement.bodies.emplace_back(), body({"else", "endfor"}, "for"));
    --loops_;
    statement.bodies.emplace_back();
    if (open_tag() == "else") {
      TITAN_RETURN_IF_ERROR(end_of_tag());
      TITAN_ASSIGN_OR_RETURN(statement.bodies.back(), body({"endfor"}, "for"));
      open_tag();
    }
    TITAN_RETURN_IF_ERROR(end_of_tag());
    return made(std::move(statement));
  }

  Made assignment(const SourceLocation& place) {
    Statement statement{.kind = StatementKind::kSet, .place = place};
    TITAN_RETURN_IF_ERROR(targets(statement.names));
    if (statement.names.size() == 1 && in_.skip_operator(".")) {
      statement.kind = StatementKind::kSetMember;
      TITAN_ASSIGN_OR_RETURN(statement.names.emplace_back(), in_.name());
    }
    if (in_.skip_operator("=")) {
      TITAN_ASSIGN_OR_RETURN(statement.expressions.emplace_back(), in_.tuple());
      TITAN_RETURN_IF_ERROR(end_of_tag());
      return made(std::move(statement));
    }
    if (statement.kind != StatementKind::kSet || statement.names.size() != 1) return in_.unexpected("\"=\"");
    if (in_.is_operator("|")) return wrong(in_.token().place, "a filter on a set block is not supported");
    statement.kind = StatementKind::kSetBlock;
    TITAN_RETURN_IF_ERROR(end_of_tag());
    return captured(std::move(statement), "endset", "set");
  }

  // Reads a body whose output is captured.
  Made captured(Statement statement, std::string_view end, std::string_view of) {
    ++captures_;
    const int loops = std::exchange(loops_, of == "set" ? loops_ : 0);
    TITAN_ASSIGN_OR_RETURN(statement.bodies.emplace_back(), body({end}, of));
    loops_ = loops;
    --captures_;
    open_tag();
    TITAN_RETURN_IF_ERROR(end_of_tag());
    return made(std::move(statement));
  }

  Made macro(const SourceLocation& place) {
    if (captures_ > 0 || loops_ > 0 || generation_) {
      return wrong(
          place,
          "a macro inside a loop, a macro, a set block or a generation block is not supported; define it before");
    }
    Statement statement{.kind = StatementKind::kMacro, .place = place};
    TITAN_ASSIGN_OR_RETURN(statement.name, in_.name());
    assigned_.insert(statement.name);
    TITAN_RETURN_IF_ERROR(in_.expect_operator("("));
    while (!in_.is_operator(")")) {
      TITAN_ASSIGN_OR_RETURN(statement.names.emplace_back(), in_.name());
      assigned_.insert(statement.names.back());
      statement.expressions.emplace_back();
      if (in_.skip_operator("=")) {
        TITAN_ASSIGN_OR_RETURN(statement.expressions.back(), in_.expression());
      }
      if (!in_.skip_operator(",")) break;
    }
    TITAN_RETURN_IF_ERROR(in_.expect_operator(")"));
    TITAN_RETURN_IF_ERROR(end_of_tag());
    return captured(std::move(statement), "endmacro", "macro");
  }

  // A generation block needs a place in the whole text, and captured text has none yet.
  Made generation(const SourceLocation& place) {
    if (captures_ > 0 || generation_) {
      return wrong(place,
                   "a generation block inside a macro, a set block or another generation block is not supported");
    }
    Statement statement{.kind = StatementKind::kGeneration, .place = place};
    TITAN_RETURN_IF_ERROR(end_of_tag());
    generations_ = generation_ = true;
    const int loops = std::exchange(loops_, 0);
    TITAN_ASSIGN_OR_RETURN(statement.bodies.emplace_back(), body({"endgeneration"}, "generation"));
    generation_ = false;
    loops_ = loops;
    open_tag();
    TITAN_RETURN_IF_ERROR(end_of_tag());
    return made(std::move(statement));
  }

  Made jump(const std::string& word, const SourceLocation& place) {
    if (loops_ == 0) return wrong(place, absl::StrCat("\"", word, "\" is not in a loop"));
    TITAN_RETURN_IF_ERROR(end_of_tag());
    return made({.kind = word == "break" ? StatementKind::kBreak : StatementKind::kContinue, .place = place});
  }

  ExpressionParser in_;
  int depth_ = 0;
  int loops_ = 0, captures_ = 0;  // Number of them around the current place.
  bool generation_ = false, generations_ = false;
  std::set<std::string> assigned_;  // Names to which the template assigns a value.
};

}  // namespace

absl::StatusOr<Parsed> parse(std::string_view text) {
  TITAN_ASSIGN_OR_RETURN(std::vector<Token> tokens, tokens_of(text));
  return Parser(std::move(tokens)).run();
}

}  // namespace titan::jinja

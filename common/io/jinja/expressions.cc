// Evaluates expressions.
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/io/jinja/filters.h"
#include "common/io/jinja/methods.h"
#include "common/io/jinja/operations.h"
#include "common/io/jinja/render.h"
#include "common/io/jinja/repr.h"
#include "common/io/jinja/sequences.h"

namespace titan::jinja {

// Evaluates an expression. An error names the place of the innermost expression that failed.
Result Renderer::evaluate(const Expression& expression) {
  TITAN_RETURN_IF_ERROR(run_.spend(1));
  TITAN_RETURN_IF_ERROR(run_.enter());
  Result value = value_of(expression);
  run_.leave();
  if (value.ok()) TITAN_RETURN_IF_ERROR(run_.check_value(*value));
  if (value.ok() || has_position(value.status())) return value;
  return annotate(value.status(), absl::StrCat("line ", expression.place.line, ", column ", expression.place.column));
}

Result Renderer::value_of(const Expression& expression) {
  const auto child = [&](size_t i) { return evaluate(*expression.children[i]); };
  switch (expression.kind) {
    case ExpressionKind::kConstant:
      return expression.value;
    case ExpressionKind::kName:
      return name(expression.name);
    case ExpressionKind::kList:
    case ExpressionKind::kTuple:
    case ExpressionKind::kDict:
      return literal(expression);
    case ExpressionKind::kConditional:
      return conditional(expression);
    case ExpressionKind::kOr:
    case ExpressionKind::kAnd: {
      TITAN_ASSIGN_OR_RETURN(Value left, child(0));
      if (truth(left) == (expression.kind == ExpressionKind::kOr)) return left;
      return child(1);
    }
    case ExpressionKind::kNot: {
      TITAN_ASSIGN_OR_RETURN(const Value value, child(0));
      return !truth(value);
    }
    case ExpressionKind::kCompare:
      return compared(expression);
    case ExpressionKind::kBinary: {
      TITAN_ASSIGN_OR_RETURN(const Value left, child(0));
      TITAN_ASSIGN_OR_RETURN(const Value right, child(1));
      return binary_operation(run_, expression.name, left, right);
    }
    case ExpressionKind::kConcat:
      return concatenated(expression);
    case ExpressionKind::kNegative: {
      TITAN_ASSIGN_OR_RETURN(const Value value, child(0));
      return negative(value);
    }
    case ExpressionKind::kPositive: {
      TITAN_ASSIGN_OR_RETURN(const Value value, child(0));
      return binary_operation(run_, "+", int64_t{0}, value);
    }
    case ExpressionKind::kFilter:
    case ExpressionKind::kTest:
      return filtered(expression);
    case ExpressionKind::kCall:
      return called(expression);
    case ExpressionKind::kAttribute: {
      TITAN_ASSIGN_OR_RETURN(const Value value, child(0));
      return attribute_of(run_, value, expression.name);
    }
    case ExpressionKind::kItem:
      return item(expression);
    case ExpressionKind::kSlice:
      return slice(expression);
  }
  return absl::InternalError("an expression of no kind");
}

Result Renderer::name(const std::string& name) {
  for (const Scope* scope = scope_; scope != nullptr; scope = scope->outer) {
    if (const auto found = scope->names.find(name); found != scope->names.end()) return found->second;
  }
  if (const Value* given = variables_.find(name)) return *given;
  if (is_function(name)) {
    return std::make_shared<const Callable>(Callable{Callable::Kind::kFunction, name, None(), nullptr});
  }
  return Undefined{absl::StrCat("'", name, "' is undefined")};
}

Result Renderer::literal(const Expression& expression) {
  std::vector<Value> items;
  for (const ExpressionPtr& child : expression.children) {
    TITAN_ASSIGN_OR_RETURN(items.emplace_back(), evaluate(*child));
  }
  if (expression.kind == ExpressionKind::kList) return list(std::move(items));
  if (expression.kind == ExpressionKind::kTuple) return list(std::move(items), Sequence::Kind::kTuple);
  Mapping entries;
  for (size_t i = 0; i + 1 < items.size(); i += 2) {
    const bool simple = as_text(items[i]) != nullptr || as_number(items[i]) || is_none(items[i]);
    if (!simple) return absl::InvalidArgumentError("a key of a mapping must be a string, a number or none");
    entries.set(std::move(items[i]), std::move(items[i + 1]));
  }
  return mapping(std::move(entries));
}

Result Renderer::conditional(const Expression& expression) {
  TITAN_ASSIGN_OR_RETURN(const Value condition, evaluate(*expression.children[0]));
  if (truth(condition)) return evaluate(*expression.children[1]);
  if (expression.children[2] != nullptr) return evaluate(*expression.children[2]);
  return Undefined{"the condition is not met, and there is no \"else\""};
}

Result Renderer::compared(const Expression& expression) {
  TITAN_ASSIGN_OR_RETURN(Value left, evaluate(*expression.children[0]));
  for (size_t i = 0; i < expression.operators.size(); ++i) {
    TITAN_ASSIGN_OR_RETURN(Value right, evaluate(*expression.children[i + 1]));
    TITAN_ASSIGN_OR_RETURN(const bool holds, comparison(run_, expression.operators[i], left, right));
    if (!holds) return false;
    left = std::move(right);
  }
  return true;
}

Result Renderer::concatenated(const Expression& expression) {
  std::string out;
  for (const ExpressionPtr& child : expression.children) {
    TITAN_ASSIGN_OR_RETURN(const Value value, evaluate(*child));
    TITAN_ASSIGN_OR_RETURN(const std::string text, to_text(run_, value));
    out += text;
    TITAN_RETURN_IF_ERROR(run_.check_bytes(static_cast<int64_t>(out.size())));
  }
  return out;
}

Result Renderer::item(const Expression& expression) {
  TITAN_ASSIGN_OR_RETURN(const Value value, evaluate(*expression.children[0]));
  TITAN_ASSIGN_OR_RETURN(const Value key, evaluate(*expression.children[1]));
  if (const auto* undefined = std::get_if<Undefined>(&value)) return absl::InvalidArgumentError(undefined->why);
  if (as_text(value) != nullptr) TITAN_RETURN_IF_ERROR(run_.spend(static_cast<int64_t>(as_text(value)->size())));
  if (std::optional<Value> found = item_of(value, key)) return *std::move(found);
  if (const std::string* name = as_text(key)) return attribute_of(run_, value, *name);
  return Undefined{absl::StrCat("a ", type_name(value), " has no such item")};
}

Result Renderer::slice(const Expression& expression) {
  std::vector<Value> parts;
  for (const ExpressionPtr& child : expression.children) {
    parts.emplace_back(None());
    if (child == nullptr) continue;
    TITAN_ASSIGN_OR_RETURN(parts.back(), evaluate(*child));
  }
  return slice_of(run_, parts[0], parts[1], parts[2], parts[3]);
}

absl::StatusOr<Arguments> Renderer::arguments_of(const Expression& expression) {
  Arguments arguments;
  for (size_t i = 1; i < expression.children.size(); ++i) {
    TITAN_ASSIGN_OR_RETURN(arguments.positional.emplace_back(), evaluate(*expression.children[i]));
  }
  for (const auto& [name, value] : expression.keywords) {
    TITAN_ASSIGN_OR_RETURN(Value evaluated, evaluate(*value));
    arguments.keywords.emplace_back(name, std::move(evaluated));
  }
  return arguments;
}

Result Renderer::filtered(const Expression& expression) {
  TITAN_ASSIGN_OR_RETURN(const Value value, evaluate(*expression.children[0]));
  TITAN_ASSIGN_OR_RETURN(const Arguments arguments, arguments_of(expression));
  if (expression.kind == ExpressionKind::kFilter) return apply_filter(run_, expression.name, value, arguments);
  TITAN_ASSIGN_OR_RETURN(const bool passes, apply_test(run_, expression.name, value, arguments));
  return passes;
}

Result Renderer::called(const Expression& expression) {
  TITAN_ASSIGN_OR_RETURN(const Value callee, evaluate(*expression.children[0]));
  if (const auto* undefined = std::get_if<Undefined>(&callee)) return absl::InvalidArgumentError(undefined->why);
  const auto* found = std::get_if<std::shared_ptr<const Callable>>(&callee);
  if (found == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("a value of type ", type_name(callee), " cannot be called"));
  }
  TITAN_ASSIGN_OR_RETURN(const Arguments arguments, arguments_of(expression));
  const Callable& callable = **found;
  switch (callable.kind) {
    case Callable::Kind::kFunction:
      return call_function(run_, callable.name, arguments);
    case Callable::Kind::kMethod:
      return call_method(run_, callable.self, callable.name, arguments);
    case Callable::Kind::kMacro:
      break;
  }
  return macro(*static_cast<const Statement*>(callable.macro), arguments);
}

}  // namespace titan::jinja

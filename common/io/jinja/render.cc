#include "common/io/jinja/render.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/io/jinja/repr.h"
#include "common/io/jinja/sequences.h"

namespace titan::jinja {

absl::Status Renderer::render(const Statements& statements) { return execute(statements).status(); }

absl::Status Renderer::print(std::string_view text) {
  TITAN_RETURN_IF_ERROR(run_.check_bytes(static_cast<int64_t>(out_->size() + text.size()) > (int64_t{1} << 20)
                                             ? static_cast<int64_t>(out_->size() + text.size())
                                             : static_cast<int64_t>(text.size())));
  *out_ += text;
  return absl::OkStatus();
}

absl::StatusOr<Renderer::End> Renderer::execute(const Statements& statements) {
  for (const auto& statement : statements) {
    TITAN_ASSIGN_OR_RETURN(const End end, execute(*statement));
    if (end != End::kNormal) return end;
  }
  return End::kNormal;
}

absl::StatusOr<Renderer::End> Renderer::execute(const Statement& statement) {
  TITAN_RETURN_IF_ERROR(run_.spend(1));
  TITAN_RETURN_IF_ERROR(run_.enter());
  absl::StatusOr<End> end = entered(statement);
  run_.leave();
  if (end.ok() || has_position(end.status())) return end;
  return annotate(end.status(), absl::StrCat("line ", statement.place.line, ", column ", statement.place.column));
}

absl::StatusOr<Renderer::End> Renderer::entered(const Statement& statement) {
  switch (statement.kind) {
    case StatementKind::kText:
      TITAN_RETURN_IF_ERROR(print(statement.name));
      return End::kNormal;
    case StatementKind::kOutput: {
      TITAN_ASSIGN_OR_RETURN(const Value value, evaluate(*statement.expressions[0]));
      TITAN_ASSIGN_OR_RETURN(const std::string text, to_text(run_, value));
      TITAN_RETURN_IF_ERROR(print(text));
      return End::kNormal;
    }
    case StatementKind::kIf:
      return choose(statement);
    case StatementKind::kFor:
      return loop(statement);
    case StatementKind::kSet:
      TITAN_RETURN_IF_ERROR(assign(statement));
      return End::kNormal;
    case StatementKind::kSetMember:
      TITAN_RETURN_IF_ERROR(assign_member(statement));
      return End::kNormal;
    case StatementKind::kSetBlock:
      TITAN_RETURN_IF_ERROR(assign_block(statement));
      return End::kNormal;
    case StatementKind::kMacro:
      scope_->names[statement.name] =
          std::make_shared<const Callable>(Callable{Callable::Kind::kMacro, statement.name, None(), &statement});
      return End::kNormal;
    case StatementKind::kGeneration:
      return generation(statement);
    case StatementKind::kBreak:
      return End::kBreak;
    case StatementKind::kContinue:
      return End::kContinue;
  }
  return absl::InternalError("a statement of no kind");
}

absl::StatusOr<Renderer::End> Renderer::choose(const Statement& statement) {
  size_t i = 0;
  for (; i < statement.expressions.size(); ++i) {
    TITAN_ASSIGN_OR_RETURN(const Value condition, evaluate(*statement.expressions[i]));
    if (truth(condition)) break;
  }
  return i < statement.bodies.size() ? execute(statement.bodies[i]) : End::kNormal;
}

absl::StatusOr<std::vector<Value>> Renderer::chosen_items(const Statement& statement) {
  TITAN_ASSIGN_OR_RETURN(const Value value, evaluate(*statement.expressions[0]));
  TITAN_ASSIGN_OR_RETURN(std::vector<Value> items, items_of(run_, value));
  if (statement.expressions[1] == nullptr) return items;
  std::vector<Value> chosen;
  for (Value& item : items) {
    Scope scope{scope_};
    TITAN_RETURN_IF_ERROR(bind(statement.names, item, scope));
    scope_ = &scope;
    const absl::StatusOr<Value> condition = evaluate(*statement.expressions[1]);
    scope_ = scope.outer;
    if (!condition.ok()) return condition.status();
    if (truth(*condition)) chosen.push_back(std::move(item));
  }
  return chosen;
}

absl::StatusOr<Renderer::End> Renderer::loop(const Statement& statement) {
  TITAN_ASSIGN_OR_RETURN(std::vector<Value> items, chosen_items(statement));
  if (items.empty()) {
    Scope scope{scope_};
    scope_ = &scope;
    absl::StatusOr<End> end = execute(statement.bodies[1]);
    scope_ = scope.outer;
    return end;
  }
  Loop state{.items = std::make_shared<const Sequence>(Sequence{.items = std::move(items)})};
  for (const Value& item : state.items->items) {
    const absl::StatusOr<End> end = pass(statement, item, state);
    if (!end.ok()) return end.status();
    if (*end == End::kBreak) break;
    ++state.index0;
  }
  return End::kNormal;
}

absl::StatusOr<Renderer::End> Renderer::pass(const Statement& statement, const Value& item, const Loop& loop) {
  TITAN_RETURN_IF_ERROR(run_.spend(1));
  Scope scope{scope_};
  scope.names["loop"] = &loop;
  TITAN_RETURN_IF_ERROR(bind(statement.names, item, scope));
  scope_ = &scope;
  absl::StatusOr<End> end = execute(statement.bodies[0]);
  scope_ = scope.outer;
  return end;
}

absl::Status Renderer::bind(const std::vector<std::string>& names, const Value& value, Scope& scope) {
  if (names.size() == 1) {
    scope.names[names[0]] = value;
    return absl::OkStatus();
  }
  TITAN_ASSIGN_OR_RETURN(std::vector<Value> parts, items_of(run_, value));
  if (parts.size() != names.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected ", names.size(), " values, one for each name, got ", parts.size()));
  }
  for (size_t i = 0; i < names.size(); ++i) scope.names[names[i]] = std::move(parts[i]);
  return absl::OkStatus();
}

absl::Status Renderer::assign(const Statement& statement) {
  TITAN_ASSIGN_OR_RETURN(const Value value, evaluate(*statement.expressions[0]));
  return bind(statement.names, value, *scope_);
}

absl::Status Renderer::assign_member(const Statement& statement) {
  TITAN_ASSIGN_OR_RETURN(const Value owner, name(statement.names[0]));
  const auto* space = std::get_if<Namespace*>(&owner);
  if (space == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", statement.names[0], "\" is not a namespace; only attributes of namespaces can be set"));
  }
  TITAN_ASSIGN_OR_RETURN(Value value, evaluate(*statement.expressions[0]));
  (*space)->attributes.set(statement.names[1], std::move(value));
  return absl::OkStatus();
}

absl::StatusOr<std::string> Renderer::captured(const Statements& statements) {
  std::string text;
  std::string* outer = std::exchange(out_, &text);
  const absl::Status status = execute(statements).status();
  out_ = outer;
  if (!status.ok()) return status;
  return text;
}

absl::Status Renderer::assign_block(const Statement& statement) {
  Scope scope{scope_};
  scope_ = &scope;
  absl::StatusOr<std::string> text = captured(statement.bodies[0]);
  scope_ = scope.outer;
  if (!text.ok()) return text.status();
  scope_->names[statement.names[0]] = *std::move(text);
  return absl::OkStatus();
}

absl::StatusOr<Renderer::End> Renderer::generation(const Statement& statement) {
  const size_t begin = out_->size();
  Scope scope{scope_};
  scope_ = &scope;
  absl::StatusOr<End> end = execute(statement.bodies[0]);
  scope_ = scope.outer;
  if (end.ok()) generations_.emplace_back(begin, out_->size());
  return end;
}

absl::StatusOr<Value> Renderer::macro(const Statement& macro, const Arguments& arguments) {
  TITAN_RETURN_IF_ERROR(run_.enter());
  Scope scope{&top_};
  const auto set = [&](const std::string& name, Value value) { scope.names[name] = std::move(value); };
  if (arguments.positional.size() > macro.names.size()) {
    return absl::InvalidArgumentError(absl::StrCat("the macro \"", macro.name, "\" takes at most ", macro.names.size(),
                                                   " arguments, got ", arguments.positional.size()));
  }
  for (const auto& [name, value] : arguments.keywords) {
    if (std::find(macro.names.begin(), macro.names.end(), name) == macro.names.end()) {
      return absl::InvalidArgumentError(absl::StrCat("the macro \"", macro.name, "\" has no argument \"", name, "\""));
    }
    set(name, value);
  }
  for (size_t i = 0; i < arguments.positional.size(); ++i) set(macro.names[i], arguments.positional[i]);
  Scope* caller = std::exchange(scope_, &scope);
  absl::Status status;
  for (size_t i = arguments.positional.size(); i < macro.names.size() && status.ok(); ++i) {
    if (scope.names.contains(macro.names[i])) continue;
    absl::StatusOr<Value> value = Undefined{absl::StrCat("parameter '", macro.names[i], "' was not provided")};
    if (macro.expressions[i] != nullptr) value = evaluate(*macro.expressions[i]);
    status.Update(value.status());
    if (value.ok()) set(macro.names[i], *std::move(value));
  }
  absl::StatusOr<std::string> text = std::string();
  if (status.ok()) text = captured(macro.bodies[0]);
  scope_ = caller;
  run_.leave();
  if (!status.ok()) return status;
  if (!text.ok()) return text.status();
  return *std::move(text);
}

}  // namespace titan::jinja

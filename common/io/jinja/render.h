#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/io/jinja/arguments.h"
#include "common/io/jinja/run.h"
#include "common/io/jinja/tree.h"

namespace titan::jinja {

// Renders a template once.
class Renderer {
 public:
  Renderer(Mapping variables, const RenderLimits& limits) : run_(limits), variables_(std::move(variables)) {}

  absl::Status render(const Statements& statements);

  std::string take_text() { return std::move(root_); }
  // Returns where in the text, in bytes, the output of each generation block begins and ends.
  std::vector<std::pair<size_t, size_t>> take_generations() { return std::move(generations_); }

 private:
  // Names with their values in a part of the template. Each pass of a loop, call of a macro, set block and generation
  // block has a separate scope.
  struct Scope {
    Scope* outer = nullptr;
    std::map<std::string, Value, std::less<>> names = {};
  };
  // How a part ended: normally, or by "break" or "continue" for the loop around it.
  enum class End { kNormal, kBreak, kContinue };

  absl::StatusOr<End> execute(const Statements& statements);
  absl::StatusOr<End> execute(const Statement& statement);
  absl::StatusOr<End> entered(const Statement& statement);
  absl::StatusOr<End> choose(const Statement& statement);
  absl::StatusOr<End> loop(const Statement& statement);
  absl::StatusOr<End> pass(const Statement& statement, const Value& item, const Loop& loop);
  absl::StatusOr<std::vector<Value>> chosen_items(const Statement& statement);
  absl::StatusOr<End> generation(const Statement& statement);
  absl::Status assign(const Statement& statement);
  absl::Status assign_member(const Statement& statement);
  absl::Status assign_block(const Statement& statement);
  absl::Status bind(const std::vector<std::string>& names, const Value& value, Scope& scope);
  absl::Status print(std::string_view text);
  absl::StatusOr<std::string> captured(const Statements& statements);

  absl::StatusOr<Value> evaluate(const Expression& expression);
  absl::StatusOr<Value> value_of(const Expression& expression);
  absl::StatusOr<Value> name(const std::string& name);
  absl::StatusOr<Value> literal(const Expression& expression);
  absl::StatusOr<Value> conditional(const Expression& expression);
  absl::StatusOr<Value> compared(const Expression& expression);
  absl::StatusOr<Value> concatenated(const Expression& expression);
  absl::StatusOr<Value> item(const Expression& expression);
  absl::StatusOr<Value> slice(const Expression& expression);
  absl::StatusOr<Value> filtered(const Expression& expression);
  absl::StatusOr<Value> called(const Expression& expression);
  absl::StatusOr<Value> macro(const Statement& macro, const Arguments& arguments);
  absl::StatusOr<Arguments> arguments_of(const Expression& expression);

  Run run_;
  const Mapping variables_;
  Scope top_;
  Scope* scope_ = &top_;
  std::string root_;
  std::string* out_ = &root_;
  std::vector<std::pair<size_t, size_t>> generations_;
};

}  // namespace titan::jinja

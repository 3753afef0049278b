#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/io/jinja/lexer.h"
#include "common/io/jinja/value.h"

namespace titan::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<const Expression>;

struct Expression {
  // Each kind names the fields that it uses.
  enum class Kind {
    kConstant,     // value
    kName,         // name
    kList,         // children
    kTuple,        // children
    kDict,         // children: key, value, key, ...
    kConditional,  // children: condition, then, otherwise (or null)
    kOr,           // children: two
    kAnd,
    kNot,      // children: one
    kCompare,  // children, with operators between them
    kBinary,   // children: two; name: "+", "-", "*", "/", "//", "%", "**"
    kConcat,   // children
    kNegative,
    kPositive,
    kFilter,     // children: the value, arguments; keywords; name
    kTest,       // the same
    kCall,       // children: the callee, arguments; keywords
    kAttribute,  // children: one; name
    kItem,       // children: the value, the key
    kSlice,      // children: the value, begin, end, step; each of these may be null
  };
  Kind kind = Kind::kConstant;
  SourceLocation place;
  std::string name = {};
  Value value = None();
  std::vector<ExpressionPtr> children = {};
  std::vector<std::pair<std::string, ExpressionPtr>> keywords = {};
  std::vector<std::string> operators = {};
  int depth = 1;
};

using ExpressionKind = Expression::Kind;

struct Statement;
using Statements = std::vector<std::unique_ptr<const Statement>>;

struct Statement {
  // Each kind names the fields that it uses.
  enum class Kind {
    kText,        // name: the text
    kOutput,      // expressions[0]
    kIf,          // expressions: the conditions; bodies: one for each, and one more for "else"
    kFor,         // names: the targets; expressions: the iterable, and the condition (or null); bodies: each, "else"
    kSet,         // names, one or more; expressions[0]
    kSetMember,   // names[0].names[1] of a namespace; expressions[0]
    kSetBlock,    // names[0]; bodies[0]
    kMacro,       // name; names: its parameters; expressions: their defaults (or null); bodies[0]
    kGeneration,  // bodies[0]
    kBreak,
    kContinue,
  };
  Kind kind = Kind::kText;
  SourceLocation place;
  std::string name = {};
  std::vector<std::string> names = {};
  std::vector<ExpressionPtr> expressions = {};
  std::vector<Statements> bodies = {};
};

using StatementKind = Statement::Kind;

}  // namespace titan::jinja

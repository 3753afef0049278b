#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace titan::jinja {

struct Sequence;
struct Mapping;
struct Namespace;
struct Callable;
struct Loop;

// A missing value, with the reason for code that needs a value: "'tools' is undefined".
struct Undefined {
  std::string why;
};

struct None {};

// A value of a template, with the meaning that Python gives it. Sequences, mappings and texts are immutable. Namespaces
// and the state of loops change: they belong to the rendering and outlive every value that refers to them.
using Value = std::variant<Undefined, None, bool, int64_t, double, std::string, std::shared_ptr<const Sequence>,
                           std::shared_ptr<const Mapping>, std::shared_ptr<const Callable>, Namespace*, const Loop*>;

// Nesting depth and approximate size of a value. A part counts as often as it occurs.
struct Extent {
  int depth = 0;
  int64_t weight = 1;
};

using Result = absl::StatusOr<Value>;

struct Sequence {
  // A generator, as filters like "select" return, is true even when empty, has no length and can be read once.
  enum class Kind { kList, kTuple, kRange, kView, kGenerator };
  Kind kind = Kind::kList;
  std::vector<Value> items;
  mutable bool read = false;  // For a generator: whether it was read.
  Extent extent = {};         // Computed by list().
};

struct Mapping {
  std::vector<std::pair<Value, Value>> entries;  // In insertion order, each key once.
  Extent extent = {};                            // Computed by mapping().

  const Value* find(const Value& key) const;
  void set(Value key, Value value);
};

struct Namespace {
  Mapping attributes;
};

// A function, a macro, or a method of a value.
struct Callable {
  enum class Kind { kFunction, kMethod, kMacro };
  Kind kind = Kind::kFunction;
  std::string name;
  Value self;                   // For a method, the object.
  const void* macro = nullptr;  // The statement that defines the macro.
};

// The variable "loop" of a for statement.
struct Loop {
  std::shared_ptr<const Sequence> items;
  int64_t index0 = 0;
  mutable std::vector<Value> last_seen;  // Arguments of the latest loop.changed.
  mutable bool seen = false;
};

// Make a value and compute its extent.
Value list(std::vector<Value> items, Sequence::Kind kind = Sequence::Kind::kList);
Value mapping(Mapping entries);
Extent extent_of(const Value& value);

template <typename T>
const T* get_if(const Value& value) {
  return std::get_if<T>(&value);
}
const Sequence* as_sequence(const Value& value);
const Mapping* as_mapping(const Value& value);
inline const std::string* as_text(const Value& value) { return std::get_if<std::string>(&value); }
inline bool is_undefined(const Value& value) { return std::holds_alternative<Undefined>(value); }
inline bool is_none(const Value& value) { return std::holds_alternative<None>(value); }

// Returns Python's name of the type: "str", "list" and so on.
std::string type_name(const Value& value);
// Returns an integer; True and False count as integers. Nothing for other values.
std::optional<int64_t> as_integer(const Value& value);
// Returns any number. Nothing for other values.
std::optional<double> as_number(const Value& value);

bool truth(const Value& value);
// Returns whether Python accepts the value as a key.
bool is_hashable(const Value& value);
bool equal(const Value& one, const Value& other);
// Returns a number below, equal to or above zero. Errors: InvalidArgument for values that Python does not order.
absl::StatusOr<int> compare(const Value& one, const Value& other);

// Converts JSON. Errors: InvalidArgument beyond kMaxJsonDepth levels, or for a number beyond 64 bits.
inline constexpr int kMaxJsonDepth = 64;
absl::StatusOr<Value> from_json(const nlohmann::ordered_json& json, int depth = 0);

}  // namespace titan::jinja

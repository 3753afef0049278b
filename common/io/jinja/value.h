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

// What has no value, and why, for who needs one: "'tools' is undefined".
struct Undefined {
  std::string why;
};

struct None {};

// A value of a template, with the meaning that Python gives it. Sequences, mappings and texts do not change; what does,
// a namespace and the state of a loop, belongs to the rendering and outlives every value of it.
using Value = std::variant<Undefined, None, bool, int64_t, double, std::string, std::shared_ptr<const Sequence>,
                           std::shared_ptr<const Mapping>, std::shared_ptr<const Callable>, Namespace*, const Loop*>;

// How deep a value is, and about how much: every part of it as often as it is there.
struct Extent {
  int depth = 0;
  int64_t weight = 1;
};

using Result = absl::StatusOr<Value>;

struct Sequence {
  // A generator, as filters like "select" give, is true though empty, has no length and is read once.
  enum class Kind { kList, kTuple, kRange, kView, kGenerator };
  Kind kind = Kind::kList;
  std::vector<Value> items;
  mutable bool read = false;  // Of a generator.
  Extent extent = {};         // list() finds it out.
};

struct Mapping {
  std::vector<std::pair<Value, Value>> entries;  // In their order, each key once.
  Extent extent = {};                            // mapping() finds it out.

  const Value* find(const Value& key) const;
  void set(Value key, Value value);
};

struct Namespace {
  Mapping attributes;
};

// What can be called: a function or macro, or a method of a value.
struct Callable {
  enum class Kind { kFunction, kMethod, kMacro };
  Kind kind = Kind::kFunction;
  std::string name;
  Value self;                   // Of a method.
  const void* macro = nullptr;  // The statement that defines it.
};

// The variable "loop" of a for statement.
struct Loop {
  std::shared_ptr<const Sequence> items;
  int64_t index0 = 0;
  mutable std::vector<Value> last_seen;  // Of loop.changed.
  mutable bool seen = false;
};

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

// "str", "list" and so on, as Python calls it.
std::string type_name(const Value& value);
// A whole number, which True and False are, too.
std::optional<int64_t> as_whole(const Value& value);
// Any number.
std::optional<double> as_number(const Value& value);

bool truth(const Value& value);
// Whether Python takes it for a key.
bool is_hashable(const Value& value);
bool equal(const Value& one, const Value& other);
// Below, equal or above zero. InvalidArgument for what Python does not order.
absl::StatusOr<int> compare(const Value& one, const Value& other);

// Of JSON. InvalidArgument beyond kDeepestJson, or for a number beyond 64 bits.
inline constexpr int kDeepestJson = 64;
absl::StatusOr<Value> from_json(const nlohmann::ordered_json& json, int depth = 0);

}  // namespace titan::jinja

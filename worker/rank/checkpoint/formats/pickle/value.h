#pragma once

// What a pickle holds, as plain data: nothing in it is ever imported, called or built.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace titan::pickle {

using Id = uint32_t;  // Of a value; 0 is None.

struct Value {
  enum class Kind : uint8_t {
    kNone,
    kBool,
    kInt,
    kFloat,
    kText,
    kBytes,
    kTuple,
    kList,
    kDict,
    kClass,       // A known name, "module.name".
    kObject,      // What a class or function would give for some arguments.
    kPersistent,  // A reference to what lies beside the pickle.
  };
  Kind kind = Kind::kNone;
  int64_t integer = 0;    // kBool, kInt.
  double real = 0;        // kFloat.
  std::string_view text;  // kText, kBytes, kClass.
  // kTuple, kList: what they hold. kDict: keys and values by turns. kObject: class, arguments, and its state where it
  // has one. kPersistent: its name.
  std::vector<Id> items;
};

// A whole pickle. Values may be shared, and hold themselves: whoever walks through them has to know how deep to go.
class Document {
 public:
  const Value& root() const { return values_[root_]; }
  const Value& at(Id id) const { return values_[id]; }
  size_t size() const { return values_.size(); }

  // An entry of a dict, or of an object's state, by its name; null where there is none.
  const Value* find(const Value& of, std::string_view name) const;
  // "module.name" of a class or of an object's class; empty for anything else.
  std::string_view class_of(const Value& value) const;

 private:
  friend class Machine;
  std::unique_ptr<const std::string> bytes_;  // Texts are views of it.
  std::vector<Value> values_;
  Id root_ = 0;
};

const char* name(Value::Kind kind);  // "a dict", for messages.

}  // namespace titan::pickle

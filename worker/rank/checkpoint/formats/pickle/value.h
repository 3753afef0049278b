#pragma once

// The content of a pickle as plain data: nothing in it is ever imported, called or built.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace titan::pickle {

using Id = uint32_t;  // Identifies a value of a ParsedPickle; 0 is None.

// One value of a pickle.
struct PickleValue {
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
    kObject,      // The call of a class or function with arguments, not executed.
    kPersistent,  // A reference to something outside of the pickle.
  };
  Kind kind = Kind::kNone;
  int64_t integer = 0;    // For kBool and kInt.
  double real = 0;        // For kFloat.
  std::string_view text;  // For kText, kBytes and kClass.
  // kTuple, kList: the items. kDict: keys and values, alternating. kObject: class, arguments, and its state if it has
  // one. kPersistent: its name.
  std::vector<Id> items;
};

// A whole pickle. Values may be shared, and may contain themselves: code that walks through them has to limit its
// depth.
class ParsedPickle {
 public:
  const PickleValue& root() const { return values_[root_]; }
  const PickleValue& at(Id id) const { return values_[id]; }
  size_t size() const { return values_.size(); }

  // Returns an entry of a dict, or of an object's state, by its name; null if there is none.
  const PickleValue* find(const PickleValue& of, std::string_view name) const;
  // Returns "module.name" of a class or of an object's class; empty for anything else.
  std::string_view class_of(const PickleValue& value) const;

 private:
  friend class Unpickler;
  std::unique_ptr<const std::string> bytes_;  // Texts are views of it.
  std::vector<PickleValue> values_;
  Id root_ = 0;
};

const char* name(PickleValue::Kind kind);  // Returns the name for messages: "a dict".

}  // namespace titan::pickle

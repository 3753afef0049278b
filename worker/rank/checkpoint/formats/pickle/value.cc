#include "worker/rank/checkpoint/formats/pickle/value.h"

namespace titan::pickle {
namespace {

constexpr size_t kState = 2;  // Index of the state in an object's items.

}  // namespace

const Value* Document::find(const Value& of, std::string_view name) const {
  const Value* dict = &of;
  if (of.kind == Value::Kind::kObject && of.items.size() > kState) dict = &at(of.items[kState]);
  if (dict->kind != Value::Kind::kDict) return nullptr;
  for (size_t i = 0; i + 1 < dict->items.size(); i += 2) {
    const Value& key = at(dict->items[i]);
    if (key.kind == Value::Kind::kText && key.text == name) return &at(dict->items[i + 1]);
  }
  return nullptr;
}

std::string_view Document::class_of(const Value& value) const {
  if (value.kind == Value::Kind::kClass) return value.text;
  return value.kind == Value::Kind::kObject ? at(value.items[0]).text : std::string_view{};
}

const char* name(Value::Kind kind) {
  switch (kind) {
    case Value::Kind::kNone:
      return "None";
    case Value::Kind::kBool:
      return "a bool";
    case Value::Kind::kInt:
      return "an integer";
    case Value::Kind::kFloat:
      return "a float";
    case Value::Kind::kText:
      return "a text";
    case Value::Kind::kBytes:
      return "bytes";
    case Value::Kind::kTuple:
      return "a tuple";
    case Value::Kind::kList:
      return "a list";
    case Value::Kind::kDict:
      return "a dict";
    case Value::Kind::kClass:
      return "a class";
    case Value::Kind::kObject:
      return "an object";
    case Value::Kind::kPersistent:
      return "a reference";
  }
  return "unknown";
}

}  // namespace titan::pickle

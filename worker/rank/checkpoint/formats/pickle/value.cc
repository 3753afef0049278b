#include "worker/rank/checkpoint/formats/pickle/value.h"

namespace titan::pickle {
namespace {

constexpr size_t kState = 2;  // Index of the state in an object's items.

}  // namespace

const PickleValue* ParsedPickle::find(const PickleValue& of, std::string_view name) const {
  const PickleValue* dict = &of;
  if (of.kind == PickleValue::Kind::kObject && of.items.size() > kState) dict = &at(of.items[kState]);
  if (dict->kind != PickleValue::Kind::kDict) return nullptr;
  for (size_t i = 0; i + 1 < dict->items.size(); i += 2) {
    const PickleValue& key = at(dict->items[i]);
    if (key.kind == PickleValue::Kind::kText && key.text == name) return &at(dict->items[i + 1]);
  }
  return nullptr;
}

std::string_view ParsedPickle::class_of(const PickleValue& value) const {
  if (value.kind == PickleValue::Kind::kClass) return value.text;
  return value.kind == PickleValue::Kind::kObject ? at(value.items[0]).text : std::string_view{};
}

const char* name(PickleValue::Kind kind) {
  switch (kind) {
    case PickleValue::Kind::kNone:
      return "None";
    case PickleValue::Kind::kBool:
      return "a bool";
    case PickleValue::Kind::kInt:
      return "an integer";
    case PickleValue::Kind::kFloat:
      return "a float";
    case PickleValue::Kind::kText:
      return "a text";
    case PickleValue::Kind::kBytes:
      return "bytes";
    case PickleValue::Kind::kTuple:
      return "a tuple";
    case PickleValue::Kind::kList:
      return "a list";
    case PickleValue::Kind::kDict:
      return "a dict";
    case PickleValue::Kind::kClass:
      return "a class";
    case PickleValue::Kind::kObject:
      return "an object";
    case PickleValue::Kind::kPersistent:
      return "a reference";
  }
  return "unknown";
}

}  // namespace titan::pickle

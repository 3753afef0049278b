#pragma once

#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "common/io/jinja/run.h"
#include "common/io/jinja/value.h"

namespace titan::jinja {

// Returns what a loop over the value visits: items, keys or characters; nothing for an undefined value. Errors:
// InvalidArgument for a value without items, and for a generator that was read before.
absl::StatusOr<std::vector<Value>> items_of(Run& run, const Value& value);
// Returns len(). Errors: InvalidArgument for a value without a length.
absl::StatusOr<int64_t> length_of(const Value& value);
// Evaluates `key in value`.
absl::StatusOr<bool> contains(Run& run, const Value& value, const Value& key);

// Returns value[key], or nothing when there is no such item.
std::optional<Value> item_of(const Value& value, const Value& key);
// Returns value[begin:end:step]; None leaves a part out.
absl::StatusOr<Value> slice_of(Run& run, const Value& value, const Value& begin, const Value& end, const Value& step);

// Returns value.name of a mapping, a namespace or a loop, or a method; Undefined when there is none.
absl::StatusOr<Value> attribute_of(Run& run, const Value& value, const std::string& name);
// Does the same for a path in the form that filters accept: "function.name", "0.role".
absl::StatusOr<Value> attribute_at(Run& run, const Value& value, const Value& path);

}  // namespace titan::jinja

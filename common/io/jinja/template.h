#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/io/jinja/run.h"
#include "common/io/jinja/value.h"

namespace titan::jinja {

struct Rendered {
  std::string text;
  std::vector<std::pair<size_t, size_t>> generations;  // Bytes that generation blocks say.
};

// A chat template: the part of Jinja that released ones are written in, with the meaning that `transformers` gives it
// (blocks trimmed, "generation" blocks, raise_exception, tojson). A template comes with a tokenizer from outside, so
// what it takes is bounded.
class Template {
 public:
  // Errors: InvalidArgument, "line 3, column 7: the filter "pprint" is not supported".
  static absl::StatusOr<Template> parse(std::string_view text);
  ~Template();
  Template(Template&&) noexcept;
  Template& operator=(Template&&) noexcept;

  // With these names. Errors: InvalidArgument for what the template refuses, or cannot do with these values;
  // ResourceExhausted beyond the limits. Names line and column.
  absl::StatusOr<Rendered> render(const Mapping& variables, const Limits& limits = {}) const;

  bool has_generations() const;  // Whether it says which parts of a text the model is to say.

 private:
  struct Parts;
  explicit Template(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace titan::jinja

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
  std::vector<std::pair<size_t, size_t>> generations;  // Begin and end, in bytes, of each generation block's output.
};

// A chat template, in the part of Jinja that released ones use, with the meaning that `transformers` gives it (blocks
// trimmed, "generation" blocks, raise_exception, tojson). A template comes with a tokenizer from outside, so its use of
// resources is bounded.
class Template {
 public:
  // Parses a template. Errors: InvalidArgument, such as "line 3, column 7: the filter "pprint" is not supported".
  static absl::StatusOr<Template> parse(std::string_view text);
  ~Template();
  Template(Template&&) noexcept;
  Template& operator=(Template&&) noexcept;

  // Renders with these variables. Errors: InvalidArgument when the template raises an error or cannot handle these
  // values; ResourceExhausted beyond the limits. Errors name line and column.
  absl::StatusOr<Rendered> render(const Mapping& variables, const RenderLimits& limits = {}) const;

  bool has_generations() const;  // Whether the template has generation blocks.

 private:
  struct Parts;
  explicit Template(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace titan::jinja

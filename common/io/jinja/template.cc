#include "common/io/jinja/template.h"

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/io/jinja/parser.h"
#include "common/io/jinja/render.h"

namespace titan::jinja {

struct Template::Parts {
  Parsed parsed;
};

Template::Template(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
Template::~Template() = default;
Template::Template(Template&&) noexcept = default;
Template& Template::operator=(Template&&) noexcept = default;

absl::StatusOr<Template> Template::parse(std::string_view text) {
  constexpr size_t kMaxLength = size_t{1} << 20;
  if (text.size() > kMaxLength) {
    return absl::InvalidArgumentError(absl::StrCat("the template is longer than ", kMaxLength, " bytes"));
  }
  TITAN_ASSIGN_OR_RETURN(Parsed parsed, jinja::parse(text));
  return Template(std::make_unique<Parts>(Parts{std::move(parsed)}));
}

absl::StatusOr<Rendered> Template::render(const Mapping& variables, const RenderLimits& limits) const {
  Renderer renderer(variables, limits);
  TITAN_RETURN_IF_ERROR(renderer.render(parts_->parsed.statements));
  return Rendered{renderer.take_text(), renderer.take_generations()};
}

bool Template::has_generations() const { return parts_->parsed.generations; }

}  // namespace titan::jinja

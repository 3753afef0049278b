// Chat templates, and conversations that they render.

#include <string>

#include "common/io/data_files/json_row.h"
#include "common/io/jinja/template.h"
#include "tests/fuzz/parts.h"
#include "tests/fuzz/target.h"

namespace titan::fuzz {

// The input is a template and a row.
TITAN_FUZZ(chat_template, 300) {
  constexpr jinja::RenderLimits kLimits{.steps = 100'000, .bytes = 1 << 20};
  Parts parts(bytes);
  const auto parsed = jinja::Template::parse(parts.next());
  require(parsed.ok() || parsed.status().message().find("line ") == 0 || absl::IsInvalidArgument(parsed.status()),
          "a refusal names its place");
  const auto row = data_files::parse_conversation(parts.rest(), "messages");
  if (!parsed.ok()) return;
  jinja::Mapping variables;
  if (row.ok()) {
    variables = row->variables;
    variables.set(std::string("messages"), jinja::list(row->messages));
    variables.set(std::string("tools"), row->tools);
  }
  const auto rendered = parsed->render(variables, kLimits);
  if (!rendered.ok()) return;
  require(rendered->text.size() <= static_cast<size_t>(kLimits.bytes), "a text within its limits");
  size_t at = 0;
  for (const auto& [begin, end] : rendered->generations) {
    require(at <= begin && begin <= end && end <= rendered->text.size(), "generations in order, inside of the text");
    at = end;
  }
}

}  // namespace titan::fuzz

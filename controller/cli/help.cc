#include "controller/cli/help.h"

#include "absl/strings/str_cat.h"

namespace titan::cli {
namespace {

constexpr char kExitCodes[] =
    "Exit codes: 0 done, 1 failed or refused, 2 usage or bad configuration, 3 not found, 4 timeout, 5 no controller,\n"
    "            130 interrupted, 141 the output's reader is gone.\n"
    "With -o json and yaml several jobs or nodes are one list, and an error is a JSON object on stderr.\n"
    "TITAN_CONTROLLER names the controller, TITAN_PROJECT the project of jobs that are named without one; NO_COLOR "
    "and\n"
    "TERM=dumb turn colours off.\n";

const CLI::App& root_of(const CLI::App& app) {
  const CLI::App* at = &app;
  while (at->get_parent() != nullptr) at = at->get_parent();
  return *at;
}

}  // namespace

std::string Help::make_description(const CLI::App* app) const {
  std::string out = app->get_description() + "\n";
  if (app->get_footer().empty()) return out;
  absl::StrAppend(&out, "\nExamples:\n");
  for (const auto& line : CLI::detail::split(app->get_footer(), '\n')) absl::StrAppend(&out, "  ", line, "\n");
  return out + "\n";
}

std::string Help::make_footer(const CLI::App* app) const {
  if (app->get_parent() == nullptr) return kExitCodes;
  std::string out = "\nFlags of every verb:\n";
  for (const CLI::Option* option : root_of(*app).get_options()) {
    if (option->nonpositional() && option->get_group() == "Options" && option != root_of(*app).get_help_ptr())
      absl::StrAppend(&out, make_option(option, /*is_positional=*/false));
  }
  return out;
}

CLI::App* find_verb(CLI::App& root, const std::vector<std::string>& words, std::string& unknown) {
  CLI::App* app = &root;
  for (const std::string& word : words) {
    const auto subs = app->get_subcommands([&word](CLI::App* sub) { return sub->get_name() == word; });
    if (subs.empty()) {
      unknown = word;
      return nullptr;
    }
    app = subs.front();
  }
  return app;
}

std::vector<std::string> verbs_of(const CLI::App& app) {
  std::vector<std::string> out;
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) out.push_back(sub->get_name());
  return out;
}

}  // namespace titan::cli

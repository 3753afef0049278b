#include "controller/cli/completion.h"

#include <algorithm>

#include "CLI/App.hpp"
#include "CLI/Config.hpp"
#include "CLI/Formatter.hpp"
#include "absl/strings/str_cat.h"
#include "common/plan/config/job_config.h"
#include "common/plan/config/json.h"
#include "controller/cli/completion_values.h"
#include "controller/cli/verbs.h"
#include "nlohmann/json.hpp"

namespace titan::cli {
namespace {

constexpr char kBash[] = R"(# titanctl completion for bash: source <(titanctl completion bash)
_titanctl() {
  local IFS=$'\n'
  COMPREPLY=($(titanctl __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -o nosort -F _titanctl titanctl
)";

constexpr char kZsh[] = R"(#compdef titanctl
# titanctl completion for zsh: source <(titanctl completion zsh)
_titanctl() {
  local -a candidates
  candidates=("${(@f)$(titanctl __complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
  if [[ -n "${candidates[1]}" ]]; then compadd -- "${candidates[@]}"; else _files; fi
}
compdef _titanctl titanctl
)";

constexpr char kFish[] = R"(# titanctl completion for fish: titanctl completion fish | source
function __titanctl_complete
  set -l words (commandline -opc)
  titanctl __complete $words[2..-1] (commandline -ct) 2>/dev/null
end
complete -c titanctl -a '(__titanctl_complete)'
)";

void append_keys(const nlohmann::json& value, const std::string& prefix, std::vector<std::string>& out) {
  for (const auto& [key, member] : value.items()) {
    const std::string name = absl::StrCat(prefix, prefix == "--" ? "" : ".", key);
    if (member.is_object()) {
      append_keys(member, name, out);
    } else {
      out.push_back(name);
    }
  }
}

std::vector<std::string> options_of(const CLI::App* app) {
  std::vector<std::string> out;
  for (; app != nullptr; app = app->get_parent()) {
    for (const CLI::Option* option : app->get_options()) {
      for (const std::string& name : option->get_lnames()) out.push_back("--" + name);
    }
  }
  return out;
}

// Returns whether a word is an option of the verb, or of one of its parents, that takes a value.
bool takes_value(const CLI::App* app, const std::string& word) {
  for (; app != nullptr; app = app->get_parent()) {
    const CLI::Option* option = word.rfind('-', 0) == 0 ? app->get_option_no_throw(word) : nullptr;
    if (option != nullptr) return option->get_items_expected_max() > 0;
  }
  return false;
}

// Returns the verb of the command line that is being typed. Values of options are not verbs.
const CLI::App* verb_of(const CLI::App& root, const std::vector<std::string>& words) {
  const CLI::App* app = &root;
  for (size_t i = 0; i + 1 < words.size(); ++i) {
    if (words[i].rfind('-', 0) == 0) {
      if (takes_value(app, words[i])) ++i;
      continue;
    }
    const auto subs = app->get_subcommands([&](const CLI::App* sub) { return sub->get_name() == words[i]; });
    if (!subs.empty()) app = subs.front();
  }
  return app;
}

// Completes the last item of a value that is a list: "running,que".
void complete_items(const std::string& typed, std::vector<std::string>& candidates) {
  const size_t comma = typed.rfind(',');
  if (comma == std::string::npos) return;
  for (std::string& candidate : candidates) candidate = typed.substr(0, comma + 1) + candidate;
}

std::vector<std::string> verbs_under(const CLI::App& app) {
  std::vector<std::string> verbs;
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (!sub->get_group().empty()) verbs.push_back(sub->get_name());
  }
  return verbs;
}

// Returns, for `help`, the verbs below the ones already typed.
std::vector<std::string> topics(const CLI::App& root, const std::vector<std::string>& words) {
  const CLI::App* app = &root;
  for (size_t i = 1; i + 1 < words.size() && app != nullptr; ++i) {
    const auto subs = app->get_subcommands([&](const CLI::App* sub) { return sub->get_name() == words[i]; });
    app = subs.empty() ? nullptr : subs.front();
  }
  return app == nullptr ? std::vector<std::string>() : verbs_under(*app);
}

std::vector<std::string> flags_of(const CLI::App* app) {
  std::vector<std::string> candidates = options_of(app);
  if (takes_configuration_keys(*app)) {
    std::erase(candidates, kAnyKey);
    append_keys(config::to_json(config::JobConfig{}), "--", candidates);
  }
  return candidates;
}

// Leaves out names that were already given.
std::vector<std::string> further_arguments(const CLI::App& app, const std::vector<std::string>& words,
                                           const Globals& globals) {
  std::vector<std::string> candidates = arguments_of(app, globals);
  std::erase_if(candidates, [&](const std::string& candidate) {
    return std::find(words.begin(), words.end() - 1, candidate) != words.end() - 1;
  });
  return candidates;
}

}  // namespace

absl::StatusOr<std::string> completion_script(const std::string& shell) {
  if (shell == "bash") return std::string(kBash);
  if (shell == "zsh") return std::string(kZsh);
  if (shell == "fish") return std::string(kFish);
  return absl::InvalidArgumentError("no completion for '" + shell + "': bash, zsh and fish have one");
}

std::vector<std::string> complete(const CLI::App& root, const std::vector<std::string>& words, const Globals& globals) {
  if (words.empty()) return verbs_under(root);
  const std::string& typed = words.back();
  const std::string before = words.size() > 1 ? words[words.size() - 2] : "";
  const CLI::App* app = verb_of(root, words);
  std::vector<std::string> candidates;
  if (words.front() == "help") {
    candidates = topics(root, words);
  } else if (takes_value(app, before)) {
    candidates = values_of_option(*app, before, globals);
    complete_items(typed, candidates);
  } else if (typed.rfind('-', 0) == 0 && typed.find('=') != std::string::npos) {
    const std::string option = typed.substr(0, typed.find('='));
    candidates = values_of_option(*app, option, globals);
    for (std::string& candidate : candidates) candidate = absl::StrCat(option, "=", candidate);
  } else if (typed.rfind('-', 0) == 0) {
    candidates = flags_of(app);
  } else {
    candidates = verbs_under(*app);
    if (candidates.empty()) candidates = further_arguments(*app, words, globals);
  }
  std::erase_if(candidates, [&](const std::string& candidate) { return candidate.rfind(typed, 0) != 0; });
  return candidates;
}

}  // namespace titan::cli

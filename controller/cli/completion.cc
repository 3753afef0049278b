#include "controller/cli/completion.h"

#include <algorithm>

#include "CLI/App.hpp"
#include "CLI/Config.hpp"
#include "CLI/Formatter.hpp"
#include "absl/strings/str_cat.h"
#include "common/config/job_config.h"
#include "common/config/json.h"
#include "controller/cli/client.h"
#include "nlohmann/json.hpp"

namespace titan::cli {
namespace {

constexpr absl::Duration kPatience = absl::Milliseconds(500);

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

// What a positional named like this stands for, from the controller.
std::vector<std::string> names_for(const CLI::App& app, const Globals& globals) {
  std::vector<std::string> out;
  Client client(globals.controller, kPatience, globals.access);
  for (const CLI::Option* option : app.get_options()) {
    if (!option->get_positional()) continue;
    if (option->get_name().rfind("job", 0) == 0) {
      v1::ListJobsRequest request;
      request.set_page_size(1000);
      if (const auto page = client.list_jobs(request); page.ok()) {
        for (const v1::Job& job : page->jobs()) out.push_back(short_name(job.name()));
      }
    } else if (option->get_name().rfind("node", 0) == 0) {
      if (const auto page = client.list_nodes({}); page.ok()) {
        for (const v1::Node& node : page->nodes()) out.push_back(node.name().substr(node.name().rfind('/') + 1));
      }
    }
  }
  return out;
}

}  // namespace

absl::StatusOr<std::string> completion_script(const std::string& shell) {
  if (shell == "bash") return std::string(kBash);
  if (shell == "zsh") return std::string(kZsh);
  if (shell == "fish") return std::string(kFish);
  return absl::InvalidArgumentError("no completion for '" + shell + "': bash, zsh and fish have one");
}

std::vector<std::string> complete(const CLI::App& root, const std::vector<std::string>& words, const Globals& globals) {
  const CLI::App* app = &root;
  const std::string typed = words.empty() ? "" : words.back();
  for (size_t i = 0; i + 1 < words.size(); ++i) {
    const auto subs = app->get_subcommands([&](const CLI::App* sub) { return sub->get_name() == words[i]; });
    if (!subs.empty()) app = subs.front();
  }
  std::vector<std::string> candidates;
  if (typed.rfind('-', 0) == 0) {
    candidates = options_of(app);
    const bool takes_keys = app->get_name() == "submit" || app->get_name() == "resubmit" || app->get_name() == "run" ||
                            app->get_name() == "validate" || app->get_name() == "dump" || app->get_name() == "show";
    if (takes_keys) append_keys(config::to_json(config::JobConfig{}), "--", candidates);
  } else {
    for (const CLI::App* sub : app->get_subcommands([](const CLI::App*) { return true; })) {
      if (!sub->get_group().empty()) candidates.push_back(sub->get_name());
    }
    if (candidates.empty()) candidates = names_for(*app, globals);
  }
  std::erase_if(candidates, [&](const std::string& candidate) { return candidate.rfind(typed, 0) != 0; });
  return candidates;
}

}  // namespace titan::cli

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/base/text/id.h"
#include "common/base/text/nearest.h"
#include "common/base/version/version.h"
#include "common/service/rpc/address.h"
#include "controller/cli/arguments.h"
#include "controller/cli/completion.h"
#include "controller/cli/help.h"
#include "controller/cli/job_names.h"
#include "controller/cli/terminal.h"
#include "controller/cli/verbs.h"

namespace titan::cli {
namespace {

constexpr char kRootExamples[] =
    "titanctl run configs/llama3_tiny.toml --nproc 2     # one machine, no cluster\n"
    "titanctl submit configs/llama3_tiny.toml --wait     # to the controller\n"
    "titanctl logs -f JOB\n"
    "titanctl describe JOB";

class Program {
 public:
  explicit Program(CommandLine arguments)
      : arguments_(std::move(arguments)), app_("Titan's command line: jobs and nodes.", "titanctl") {
    choice_.overrides = arguments_.overrides;
    if (const char* address = std::getenv("TITAN_CONTROLLER"); address != nullptr && *address != '\0') {
      choice_.globals.controller = address;
    }
    if (const char* project = std::getenv("TITAN_PROJECT"); project != nullptr) set_project(project);
    read_security();
    app_.formatter(std::make_shared<Help>());
    app_.footer(kRootExamples);
    app_.allow_extras();
    app_.require_subcommand(0, 1);  // Later words are arguments, even when spelled like a verb.
    app_.add_option("--controller", choice_.globals.controller,
                    "HOST:PORT of the controller, or of several, separated by commas: the leader is used")
        ->capture_default_str();
    app_.add_option("--tls", choice_.globals.access.security.folder,
                    "Folder with ca.crt, and your tls.crt and tls.key: connect with TLS (TITAN_TLS)");
    app_.add_option("--tls-ca", choice_.globals.access.security.ca,
                    "Certificate of the authority that signed the controller's: connect with TLS (TITAN_TLS_CA)");
    app_.add_option("--tls-cert", choice_.globals.access.security.cert, "Your certificate (TITAN_TLS_CERT)");
    app_.add_option("--tls-key", choice_.globals.access.security.key, "Its private key (TITAN_TLS_KEY)");
    app_.add_option("--token-file", choice_.globals.access.token_file,
                    "File with a token, which nobody else can read (TITAN_TOKEN_FILE)");
    app_.add_flag("--insecure", choice_.globals.access.security.insecure,
                  "Connect without TLS even to a controller on another machine");
    app_.add_option("-o,--output", output_, "table, wide, json or yaml; wide: a table with more columns")
        ->capture_default_str();
    app_.add_flag("--utc", utc_, "Show times in UTC instead of local time");
    app_.set_version_flag("--version", version_text("titanctl", arguments_.words), kVersionHelp);
    app_.add_option("--timeout", timeout_,
                    "Seconds for one call (10); for `wait` and `submit --wait` for the whole wait; for `profile` how "
                    "long a rank may stall (120)");
    CLI::App* job = app_.add_subcommand("job", "Verbs of jobs; they also work without `job`")->group("Groups");
    job->fallthrough()->allow_extras()->require_subcommand(0, 1)->footer("");
    add_job_verbs(*job, choice_, "Verbs");
    CLI::App* node = app_.add_subcommand("node", "Verbs of nodes")->group("Groups");
    node->fallthrough()->allow_extras()->require_subcommand(0, 1)->footer("");
    add_node_verbs(*node, choice_);
    CLI::App* cluster =
        app_.add_subcommand("cluster",
                            "The cluster as a whole: which one, backup, restore, certificates, support bundle")
            ->group("Groups");
    cluster->fallthrough()->allow_extras()->footer("");
    add_cluster_verbs(*cluster, choice_);
    add_certificate_verbs(*cluster, choice_);
    CLI::App* auth = app_.add_subcommand("auth", "Who may do what")->group("Groups");
    auth->fallthrough()->allow_extras()->require_subcommand(0, 1)->footer("");
    CLI::App* token = auth->add_subcommand("token", "Tokens, with which users of other machines prove who they are");
    token->fallthrough()->allow_extras()->require_subcommand(0, 1)->footer("");
    add_token_verbs(*token, choice_);
    add_flat_aliases();
    add_other_verbs(app_, choice_);
    CLI::App& help = add_verb(app_, choice_, "help", "The flags of a verb, or all verbs",
                              "titanctl help submit\ntitanctl help node drain", [] { return kExitOk; });
    help.add_option("verb", "Verb");
    help.group("Other");
  }

  int run() {
    choose_error_form();
    const int code = act();
    const int error = output_error();
    if (error == 0) return code;
    if (error == EPIPE) return code == kExitOk ? kExitPipeClosed : code;  // Its reader has seen enough.
    report(errno_status(error, "cannot write the output"));
    return code == kExitOk ? kExitFailed : code;
  }

 private:
  // Reads defaults that flags override.
  void read_security() {
    rpc::Security& security = choice_.globals.access.security;
    for (const auto& [name, value] : {std::pair("TITAN_TOKEN_FILE", &choice_.globals.access.token_file),
                                      {"TITAN_TLS", &security.folder},
                                      {"TITAN_TLS_CA", &security.ca},
                                      {"TITAN_TLS_CERT", &security.cert},
                                      {"TITAN_TLS_KEY", &security.key}}) {
      if (const char* set = std::getenv(name); set != nullptr) *value = set;
    }
    const char* insecure = std::getenv("TITAN_INSECURE");
    security.insecure = insecure != nullptr && std::strcmp(insecure, "1") == 0;
  }

  // Reads -o before the command line is parsed, so that errors in it already have this form.
  void choose_error_form() {
    const std::vector<std::string>& words = arguments_.words;
    for (size_t i = 0; i < words.size(); ++i) {
      std::string form;
      if ((words[i] == "-o" || words[i] == "--output") && i + 1 < words.size()) form = words[i + 1];
      for (const char* prefix : {"-o=", "--output=", "-o"}) {
        if (form.empty() && absl::StartsWith(words[i], prefix)) form = words[i].substr(std::strlen(prefix));
      }
      if (form == "json" || form == "yaml") set_machine_readable(true);
    }
  }

  int act() {
    if (!arguments_.words.empty() && arguments_.words[0] == "__complete") return complete_words();
    if (arguments_.words.empty()) {
      print(app_.help());
      return kExitUsage;
    }
    if (arguments_.words[0] == "help") {
      if (const std::string wrong = translate_help(); !wrong.empty()) return usage(wrong);
    }
    try {
      std::vector<std::string> reversed(arguments_.words.rbegin(), arguments_.words.rend());
      app_.parse(reversed);
    } catch (const CLI::CallForHelp&) {
      print(app_.help());
      return kExitOk;
    } catch (const CLI::CallForVersion& version) {
      print(std::string(version.what()) + "\n");
      return kExitOk;
    } catch (const CLI::ParseError& error) {
      return usage(error.what());
    }
    if (const std::string wrong = unknown_words(); !wrong.empty()) return usage(wrong);
    const auto format = parse_format(output_);
    if (!format.ok()) return usage(std::string(format.status().message()));
    choice_.globals.format = *format;
    choice_.globals.wide = output_ == kWide;
    rpc::use_folder(choice_.globals.access.security);
    set_machine_readable(*format != OutputFormat::kTable);
    set_utc(utc_);
    if (!timeout_.empty() && !read_timeout())
      return usage("--timeout is '" + timeout_ + "': it must be a number of seconds above 0");
    if (project_is_given() && !text::is_project_name(project())) {
      return usage("TITAN_PROJECT is '" + project() +
                   "': the name of a project is 1 to 63 letters, digits, '-', '_' or '.'");
    }
    if (!choice_.action) {
      print(app_.help());
      return kExitUsage;
    }
    return choice_.action();
  }

  // Turns `help VERB` into `VERB --help`. Returns the error when there is no such verb, else "".
  std::string translate_help() {
    std::vector<std::string>& words = arguments_.words;
    const auto end = std::find_if(words.begin(), words.end(), [](const std::string& word) { return word[0] == '-'; });
    const std::vector<std::string> topic(words.begin() + 1, std::max(words.begin() + 1, end));
    std::string unknown;
    if (find_verb(app_, topic, unknown) == nullptr) {
      return absl::StrCat("unknown verb '", unknown, "' for `titanctl help`",
                          topic.front() == unknown ? did_you_mean(unknown, verbs_of(app_)) : "");
    }
    words.erase(words.begin());
    words.emplace_back("--help");
    return "";
  }

  void add_flat_aliases() {
    const auto before = app_.get_subcommands([](const CLI::App*) { return true; });
    std::vector<std::string> groups;
    for (const CLI::App* sub : before) groups.push_back(sub->get_group());
    add_job_verbs(app_, choice_, "Jobs");  // Also moves `job` and `node` into its group.
    for (size_t i = 0; i < before.size(); ++i) before[i]->group(groups[i]);
  }

  bool read_timeout() {
    double seconds = 0;
    if (!absl::SimpleAtod(timeout_, &seconds) || !(seconds > 0) || !std::isfinite(seconds)) return false;
    choice_.globals.timeout = absl::Seconds(seconds);
    choice_.globals.timeout_given = true;
    return true;
  }

  // Returns the last verb that was recognised.
  CLI::App& deepest() {
    CLI::App* app = &app_;
    while (!app->get_subcommands().empty()) app = app->get_subcommands().back();
    return *app;
  }

  std::string unknown_words() {
    CLI::App& app = deepest();
    const std::string where = app.get_parent() == nullptr ? "titanctl" : "titanctl " + verb_path(app);
    for (const std::string& word : app_.remaining(/*recurse=*/true)) {
      if (word.rfind('-', 0) == 0)
        return absl::StrCat("unknown flag '", word, "' for `", where, "`", did_you_mean(word, flags(app)));
      const std::vector<std::string> verbs = verbs_of(app);
      if (!verbs.empty()) return absl::StrCat("unknown verb '", word, "' for `", where, "`", did_you_mean(word, verbs));
      return absl::StrCat("unexpected '", word, "' for `", where, "`");
    }
    const bool reads_keys = app.get_name() == "submit" || app.get_name() == "resubmit" || app.get_name() == "run" ||
                            app.get_name() == "bench" || app.get_name() == "validate" || app.get_name() == "dump" ||
                            app.get_name() == "show";
    if (!arguments_.overrides.empty() && !reads_keys) {
      return absl::StrCat("`", where, "` reads no configuration, so it takes no ", arguments_.overrides[0]);
    }
    return "";
  }

  static std::string verb_path(const CLI::App& app) {
    const CLI::App* parent = app.get_parent();
    return parent == nullptr || parent->get_parent() == nullptr ? app.get_name()
                                                                : verb_path(*parent) + " " + app.get_name();
  }

  static std::vector<std::string> flags(const CLI::App& leaf) {
    std::vector<std::string> out;
    for (const CLI::App* app = &leaf; app != nullptr; app = app->get_parent()) {
      for (const CLI::Option* option : app->get_options()) {
        for (const std::string& name : option->get_lnames()) out.push_back("--" + name);
      }
    }
    return out;
  }

  int usage(const std::string& what) {
    return report(absl::InvalidArgumentError(what),
                  "`titanctl --help` shows the verbs, `titanctl VERB --help` the flags of one");
  }

  int complete_words() {
    rpc::use_folder(choice_.globals.access.security);
    const std::vector<std::string> words(arguments_.words.begin() + 1, arguments_.words.end());
    for (const std::string& candidate : complete(app_, words, choice_.globals)) print(candidate + "\n");
    return kExitOk;
  }

  CommandLine arguments_;
  ParsedCommand choice_;
  CLI::App app_;
  std::string output_ = "table";
  bool utc_ = false;
  std::string timeout_;
};

}  // namespace
}  // namespace titan::cli

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);  // A closed pipe ends the output, and print() reports that.
  titan::rpc::quiet_grpc_log();
  return titan::cli::Program(titan::cli::split_arguments(argc, argv)).run();
}

#include <memory>

#include "controller/cli/token_commands.h"
#include "controller/cli/verbs.h"

namespace titan::cli {

void add_token_verbs(CLI::App& parent, Choice& choice) {
  auto made = std::make_shared<TokenRequest>();
  CLI::App& create = add_verb(parent, choice, "create", "Make a token and print it, this once",
                              "titanctl auth token create --user alice --role operator --project vision --expires 30d\n"
                              "(umask 077; titanctl auth token create --user ci --role viewer --project '*' > token)",
                              [&choice, made] { return create_token(choice.globals, *made); });
  create
      .add_option("--user", made->user,
                  "Who calls with it, as records and events will name them; workers that are root run their jobs as "
                  "the unix user of this name")
      ->required();
  create
      .add_option("--role", made->role,
                  "viewer reads, operator also makes and ends jobs (of all projects: drains nodes), admin does "
                  "everything")
      ->required();
  create.add_option("--project", made->projects, "Where the role holds; may be repeated; '*': everywhere")->required();
  create.add_option("--expires", made->expires, "After so long, such as 30d or 12h; without: when it is revoked");
  add_verb(parent, choice, "list", "Tokens, without their secrets", "titanctl auth token list",
           [&choice] { return list_tokens(choice.globals); });
  auto id = std::make_shared<std::string>();
  add_verb(parent, choice, "revoke", "Let nobody in with a token any more, also where it is in use",
           "titanctl auth token revoke 4f1c09ab52de", [&choice, id] { return revoke_token(choice.globals, *id); })
      .add_option("id", *id, "Its id, as `list` shows it")
      ->required();
}

}  // namespace titan::cli

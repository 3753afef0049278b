// titan-data makes, checks and shows training data without a job.

#include <CLI/CLI.hpp>
#include <iostream>
#include <string_view>

#include "common/base/version/version.h"
#include "common/service/failpoint/failpoint.h"
#include "worker/rank/tools/data/chat.h"
#include "worker/rank/tools/data/encode_decode.h"
#include "worker/rank/tools/data/images.h"
#include "worker/rank/tools/data/tokenize.h"
#include "worker/rank/tools/data/verify.h"

int main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "encode-images") return titan::tools::start_encode_images(argv);
  CLI::App app{
      "Makes, checks and shows what jobs train on.\n\n"
      "  titan-data tokenize --tokenizer assets/tokenizer --out tokens texts/*.jsonl.zst\n"
      "  titan-data verify tokens\n"
      "  titan-data encode --tokenizer assets/tokenizer 'Hello world'\n"
      "  titan-data decode --tokenizer assets/tokenizer 9906 1917\n"
      "  titan-data chat --tokenizer assets/tokenizer chats.jsonl\n"
      "  titan-data encode-images job.toml --out encodings\n",
      "titan-data"};
  app.require_subcommand(1);
  app.set_version_flag("--version", titan::version_text("titan-data", {argv, argv + argc}), titan::kVersionHelp);
  titan::tools::add_tokenize(app);
  titan::tools::add_verify(app);
  titan::tools::add_encode(app);
  titan::tools::add_decode(app);
  titan::tools::add_chat(app);
  titan::tools::add_encode_images(app);
  if (const absl::Status armed = titan::failpoint::arm_from_environment(); !armed.ok()) {
    std::cerr << "titan-data: " << std::string(armed.message()) << "\n";
    return 2;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::RuntimeError& error) {
    return error.get_exit_code();
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return 0;
}

// titan-data: looks at what jobs train on, without a job.

#include <CLI/CLI.hpp>

#include "common/version/version.h"
#include "worker/tools/data/decode.h"
#include "worker/tools/data/encode.h"

int main(int argc, char** argv) {
  CLI::App app{
      "Looks at what jobs train on.\n\n"
      "  titan-data encode --tokenizer assets/tokenizer 'Hello world'\n"
      "  titan-data encode --tokenizer assets/tokenizer -o table --file page.txt\n"
      "  titan-data decode --tokenizer assets/tokenizer 9906 1917\n",
      "titan-data"};
  app.require_subcommand(1);
  app.set_version_flag("--version", titan::version_line("titan-data"));
  titan::tools::add_encode(app);
  titan::tools::add_decode(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::RuntimeError& error) {
    return error.get_exit_code();
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return 0;
}

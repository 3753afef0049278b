#include "worker/rank/tools/data/images.h"

#include <unistd.h>

#include <cerrno>
#include <iostream>
#include <string>

#include "common/base/host/host_facts.h"
#include "common/base/status/status.h"

namespace titan::tools {

void add_encode_images(CLI::App& program) {
  program.add_subcommand("encode-images",
                         "Encodes images and captions of a flux job once, so that training needs neither images nor "
                         "encoders (format \"encodings\"). If killed and run again, it resumes");
}

int start_encode_images(char** argv) {
  const std::string program = (host::folder_of_program() / "titan-generate").string();
  ::execv(program.c_str(), argv);
  const absl::Status status = errno_status(errno, program);
  std::cerr << "titan-data encode-images: " << std::string(status.message())
            << ": the program that computes with the encoders is not next to titan-data\n";
  return 1;
}

}  // namespace titan::tools

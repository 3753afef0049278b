#pragma once

namespace titan::tools {

// Runs "titan-data encode-images" with these words, the first of which is the command's name. Returns the exit code:
// 0 done, 1 failed, 2 usage, 3 not found.
int encode_images_main(int argc, char** argv);

}  // namespace titan::tools

#pragma once

#include <string>
#include <vector>

#include "google/protobuf/message.h"
#include "tests/fuzz/parts.h"

namespace titan::fuzz {

// Makes any message of a type from bytes: fields, their values and how many there are of them. Near bytes give near
// messages. Texts are often one of `words`, so that they name what is there, and always UTF-8: others end their stream
// in Protobuf already.
void fill(google::protobuf::Message& message, Parts& bytes, const std::vector<std::string>& words);

}  // namespace titan::fuzz

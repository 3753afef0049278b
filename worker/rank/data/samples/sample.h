#pragma once

// A sample of images and texts, as a file of a dataset holds it: nothing is decoded.

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"

namespace titan::data {

// An image, a text or a stored encoding of a sample.
struct SamplePart {
  enum class Kind { kImage, kText, kTensor };
  Kind kind = Kind::kText;
  // An image as it is encoded in the file (JPEG, PNG or WebP); a text in UTF-8; a tensor's numbers, little-endian.
  std::string bytes;

  bool operator==(const SamplePart&) const = default;
};

// Images and texts in reading order. A sample with a caption is one image, then one text; a stored one is its tensors
// (encodings_manifest.h), then its text.
struct Sample {
  std::string key;   // Its name in its file: "000000012".
  std::string name;  // Its name in messages: "shard-0001.tar: 000000012".
  std::vector<SamplePart> parts;
  nlohmann::ordered_json fields;  // The JSON object that the file holds about it; null if there is none.
  std::string problem;            // Why it cannot be used ("no image"); empty for a good sample.
  int64_t stored_bytes = 0;       // Bytes that were read from the file for it.

  // Return the first image or text; null if there is none. A good sample with a caption has both.
  const std::string* image() const { return first(SamplePart::Kind::kImage); }
  const std::string* caption() const { return first(SamplePart::Kind::kText); }

 private:
  const std::string* first(SamplePart::Kind kind) const {
    const auto found =
        std::find_if(parts.begin(), parts.end(), [kind](const SamplePart& part) { return part.kind == kind; });
    return found == parts.end() ? nullptr : &found->bytes;
  }
};

}  // namespace titan::data

#pragma once

#include <utility>

#include "absl/status/status.h"

namespace titan::cli {

// Reads a list to its end and hands over each page. Errors: that of the page that could not be read.
template <typename Request, typename List, typename Take>
absl::Status each_page(Request request, const List& list, const Take& take) {
  do {
    const auto page = list(request);
    if (!page.ok()) return page.status();
    take(*page);
    request.set_page_token(page->next_page_token());
  } while (!request.page_token().empty());
  return absl::OkStatus();
}

}  // namespace titan::cli

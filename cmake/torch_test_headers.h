// The same for tests.
#include "cmake/torch_headers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

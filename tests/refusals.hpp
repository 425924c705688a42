// SPDX-License-Identifier: MIT
/// \file
/// Asks that wrong use is refused with the right kind of error and a sentence that holds the numbers.
#pragma once

#include <exception>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

/// Expects the value of `expression` to be refused with exactly `error`, in a sentence that contains `words`.
#define EXPECT_REFUSAL(expression, error, words)         \
  do {                                                   \
    std::string sentence_;                               \
    EXPECT_THROW(                                        \
        {                                                \
          try {                                          \
            static_cast<void>(expression);               \
          } catch (const std::exception& refusal_) {     \
            sentence_ = refusal_.what();                 \
            throw;                                       \
          }                                              \
        },                                               \
        error);                                          \
    EXPECT_THAT(sentence_, ::testing::HasSubstr(words)); \
  } while (false)
